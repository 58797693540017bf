"""`d2lbert generate`, and other commands with a BART."""
import json
import shutil
from pathlib import Path

import numpy as onp
import pytest
import sentences
from commands import refusal

import d2lbert as d2l
from d2lbert.__main__ import main
from d2lbert.pretrained.generation import (
    Beams,
    GenerationConfig,
    config_of,
    generated_ids,
)
from d2lbert.pretrained.heads import FineTuned

FIXTURES = Path(__file__).parents[1] / 'pretrained' / 'fixtures'
BART, BERT = str(FIXTURES / 'bart-0'), str(FIXTURES / 'roberta-0')
TEXTS = ['The crane is flying', 'it was late.']


def out_of(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr()


def test_a_line_is_printed_for_each_text(tmp_path, capsys):
    net, tokenizer = d2l.load_pretrained(BART)
    said = [' '.join(text.split())
            for text in d2l.generate(net, tokenizer, TEXTS, num_beams=3,
                                     max_len=8, min_len=5,
                                     length_penalty=0.5)]
    how = ['--num-beams', '3', '--max-len', '8', '--min-len', '5',
           '--length-penalty', '0.5']
    assert out_of(capsys, 'generate', BART, *TEXTS, *how).out.split('\n') == [
        *said, '']
    (tmp_path / 'texts').write_text('\n'.join(TEXTS))
    assert out_of(capsys, 'generate', BART, '--file', tmp_path / 'texts',
                  *how).out.split('\n') == [*said, '']


def test_texts_do_not_depend_on_other_texts():
    net, tokenizer = d2l.load_pretrained(BART)
    texts = [*TEXTS, 'fly', 'a b c, it is the .'] * 5
    assert d2l.generate(net, tokenizer, texts) == [
        said for text in texts
        for said in d2l.generate(net, tokenizer, [text])]


@pytest.mark.parametrize('n', [1, 2, 3])
def test_no_n_gram_is_generated_twice(n):
    net, tokenizer = d2l.load_pretrained(BART)
    how = config_of(net, tokenizer)._replace(
        no_repeat_ngram=n, num_beams=2, min_len=12, max_len=14, last_id=None)
    for ids in generated_ids(net, [[0, 7, 9, 2], [0, 11, 2]], how):
        runs = [tuple(ids[k:k + n]) for k in range(len(ids) - n + 1)]
        assert len(set(runs)) == len(runs) > 8
    # start_id counts, too
    tokens, none = {1: ([9, 5], [5, 9]), 2: ([9, 4, 5, 9], [4]),
                    3: ([9, 4, 5, 9, 4], [5])}[n]
    scores = how._replace(min_len=0, first_id=None).exclude_tokens(
        onp.zeros(90), tokens)
    assert onp.flatnonzero(scores == -onp.inf).tolist() == none


def test_truncation_and_skipped_texts_are_reported(tmp_path, capsys):
    folder = tmp_path / 'bart-0'
    shutil.copytree(BART, folder)
    path = folder / 'generation_config.json'
    path.write_text(json.dumps(dict(json.loads(path.read_text()),
                                    do_sample=True)))
    err = out_of(capsys, 'generate', folder, 'crane ' * 30, 'fly').err
    assert 'do_sample=True, which is not supported and ignored' in err
    assert '1 of 2 texts have more than 14 tokens and were cut' in err


@pytest.mark.parametrize('arguments, said', [
    ([BERT, 'a'], 'this model has no decoder and does not read'),
    ([f'{BART}-classify', 'a'], 'this model is fine-tuned, and no longer has'),
    ([BART], 'give texts, or --file FILE'),
    ([BART, 'a', '--file', 'b'], 'not both'),
    ([BART, 'a', '--file', ''], 'not both'),
    ([BART, 'a', '--text-field', 'b'], 'are for the lines of --file'),
    ([BART, '--file', 'nowhere'],
     'there is no file or folder nowhere: name an existing one for --file'),
    ([BART, 'a', '--num-beams', '0'], '--num-beams: 0 must be'),
    ([BART, 'a', '--num-beams', '46'], 'more than half'),
    ([BART, 'a', '--max-len', '99'], 'max_len=99 must be at most 15'),
    ([BART, 'a', '--length-penalty', 'nan'], 'length_penalty must be'),
    ([BART, 'a', '--num-beams', '2', '--length-penalty', '2000'],
     'length_penalty=2000.0 must be from'),
    ([BART, 'a', '--min-len', '-1'], '--min-len: -1 must be')])
def test_a_mistake_gets_one_sentence(arguments, said, capsys):
    assert said in refusal(capsys, 'generate', *arguments)[1]


def test_a_fine_tuned_causal_net_lacks_the_head_that_predicts_tokens():
    tokenizer = sentences.whole_words()
    net = FineTuned(sentences.build_net(len(tokenizer), causal=True),
                    'classify', 2)
    with pytest.raises(ValueError, match='is fine-tuned, and no longer has'):
        d2l.generate(net, tokenizer, ['a crane'])


def test_whole_floats_generate_as_ints_do():
    net, tokenizer = d2l.load_pretrained(BART)
    how = dict(num_beams=2, max_len=8, min_len=3, no_repeat_ngram=2)
    assert d2l.generate(net, tokenizer, TEXTS, **how) == d2l.generate(
        net, tokenizer, TEXTS, **{name: float(n) for name, n in how.items()})


def test_early_stopping_1_is_refused():
    net, tokenizer = d2l.load_pretrained(BART)
    config = config_of(net, tokenizer)
    for value in True, False, 'never':
        config._replace(early_stopping=value).validated(net)
    with pytest.raises(ValueError, match="True, False or 'never', not 1"):
        config._replace(early_stopping=1).validated(net)


@pytest.mark.parametrize('change, said', [
    (dict(encoder_attention_heads=5),
     'encoder_attention_heads is 5, which does not'),
    (dict(decoder_attention_heads=5),
     'decoder_attention_heads is 5, which does not'),
    (dict(decoder_start_token_id=90), 'decoder_start_token_id is 90'),
    (dict(tie_word_embeddings=False), 'separate embeddings of encoder and'),
    (dict(is_encoder_decoder=False), 'a single stack of layers'),
    (dict(decoder_layers=3), 'tensors of the decoder are missing'),
    (dict(activation_dropout=2), 'activation_dropout is 2')])
def test_a_folder_that_cannot_be_served_is_refused(change, said, tmp_path):
    folder = tmp_path / 'bart-0'
    shutil.copytree(BART, folder)
    path = folder / 'config.json'
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=said):
        d2l.load_pretrained(folder)


def test_vectors_and_guesses_are_the_decoder_s(capsys):
    net, tokenizer = d2l.load_pretrained(BART)
    text = 'The crane <mask> late'
    ids = tokenizer.encode(text).ids
    X, scores, _ = net([ids], None, None, [list(range(len(ids)))])
    vectors, = d2l.encode(net, tokenizer, [text], pooling=None)
    assert abs(vectors - X.asnumpy()[0]).max() < 1e-5
    guess, = d2l.fill_mask(net, tokenizer, text, 1)
    place = ids.index(tokenizer.mask_id)
    assert guess[0].token == tokenizer.idx_to_token[
        int(scores[0, place, :len(tokenizer)].argmax())]


@pytest.mark.parametrize('stopping, goes_on', [('never', True),
                                               (False, False)])
def test_never_stops_early_counts_on_the_greatest_length(stopping, goes_on):
    config = GenerationConfig(0, 1, num_beams=1, max_len=11,
                              length_penalty=1.0, early_stopping=stopping)
    search = Beams(config)
    # At two tokens -4 is worse than -1.5, and over ten it could be better
    search.scores, search.finished = onp.array([-4.0]), [(-1.5, [0, 1])]
    assert search._can_improve(2) == goes_on


def test_a_text_ends_as_soon_as_it_has_min_len_tokens():
    how = GenerationConfig(0, 1, min_len=3, max_len=9)
    for count in range(1, 5):
        scores = how.exclude_tokens(onp.zeros(5), [0] * count)
        assert onp.isinf(scores[1]) == (count < 3)
