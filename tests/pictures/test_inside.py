"""Attention weights, vectors by layer, guesses and neighbours of a net."""
import os
import subprocess
from pathlib import Path

import numpy as onp
import pytest
import reference
import sentences

import d2lbert as d2l
from d2lbert.machine.backend import nn, np
from d2lbert.pictures import activations, sample_texts, senses, show
from d2lbert.pictures.activations import (
    attention_of,
    clearest_head,
    guesses_of,
    vectors_by_layer,
)
from d2lbert.transformer import Blocks

TEXTS = [('a grey bird flies', 'it is a crane'), ('the old tree',),
         ('a crane sleeps under the tree',)]


@pytest.fixture(scope='module')
def small():
    tokenizer = sentences.whole_words()
    return sentences.build_net(len(tokenizer)), tokenizer


def float64_weights(net, ids, segments):
    """softmax(QKᵀ / √d) of each block and head, (L, N, T, T), in NumPy."""
    params = reference.parameters(net)
    N, found = net.config['num_heads'], []
    for k, X in enumerate(vectors_by_layer(net, [Ids(ids, segments)])):
        if k == net.config['num_layers']:
            return onp.stack(found)
        block = reference.under(params, f'encoder.blks.{k}.attention')
        Q, K = (reference.dense(reference.under(block, name),
                                X[0].astype('float64'))
                for name in ('W_q', 'W_k'))
        found.append([])
        for q, key in zip(onp.split(Q, N, -1), onp.split(K, N, -1)):
            scores = onp.exp(q @ key.T / onp.sqrt(q.shape[-1]))
            found[-1].append(scores / scores.sum(-1, keepdims=True))


class Ids:
    def __init__(self, ids, segments):
        self.ids, self.segments = ids, segments


@pytest.mark.parametrize('number', range(3))
def test_attention_is_the_float64_softmax_and_rows_sum_to_one(
        number, small, path):
    net, tokenizer = small
    one = tokenizer.encode(*TEXTS[number])
    found = attention_of(net, one.ids, one.segments)
    T = len(one.ids)
    assert found.shape == (2, 2, T, T) and found.dtype == 'float32'
    onp.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    onp.testing.assert_allclose(
        found, float64_weights(net, one.ids, one.segments), atol=1e-5)
    # A net that was looked into is as fast as before
    assert all(blk.attention.attention.attention_weights is None
               and not blk.attention.attention.keeps_weights
               for blk in net.encoder.blks)


def test_attention_is_what_the_page_keeps(small):
    net, tokenizer = small
    one = tokenizer.encode(*TEXTS[0])
    with d2l.keep_attention(net):
        net(np.array([one.ids]), np.array([one.segments]),
            np.array([len(one.ids)]))
        kept = [blk.attention.attention.attention_weights.asnumpy()
                for blk in net.encoder.blks]
    onp.testing.assert_allclose(attention_of(net, one.ids, one.segments),
                                kept, atol=1e-6)


def test_the_clearest_head_has_words_that_attend_to_other_words():
    T, special = 6, [True] + [False] * 4 + [True]
    heads = onp.zeros((2, 2, T, T), 'float32')
    heads[0, 0] = 1 / T                         # all alike
    heads[0, 1, :, T - 1] = 1                   # to <sep>
    heads[1, 0] = onp.eye(T)                    # each to itself
    heads[1, 1] = onp.roll(onp.eye(T), 1, axis=1)   # each to the next
    assert clearest_head(heads, special) == (1, 1)
    assert clearest_head(heads[::-1], special) == (0, 1)
    assert clearest_head(heads[:, :, :3, :3], [True, False, True]) == (0, 0)


def test_a_block_without_its_attention_is_refused(small):
    net, tokenizer = small
    other = sentences.build_net(len(tokenizer))
    other.encoder.blks = Blocks()
    other.encoder.blks.add(nn.Dense(20, flatten=False))
    other.initialize(force_reinit=True)
    with pytest.raises(ValueError, match='has 0 DotProductAttention in it'):
        attention_of(other, [2, 5, 3])


@pytest.mark.parametrize('keywords', [
    {}, dict(pre_norm=True), dict(num_groups=1, embedding_size=8),
    dict(num_groups=1, inner_group_num=2)])
def test_vectors_by_layer_are_those_of_encode(keywords, small):
    tokenizer = small[1]
    net = sentences.build_net(len(tokenizer), **keywords)
    encoded = [tokenizer.encode(*text) for text in TEXTS]
    for layer, rows in enumerate(vectors_by_layer(net, encoded)):
        wanted = d2l.encode(net, tokenizer, TEXTS, pooling=None, layer=layer)
        for found, each in zip(rows, wanted):
            onp.testing.assert_allclose(found, each, atol=1e-5)
    assert layer == 2


def test_layers_that_share_a_block_all_count(small):
    tokenizer = small[1]
    net = sentences.build_net(len(tokenizer), num_groups=1)
    assert len(net.encoder.blks) == 1
    assert ': 2 layers of 20' in str(d2l.TextModel(net, tokenizer))
    encoded = [tokenizer.encode('the crane')]
    heads, T = net.config['num_heads'], len(encoded[0].ids)
    assert show._count_weights(net, encoded) == 2 * heads * T ** 2


def test_the_page_has_the_last_block_of_each_layer(small):
    tokenizer = small[1]
    net = sentences.build_net(len(tokenizer), num_groups=1, inner_group_num=2)
    text = tokenizer.encode('the crane')
    data, = show.page_data((net, tokenizer), ['the crane'])['texts']
    assert len(data['near']) == 3
    assert data['attention'] == show.quantize(
        attention_of(net, text.ids)[1::2], 16)


def test_guesses_are_those_of_fill_mask(small):
    net, tokenizer = small
    words = 'the old crane flies'.split()
    hidden = guesses_of(net, tokenizer, tokenizer.encode(
        ' '.join(words)), 4)
    assert hidden[0] is hidden[-1] is None
    for k, word in enumerate(words):
        text = ' '.join([*words[:k], '<mask>', *words[k + 1:]])
        every, = d2l.fill_mask(net, tokenizer, text, len(tokenizer))
        found = hidden[1 + k]
        assert found.guesses == every[:4] and found.own.token == word
        assert every[found.rank - 1] == found.own


def test_neighbours_are_the_nearest_of_their_kind(small):
    net, tokenizer = small
    text = tokenizer.encode('a crane flies')
    those = [' '.join(text) for text in TEXTS] + ['the crane is old']
    places, (found,) = activations.neighbours_of(net, tokenizer, [text], those,
                                                top=3)
    for layer in range(3):
        X, = d2l.encode(net, tokenizer, ['a crane flies'], None, layer)
        rows = d2l.encode(net, tokenizer, those, None, layer)
        tokens = [token for one in those
                  for token in tokenizer.encode(one).tokens]
        Y = onp.concatenate(rows)
        cosines = X @ Y.T / onp.outer(*(onp.linalg.norm(A, axis=1)
                                        for A in (X, Y)))
        for t, token in enumerate(text.tokens):
            of_kind, same = found[layer][t]
            allowed = [k for k, other in enumerate(tokens)
                       if (other == token if '<' in token
                           else '<' not in other)]
            best = sorted(allowed, key=lambda k: -cosines[t, k])[:3]
            onp.testing.assert_allclose(of_kind.cosines, cosines[t, best],
                                        atol=1e-5)
            assert {tokens[k] for k in same.indices} <= {token}
    crane, = [place for place in found[2][2][1].indices[:1]]
    where = places[crane]
    assert those[where.sentence][where.begin:where.end] == 'crane'


def test_senses_are_of_the_word_in_the_sample_corpus(small):
    net, tokenizer = small
    uses = sample_texts.labelled_uses('Crane')
    assert {use.sense for use in uses} == {'bird', 'machine'}
    found = senses.sense_points(net, tokenizer, 'crane', uses)
    assert found.uses == uses and found.points.shape == (3, len(uses), 2)
    for sentence, begin, end, _ in uses:
        assert sentence[begin:end].lower() == 'crane'
    # Two principal components: no more than the vectors, and centred
    onp.testing.assert_allclose(found.points.mean(axis=1), 0, atol=1e-5)
    with pytest.raises(ValueError, match="0 uses of 'xyz' are in the first"):
        senses.sense_points(net, tokenizer, 'xyz', [])


def test_a_sample_has_sentences_with_the_words_asked_for(tmp_path):
    sample = sample_texts.bundled_sample()
    some = sample_texts.pick_sentences(sample, {'crane'})
    assert len(set(some)) == len(some) <= len(sample.sentences)
    assert sum('crane' in one.lower().split() for one in some) >= 15
    (tmp_path / 'x.txt').write_text('one crane\n\n two cranes \n')
    assert sample_texts.sample_of_file('x.txt').sentences == [
        'one crane', 'two cranes']


def test_sentences_and_uses_come_from_the_whole_text():
    sample = sample_texts.Sample(
        'x', [f'crane number {k}' for k in range(1000)])
    found = [int(one.split()[-1])
             for one in sample_texts.pick_sentences(sample, set())]
    assert len(found) == sample_texts.MAX_SENTENCES
    assert found == list(range(0, 1000, 4))
    uses = sample_texts.uses_of('crane', sample.sentences, max_uses=10)
    assert [use.sentence for use in uses] == [
        f'crane number {k}' for k in range(0, 1000, 100)]


def test_a_word_is_not_found_inside_another_word():
    sentences = ['two cranes fly', 'a decrane', 'The CRANE .', 'crane2',
                 'cranes and a crane', 'İ, a crane', 'a_crane_']
    assert [(use.sentence, use.begin, use.end) for use in sample_texts.uses_of(
        'crane', sentences)] == [
            ('The CRANE .', 4, 9), ('cranes and a crane', 13, 18),
            ('İ, a crane', 5, 10), ('a_crane_', 2, 7)]


#: Small models, and their attention in transformers as
#: tests/pretrained/record.py wrote it.
SMALL = sorted(Path(__file__).parents[1].glob(
    'pretrained/fixtures/written/net-[012]'))
ATTENTION = Path(__file__).with_name('attention.npz')
IDS = [*range(1, 21)]
PROGRAM = '''
import pathlib, sys, numpy, torch
from transformers import BertModel
ids = torch.tensor([list(map(int, sys.argv[1].split()))])
for folder in map(pathlib.Path, sys.argv[2:]):
    net = BertModel.from_pretrained(folder, attn_implementation='eager')
    with torch.no_grad():
        found = net.eval()(ids, output_attentions=True).attentions
    numpy.save(f'{folder.name}.npy', torch.cat(found).numpy())
'''


@pytest.fixture
def released():
    """Two folders of the one that D2LBERT_WEIGHTS names."""
    folders = [Path(os.environ['D2LBERT_WEIGHTS'], name)
               for name in ('minilm', 'tiny')]
    for folder in folders:
        if not (folder / 'config.json').is_file():
            pytest.skip('D2LBERT_WEIGHTS names a folder without '
                        f'{folder.name}/')
    return folders


def asked_of(python, folders, place):
    """{name of a folder: attention of transformers for the tokens `IDS`}."""
    subprocess.run(
        [python, '-c', PROGRAM, ' '.join(map(str, IDS)),
         *map(str, folders)], check=True, cwd=place,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, HF_HUB_OFFLINE='1', PYTHONPATH=''))
    return {folder.name: onp.load(place / f'{folder.name}.npy')
            for folder in folders}


def record(python, place):
    """Write `ATTENTION`."""
    onp.savez_compressed(ATTENTION, **asked_of(python, SMALL, place))


def check_attention(folders, expected):
    for folder in folders:
        net, _ = d2l.load_pretrained(folder, heads=(), trainable=False)
        found = attention_of(net, IDS)
        assert found.max() > 2 / len(IDS)       # it looks at some more
        onp.testing.assert_allclose(found, expected[folder.name], atol=1e-5)


def test_attention_is_that_of_transformers():
    check_attention(SMALL, onp.load(ATTENTION))


def test_attention_of_published_weights_is_that_of_transformers(
        peers_python, released, tmp_path):
    check_attention(released, asked_of(peers_python, released, tmp_path))
