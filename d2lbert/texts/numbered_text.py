"""A text in numbers: its vocabulary, and what examples are drawn from."""
import collections.abc

import numpy as onp

from d2lbert.kernels import cut, draw
from d2lbert.text import RESERVED, Vocab
from d2lbert.texts.words import STOP

# Words that are looked at together where a text may be larger than memory
BLOCK_WORDS = 1 << 22


def stretched(begins, lengths):
    """Places of stretches, one behind the other: begins[k] and what follows.

    begins (stretches,) int64, or one number for all; lengths (stretches,).
    Returns (places of all,) int64.
    """
    firsts = onp.cumsum(lengths) - lengths
    return onp.arange(int(lengths.sum())) + onp.repeat(begins - firsts,
                                                       lengths)


class Corpus:
    """A text as vocabulary numbers.

    Word i has the number numbers[types[i]] in `vocab`. Sentence s has the
    words sentences[s] up to sentences[s + 1], paragraph q has the sentences
    paragraphs[q] up to paragraphs[q + 1]. The arrays may be memory-mapped.

    types (words,) uint16 or int32; numbers (types,) int32; sentences and
    paragraphs (their number + 1,) int64.
    """

    def __init__(self, types, numbers, sentences, paragraphs, vocab):
        self.types, self.numbers = types, numbers
        self.sentences, self.paragraphs = sentences, paragraphs
        self.vocab = vocab

    @classmethod
    def of_tokens(cls, tokens, order, min_freq):
        """Number the words of `Tokens` by a vocabulary built from them.

        Equally frequent words stand as they first come when the paragraphs
        come in `order`.
        """
        num_sentences = onp.diff(tokens.paragraphs)
        if not len(num_sentences) or num_sentences.max() < 2:
            raise ValueError('no paragraph has two sentences: expected a '
                             f'paragraph a line, with {STOP!r} between '
                             'sentences')
        if num_sentences.min() < 1:
            raise ValueError('a paragraph is empty: leave it out')
        corpus = cls(tokens.types, None, tokens.sentences, tokens.paragraphs,
                     None)
        num_types = len(tokens.names)
        freqs = onp.bincount(tokens.types, minlength=num_types)
        falling = falling_types(corpus, freqs, order).tolist()
        freqs = freqs.tolist()
        corpus.vocab = Vocab.from_freqs(
            [(tokens.names[k], freqs[k]) for k in falling], min_freq,
            RESERVED)
        corpus.numbers = onp.array(corpus.vocab[tokens.names], 'int32')
        return corpus

    @property
    def num_words(self):
        return len(self.types)

    @property
    def num_sentences(self):
        return len(self.sentences) - 1

    @property
    def num_paragraphs(self):
        return len(self.paragraphs) - 1

    @property
    def num_pairs(self):
        """Neighbours in the same paragraph, too long ones included."""
        return self.num_sentences - self.num_paragraphs

    @property
    def ids(self):
        """The vocabulary number of each word, in memory: (words,) int32."""
        return self.numbers[self.types]

    def read(self, begin, end):
        """The types of words `begin` to end - 1."""
        return self.types[begin:end]

    def gathered(self, spans):
        """(types, spans): an array with the words of `spans`, and where.

        spans: (N, 4) int64, two places where words begin and end.
        """
        return self.types, spans


def shuffled_paragraphs(num_paragraphs, rng):
    """The order in which rng.shuffle leaves so many paragraphs: int32."""
    order = onp.arange(num_paragraphs, dtype='int32')
    if draw.can_draw(rng):
        draw.shuffle(order, rng)
    else:
        rng.shuffle(order)
    return order


def falling_types(corpus, freqs, order):
    """All types by falling frequency: (types,) int64.

    Equally frequent ones stand as they first come when the paragraphs come
    in `order` (paragraphs,).
    """
    return onp.lexsort((_first_places(corpus, order, len(freqs)), -freqs))


def _first_places(corpus, order, num_types):
    """Where each type first stands in a text with its paragraphs in `order`.

    The text is gone through as it is stored, a block at a time.
    """
    starts = corpus.sentences[corpus.paragraphs]
    lengths = onp.diff(starts)
    # Where each paragraph would begin
    moved = onp.empty(len(lengths), 'int64')
    moved[order] = onp.cumsum(lengths[order]) - lengths[order]
    first = onp.full(num_types, len(corpus.types), 'int64')
    cuts = onp.searchsorted(
        starts, onp.arange(0, int(starts[-1]), BLOCK_WORDS), 'right') - 1
    cuts = [*onp.unique(cuts).tolist(), len(lengths)]
    for begin, end in zip(cuts, cuts[1:]):
        types = corpus.read(int(starts[begin]), int(starts[end]))
        if draw.library() is not None:
            cut.first_places(types, lengths[begin:end], moved[begin:end],
                             first)
            continue
        rising = begin + onp.argsort(moved[begin:end], kind='stable')
        counts = lengths[rising]
        # Words of the block in that order: where they are, and would be
        types = types[stretched(starts[rising] - starts[begin], counts)]
        places = stretched(moved[rising], counts)
        here = onp.full(num_types, len(corpus.types), 'int64')
        # Of several values assigned to one place NumPy keeps the last
        here[types[::-1]] = places[::-1]
        onp.minimum(first, here, out=first)
    return first


class ParagraphsOfWords(collections.abc.Sequence):
    """A corpus as the page has it: lists of sentences, lists of words."""

    def __init__(self, corpus, order):
        self.corpus, self.order = corpus, order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, k):
        q = self.order[k]
        begin, end = self.corpus.paragraphs[q:q + 2].tolist()
        ends = self.corpus.sentences[begin:end + 1].tolist()
        words = words_of(self.corpus, ends[0], ends[-1])
        return [words[a - ends[0]:b - ends[0]]
                for a, b in zip(ends, ends[1:])]


def words_of(corpus, begin, end):
    """Words `begin` to end - 1 of a corpus, a list of strings."""
    return corpus.vocab.to_tokens(
        corpus.numbers[corpus.read(begin, end)].tolist())
