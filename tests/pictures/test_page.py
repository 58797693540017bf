"""The page as a file: its data and its safety."""
import base64
import json
import re
from pathlib import Path

import numpy as onp
import pytest
import sentences

import d2lbert as d2l
from d2lbert.pictures.activations import attention_of, clearest_head
from d2lbert.pictures.show import (
    Page,
    _token_data,
    escape_json,
    page_data,
    quantize,
    render,
    show,
)
from d2lbert.pretrained.heads import About, FineTuned
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece

TOKENS = Path(__file__).parents[1] / 'pretrained/fixtures/tokens'

SCRIPT = re.compile(r'<script type="application/json" id="data">(.*?)'
                    r'</script>', re.DOTALL)


def dequantized(text, bits, shape):
    """Attention weights as the page reads them."""
    numbers = onp.frombuffer(base64.b64decode(text),
                             '<u2' if bits == 16 else 'uint8')
    numbers = numbers.reshape(shape).astype('float64')
    return numbers ** 2 / (numbers ** 2).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize('bits, tolerance', [(16, 2e-5), (8, 3e-3)])
def test_quantized_weights_are_the_weights(bits, tolerance):
    rng = onp.random.RandomState(0)
    weights = rng.dirichlet(onp.full(50, 0.1), (2, 3, 50))
    weights[0, 0] = 1 / 50
    weights[0, 1] = onp.eye(50)
    found = dequantized(quantize(weights.astype('float32'), bits), bits,
                     weights.shape)
    onp.testing.assert_allclose(found, weights, atol=tolerance)
    onp.testing.assert_array_equal(found[0, :2], weights[0, :2])


def test_the_page_holds_the_weights_and_sizes_of_the_model(data, model):
    net, tokenizer = model
    text = data['texts'][1]
    one = tokenizer.encode('a crane driver came', 'he just left')
    T = len(one.ids)
    assert [token['token'] for token in text['tokens']] == one.tokens
    parts = 'a crane driver came', 'he just left'
    assert [(token['written'], token['special'])
            for token in text['tokens']] == [
        ('', True) if word is None else (parts[segment][begin:end], False)
        for segment, (begin, end), word in zip(one.segments, one.offsets,
                                               one.words)]
    assert data['bits'] == 16
    onp.testing.assert_allclose(
        dequantized(text['attention'], 16, (2, 3, T, T)),
        attention_of(net, one.ids, one.segments), atol=2e-5)
    assert data['layers'] == 2 and data['heads'] == 3
    assert text['head'] == clearest_head(
        attention_of(net, one.ids, one.segments),
        [word is None for word in one.words])
    assert data['parameters'] == sum(
        param.data().size for param in net.collect_params().values())


def test_tokens_are_spelled_as_in_their_text():
    tokenizer = WordPiece.load(TOKENS / 'roberta')
    pair = 'the tree', 'my house'
    encoded = tokenizer.encode(*pair)
    assert set(encoded.segments) == {0}
    written = [token['written'] for token in _token_data(pair, encoded)]
    assert ''.join(written) == 'thetreemyhouse'


def test_markup_in_a_text_stays_data(data):
    page = render(data)
    found, = SCRIPT.findall(page)
    assert json.loads(found) == json.loads(json.dumps(data))
    assert not set('<>&\u2028\u2029') & set(found)
    assert page.count('<script') == page.count('</script>') == 2
    # Name of the run: in the title and nowhere else as markup
    assert page.count('What a &amp; &lt;b&gt;run learnt') == 2
    assert '<b>run' not in page
    assert escape_json({'x': 'a\udc80'}) == '{"x":"a\\\\udc80"}'


def test_the_page_loads_no_other_file(data):
    page = render(data)
    head = page[:page.index('<script')]
    assert "default-src 'none'" in head
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert 'http://' not in page.replace('http://www.w3.org/2000/svg', '')
    assert 'https://' not in page and 'url(' not in page
    # No data becomes markup or a program
    program = page[page.rindex('<script>'):]
    assert not re.search(r'innerHTML|outerHTML|insertAdjacentHTML|eval\(|'
                         r'document\.write|new Function', program)


def test_a_notebook_shows_the_page_in_a_frame(data):
    html = Page(data)._repr_html_()
    frame = re.fullmatch(r'<iframe [^<>]* srcdoc="([^"<>]*)"></iframe>', html)
    assert frame and 'sandbox="allow-scripts' in html
    text = frame.group(1)
    for name, sign in (('quot', '"'), ('lt', '<'), ('gt', '>'), ('#x27', "'"),
                       ('amp', '&')):
        text = text.replace(f'&{name};', sign)
    assert text == render(data)


def test_a_paragraph_of_the_chapters_size_is_below_two_megabytes():
    tokenizer = sentences.whole_words()
    net = sentences.build_net(len(tokenizer), num_hiddens=128, num_heads=2,
                              max_len=300)
    page = show((net, tokenizer), ' '.join(sentences.WORDS * 8))
    assert len(page.html.encode()) < 2_000_000


@pytest.mark.parametrize('words', [iter(['crane']), 'crane'])
def test_a_net_in_memory_and_the_vocabulary_of_a_run_are_shown(run, words):
    net, vocab = d2l.load_run(run)
    found = page_data((net, vocab), iter(['a crane']), words)
    assert found['training'] is None and found['kind'] == 'in memory'
    assert [word['word'] for word in found['senses']] == ['crane']
    assert sorted(found['senses'][0]['names']) == ['bird', 'machine']


def test_a_model_that_chooses_endings_is_shown_without_its_choices():
    tokenizer = sentences.whole_words()
    net = FineTuned(sentences.build_net(len(tokenizer), max_len=30), 'choice',
                    1)
    net.output.initialize()
    net.about = About('swag', 'choice', True, None, (), 30, 8, False, 0.1)
    found = page_data((net, tokenizer), [('a bird', 'it flies')])
    assert found['kind'] == 'fine-tuned' and found['task'] == 'swag'
    assert found['texts'][0]['prediction'] is None
    assert found['texts'][0]['attention']


def test_a_page_of_a_model_for_single_texts_needs_no_texts(tuned):
    found = page_data(tuned)
    assert [text['pair'] for text in found['texts']] == [None, None]
    assert all(text['prediction'] for text in found['texts'])


def test_a_net_without_the_head_makes_no_guesses(tmp_path):
    tokenizer = sentences.whole_words()
    net = sentences.build_net(len(tokenizer), embedding_norm=True)
    d2l.save_pretrained(net, tokenizer, 'whole')
    assert page_data('whole', 'a crane')['texts'][0]['guesses']
    from safetensors.numpy import load_file, save_file
    tensors = {name: array for name, array
               in load_file('whole/model.safetensors').items()
               if not name.startswith('cls.')}
    save_file(tensors, 'whole/model.safetensors')
    found = page_data('whole', 'a crane')
    assert found['texts'][0]['guesses'] is None
    assert found['kind'] == 'released' and found['training'] is None


@pytest.mark.parametrize('texts, said', [
    ([], 'texts is empty'), (['a', ' '], 'a text is empty'),
    ([3], 'must be a string or a pair'), (['a ' * 2000], 'only 1000 pos')])
def test_invalid_texts_are_refused(texts, said, model):
    with pytest.raises((ValueError, TypeError), match=said):
        page_data(model, texts)


def test_a_page_is_written_whole_and_never_over_another(data, tmp_path):
    page = Page(data)
    page.save('x.html')
    assert (tmp_path / 'x.html').read_text('utf-8') == page.html
    with pytest.raises(FileExistsError, match='x.html exists already'):
        page.save('x.html')
    page.save('x.html', force=True)
    assert [path.name for path in tmp_path.iterdir()] == ['x.html']
