"""Texts in word pieces: stored as the tokenizer cuts them, hidden by words."""
import collections
import itertools
import random

import numpy as onp
import pytest
from texts import make_wiki, write

from d2lbert.corpus import cut_text, text_reader, text_store, word_types
from d2lbert.corpus.corpus import open_corpus
from d2lbert.pretrained.tokenizers import word_pieces as pieces_module
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.texts.examples import draw_examples, mask_pairs
from d2lbert.texts.numbered_text import NumberedText

pytest.importorskip('tokenizers')

CASED = '''\
 = Birds =

 The Crane flew over Ångström . It 's <unk> and fl\u00fcgge . CRANES , cranes
'''.replace('\ncranes', ' cranes')


def opened(*names, **keywords):
    return open_corpus(names, progress=False, **keywords)


def sentences_of(part):
    """The ids of each sentence, lists."""
    ends = part.sentences.tolist()
    ids = part.ids.tolist()
    return [ids[a:b] for a, b in zip(ends, ends[1:])]


def cut_by_hand(tokenizer, text):
    """The pieces of whole sentences, split by the library."""
    found = []
    for line in text.split('\n'):
        if ' . ' in line:
            for sentence in line.strip().split(' . '):
                ids = tokenizer.encode(sentence.replace('<unk>',
                                                        '[UNK]')).ids
                found.append(ids[1:-1])
    return found


@pytest.mark.parametrize('blocks', [None, 3])
def test_sentences_are_split_as_the_tokenizer_splits_them(monkeypatch, blocks):
    if blocks:      # several blocks
        monkeypatch.setattr(text_store, 'WORDS_AT_A_TIME', blocks)
        monkeypatch.setattr(cut_text, 'BLOCK_WORDS', blocks)
    text = make_wiki(12)[0] + CASED
    valid = make_wiki(3, seed=5)[0] + ' Unseen wörds here . ok <unk> .\n'
    write('train.txt', text), write('valid.txt', valid)
    found = opened('train.txt', valid_paths='valid.txt', pieces=150)
    tokenizer = found.vocab.tokenizer
    assert 100 < len(found.vocab) <= 150
    assert sentences_of(found.train) == cut_by_hand(tokenizer, text)
    assert sentences_of(found.valid) == cut_by_hand(tokenizer, valid)
    assert found.train.types.dtype == onp.uint16


def test_held_out_articles_teach_no_piece():
    # A letter of its own for each article
    letters = [chr(0x4e00 + k) for k in range(40)]
    text = ''.join(f' \n = {letter} = \n \n {letter} a crane . flies . \n'
                   for letter in letters)
    write('train.txt', text)
    found = opened('train.txt', valid_share=0.1, pieces=400)
    train, valid = ([part.vocab.to_tokens(sentence) for sentence
                     in sentences_of(part)[::2]] for part in found[:2])
    assert valid == [['[UNK]', 'a', 'crane']] * 4
    taught = [tokens[0] for tokens in train]
    assert len(taught) == 36 and set(taught) == (
        set(letters) & set(found.vocab.idx_to_token))


def test_capitals_and_accents_stay_where_the_tokenizer_has_them(tmp_path):
    write('train.txt', CASED * 3)
    cased = WordPiece.train('train.txt', 120, lowercase=False)
    cased.save(tmp_path)
    found = opened('train.txt', vocab=PieceVocab.load(tmp_path))
    assert sentences_of(found.train) == cut_by_hand(cased, CASED * 3)
    tokens = ''.join(found.vocab.to_tokens(sentences_of(found.train)[0]))
    assert 'C' in tokens and 'Å' in tokens.replace('##', '')


def test_learnt_and_given_pieces_give_the_same_text():
    write('train.txt', make_wiki(5)[0])
    learnt = opened('train.txt', pieces=120)
    given = opened('train.txt', vocab=learnt.vocab.tokenizer)
    assert learnt.fingerprint == given.fingerprint
    fewer = opened('train.txt', pieces=len(learnt.vocab) - 3)
    assert fewer.fingerprint != learnt.fingerprint
    assert opened('train.txt').fingerprint != learnt.fingerprint
    with pytest.raises(ValueError, match='both choose the vocabulary'):
        opened('train.txt', pieces=10, vocab=learnt.vocab)
    with pytest.raises(ValueError, match='max_vocab is for whole words'):
        opened('train.txt', pieces=10, max_vocab=10)


def test_no_word_is_lost_when_words_are_pruned(monkeypatch, own_cache):
    text = make_wiki(30)[0] + ' \n = X = \n \n a .  . b .   . c <unk> . \n'
    write('train.txt', text)
    learnt = opened('train.txt', pieces=150)
    monkeypatch.setattr(text_reader, 'BLOCK_BYTES', 400)
    monkeypatch.setattr(word_types, 'MAX_TYPES', 40)
    for vocab in learnt.vocab, learnt.vocab.tokenizer:
        given = opened('train.txt', vocab=vocab)
        assert given.fingerprint != learnt.fingerprint      # of the settings
        for name in 'types', 'sentences', 'paragraphs':
            assert (getattr(given.train, name).tolist()
                    == getattr(learnt.train, name).tolist())
    assert sentences_of(given.train) == cut_by_hand(given.vocab.tokenizer,
                                                    text)
    # Pieces learnt while words are pruned split all words
    few = opened('train.txt', pieces=150)
    assert sentences_of(few.train) == cut_by_hand(few.vocab.tokenizer, text)
    pruned = []
    prune = word_types.WordTypes.prune
    monkeypatch.setattr(word_types.WordTypes, 'prune', lambda self: (
        pruned.append(len(self)), prune(self))[1])
    monkeypatch.setenv('D2LBERT_CACHE', 'off')
    assert opened('train.txt', vocab=learnt.vocab).train.num_words == (
        learnt.train.num_words)
    assert len(pruned) > 5


@pytest.mark.parametrize('lowercase', [True, False])
@pytest.mark.parametrize('stretch', [1 << 16, 7])
def test_words_are_cut_as_the_library_cuts_them(
        lowercase, stretch, monkeypatch, compiled, plain):
    monkeypatch.setattr(pieces_module, 'TASK_BYTES', stretch)
    rng = random.Random(stretch)
    letters = "abcdeABCDE09.,-'#[]<>@_~!\x01\x7féΣ鹤İ"
    words = ['<unk>', '[UNK]', '[MASK]', '##a', '#', 'a' * 100, 'a' * 101,
             'a' * 101 + '.b', 'abc' * 30 + 'zz', 'a\0b', '~', '<unk>x']
    words += [''.join(rng.choice(letters[:rng.choice([5, 10, 24, 30])])
                      for _ in range(rng.randint(1, 12)))
              for _ in range(600)]
    write('train.txt', ' '.join(words[12:500]) + ' e' * 40)
    tokenizer = WordPiece.train('train.txt', 260, lowercase=lowercase)
    vocab = PieceVocab(tokenizer)
    lines = ''.join(f'{word}\n' for word in [*words, '<unk>']).encode()
    fast = vocab.cutter()(lines)
    plain()
    slow = vocab.cutter()(lines)
    for ours, theirs in zip(fast, slow):
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()
    ids, begins = fast
    assert len(begins) == len(words) + 2 and begins[-1] == len(ids) > 1500
    # As the library splits a text of this word alone
    for k in range(12, len(words), 7):
        assert ids[begins[k]:begins[k + 1]].tolist() == (
            tokenizer.encode(words[k]).ids[1:-1])


def test_words_of_ascii_are_normalized_as_the_library_does():
    counts = {''.join(word): 1 + k for k, word in enumerate(
        itertools.product('aZ9.-é', repeat=3))}
    for lowercase in True, False:
        options = dict(lowercase=lowercase, strip_accents=None)
        whole = pieces_module._normalized(counts, options)
        # A letter beyond ASCII before it: none is taken the short way
        parts = pieces_module._normalized(
            {f'é.{word}': count for word, count in counts.items()}, options)
        total = sum(counts.values())
        accent = 'e' if lowercase else 'é'
        parts -= collections.Counter({accent: total, '.': total})
        assert whole == parts and len(whole) > 30


# Examples

@pytest.fixture(scope='module')
def pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp('pieces') / 'text.txt'
    path.write_text('banana cherimoya <unk> figs and dragonfruit ! ' * 40)
    return PieceVocab(WordPiece.train(path, 40))


@pytest.fixture
def corpus(pieces):
    """Sentences of random pieces, [UNK] among them, often several a word."""
    rng = onp.random.RandomState(0)
    ids = onp.append(pieces.replacement_ids, pieces.unk)
    types = rng.choice(ids, 9000).astype('int32')
    sentences = onp.arange(0, 9001, 9)
    return NumberedText(types, onp.arange(len(pieces), dtype='int32'),
                  sentences, onp.arange(0, 1001, 2), pieces)


@pytest.mark.parametrize('whole_words', [False, True])
@pytest.mark.parametrize('max_len', [21, 24])
def test_both_ways_draw_the_same(corpus, compiled, plain, whole_words,
                                 max_len):
    order = onp.arange(corpus.num_paragraphs, dtype='int32')
    rngs = random.Random(1), random.Random(1)
    fast = draw_examples(corpus, order, max_len, rngs[0],
                         whole_words=whole_words)
    plain()
    slow = draw_examples(corpus, order, max_len, rngs[1],
                         whole_words=whole_words)
    assert len(fast.tokens_X) > 400
    for ours, theirs in zip(fast, slow):
        onp.testing.assert_array_equal(ours, theirs)
    assert rngs[0].getstate() == rngs[1].getstate()


def drawn_rows(corpus, whole_words, share=0.15, max_len=21, times=10):
    """(row without masks, row, positions, labels) of many examples."""
    order = onp.arange(corpus.num_paragraphs, dtype='int32')
    for seed in range(times):
        columns = draw_examples(corpus, order, max_len, random.Random(seed),
                                share, whole_words=whole_words)
        for row, length, positions, weights, labels in zip(
                columns.tokens_X, columns.valid_lens_x,
                columns.pred_positions_X, columns.mlm_weights_X,
                columns.mlm_Y):
            positions = positions[weights > 0]
            labels = labels[weights > 0]
            before = row.copy()
            before[positions] = labels
            yield before[:int(length)], row, positions, labels


@pytest.mark.parametrize('whole_words', [False, True])
def test_special_tokens_are_never_masked_or_inserted(corpus, pieces,
                                                    whole_words):
    special = set(pieces.tokenizer.special_ids)
    assert special == {0, 1, 2, 3, 4}
    put_in = collections.Counter()
    for before, row, positions, labels in drawn_rows(corpus, whole_words):
        assert not special & set(labels.tolist())
        put_in.update(row[positions].tolist())
    # Other tokens than [MASK] are random pieces, and every piece occurs
    assert special & set(put_in) == {pieces.tokenizer.mask_id}
    assert set(put_in) - special == set(pieces.replacement_ids.tolist())


def words_at(before, pieces):
    """The positions of each word in a row, lists, special tokens left out.
    """
    found, last_special = [], True
    for k, idx in enumerate(before.tolist()):
        token = pieces.idx_to_token[idx]
        special = token.startswith('[')
        if not special:
            if last_special or not token.startswith('##'):
                found.append([])
            found[-1].append(k)
        last_special = special
    return found


def test_whole_words_are_masked_up_to_the_share(corpus, pieces):
    fates, sizes = collections.Counter(), []
    hidden, rooms = 0, 0
    for before, row, positions, _ in drawn_rows(corpus, True, share=0.3):
        chosen = set(positions.tolist())
        most = max(1, round(0.3 * len(before)))
        assert len(chosen) <= most
        left = []
        for word in words_at(before, pieces):
            inside = chosen & set(word)
            assert inside in (set(), set(word))
            (sizes if inside else left).append(len(word))
        # Whatever is left would have been too much
        assert not left or len(chosen) + min(left) > most
        hidden, rooms = hidden + len(chosen), rooms + most
        for position in positions:
            fates[('mask' if row[position] == pieces.tokenizer.mask_id else
                   'kept' if row[position] == before[position] else
                   'other')] += 1
    assert max(sizes) > 2 and min(sizes) == 1
    assert hidden > 0.93 * rooms
    total, chance = sum(fates.values()), 1 / len(pieces.replacement_ids)
    assert total > 25000
    assert abs(fates['mask'] / total - 0.8) < 0.01
    assert abs(fates['kept'] / total - 0.1 * (1 + chance)) < 0.01


def test_without_whole_words_single_pieces_are_masked(corpus, pieces):
    parted = 0
    for before, _, positions, _ in drawn_rows(corpus, False, times=1):
        chosen = set(positions.tolist())
        assert len(chosen) == max(1, round(0.15 * len(before)))
        parted += any(chosen & set(word) not in (set(), set(word))
                      for word in words_at(before, pieces))
    assert parted > 100


def test_a_word_that_is_too_long_is_never_masked(pieces):
    # One word of eight pieces, and 15% of 13 tokens are two
    ids = pieces['b ##a ##n ##a ##n ##a ##a ##n'.split()]
    assert pieces.unk not in ids
    corpus = NumberedText(onp.array(ids * 2, 'int32'),
                    onp.arange(len(pieces), dtype='int32'),
                    onp.array([0, 8, 16]), onp.array([0, 2]), pieces)
    spans = onp.array([[0, 8, 8, 10]])
    for seed in range(20):
        columns = mask_pairs(corpus, spans, [True], 13, random.Random(seed),
                             whole_words=True)
        # The second text is a word of two pieces, which fit
        assert columns.pred_positions_X.tolist() == [[10, 11]]
