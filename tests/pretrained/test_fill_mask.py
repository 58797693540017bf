"""The likeliest tokens at a mask, against NumPy."""
import numpy as onp
import published
import pytest

from d2lbert.machine.terminal import TextWarning
from d2lbert.pretrained.fill_mask import fill_mask
from d2lbert.pretrained.folders import load_pretrained
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords
from d2lbert.text import Vocab


@pytest.fixture(scope='module')
def tensors():
    return published.draw(published.CONFIG)


@pytest.fixture(scope='module')
def model(tensors, tmp_path_factory):
    return load_pretrained(published.write(
        tmp_path_factory.mktemp('pretrained') / 'x', None, tensors))


def shares(tensors, tokens):
    """The probabilities of all tokens at each place, (T, V), by NumPy."""
    ids = [published.VOCAB.index(token) for token in tokens]
    mlm = published.forward({}, tensors, ids, [0] * len(ids))[2]
    return onp.exp(mlm) / onp.exp(mlm).sum(axis=1, keepdims=True)


def test_each_mask_has_the_likeliest_tokens_first(model, tensors):
    found = fill_mask(*model, 'The [MASK] is flying[MASK]', top=4)
    expected = shares(tensors, ['[CLS]', 'the', '[MASK]', 'is', 'fly',
                                '##ing', '[MASK]', '[SEP]'])
    assert len(found) == 2
    for guesses, place in zip(found, (2, 6)):
        best = onp.argsort(-expected[place])[:4]
        assert [guess.token for guess in guesses] == [
            published.VOCAB[idx] for idx in best]
        onp.testing.assert_allclose(
            [guess.probability for guess in guesses], expected[place, best],
            1e-4)


def test_top_is_the_number_of_tokens(model):
    assert [len(fill_mask(*model, '[MASK]', top=top)[0])
            for top in (1, 3, 23, 1000)] == [1, 3, 23, 23]
    every = fill_mask(*model, '[MASK]', top=23)[0]
    assert abs(sum(guess.probability for guess in every) - 1) < 1e-6
    assert sorted(guess.token for guess in every) == sorted(published.VOCAB)
    assert len(fill_mask(*model, '[MASK]')[0]) == 5


def test_an_id_without_a_token_is_never_guessed(tmp_path):
    config = dict(published.CONFIG, vocab_size=40)
    tensors = published.draw(config)
    tensors['cls.predictions.bias'][23:] = 100
    model = load_pretrained(published.write(tmp_path / 'x', config, tensors))
    guesses, = fill_mask(*model, 'the [MASK]', top=40)
    assert len(guesses) == 23
    assert sum(guess.probability for guess in guesses) < 1e-6


def test_unknown_words_are_named(model):
    _, tokenizer = model
    mask = tokenizer.idx_to_token[tokenizer.mask_id]
    with pytest.warns(TextWarning, match=r'1 of \d tokens are unknown '
                      'words, read as .*: zzyzx'):
        fill_mask(*model, f'{mask} zzyzx')


def test_whole_words_are_guessed_too(model):
    vocab = Vocab([['crane', 'is', 'flying']] * 2,
                  reserved_tokens=['<pad>', '<mask>', '<cls>', '<sep>'])
    guesses, = fill_mask(model[0], WholeWords(vocab), 'A crane <mask>', 99)
    assert sorted(guess.token for guess in guesses) == sorted(
        vocab.idx_to_token)


@pytest.mark.parametrize('text, top, said', [
    ('the crane is flying', 5, r'the text has no \[MASK\]: write \[MASK\] '),
    ('', 5, r'the text has no \[MASK\]: write'),
    ('[MASK] a b c a b c a', 5, 'the text has 10 tokens, but this model only '
     '9 positions: shorten it'),
    *[('[MASK]', top, f'top must be a whole number of at least 1, not {top}')
      for top in (0, 1.5, float('inf'), float('nan'), None)]])
def test_a_text_that_cannot_be_filled_is_refused_in_one_sentence(model, text,
                                                                 top, said):
    with pytest.raises(ValueError, match=said) as error:
        fill_mask(*model, text, top)
    assert '\n' not in str(error.value)
