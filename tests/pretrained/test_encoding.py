"""Texts to vectors: the same ones whatever comes with them."""
import warnings
from pathlib import Path

import numpy as onp
import pytest
import sentences
from processes import in_a_process

import d2lbert as d2l
from d2lbert.machine.backend import autograd, np
from d2lbert.machine.terminal import TextWarning
from d2lbert.pretrained import encoding
from d2lbert.pretrained.encoding import Text, TextEncoder
from d2lbert.pretrained.pooling import Pooling
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.progress import bar

H = 20


@pytest.fixture(scope='module')
def tokenizer():
    return sentences.whole_words()


@pytest.fixture(scope='module')
def net(tokenizer):
    return sentences.build_net(len(tokenizer))


@pytest.fixture(scope='module')
def texts():
    return sentences.texts(200)


@pytest.fixture
def fused(compiler):
    """Skips where MXNet's own operators are at work, which promise less."""
    from d2lbert import kernels
    if not kernels.load():
        pytest.skip('the compiled operators are not in use')


def of_tokens(net, tokenizer, text, layer=-1):
    """Token vectors (T, H) of a text encoded alone, with padding."""
    encoded = tokenizer.encode(text)
    T = len(encoded.ids)
    tokens = onp.full((2, T + 3), tokenizer.pad_id, 'int32')
    segments = onp.zeros_like(tokens)
    tokens[0, :T], segments[0, :T] = encoded.ids, encoded.segments
    X = net.encoder(np.array(tokens), np.array(segments),
                    np.array([T, T + 3], dtype='float32'), layer)
    return X[0, :T].asnumpy()


def bits(X):
    return onp.asarray(X).view('int32')


# Vectors do not depend on other texts

@pytest.mark.parametrize('pooling', ['mean', 'cls', 'max'])
def test_a_vector_is_the_same_to_the_last_bit_in_any_batch(
        net, tokenizer, texts, pooling, fused):
    wanted = d2l.encode(net, tokenizer, texts, pooling, normalize=True)
    assert wanted.shape == (200, H) and wanted.dtype == onp.float32
    for batch_size in (1, 2, 7, 64, 200):
        order = onp.random.RandomState(batch_size).permutation(200)
        found = d2l.encode(net, tokenizer, [texts[i] for i in order],
                           pooling, normalize=True, batch_size=batch_size)
        onp.testing.assert_array_equal(bits(found), bits(wanted)[order])
    alone = [d2l.encode(net, tokenizer, [text], pooling, normalize=True)[0]
             for text in texts[:20]]
    onp.testing.assert_array_equal(bits(alone), bits(wanted)[:20])


def test_so_are_the_vectors_of_tokens_and_of_windows(net, tokenizer, texts,
                                                     fused, monkeypatch):
    flags = dict(pooling=None, layer=1, max_len=9, overlap=3)
    wanted = d2l.encode(net, tokenizer, texts, **flags)
    monkeypatch.setattr(encoding, 'SORTED_TEXTS', 11)
    for batch_size in (1, 5, None):
        found = d2l.encode(net, tokenizer, texts[::-1],
                           batch_size=batch_size, **flags)
        for X, Y in zip(found, wanted[::-1]):
            onp.testing.assert_array_equal(bits(X), bits(Y))


THREADS = '''
import numpy as onp, sentences, d2lbert as d2l
tokenizer = sentences.whole_words()
net = sentences.build_net(len(tokenizer))
onp.save('x.npy', d2l.encode(net, tokenizer, sentences.texts(200)))
'''


@pytest.mark.parametrize('threads', [1, 3])
def test_so_they_are_with_any_number_of_threads(threads, net, tokenizer,
                                                texts, fused, tmp_path):
    in_a_process(THREADS, OMP_NUM_THREADS=str(threads))
    onp.testing.assert_array_equal(
        bits(onp.load(tmp_path / 'x.npy')),
        bits(d2l.encode(net, tokenizer, texts)))


# Values of vectors

@pytest.mark.parametrize('layer', [-1, 0, 1, 2, -2])
def test_tokens_have_the_vectors_of_the_net(net, tokenizer, texts, layer,
                                            path):
    found = d2l.encode(net, tokenizer, texts[:9], None, layer)
    for text, X in zip(texts, found):
        assert X.dtype == onp.float32 and X.base is None
        onp.testing.assert_allclose(
            X, of_tokens(net, tokenizer, text, layer), atol=2e-5)


@pytest.mark.parametrize('pooling, wanted', [
    ('cls', lambda X: X[0]),
    ('lasttoken', lambda X: X[-1]),
    ('mean', lambda X: X.mean(0)),
    ('max', lambda X: X.max(0)),
    ('mean_sqrt_len_tokens', lambda X: X.sum(0) / onp.sqrt(len(X))),
    ('weightedmean', lambda X: onp.average(
        X, 0, onp.arange(len(X)) + 1.0))])
def test_pooling_makes_one_vector_of_those(net, tokenizer, texts, pooling,
                                           wanted):
    found = d2l.encode(net, tokenizer, texts[:9], pooling)
    exact = [wanted(of_tokens(net, tokenizer, text).astype('float64'))
             for text in texts[:9]]
    onp.testing.assert_allclose(found, exact, atol=2e-5)
    found = d2l.encode(net, tokenizer, texts[:9], pooling, normalize=True)
    exact /= onp.linalg.norm(exact, axis=1, keepdims=True)
    onp.testing.assert_allclose(found, exact, atol=2e-5)


def test_a_pooling_of_its_own_is_the_tokenizers(net, texts):
    tokenizer = sentences.whole_words()
    mean = d2l.encode(net, tokenizer, texts[:5], 'mean')
    onp.testing.assert_array_equal(d2l.encode(net, tokenizer, texts[:5]),
                                   mean)
    tokenizer.pooling = Pooling(('max', 'cls'), True, 9, 'the bird ', True)
    cut = ['the bird ' + ' '.join(text.split()[:5]) for text in texts[:5]]
    wanted = onp.concatenate([d2l.encode(net, sentences.whole_words(), cut, p)
                              for p in ('max', 'cls')], axis=1)
    wanted /= onp.linalg.norm(wanted, axis=1, keepdims=True)
    found = d2l.encode(net, tokenizer, [text.upper() for text in texts[:5]])
    onp.testing.assert_allclose(found, wanted, atol=1e-6)
    tokenizer.pooling = Pooling(refusal='this folder lists Dense')
    with pytest.raises(ValueError, match='lists Dense'):
        d2l.encode(net, tokenizer, texts[:5])
    onp.testing.assert_array_equal(
        d2l.encode(net, tokenizer, texts[:5], 'mean'), mean)


def test_pairs_are_encoded_as_the_tokenizer_joins_them(net, tokenizer):
    pair, single = d2l.encode(net, tokenizer, [
        ('a crane', 'it flies'), 'old bird'], None)
    ids = tokenizer.encode('a crane', 'it flies')
    X, _, _ = net(np.array([ids.ids], dtype='int32'),
                  np.array([ids.segments], dtype='int32'))
    onp.testing.assert_allclose(pair, X[0].asnumpy(), atol=2e-5)
    assert pair.shape == (7, H) and single.shape == (4, H)


def test_a_text_that_is_too_long_is_cut_and_counted(net, capsys, caplog):
    tokenizer = sentences.whole_words()
    long = ' '.join(['crane', 'river', 'tree', 'wing', 'old'] * 10)
    with pytest.warns(TextWarning) as warned:
        found = d2l.encode(net, tokenizer, ['a bird', long, long + ' it'])
    assert [str(one.message) for one in warned] == [
        '2 of 3 texts have more than 30 tokens and were cut; 45 tokens were '
        'left out; overlap= would keep them']
    assert warned[0].filename == __file__
    kept = ' '.join(long.split()[:28])
    short = d2l.encode(net, tokenizer, ['a bird', kept, kept])
    onp.testing.assert_array_equal(bits(found), bits(short))
    assert not caplog.records
    # A server should not write a line for each request
    with warnings.catch_warnings(), caplog.at_level('INFO', 'd2lbert'):
        warnings.simplefilter('error')
        (pair,) = d2l.encode(net, tokenizer, [(long, 'it is')], None,
                             max_len=9)
    assert len(pair) == 9
    assert '1 of 1 texts have more than 9 tokens' in caplog.text
    assert capsys.readouterr() == ('', '')


def test_unknown_words_are_named_once(net):
    tokenizer = sentences.whole_words()
    with pytest.warns(TextWarning) as warned:
        d2l.encode(net, tokenizer, ['a 鹤 bird', ('鹤 it', '山')])
    assert [str(one.message) for one in warned] == [
        '3 of 6 tokens are unknown words, read as <unk>: '
        '鹤, 山']
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        d2l.encode(net, tokenizer, ['鹤', 'a bird'])


def test_unknown_words_of_a_pair_without_segments_are_from_their_texts():
    tokenizer = WordPiece.load(Path(__file__).with_name('fixtures')
                               / 'tokens/phobert')
    with pytest.warns(TextWarning) as warned:
        d2l.encode(sentences.build_net(len(tokenizer)), tokenizer,
                   [('龠 là', 'là 鹤 là 龜')])
    assert [str(one.message) for one in warned] == [
        '3 of 6 tokens are unknown words, read as <unk>: 龠, 鹤, 龜']


def test_many_texts_have_a_bar(net, tokenizer, capsys, monkeypatch):
    texts = ['a bird', 'the old tree'] * 40
    d2l.encode(net, tokenizer, texts, show_progress=True)
    assert capsys.readouterr().err == ''    # a file: after five seconds
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    for shown in True, None, False:
        d2l.encode(net, tokenizer, texts, show_progress=shown)
        # By default it appears after a second
        assert ('| 0/80 ' in capsys.readouterr().err) == (shown is True)
    calls = []
    monkeypatch.setattr(encoding, 'bar', lambda *args, **keywords: (
        calls.append((args, keywords)), bar(*args, **keywords))[1])
    monkeypatch.setattr(encoding, 'in_notebook', lambda: True)
    d2l.encode(net, tokenizer, texts)
    (args, keywords), = calls
    assert args[0] == 80 and not keywords['quiet']


def test_a_vocabulary_without_special_tokens_is_refused(net):
    with pytest.raises(ValueError, match='has no token <pad>, <mask>, <cls>, '
                       '<sep>'):
        d2l.encode(net, d2l.Vocab([['a']]), ['a'])


@pytest.mark.parametrize('change, said', [
    (dict(texts=None), 'texts must be a list of texts, not None'),
    (dict(texts=3), 'texts must be a list of texts, not 3'),
    (dict(texts='a bird'), 'texts must be a list of texts, not one'),
    (dict(texts=['a', None]), r'texts\[1\] must be a string'),
    (dict(layer=1.0), 'layer must be a whole number, not 1.0'),
    (dict(max_len=9.5), 'max_len must be a whole number, not 9.5'),
    (dict(overlap='2'), "overlap must be a whole number, not '2'"),
    (dict(batch_size=2.0), 'batch_size must be a whole number, not 2.0'),
    (dict(net=None), 'net must be a net, such as .*net, not None'),
    (dict(tokenizer=3), 'tokenizer must be a tokenizer, such as .*, not 3')])
def test_what_is_no_argument_is_named(net, tokenizer, change, said):
    given = {**dict(net=net, tokenizer=tokenizer, texts=['a bird']), **change}
    with pytest.raises(TypeError, match=said):
        d2l.encode(**given)
    with pytest.raises(TypeError, match='net and tokenizer are swapped'):
        d2l.encode(tokenizer, net, ['a bird'])


@pytest.mark.parametrize('overlap', [0, 1, 4, 6])
@pytest.mark.parametrize('count', [7, 8, 15, 40])
def test_windows_give_each_token_its_best_vector(net, tokenizer, overlap,
                                                 count, capsys):
    words = list(onp.random.RandomState(count).choice(sentences.WORDS, count))
    (found,) = d2l.encode(net, tokenizer, [' '.join(words)], None, max_len=9,
                          overlap=overlap)
    # Windows of seven words, 7 - overlap words apart; the last one is full
    begins = [0] if count <= 7 else sorted({
        min(begin, count - 7)
        for begin in range(0, count, 7 - overlap)})
    parts = {begin: of_tokens(net, tokenizer,
                              ' '.join(words[begin:begin + 7]))
             for begin in begins}
    wanted = [onp.mean([X[0] for X in parts.values()], axis=0)]
    for i in range(count):
        def room(begin, i=i):
            return min(i - begin, begin + 6 - i)
        best = max(begins, key=room)
        wanted.append(parts[best][1 + i - best])
    wanted.append(onp.mean([X[-1] for X in parts.values()], axis=0))
    onp.testing.assert_allclose(found, wanted, atol=2e-5)
    assert capsys.readouterr().err == ''


def test_nothing_is_dropped_and_nothing_recorded(net, tokenizer, texts):
    wanted = d2l.encode(net, tokenizer, texts[:9])
    with autograd.record():
        found = d2l.encode(net, tokenizer, texts[:9])
    onp.testing.assert_array_equal(found, wanted)


def test_no_texts_give_no_vectors(net, tokenizer):
    assert d2l.encode(net, tokenizer, []).shape == (0, H)
    assert d2l.encode(net, tokenizer, [], None) == []


@pytest.mark.parametrize('texts, flags, error, reason', [
    ('a bird', {}, TypeError, r"must be a list of texts, not one: give \['a"),
    ([3], {}, TypeError, r'texts\[0\] must be a string, or a pair of strings, '
     'not 3'),
    (list(onp.zeros((1, 99))), {}, TypeError, 'strings, not a ndarray$'),
    (['a', ('a', 'b', 'c')], {}, TypeError, r'texts\[1\] must be'),
    (['a', ' '], {}, ValueError, r'texts\[1\] is empty: give at least one'),
    ([('a', '')], {}, ValueError, r'texts\[0\] is empty'),
    (['a'], {'pooling': 'sum'}, ValueError, 'must be own, cls, mean, max, .*'
     "or None, not 'sum'"),
    (['a'], {'pooling': ['mean']}, ValueError, r"or None, not \['mean'\]"),
    (['a'], {'pooling': None, 'normalize': True}, ValueError,
     'normalize=True is for one vector a text'),
    (['a'], {'max_len': 31}, ValueError,
     'max_len=31 is more than the 30 positions'),
    (['a'], {'max_len': 2}, ValueError, 'max_len=2 leaves no room for a text'
     ': give 3 or more'),
    (['a'], {'max_len': 9, 'overlap': 7}, ValueError,
     'overlap=7 must be at least 0 and less than 7, the tokens'),
    (['a'], {'overlap': -1}, ValueError, 'overlap=-1 must be'),
    (['a'], {'batch_size': 0}, ValueError, 'batch_size=0 must be at least 1'),
    (['a'], {'layer': 3}, ValueError, 'layer must lie between -3 and 2'),
    ([('a b c d e', 'a b c')], {'max_len': 9, 'overlap': 1}, ValueError,
     r'texts\[0\]: 11 tokens are more than 9, and overlap= is for')])
def test_what_is_no_text_or_choice_is_refused(net, tokenizer, texts, flags,
                                              error, reason):
    with pytest.raises(error, match=reason):
        d2l.encode(net, tokenizer, texts, **flags)


def test_an_encoder_that_does_not_cut_names_the_text(net, tokenizer):
    long = Text('x.txt, line 3', 'a ' * 30)
    with pytest.raises(ValueError, match='x.txt, line 3: 32 tokens are more '
                                         'than the 30 positions'):
        TextEncoder(net, tokenizer, truncates=False).encode([long])
    longer = Text('x.txt, line 4', 'a ' * 40)
    with pytest.raises(ValueError, match='x.txt, line 3: 32 tokens'):
        TextEncoder(net, tokenizer, truncates=False).encode([long, longer])
    for flags in ({'max_len': 30}, {'overlap': 2}):
        encoder = TextEncoder(net, tokenizer, truncates=False, **flags)
        assert encoder.encode([long])[0].vectors.shape == (H,)
