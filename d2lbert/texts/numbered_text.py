"""Split a text into words by the book's rule, and number the words.

By this rule a line is a paragraph, ' . ' ends a sentence, and white space
separates words. Lines without ' . ' are left out.
"""
import collections
import re
from pathlib import Path
from typing import NamedTuple

import numpy as onp

from d2lbert.kernels import cut, draw
from d2lbert.text import RESERVED, Vocab
from d2lbert.texts import text_files

# Separates sentences. The last sentence of a line keeps its full stop
STOP = ' . '


class TokenizedText(NamedTuple):
    """The words of a text.

    Word i is names[types[i]]. Sentence s consists of the words sentences[s]
    to sentences[s + 1] - 1. Paragraph q consists of the sentences
    paragraphs[q] to paragraphs[q + 1] - 1.
    """

    types: onp.ndarray       # (number of words,) int32
    sentences: onp.ndarray   # (number of sentences + 1,) int64
    paragraphs: onp.ndarray  # (number of paragraphs + 1,) int64
    names: list              # the different words, by first occurrence


# From bytes to sentences

def line_ends(text):
    """The index of each line feed in `text`, bytes: (line feeds,) int64."""
    return onp.flatnonzero(onp.frombuffer(text, 'uint8') == ord('\n'))


def read_lines(path):
    """The lines of a UTF-8 text file, compressed or not.

    Raises FileNotFoundError, the errors of `text_files.pieces`, and ValueError
    for a line that is not UTF-8.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f'{path} is no file: name a text file in '
                                "WikiText's format")
    data = b''.join(text_files.pieces(path))
    if b'\r' in data:
        data = data.replace(b'\r\n', b'\n').replace(b'\r', b'\n')
    lines = []
    for number, line in enumerate(data.split(b'\n'), 1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f'{path}, line {number}: byte {error.start + 1} '
                f'({line[error.start]:#04x}) is not UTF-8: convert the file '
                'to UTF-8') from None
    return lines


def paragraphs_of_lines(lines, lower=True):
    """The sentences of each line that contains STOP: a list of lists."""
    return [(line.strip().lower() if lower else line.strip()).split(STOP)
            for line in lines if STOP in line]


# From sentences to words

def tokens_of_paragraphs(paragraphs):
    """The `TokenizedText` of paragraphs, lists of sentences (strings)."""
    # {word: type}; a new word gets the next type
    type_of = collections.defaultdict()
    type_of.default_factory = type_of.__len__
    sentences = [sentence.split() for paragraph in paragraphs
                 for sentence in paragraph]
    sentence_offsets = onp.cumsum([0] + [len(words) for words in sentences])
    paragraph_offsets = onp.cumsum(
        [0] + [len(paragraph) for paragraph in paragraphs], dtype='int64')
    types = onp.fromiter(
        (type_of[word] for words in sentences for word in words), 'int32',
        sentence_offsets[-1])
    return TokenizedText(types, sentence_offsets.astype('int64'),
                         paragraph_offsets, list(type_of))


def tokens_of_lines(lines, lower=True):
    """The `TokenizedText` of lines, by the book's rule."""
    if draw.library() is None:      # this library has the code of `cut`, too
        return tokens_of_paragraphs(paragraphs_of_lines(lines, lower))
    types, sentences, paragraphs, _, names, _ = cut.text(
        '\n'.join(lines).encode(), cut.PARAGRAPHS, lower)
    return TokenizedText(types, sentences, paragraphs,
                         names.decode().split('\n')[:-1])


_SPACES = re.compile(r'\s{2,}')


def tree_words(tree):
    """The text of a parse tree in SNLI's files, without its brackets."""
    return _SPACES.sub(' ', tree.replace('(', '').replace(')', '')).strip()


def read_tokens(path):
    """The `TokenizedText` of a file; raises the errors of `read_lines`."""
    return tokens_of_lines(read_lines(path))


#: The book's minimum frequency of a word in the vocabulary.
MIN_FREQ = 5

#: The approximate number of words in a block. A text may not fit into memory.
BLOCK_WORDS = 1 << 22


def concat_ranges(begins, lengths):
    """Concatenate ranges of integers: (sum of lengths,) int64.

    Range k is begins[k] to begins[k] + lengths[k] - 1. begins (ranges,)
    int64, or one begin for all ranges; lengths (ranges,).
    """
    new_begins = onp.cumsum(lengths) - lengths
    return onp.arange(int(lengths.sum())) + onp.repeat(begins - new_begins,
                                                       lengths)


class NumberedText:
    """A text with the number that each of its words has in a vocabulary.

    types, sentences, paragraphs: as in `TokenizedText`, but `types` may be
    uint16, and the arrays may be memory-mapped. numbers (number of types,)
    int32: word i has the number numbers[types[i]] in `vocab`.
    """

    def __init__(self, types, numbers, sentences, paragraphs, vocab):
        self.types, self.numbers = types, numbers
        self.sentences, self.paragraphs = sentences, paragraphs
        self.vocab = vocab

    @classmethod
    def of_tokens(cls, tokens, order, min_freq):
        """Number the words of a `TokenizedText` by a vocabulary of its words.

        The vocabulary has the words that occur at least min_freq times, sorted
        by `types_by_frequency`; order: as there.
        """
        sentence_counts = onp.diff(tokens.paragraphs)
        if not len(sentence_counts) or sentence_counts.max() < 2:
            raise ValueError('no paragraph has two sentences: expected one '
                             f'paragraph per line, with {STOP!r} between '
                             'sentences')
        if sentence_counts.min() < 1:
            raise ValueError('a paragraph is empty: leave it out')
        text = cls(tokens.types, None, tokens.sentences, tokens.paragraphs,
                   None)        # numbers and vocab are set below
        num_types = len(tokens.names)
        freqs = onp.bincount(tokens.types, minlength=num_types)
        sorted_types = types_by_frequency(text, freqs, order).tolist()
        freqs = freqs.tolist()
        text.vocab = Vocab.from_freqs(
            [(tokens.names[k], freqs[k]) for k in sorted_types], min_freq,
            RESERVED)
        text.numbers = onp.array(text.vocab[tokens.names], 'int32')
        return text

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
        """The number of pairs of adjacent sentences in the same paragraph."""
        return self.num_sentences - self.num_paragraphs

    @property
    def ids(self):
        """The vocabulary number of each word, in memory: (words,) int32."""
        return self.numbers[self.types]

    def read(self, begin, end):
        """The types of words `begin` to end - 1."""
        return self.types[begin:end]

    def gather(self, spans):
        """Return types, and the spans of the same words in these types.

        spans (N, 2) or (N, 4) int64: in each row, one or two ranges (begin,
        end) of words. Here the types of all words are returned. `StoredText`
        returns only the types of the words in the spans.
        """
        return self.types, spans


def shuffled_paragraphs(num_paragraphs, rng):
    """Indices of paragraphs, shuffled by rng.shuffle: (paragraphs,) int32.

    rng: `random`, a random.Random, or a generator with the same methods.
    """
    order = onp.arange(num_paragraphs, dtype='int32')
    if draw.can_draw(rng):
        draw.shuffle_paragraphs(order, rng)
    else:
        rng.shuffle(order)
    return order


def types_by_frequency(text, freqs, order):
    """All types of a `NumberedText`, frequent types first: (types,) int64.

    freqs (types,): the frequency of each type. order (paragraphs,): a
    permutation of the paragraphs. Equally frequent types are sorted by their
    first occurrence in the paragraphs in this order.
    """
    return onp.lexsort((_first_positions(text, order, len(freqs)), -freqs))


def _first_positions(text, order, num_types):
    """The first position of each type, with paragraphs in `order`.

    Returns (num_types,) int64: the number of words for a type that does not
    occur. Reads blocks in the order of the file.
    """
    # The first word of each paragraph, then the number of words
    starts = text.sentences[text.paragraphs]
    lengths = onp.diff(starts)
    # The first word of each paragraph, with paragraphs in `order`
    new_starts = onp.empty(len(lengths), 'int64')
    new_starts[order] = onp.cumsum(lengths[order]) - lengths[order]
    positions = onp.full(num_types, len(text.types), 'int64')
    # A block begins with the paragraph of each BLOCK_WORDS-th word
    first_paragraphs = onp.searchsorted(
        starts, onp.arange(0, int(starts[-1]), BLOCK_WORDS), 'right') - 1
    bounds = [*onp.unique(first_paragraphs).tolist(), len(lengths)]
    for begin, end in zip(bounds, bounds[1:]):
        types = text.read(int(starts[begin]), int(starts[end]))
        if draw.library() is not None:
            # Lowers entries of `positions`, in place
            cut.first_places(types, lengths[begin:end], new_starts[begin:end],
                             positions)
            continue
        # The block's paragraphs, in `order`
        paragraphs = begin + onp.argsort(new_starts[begin:end], kind='stable')
        block_lengths = lengths[paragraphs]
        ordered_types = types[concat_ranges(
            starts[paragraphs] - starts[begin], block_lengths)]
        word_positions = concat_ranges(new_starts[paragraphs], block_lengths)
        block_positions = onp.full(num_types, len(text.types), 'int64')
        # Reversed, since NumPy keeps the last of several values for an index
        block_positions[ordered_types[::-1]] = word_positions[::-1]
        onp.minimum(positions, block_positions, out=positions)
    return positions
