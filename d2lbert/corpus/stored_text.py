"""`StoredText` is a text of any size on disk, from which batches are drawn.

A row holds a pair of sentences, a pair of runs of sentences as in the
published BERT, or full sentences as in RoBERTa. A run is one or more
consecutive sentences.

Examples are drawn a chunk at a time. A chunk is a group of paragraphs or, for
full sentences, a section of the text. All data that grows with the text is on
disk, except 4 bytes a paragraph for the order of an epoch.

N: the number of examples of a chunk. M: the number of parts (ranges of words)
in all rows of a chunk.
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
    derive_bytes,
    derive_shuffler,
    draw_examples,
    mask_pairs,
    no_pair_message,
    truncate_pair,
)
from d2lbert.texts.numbered_text import NumberedText, shuffled_paragraphs

# The maximal number of sentences at which `_draw_similar_run` tries to begin
NUM_TRIES = 16


def draw_runs(text, order, max_len, rng, swap=False):
    """Draw pairs of runs of sentences, each pair with about max_len tokens.

    text: a `StoredText`; order: the indices of the paragraphs to use. Returns
    spans (N, 4) int64 and is_next (N,) bool, as for `examples.mask_pairs`.

    As in the published BERT, consecutive sentences are taken until the next
    sentence does not fit, and split at random into two runs. In half of the
    pairs a random run replaces the second run; the next pair begins with the
    sentences of the replaced run. Each pair begins in a paragraph of `order`,
    and can continue in the next paragraphs of the article. A pair is truncated
    only if one of its runs is a single sentence. swap: swap the two runs of
    half of the pairs, in place of replacing the second run, as in the
    published ALBERT.
    """
    max_words = max_len - 3         # <cls> and two <sep> are no words
    spans, is_next = [], []
    for q in order.tolist():
        begin, end = text.paragraphs[q:q + 2].tolist()
        offsets = _sentence_offsets(text, begin, end, q, max_len)
        num_sentences = len(offsets) - 1
        # Each pair begins in paragraph q. Its runs are sentences a to b - 1
        # and b to stop - 1, counted from the begin of the paragraph
        a = 0
        while a < min(end - begin, num_sentences - 1):
            stop = a + 2
            while (stop < num_sentences
                   and offsets[stop + 1] - offsets[a] <= max_words):
                stop += 1
            b = a + 1 + int(rng.random() * (stop - a - 1))
            first = offsets[a], offsets[b]
            second = offsets[b], offsets[stop]
            follows = rng.random() < 0.5
            next_a = stop
            if not follows and swap:
                first, second = second, first
            elif not follows:
                free_words = max_words - (first[1] - first[0])
                second = _draw_similar_run(text, second, free_words, max_len,
                                           rng)
                next_a = b
            # The truncation comes after the swap, or it would reveal the swap
            spans.append(_truncate_spans(*first, *second, max_words))
            is_next.append(follows)
            a = next_a
    return (onp.array(spans, 'int64').reshape(-1, 4),
            onp.array(is_next, bool))


def _sentence_offsets(text, begin, end, q, max_len):
    """Indices of the first words of sentences, then the end of the last one.

    The sentences are begin to end - 1, all in paragraph q, and at most max_len
    more of the same article. Further sentences would seldom fit into a row.
    """
    next_article = onp.searchsorted(text.articles, q, 'right')
    if next_article < len(text.articles):
        article_end = int(text.paragraphs[text.articles[next_article]])
    else:
        article_end = text.num_sentences
    return text.sentences[begin:min(end + max_len, article_end) + 1].tolist()


def _draw_similar_run(text, replaced, max_words, max_len, rng):
    """Draw a random run of sentences, about as long as the run `replaced`.

    Another length would reveal that the run does not follow, and so would a
    truncation. So the run has at most max_words words, unless `replaced` or
    all drawn candidates have more. A run is (begin, end), indices of words.
    """
    wanted_length = replaced[1] - replaced[0]
    max_words = max(max_words, wanted_length)
    best = None     # (rank, run); a smaller rank is better
    for _ in range(NUM_TRIES):
        q = int(rng.random() * text.num_paragraphs)
        begin, end = text.paragraphs[q:q + 2].tolist()
        sentence = begin + int(rng.random() * (end - begin))
        first_word, *ends = _sentence_offsets(text, sentence, sentence + 1, q,
                                              max_len)
        # Two candidates: the longest run within `wanted_length` words, but at
        # least one sentence, and the run with one sentence more
        k = max(0, bisect.bisect_right(ends, first_word + wanted_length) - 1)
        for run_end in ends[k:k + 2]:
            length = run_end - first_word
            rank = length > max_words, abs(length - wanted_length)
            if best is None or rank < best[0]:
                best = rank, (first_word, run_end)
        # Good enough: not too long, and at most an eighth off
        if best[0] <= (False, wanted_length // 8):
            break
    return best[1]


def _truncate_spans(begin_a, end_a, begin_b, end_b, max_words):
    """Truncate spans a and b to max_words in all, as by `truncate_pair`.

    Span a loses words at its begin, span b at its end.
    """
    len_a, len_b = truncate_pair(end_a - begin_a, end_b - begin_b, max_words,
                                 odd_to_first=False)
    return end_a - len_a, end_a, begin_b, begin_b + len_b


def full_sentences(text, chunk, num_chunks, max_len, rng):
    """Pack rows with as many consecutive sentences as fit.

    text: a `StoredText`; chunk: the index of one of the num_chunks nearly
    equal sections of the text. Returns rows (N + 1,) and parts (M, 2), int64.
    Row k consists of parts rows[k] to rows[k + 1] - 1. A part is a range of
    words, (begin, end). With <cls> first and a <sep> after each part, a row
    has at most max_len tokens.

    These are the FULL-SENTENCES of Liu et al. 2019, section 4.2. A row ends
    where the next sentence does not fit. At the end of an article the row
    continues with another article, after a <sep>. The articles are shuffled.
    Only a sentence longer than a row is split, and continues in the next row.
    """
    rows, parts = [0], []
    free = max_free = max_len - 1       # the free tokens of a row, after <cls>
    borders = _article_borders(text, chunk, num_chunks)
    # Here `shuffled_paragraphs` returns indices of articles
    for k in shuffled_paragraphs(len(borders) - 1, rng).tolist():
        offsets = text.sentences[borders[k]:borders[k + 1] + 1].tolist()
        begin = offsets[0]
        while begin < offsets[-1]:
            limit = begin + free - 1                # a <sep> follows
            # The end of the last sentence that fits; <= begin if none fits
            end = offsets[max(0, bisect.bisect_right(offsets, limit) - 1)]
            if end <= begin and free == max_free:
                end = limit         # split a sentence longer than a row
            if end > begin:
                parts.append((begin, end))
                free -= end - begin + 1
                begin = end
            if begin < offsets[-1]:     # the row is full
                rows.append(len(parts))
                free = max_free
    if len(parts) > rows[-1]:
        rows.append(len(parts))
    return (onp.array(rows, 'int64'),
            onp.array(parts, 'int64').reshape(-1, 2))


def _article_borders(text, chunk, num_chunks):
    """The first sentence of a chunk and of each article that begins in it.

    The last entry is the first sentence after the chunk.
    """
    first, end = onp.searchsorted(
        text.sentences, [text.num_words * k // num_chunks
                         for k in (chunk, chunk + 1)]).tolist()
    # The paragraphs, then the articles, that begin after sentence `first` and
    # before `end`
    paragraph_range = onp.searchsorted(text.paragraphs, [first + 1, end])
    article_range = onp.searchsorted(text.articles, paragraph_range)
    articles = text.articles[slice(*article_range)]
    return [first, *text.paragraphs[articles].tolist(), end]


# The approximate maximal size of a chunk: in words for full sentences, in
# tokens with padding for pairs. A chunk's arrays have about 10 bytes a token
CHUNK_TOKENS = 1 << 23


class _Settings(NamedTuple):
    """The arguments of `StoredText.batches` that determine the examples."""

    seed: int
    epoch: int
    dynamic: bool
    max_len: int
    mask_share: float
    fill: bool
    whole_words: bool
    swap: bool
    masking: Any        # the argument `spans`


class StoredText(NumberedText):
    """A `NumberedText` in files, from which batches are drawn.

    folder: a part of a store, as `text_store.write_numbers` writes it. Its
    file ids.npy has the type of each word. numbers (types,) int32: the number
    in `vocab` of each type. Article k begins with paragraph articles[k].
    source: the name of the text in messages. counts: the `text_store.Counts`
    of its source files, or None. The text may be only a part of these files.
    """

    def __init__(self, folder, numbers, vocab, source, counts=None):
        arrays = [onp.load(folder / f'{name}.npy', mmap_mode='r') for name in
                  ('ids', 'sentences', 'paragraphs', 'articles')]
        self._maps = [array._mmap for array in arrays]
        self._header_bytes = arrays[0].offset       # of ids.npy
        self._file = open(folder / 'ids.npy', 'rb')
        weakref.finalize(self, self._file.close)
        # Plain arrays: slices of the class memmap are slow
        types, sentences, paragraphs, self.articles = map(onp.asarray, arrays)
        super().__init__(types, numbers, sentences, paragraphs, vocab)
        self.source, self.counts = source, counts

    def read(self, begin, end):
        return self._read_ranges([begin], [end])

    def gather(self, spans):
        begins, ends = spans[:, ::2].ravel(), spans[:, 1::2].ravel()
        types = self._read_ranges(begins.tolist(), ends.tolist())
        lengths = ends - begins
        new_ends = onp.cumsum(lengths)
        new_spans = onp.stack([new_ends - lengths, new_ends], axis=1)
        return types, new_spans.reshape(spans.shape)

    def _read_ranges(self, begins, ends):
        """The types of words from the file, one range after another.

        An access to the map instead may load megabytes.
        """
        size = self.types.itemsize
        lengths = [(end - begin) * size for begin, end in zip(begins, ends)]
        data = b''.join(map(
            os.pread, itertools.repeat(self._file.fileno()), lengths,
            [begin * size + self._header_bytes for begin in begins]))
        if len(data) != sum(lengths):
            raise OSError(f'{self._file.name} lost its end while it was in '
                          'use: try again')
        return onp.frombuffer(data, self.types.dtype)

    def release(self):
        """Release the mapped pages that this process has read.

        They stay in the system's cache, but no longer count as memory of this
        process.
        """
        for memory_map in self._maps:
            if hasattr(mmap, 'MADV_DONTNEED'):
                memory_map.madvise(mmap.MADV_DONTNEED)

    def num_chunks(self, max_len, spans=None):
        """The number of chunks of an epoch; spans: as for `batches`."""
        if spans is not None:
            return max(1, -(-self.num_words // CHUNK_TOKENS))
        return -(-self.num_paragraphs // self._paragraphs_per_chunk(max_len))

    def _paragraphs_per_chunk(self, max_len):
        """The number of paragraphs in each chunk of pairs but the last."""
        num_tokens = self.num_pairs * max_len       # padding included
        if num_tokens <= CHUNK_TOKENS:
            return self.num_paragraphs
        return max(1, CHUNK_TOKENS * self.num_paragraphs // num_tokens)

    def batches(self, batch_size, max_len, *, seed, epoch=0, start=(0, 0),
                dynamic=True, mask_share=MASK_SHARE, fill=False,
                whole_words=False, spans=None, swap=False):
        """Yield (position, `Batch` of NumPy arrays) for an epoch's batches.

        position: (chunk, index) of the batch after this one. `chunk` counts
        the chunks of the epoch, and `index` the batches of the chunk. With
        start=position, a new call yields the rest of the epoch, the same
        batches to the last bit. The paragraphs are shuffled and processed a
        chunk at a time. The examples of a chunk are shuffled, and the last
        batch of a chunk may be smaller.

        Without fill and spans, the pairs are those of
        `examples.draw_examples`. mask_share and whole_words are as there.
        dynamic: draw new pairs and masks in each epoch; otherwise only the
        order of the examples is new. If only dynamic is changed from its
        default, and the text is one chunk, as WikiText-2 with the book's
        max_len, every epoch has the examples of `bert_dataset.load_data` with
        `random` and NumPy seeded with `seed`.
        fill: draw pairs of runs of sentences, by `draw_runs`.
        swap: half of the pairs are swapped in place of getting a random second
        text; nsp_y is 1 for a pair in order.
        spans: an object of `corpus.masking`. Rows then hold full sentences in
        place of pairs, and fill, swap and whole_words are ignored. A
        `SpanMasking` gives batches of `MaskedRows`, a `Noise` gives
        `NoisyRows`, and `NO_MASKS` gives `UnmaskedRows`. The chunks are
        sections of the text as it is stored, in random order.

        Raises ValueError for a wrong argument. The iteration raises ValueError
        if a whole epoch has no example, or if `start` is after a chunk's last
        batch.
        """
        check_batch_size(batch_size)
        check_max_len(max_len)
        if not 0 < mask_share < 1:
            raise ValueError(f'mask_share={mask_share} must be between 0 and '
                             '1')
        first_chunk, first_index = start
        num_chunks = self.num_chunks(max_len, spans)
        if min(start) < 0 or (first_chunk, first_index) > (num_chunks, 0):
            raise ValueError(
                f'start={tuple(start)} lies outside of {self.source}, which '
                f'has {num_chunks} chunks: it belongs to another text or to '
                'other settings')
        return self._batches(batch_size, first_chunk, first_index, _Settings(
            int(seed), int(epoch), dynamic, max_len, mask_share, fill,
            whole_words, swap, spans))

    def _batches(self, batch_size, chunk, first_index, settings):
        # A resumed epoch may have no batch left
        needs_batch = (chunk, first_index) == (0, 0)
        for columns, order in self._chunks(chunk, settings):
            num_batches = -(-len(order) // batch_size)
            # Index 0 is right even for a chunk without batches
            if first_index > 0 and first_index >= num_batches:
                raise ValueError(
                    f'start={(chunk, first_index)} lies outside of '
                    f'{self.source}: chunk {chunk} has {num_batches} batches '
                    f'of {batch_size}, so it belongs to another text or to '
                    'other settings')
            for index in range(first_index, num_batches):
                needs_batch = False
                rows = order[index * batch_size:(index + 1) * batch_size]
                next_position = ((chunk, index + 1) if index + 1 < num_batches
                                 else (chunk + 1, 0))
                yield next_position, type(columns)(*(
                    column[rows] for column in columns))
            chunk, first_index = chunk + 1, 0
            columns = None      # free the memory before the next chunk
        if needs_batch:
            raise ValueError(
                f'{self.source}: {no_pair_message(settings.max_len)}')

    def _chunks(self, first_chunk, settings):
        """Yield (columns, order of their rows) for chunks of an epoch.

        Here and below, `chunk` is an index before the chunks are shuffled;
        first_chunk is an index after that.
        """
        seed, epoch, masking = settings.seed, settings.epoch, settings.masking
        num_chunks = self.num_chunks(settings.max_len, masking)
        chunks = onp.arange(num_chunks)
        # Dynamic pairs need no new order of the chunks, since each epoch
        # shuffles the paragraphs
        if not settings.dynamic or masking is not None:
            derive_shuffler('chunks', seed, epoch).shuffle(chunks)
        drawn_epoch = epoch if settings.dynamic else 0
        rng = _generator(seed, drawn_epoch, 0)
        if masking is None:
            paragraphs = shuffled_paragraphs(self.num_paragraphs, rng)
        for chunk in chunks[first_chunk:].tolist():
            # In chunk 0 the generator that shuffled the paragraphs also draws
            # the examples, as on the book's page
            chunk_rng = (_generator(seed, drawn_epoch, chunk) if chunk
                         else rng)
            if masking is None:
                columns = self._draw_pairs(paragraphs, chunk, chunk_rng,
                                           settings)
            else:
                columns = self._draw_full_sentences(chunk, num_chunks,
                                                    chunk_rng, settings)
            self.release()
            yield columns, _row_order(len(columns[0]), seed, drawn_epoch,
                                      epoch, chunk)
            columns = None      # free the memory before the next chunk

    def _draw_pairs(self, paragraphs, chunk, rng, settings):
        """The `Batch` of a chunk; paragraphs: all indices, shuffled."""
        max_len, mask_share = settings.max_len, settings.mask_share
        size = self._paragraphs_per_chunk(max_len)
        first = chunk * size
        end = min(first + size, len(paragraphs))
        if settings.fill:
            spans, is_next = draw_runs(self, paragraphs[first:end], max_len,
                                       rng, settings.swap)
            return mask_pairs(self, spans, is_next, max_len, rng, mask_share,
                              settings.whole_words)
        return draw_examples(self, paragraphs, max_len, rng, mask_share,
                             first, end, settings.whole_words, settings.swap)

    def _draw_full_sentences(self, chunk, num_chunks, rng, settings):
        rows, parts = full_sentences(self, chunk, num_chunks,
                                     settings.max_len, rng)
        return settings.masking.draw_rows(
            self, rows, parts, settings.max_len, rng, settings.mask_share)


# The random numbers of a chunk do not depend on earlier chunks

def _generator(seed, epoch, chunk):
    """The generator of a chunk; for chunk 0 of epoch 0, the book's."""
    if not (epoch or chunk):
        return random.Random(seed)
    return random.Random(int.from_bytes(
        derive_bytes('examples', seed, epoch, chunk), 'little'))


def _row_order(num_rows, seed, drawn_epoch, epoch, chunk):
    """The order of a chunk's rows in an epoch: (num_rows,) int64.

    Static rows, all drawn in epoch 0, get a new order in each epoch.
    Rows of chunk 0 that were drawn in epoch 0 are shuffled as by NumPy after
    np.random.seed(seed).
    """
    rng = (derive_shuffler('rows', seed, drawn_epoch, chunk)
           if drawn_epoch or chunk else onp.random.RandomState(seed % 2 ** 32))
    # The order of an earlier epoch is computed only to advance the generator
    for _ in range(drawn_epoch, epoch + 1):
        order = onp.arange(num_rows)
        rng.shuffle(order)
    return order
