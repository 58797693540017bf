"""A text of any size on disk, and the batches that are drawn from it.

A row holds a pair of sentences, a pair of runs of sentences as in the
published BERT, or full sentences as in RoBERTa. The text is mapped into
memory, and its examples are drawn a chunk at a time. All data that grows with
the text is on disk, except 4 bytes a paragraph for the order of an epoch.

N examples of a chunk, T tokens (max_len).
"""
import bisect
import itertools
import mmap
import os
import random
import weakref
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.texts.examples import (
    MASK_SHARE,
    check_batch_size,
    check_max_len,
    derive_bits,
    derive_shuffler,
    draw_examples,
    mask_pairs,
    no_pair_message,
    truncate_pair,
)
from d2lbert.texts.numbered_text import NumberedText, shuffled_paragraphs

# Random runs among which `_run_like` chooses
TRIES = 16


def draw_runs(text, order, max_len, rng, swap=False):
    """Draw pairs of runs of sentences whose length is close to max_len.

    text: a `StoredText`; order: the paragraphs to use, in this order.
    Returns spans (N, 4) int64 and is_next (N,) bool, the arguments of
    `examples.mask_pairs`.

    As in the published BERT, sentences are taken until the next one does
    not fit, and split at random. If the second run is replaced, its
    sentences are used again. The last run of a paragraph continues in the
    next paragraph of the article. swap: swap the two runs of half of the
    pairs in place of replacing the second, as in the published ALBERT.
    """
    spans, is_next = [], []
    for q in order.tolist():
        begin, end = text.paragraphs[q:q + 2].tolist()
        ends = _ends(text, begin, end, q, max_len)
        # Indices of sentences; 0 is the paragraph's first sentence
        a, last = 0, len(ends) - 2
        while a < min(end - begin, last):
            stop = a + 2
            while stop <= last and ends[stop + 1] - ends[a] + 3 <= max_len:
                stop += 1
            b = a + 1 + int(rng.random() * (stop - a - 1))
            first, second = (ends[a], ends[b]), (ends[b], ends[stop])
            follows = rng.random() < 0.5
            if not follows and swap:
                first, second = second, first
            elif not follows:
                second = _run_like(
                    text, second, max_len - 3 - (ends[b] - ends[a]), max_len,
                    rng)
            # Truncated after the swap, or the truncation would reveal it
            spans.append(_cut_to_fit(*first, *second, max_len - 3))
            is_next.append(follows)
            a = stop if follows or swap else b
    return (onp.array(spans, 'int64').reshape(-1, 4),
            onp.array(is_next, bool))


def _ends(text, begin, end, q, max_len):
    """The index of each sentence's first word, and the last sentence's end.

    The sentences are begin to end - 1, of paragraph q, and at most max_len
    more of the same article.
    """
    k = onp.searchsorted(text.articles, q, 'right')
    if k < len(text.articles):
        limit = int(text.paragraphs[text.articles[k]])
    else:
        limit = text.num_sentences
    return text.sentences[begin:min(end + max_len, limit) + 1].tolist()


def _run_like(text, span, room, max_len, rng):
    """A random run of sentences, about as long as `span`.

    A different length would reveal that the run does not follow, and so would
    a truncation. So the run has at most `room` words, unless `span` has more,
    or each of TRIES runs has more.
    """
    wanted = span[1] - span[0]
    room = max(room, wanted)
    best = None
    for _ in range(TRIES):
        q = int(rng.random() * text.num_paragraphs)
        begin, end = text.paragraphs[q:q + 2].tolist()
        begin += int(rng.random() * (end - begin))
        ends = _ends(text, begin, begin + 1, q, max_len)
        # Try the last end within `wanted` words, and the next end
        stop = max(1, bisect.bisect_right(ends, ends[0] + wanted) - 1)
        for last in ends[stop:stop + 2]:
            length = last - ends[0]
            rank = length > room, abs(length - wanted)
            if best is None or rank < best[0]:
                best = rank, (ends[0], last)
        if best[0] <= (False, wanted // 8):
            break
    return best[1]


def _cut_to_fit(begin_a, end_a, begin_b, end_b, room):
    """Truncate two spans of words to `room` words, the longer one first.

    The first span loses words at its begin, the second at its end.
    """
    len_a, len_b = truncate_pair(end_a - begin_a, end_b - begin_b, room,
                                 odd_to_first=False)
    return end_a - len_a, end_a, begin_b, begin_b + len_b


def full_sentences(text, chunk, num_chunks, max_len, rng):
    """Pack rows with as many consecutive sentences as fit.

    text: a `StoredText`; chunk: the index of one of num_chunks nearly equal
    stretches of it. Returns rows (N + 1,) and parts (M, 2), int64. Row k
    consists of parts rows[k] to rows[k + 1] - 1; a part is a span of words,
    (begin, end). With <cls> first and a <sep> after each part, a row has at
    most max_len tokens.

    These are the FULL-SENTENCES of Liu et al. 2019, section 4.2. A row ends
    where the next sentence does not fit. At the end of an article it
    continues with another one, after a separator. So all rows have about
    the same length; one row per article would leave rows of short articles
    half empty. The articles are shuffled. Only a sentence longer than a row
    is split, and continues in the next row.
    """
    rows, parts = [0], []
    room = full = max_len - 1       # after <cls>
    borders = _borders(text, chunk, num_chunks)
    for k in shuffled_paragraphs(len(borders) - 1, rng).tolist():
        ends = text.sentences[borders[k]:borders[k + 1] + 1].tolist()
        begin = ends[0]
        while begin < ends[-1]:
            limit = begin + room - 1                # a <sep> follows
            end = ends[max(0, bisect.bisect_right(ends, limit) - 1)]
            if end <= begin and room == full:       # longer than a row
                end = limit
            if end > begin:
                parts.append((begin, end))
                room -= end - begin + 1
                begin = end
            if begin < ends[-1]:                    # the next does not fit
                rows.append(len(parts))
                room = full
    if len(parts) > rows[-1]:
        rows.append(len(parts))
    return (onp.array(rows, 'int64'),
            onp.array(parts, 'int64').reshape(-1, 2))


def _borders(text, chunk, num_chunks):
    """The first sentence of a chunk and of its articles, and the chunk's end.
    """
    first, last = onp.searchsorted(
        text.sentences, [text.num_words * k // num_chunks
                         for k in (chunk, chunk + 1)]).tolist()
    paragraphs = onp.searchsorted(text.paragraphs, [first + 1, last])
    articles = text.articles[slice(*onp.searchsorted(text.articles,
                                                     paragraphs))]
    return [first, *text.paragraphs[articles].tolist(), last]


# The size of a chunk: pairs times max_len, or words of full sentences. Its
# columns take about 10 bytes for each of these, 80 MB in all
CHUNK_PLACES = 1 << 23


class _Drawing(NamedTuple):
    """The arguments of `StoredText.batches` that examples depend on."""

    seed: int
    epoch: int
    dynamic: bool
    max_len: int
    mask_share: float
    fill: bool
    whole_words: bool
    swap: bool
    spans: Any


class StoredText(NumberedText):
    """A `NumberedText` in files, from which batches are drawn.

    numbers (types,) int32: the number in `vocab` for each number in the
    files. Article k begins with paragraph articles[k]. source: the name of
    the text in errors. counts: the `text_store.Counts` of its source files,
    or None. The text may be only a part of these files.
    """

    def __init__(self, folder, numbers, vocab, source, counts=None):
        mapped = [onp.load(folder / f'{name}.npy', mmap_mode='r') for name in
                  ('ids', 'sentences', 'paragraphs', 'articles')]
        self._maps = [array._mmap for array in mapped]
        # The byte at which the first word begins in the file
        self._offset = mapped[0].offset
        self._file = open(folder / 'ids.npy', 'rb')
        weakref.finalize(self, self._file.close)
        types, sentences, paragraphs, self.articles = map(onp.asarray, mapped)
        super().__init__(types, numbers, sentences, paragraphs, vocab)
        self.source, self.counts = source, counts

    def read(self, begin, end):
        return self._read([begin], [end])

    def gathered(self, spans):
        begins, ends = spans[:, ::2].ravel(), spans[:, 1::2].ravel()
        types = self._read(begins.tolist(), ends.tolist())
        lengths = ends - begins
        ends = onp.cumsum(lengths)
        return types, onp.stack([ends - lengths, ends], 1).reshape(spans.shape)

    def _read(self, begins, ends):
        """The types of the words of several ranges, one after another.

        Read from the file, since touching the map may load megabytes.
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
        """Unmap the pages that were read; they stay in the system's cache.

        Until then they count as memory of this process, and random access
        may touch the whole file.
        """
        for mapped in self._maps:
            if hasattr(mmap, 'MADV_DONTNEED'):
                mapped.madvise(mmap.MADV_DONTNEED)

    def num_chunks(self, max_len, spans=None):
        """The number of chunks of an epoch."""
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

        position is (chunk, index), the start of the batch after this one;
        passed as `start`, it gives the rest of the epoch, bitwise equal. The
        batches depend only on the arguments and on the text. The paragraphs
        are shuffled and processed a chunk at a time; a text of the size of
        WikiText-2 is one chunk. The examples of a chunk are shuffled, and
        its last batch may be smaller.

        By default examples are the book's. Each sentence is paired with its
        neighbour or, in half of the cases, with a random sentence of a
        random paragraph. Pairs longer than max_len are dropped, and
        mask_share of the tokens are masked. If the text is one chunk and
        not dynamic, every epoch has the examples of `load_data` with
        `random` and NumPy seeded with `seed`.

        fill: both texts are runs of sentences whose length comes close to
        max_len; only a pair of single sentences that is too long is
        truncated. swap: half of the pairs are swapped in place of getting a
        random second text; nsp_y is 1 for a pair in order. whole_words: mask
        all pieces of a word or none.
        spans: rows are full sentences of one text, in place of pairs. With a
        `SpanMasking` batches are `MaskedRows`, with a `Noise` they are
        `NoisyRows`. The chunks are parts of the unshuffled text, in a new
        order.
        dynamic: draw new pairs and masks in each epoch; otherwise only the
        order of the examples is new. Raises ValueError if no pair fits.
        """
        check_batch_size(batch_size)
        check_max_len(max_len)
        if not 0 < mask_share < 1:
            raise ValueError(f'mask_share={mask_share} must be between 0 and '
                             '1')
        first_chunk, first_index = start
        num_chunks = self.num_chunks(max_len, spans)
        if not (0 <= first_chunk <= num_chunks and 0 <= first_index):
            raise ValueError(
                f'start={tuple(start)} lies outside of {self.source}, which '
                f'has {num_chunks} chunks: it belongs to another text')
        return self._batches(batch_size, first_chunk, first_index, _Drawing(
            int(seed), int(epoch), dynamic, max_len, mask_share, fill,
            whole_words, swap, spans))

    def _batches(self, batch_size, chunk, first_index, drawing):
        is_empty = (chunk, first_index) == (0, 0)
        for columns, order in self._chunks(chunk, drawing):
            num_batches = -(-len(order) // batch_size)
            if first_index > max(0, num_batches - 1):
                raise ValueError(
                    f'start={(chunk, first_index)} lies outside of '
                    f'{self.source}: chunk {chunk} has {num_batches} batches '
                    f'of {batch_size}, so it belongs to another text or '
                    'another batch size')
            for index in range(first_index, num_batches):
                is_empty = False
                rows = order[index * batch_size:(index + 1) * batch_size]
                yield ((chunk, index + 1) if index + 1 < num_batches
                       else (chunk + 1, 0)), type(columns)(*(
                           column[rows] for column in columns))
            chunk, first_index = chunk + 1, 0
            columns = None      # frees memory for the next chunk
        if is_empty:
            raise ValueError(
                f'{self.source}: {no_pair_message(drawing.max_len)}')

    def _chunks(self, first_chunk, drawing):
        """(columns, order of their rows) of each chunk of an epoch."""
        seed, epoch, spans = drawing.seed, drawing.epoch, drawing.spans
        num_chunks = self.num_chunks(drawing.max_len, spans)
        chunks = onp.arange(num_chunks)
        if not drawing.dynamic or spans is not None:
            derive_shuffler('chunks', seed, epoch).shuffle(chunks)
        # Static examples are drawn as in epoch 0
        drawn_epoch = epoch if drawing.dynamic else 0
        rng, paragraphs = _generator(seed, drawn_epoch, 0), None
        if spans is None:
            paragraphs = shuffled_paragraphs(self.num_paragraphs, rng)
        for chunk in chunks[first_chunk:].tolist():
            # Chunk 0 continues with the generator that shuffled paragraphs
            chunk_rng = (_generator(seed, drawn_epoch, chunk) if chunk
                         else rng)
            if spans is None:
                columns = self._examples(paragraphs, chunk, chunk_rng,
                                         drawing)
            else:
                columns = self._rows(chunk, num_chunks, chunk_rng, drawing)
            self.release()
            yield columns, _row_order(len(columns[0]), seed, drawn_epoch,
                                      epoch, chunk)
            columns = None      # frees memory for the next chunk

    def _examples(self, paragraphs, chunk, rng, drawing):
        """All examples of a chunk, a `Batch` of columns."""
        max_len, mask_share = drawing.max_len, drawing.mask_share
        size = self._chunk_paragraphs(max_len)
        first = chunk * size
        last = min(first + size, len(paragraphs))
        if drawing.fill:
            runs = draw_runs(self, paragraphs[first:last], max_len, rng,
                             drawing.swap)
            return mask_pairs(self, *runs, max_len, rng, mask_share,
                              drawing.whole_words)
        return draw_examples(self, paragraphs, max_len, rng, mask_share,
                             first, last, drawing.whole_words, drawing.swap)

    def _rows(self, chunk, num_chunks, rng, drawing):
        """All rows of full sentences of a chunk, as columns."""
        rows, parts = full_sentences(self, chunk, num_chunks,
                                     drawing.max_len, rng)
        return drawing.spans.drawn(self, rows, parts, drawing.max_len, rng,
                                   drawing.mask_share)


# Random numbers of a chunk, which do not depend on earlier chunks

def _generator(seed, epoch, chunk):
    """The generator of a chunk; the first is the book's random.seed(seed)."""
    if not (epoch or chunk):
        return random.Random(seed)
    return random.Random(int.from_bytes(
        derive_bits('examples', seed, epoch, chunk), 'little'))


def _row_order(num_rows, seed, drawn_epoch, epoch, chunk):
    """The order of a chunk's rows in an epoch: (num_rows,) int64.

    Static rows, all drawn in epoch 0, are shuffled once more in each epoch,
    as NumPy shuffles them after np.random.seed(seed).
    """
    rng = (derive_shuffler('rows', seed, drawn_epoch, chunk)
           if drawn_epoch or chunk else onp.random.RandomState(seed % 2 ** 32))
    for _ in range(drawn_epoch, epoch + 1):
        order = onp.arange(num_rows)
        rng.shuffle(order)
    return order
