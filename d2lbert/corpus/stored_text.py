"""A text on disk, of any size, and the batches that are drawn from it.

It is mapped into memory, and its examples are drawn a chunk at a time. What
grows with the text is on disk, but for 4 bytes a paragraph (in what order an
epoch goes through them).

B batch, N examples of a chunk, T tokens (max_len).
"""
import hashlib
import itertools
import mmap
import os
import random
import weakref

import numpy as onp

from d2lbert.bert_dataset import (
    MASK_SHARE,
    _check_batch_size,
    _check_max_len,
    draw_examples,
    mask_pairs,
    no_pair_fits,
)
from d2lbert.corpus.full_sentences import full_sentences
from d2lbert.corpus.sentence_runs import draw_runs
from d2lbert.texts.numbered_text import Corpus, shuffled_paragraphs

# An epoch of no more pairs times max_len than this is one chunk. The columns
# of a chunk take about 10 bytes for each, 80 MB in all
CHUNK_PLACES = 1 << 23


class StoredText(Corpus):
    """A `Corpus` in files, from which batches are drawn.

    numbers (types,) int32: the number in `vocab` of each number in the
    files. Article k begins with paragraph articles[k]. source: what errors
    call the text.
    """

    def __init__(self, folder, numbers, vocab, source):
        mapped = [onp.load(folder / f'{name}.npy', mmap_mode='r') for name in
                  ('ids', 'sentences', 'paragraphs', 'articles')]
        self._maps = [array._mmap for array in mapped]
        # Where the first word stands in the file
        self._offset = mapped[0].offset
        self._file = open(folder / 'ids.npy', 'rb')
        weakref.finalize(self, self._file.close)
        types, sentences, paragraphs, self.articles = map(onp.asarray, mapped)
        super().__init__(types, numbers, sentences, paragraphs, vocab)
        self.source = source

    @property
    def num_articles(self):
        return len(self.articles)

    def read(self, begin, end):
        return self._read([begin], [end])

    def gathered(self, spans):
        begins, ends = spans[:, ::2].ravel(), spans[:, 1::2].ravel()
        types = self._read(begins.tolist(), ends.tolist())
        lengths = ends - begins
        ends = onp.cumsum(lengths)
        return types, onp.stack([ends - lengths, ends], 1).reshape(spans.shape)

    def _read(self, begins, ends):
        """The types of words from each begin to its end, in a row.

        Not by way of the map: each place touched there may map megabytes.
        """
        size = self.types.itemsize
        lengths = [(end - begin) * size for begin, end in zip(begins, ends)]
        data = b''.join(map(
            os.pread, itertools.repeat(self._file.fileno()), lengths,
            [begin * size + self._offset for begin in begins]))
        if len(data) != sum(lengths):
            raise OSError(f'{self._file.name} lost its end while it was in '
                          'use: try again')
        return onp.frombuffer(data, self.types.dtype)

    def release(self):
        """Let go of the pages that were read: the system still has them.

        Until then they count as this process's memory, all of the file if
        enough places in it are touched.
        """
        for mapped in self._maps:
            if hasattr(mmap, 'MADV_DONTNEED'):
                mapped.madvise(mmap.MADV_DONTNEED)

    def num_chunks(self, max_len, spans=None):
        """How many pieces an epoch is drawn in."""
        if spans is not None:
            return max(1, -(-self.num_words // CHUNK_PLACES))
        return -(-self.num_paragraphs // self._chunk_paragraphs(max_len))

    def _chunk_paragraphs(self, max_len):
        num_places = self.num_pairs * max_len
        if num_places <= CHUNK_PLACES:
            return self.num_paragraphs
        return max(1, CHUNK_PLACES * self.num_paragraphs // num_places)

    def batches(self, batch_size, max_len, *, seed, epoch=0, start=(0, 0),
                dynamic=True, mask_share=MASK_SHARE, fill=False,
                whole_words=False, spans=None, swap=False):
        """One epoch: yields (position, Batch of NumPy arrays).

        position (chunk, index) is where the batch after this one stands;
        given as `start` it gives the rest of the epoch to the last bit.
        Everything follows from the arguments and the text. The paragraphs,
        in a new order, are taken a chunk at a time (a text as small as
        WikiText-2 at once); the examples of a chunk are shuffled, and its
        last batch may be smaller.

        Examples follow the book: each sentence with its neighbour or, in
        half of the cases, with a random sentence of a random paragraph, left
        out if longer than max_len; mask_share of the tokens hidden. Of a
        text that is one chunk, and not dynamic, they are in all epochs those
        of `load_data` with `random` and NumPy seeded with `seed`.
        fill: instead, both texts are runs of sentences that come close to
        max_len together; only a pair of sentences that is longer is cut.
        swap: in no pair is anything replaced; the two texts of half of them
        change places, and nsp_y is 1 where they stand in order.
        spans: instead, rows are full sentences of one text, with words
        hidden as this `spans.Spans` says, and batches `spans.Masked`; or
        made noisy by a `noise.Noise`, and batches `noise.Noised`. The
        chunks, parts of the text as it stands, come in a new order.
        dynamic: new partners and masks each epoch; without it the examples
        are those of every epoch, and only their order is new.
        whole_words: of a text in word pieces, hide all pieces of a word or
        none.
        Raises ValueError if not one pair fits.
        """
        _check_batch_size(batch_size)
        _check_max_len(max_len)
        if not 0 < mask_share < 1:
            raise ValueError(f'mask_share={mask_share} is no share: it must '
                             'lie between 0 and 1')
        chunk, index = start
        num_chunks = self.num_chunks(max_len, spans)
        if not (0 <= chunk <= num_chunks and 0 <= index):
            raise ValueError(
                f'start={tuple(start)} lies outside of {self.source}, which '
                f'has {num_chunks} chunks: it belongs to another text')
        return self._batches(batch_size, max_len, int(seed), int(epoch),
                             chunk, index, dynamic, mask_share, fill,
                             whole_words, spans, swap)

    def _batches(self, batch_size, max_len, seed, epoch, first_chunk,
                 first_index, dynamic, mask_share, fill, whole_words, spans,
                 swap):
        num_chunks = self.num_chunks(max_len, spans)
        chunks = onp.arange(num_chunks)
        if not dynamic or spans is not None:
            _shuffler('chunks', seed, epoch).shuffle(chunks)
        # Static examples are those of epoch 0, whichever it is
        drawn = epoch if dynamic else 0
        rng = _drawer(seed, drawn, 0)
        paragraphs = None
        if spans is None:
            paragraphs = shuffled_paragraphs(self.num_paragraphs, rng)
        nothing = (first_chunk, first_index) == (0, 0)
        for place in range(first_chunk, num_chunks):
            chunk = int(chunks[place])
            columns = None      # its memory is needed for the next ones
            drawer = _drawer(seed, drawn, chunk) if chunk else rng
            if spans is None:
                columns = self._examples(paragraphs, chunk, max_len,
                                         mask_share, fill, whole_words,
                                         drawer, swap)
            else:
                columns = self._rows(chunk, num_chunks, max_len, mask_share,
                                     spans, drawer)
            order = _row_order(len(columns[0]), seed, drawn, epoch, chunk)
            num_batches = -(-len(order) // batch_size)
            if first_index > max(0, num_batches - 1):
                raise ValueError(
                    f'start={(place, first_index)} lies outside of '
                    f'{self.source}: chunk {place} has {num_batches} batches '
                    f'of {batch_size}, so it belongs to another text or '
                    'another batch size')
            for index in range(first_index, num_batches):
                nothing = False
                rows = order[index * batch_size:(index + 1) * batch_size]
                yield ((place, index + 1) if index + 1 < num_batches
                       else (place + 1, 0)), type(columns)(*(
                           column[rows] for column in columns))
            first_index = 0
        if nothing:
            raise ValueError(f'{self.source}: {no_pair_fits(max_len)}')

    def _examples(self, paragraphs, chunk, max_len, mask_share, fill,
                  whole_words, rng, swap):
        """All examples of a chunk, a `Batch` of columns."""
        size = self._chunk_paragraphs(max_len)
        first = chunk * size
        last = min(first + size, len(paragraphs))
        if fill:
            columns = mask_pairs(
                self, *draw_runs(self, paragraphs[first:last], max_len, rng,
                                 swap),
                max_len, rng, mask_share, whole_words)
        else:
            columns = draw_examples(self, paragraphs, max_len, rng,
                                    mask_share, first, last, whole_words,
                                    swap)
        self.release()
        return columns

    def _rows(self, chunk, num_chunks, max_len, mask_share, spans, rng):
        """All rows of full sentences of a chunk, as columns."""
        rows, parts = full_sentences(self, chunk, num_chunks, max_len, rng)
        columns = spans.drawn(self, rows, parts, max_len, rng, mask_share)
        self.release()
        return columns


# Random numbers that can be had from any place on

def _drawer(seed, epoch, chunk):
    """What draws a chunk; the first of all as after random.seed(seed)."""
    if not (epoch or chunk):
        return random.Random(seed)
    return random.Random(int.from_bytes(
        _digest('examples', seed, epoch, chunk), 'little'))


def _row_order(num_rows, seed, drawn, epoch, chunk):
    """The order of a chunk's rows in an epoch: (num_rows,) int64.

    Rows that stay the same are shuffled once more each epoch, as NumPy does
    after np.random.seed(seed).
    """
    rng = (_shuffler('rows', seed, drawn, chunk) if drawn or chunk
           else onp.random.RandomState(seed % 2 ** 32))
    for _ in range(drawn, epoch + 1):
        order = onp.arange(num_rows)
        rng.shuffle(order)
    return order


def _shuffler(*what):
    """A RandomState, whose numbers NumPy promises never to change."""
    return onp.random.RandomState(
        onp.frombuffer(_digest(*what), '<u4').astype('uint32'))


def _digest(*what):
    """256 random bits that follow from what they are for."""
    return hashlib.sha256(repr(what).encode()).digest()
