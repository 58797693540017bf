"""The book's page "The Dataset for Pretraining BERT".

Read paragraphs, pair sentences (NSP), mask words (MLM), pad to columns. The
helpers under the book's names work on lists of strings, as on the page.
`load_data_wiki` does the same on whole columns: the text is cut and numbered
once, and examples are drawn in C++ from the very random numbers that the
helpers would have used, so both give the book's own examples.

B batch, N examples, T tokens (max_len), P predictions (15% of T).
"""
import collections
import contextlib
import ctypes
import hashlib
import random
import unicodedata
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert import hub, kernels
from d2lbert.bert import get_tokens_and_segments
from d2lbert.corpus import textfiles
from d2lbert.machine import cache, files
from d2lbert.machine.backend import gluon, np
from d2lbert.machine.unchanged import Unchanged
from d2lbert.text import CLS, MASK, PAD, RESERVED, SEP, Vocab

MIN_FREQ = 5

# A sentence ends where this stands; what closes a line stays in its sentence
STOP = ' . '


class Batch(NamedTuple):
    """What one step needs, or as columns (B = N) a whole data set."""

    tokens_X: Any          # (B, T) int32
    segments_X: Any        # (B, T) int32, 0 or 1
    valid_lens_x: Any      # (B,) float32, how many of T are no padding
    pred_positions_X: Any  # (B, P) int32, 0 pads
    mlm_weights_X: Any     # (B, P) float32, 0 keeps padding out of the loss
    mlm_Y: Any             # (B, P) int32, the words that were there
    nsp_y: Any             # (B,) float32, 1 where the second one does follow


# The page's helpers, in the page's order

def _read_wiki(data_dir, rng=random):
    """The paragraphs of wiki.train.tokens in `data_dir`, shuffled.

    A list of paragraphs, each a list of lower-case sentences (strings).
    """
    path = Path(data_dir, hub.TRAIN_FILE)
    paragraphs = _split(_decode_lines(path, _read_bytes(path)))
    rng.shuffle(paragraphs)
    return paragraphs


def _get_next_sentence(sentence, next_sentence, paragraphs, rng=random):
    """(first, second, whether it follows): in half of the cases it does."""
    if rng.random() < 0.5:
        return sentence, next_sentence, True
    return sentence, rng.choice(rng.choice(paragraphs)), False


def _get_nsp_data_from_paragraph(paragraph, paragraphs, vocab, max_len,
                                 rng=random):
    """Examples (tokens, segments, is_next) of a paragraph's neighbours.

    Sentences are lists of tokens; pairs longer than `max_len` are dropped.
    """
    examples = []
    for sentence, next_sentence in zip(paragraph, paragraph[1:]):
        tokens_a, tokens_b, is_next = _get_next_sentence(
            sentence, next_sentence, paragraphs, rng)
        # One <cls> and two <sep> want room, too
        if len(tokens_a) + len(tokens_b) + 3 <= max_len:
            examples.append((*get_tokens_and_segments(tokens_a, tokens_b),
                             is_next))
    return examples


def _replace_mlm_tokens(tokens, candidate_pred_positions, num_mlm_preds,
                        vocab, rng=random):
    """Hide `num_mlm_preds` tokens; (input, [(position, hidden token)]).

    80% of them become <mask>, 10% stay, 10% become a random word. Shuffles
    `candidate_pred_positions` in place.
    """
    rng.shuffle(candidate_pred_positions)
    positions = candidate_pred_positions[:num_mlm_preds]
    mlm_input_tokens = list(tokens)
    for position in positions:
        if rng.random() < 0.8:
            mlm_input_tokens[position] = MASK
        elif rng.random() >= 0.5:
            mlm_input_tokens[position] = rng.choice(vocab.idx_to_token)
    return mlm_input_tokens, [(position, tokens[position])
                              for position in positions]


def _get_mlm_data_from_tokens(tokens, vocab, rng=random):
    """(input ids, prediction positions, label ids) of a list of tokens."""
    candidates = [position for position, token in enumerate(tokens)
                  if token not in (CLS, SEP)]
    mlm_input_tokens, preds = _replace_mlm_tokens(
        tokens, candidates, max(1, _num_preds(len(tokens))), vocab, rng)
    preds.sort()
    return (vocab[mlm_input_tokens], [position for position, _ in preds],
            vocab[[token for _, token in preds]])


def _pad_bert_inputs(examples, max_len, vocab):
    """Seven padded columns, as in `Batch`, of a list of examples.

    examples: (token ids, prediction positions, label ids, segments,
    is_next), none longer than `max_len`.
    """
    columns = _empty_columns(len(examples), max_len, vocab[PAD])
    (all_token_ids, all_segments, valid_lens, all_pred_positions,
     all_mlm_weights, all_mlm_labels, nsp_labels) = columns
    for i, (token_ids, pred_positions, mlm_pred_label_ids, segments,
            is_next) in enumerate(examples):
        all_token_ids[i, :len(token_ids)] = token_ids
        all_segments[i, :len(segments)] = segments
        valid_lens[i] = len(token_ids)
        all_pred_positions[i, :len(pred_positions)] = pred_positions
        all_mlm_weights[i, :len(pred_positions)] = 1
        all_mlm_labels[i, :len(pred_positions)] = mlm_pred_label_ids
        nsp_labels[i] = is_next
    return columns


def _num_preds(num_tokens):
    """15% of the tokens, rounded as Python rounds (a half to even)."""
    return round(num_tokens * 0.15)


def _empty_columns(num_examples, max_len, pad):
    shape_T = num_examples, max_len
    shape_P = num_examples, _num_preds(max_len)
    return Batch(onp.full(shape_T, pad, 'int32'),
                 onp.zeros(shape_T, 'int32'),
                 onp.zeros(num_examples, 'float32'),
                 onp.zeros(shape_P, 'int32'),
                 onp.zeros(shape_P, 'float32'),
                 onp.zeros(shape_P, 'int32'),
                 onp.zeros(num_examples, 'float32'))


class _WikiTextDataset(gluon.data.Dataset):
    """Examples drawn from paragraphs (lists of sentences, strings).

    The columns lie on the host as NumPy arrays: all_token_ids (N, T),
    all_segments (N, T), valid_lens (N,), all_pred_positions (N, P),
    all_mlm_weights (N, P), all_mlm_labels (N, P), nsp_labels (N,); all
    together they are `columns`. An item is the tuple of its seven MXNet
    arrays. Raises ValueError where no example can be made.
    """

    def __init__(self, paragraphs, max_len, min_freq=MIN_FREQ, rng=random):
        _check_max_len(max_len)
        tokens = _tokens_of_paragraphs(paragraphs)
        order = onp.arange(len(paragraphs), dtype='int64')
        self._draw(Corpus.of_tokens(tokens, order, min_freq), max_len, rng)

    @classmethod
    def of_corpus(cls, corpus, max_len, rng=random):
        """Draw from a `Corpus` instead, whose words have numbers already."""
        _check_max_len(max_len)
        dataset = cls.__new__(cls)
        dataset._draw(corpus, max_len, rng)
        return dataset

    def _draw(self, corpus, max_len, rng):
        self.vocab = corpus.vocab
        self.columns = draw_examples(corpus, max_len, rng)
        (self.all_token_ids, self.all_segments, self.valid_lens,
         self.all_pred_positions, self.all_mlm_weights,
         self.all_mlm_labels, self.nsp_labels) = self.columns

    def __getitem__(self, idx):
        return tuple(np.array(column[idx], dtype=column.dtype)
                     for column in self.columns)

    def __len__(self):
        return len(self.all_token_ids)


class BatchLoader:
    """Batches of a data set, in a new order each time they are gone through.

    Yields `Batch`es of MXNet arrays on the CPU; the last one may be smaller.
    The order comes from `rng`, NumPy's own stream by default, as in Gluon's
    DataLoader.
    """

    def __init__(self, dataset, batch_size, rng=onp.random):
        _check_batch_size(batch_size)
        self.dataset, self.batch_size, self.rng = dataset, batch_size, rng

    def __len__(self):
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self):
        order = onp.arange(len(self.dataset))
        self.rng.shuffle(order)
        for start in range(0, len(order), self.batch_size):
            rows = order[start:start + self.batch_size]
            yield Batch(*(np.array(column[rows], dtype=column.dtype)
                          for column in self.dataset.columns))


def get_dataloader_workers():
    """How many processes a Gluon `DataLoader` should read with: 0.

    The book's 4 are slower than this process alone, whose items are slices
    of columns.
    """
    return 0


def load_data_wiki(batch_size, max_len, data_dir=None, min_freq=MIN_FREQ,
                   rng=random, shuffle_rng=onp.random):
    """Batches of WikiText-2 for pretraining, and their vocabulary.

    data_dir: the folder that holds wiki.train.tokens; without it the text
    is looked for as `hub.wikitext2_dir` says. With `random` and NumPy
    seeded alike, vocabulary, examples and order are the book's.
    """
    _check_batch_size(batch_size)
    _check_max_len(max_len)
    return load_data(hub.wikitext2_dir(data_dir) / hub.TRAIN_FILE,
                     batch_size, max_len, min_freq, rng, shuffle_rng)


def load_data(path, batch_size, max_len, min_freq=MIN_FREQ, rng=random,
              shuffle_rng=onp.random):
    """Batches of any UTF-8 text in WikiText's format, and the vocabulary.

    The file may be packed, as `textfiles` says.

    A line is a paragraph if ' . ' ends its sentences; other lines (headings)
    are passed over. rng draws the examples, shuffle_rng their order.
    Raises FileNotFoundError, or ValueError for a text without examples.
    """
    _check_batch_size(batch_size)
    _check_max_len(max_len)
    tokens = _read_tokens(path)
    try:
        order = list(range(len(tokens.paragraphs) - 1))
        rng.shuffle(order)  # the draws depend on the length alone
        corpus = Corpus.of_tokens(tokens, onp.array(order, 'int64'),
                                  min_freq)
        dataset = _WikiTextDataset.of_corpus(corpus, max_len, rng)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None
    return BatchLoader(dataset, batch_size, shuffle_rng), dataset.vocab


def _check_batch_size(batch_size):
    if batch_size < 1:
        raise ValueError(f'batch_size={batch_size}: a batch holds at least '
                         '1 example')


def _check_max_len(max_len):
    if max_len < 5:
        raise ValueError(f'max_len={max_len}: <cls>, a word, <sep>, a word '
                         'and <sep> need at least 5')


# From bytes to tokens

class Tokens(NamedTuple):
    """A text cut into words, before anything is drawn or counted.

    Word number types[i] is names[types[i]]. Sentence s has the words
    sentences[s] up to sentences[s + 1], paragraph q has the sentences
    paragraphs[q] up to paragraphs[q + 1].
    """

    types: onp.ndarray       # (number of words,) int32
    sentences: onp.ndarray   # (number of sentences + 1,) int64
    paragraphs: onp.ndarray  # (number of paragraphs + 1,) int64
    names: list


def _read_bytes(path):
    _check_is_file(path)
    return b''.join(textfiles.pieces(path))


def _check_is_file(path):
    if not Path(path).is_file():
        raise FileNotFoundError(f'{path} is no file: name a text file in '
                                "WikiText's format")


def _decode_lines(path, data):
    """The lines of a UTF-8 text; ValueError names file and line."""
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


def _split(lines):
    """Lower-case paragraphs (lists of sentences) of a text's lines."""
    return [line.strip().lower().split(STOP) for line in lines
            if STOP in line]


def _tokens_of_paragraphs(paragraphs):
    """`Tokens` of paragraphs given as lists of sentences (strings)."""
    numbers = collections.defaultdict()
    numbers.default_factory = numbers.__len__
    sentences = [sentence.split() for paragraph in paragraphs
                 for sentence in paragraph]
    ends = onp.cumsum([0] + [len(words) for words in sentences])
    types = onp.fromiter(
        (numbers[word] for words in sentences for word in words), 'int32',
        ends[-1])
    return Tokens(types, ends.astype('int64'),
                  onp.cumsum([0] + [len(paragraph) for paragraph in
                                    paragraphs], dtype='int64'),
                  list(numbers))


def _library():
    """draw.cc compiled, or None where its plain twins are to do the work."""
    return DRAW.get()


def _opened(path):
    library = ctypes.CDLL(str(path))

    def array(dtype):
        return onp.ctypeslib.ndpointer(dtype, flags='C_CONTIGUOUS')

    i32, i64, f32 = array('int32'), array('int64'), array('float32')
    u8, u32 = array('uint8'), array('uint32')
    number = ctypes.c_int64
    for name, restype, *argtypes in (
            ('text_new', ctypes.c_void_p, ctypes.c_char_p, number, i64),
            ('text_copy', None, ctypes.c_void_p, i32, i64, i64, u8),
            ('text_free', None, ctypes.c_void_p),
            ('draw_pairs', number, u32, number, i64, i64, i64, number, i64,
             i64, u8),
            ('draw_masks', ctypes.c_int, u32, number, i64, i64, i32, i64,
             i32, i32, number, number, i32, i32, f32, i32, f32, i32)):
        function = getattr(library, name)
        function.restype, function.argtypes = restype, argtypes
    return library


DRAW = kernels.Library('draw', ['draw.cc'], _opened,
                       what='the C++ loops over texts')


def _tokens_of_lines(lines):
    """`Tokens` of a text's lines, in C++ where that is to be had."""
    library = _library()
    if library is None:
        return _tokens_of_paragraphs(_split(lines))
    # Line by line, since one letter beyond ASCII makes lower() slow for all
    text = b'\n'.join(line.lower().encode() for line in lines)
    sizes = onp.zeros(4, 'int64')
    handle = library.text_new(text, len(text), sizes)
    if not handle:
        raise MemoryError(f'no room for the words of {len(text):,} bytes')
    try:
        types = onp.empty(sizes[0], 'int32')
        sentences = onp.empty(sizes[1], 'int64')
        paragraphs = onp.empty(sizes[2], 'int64')
        names = onp.empty(sizes[3], 'uint8')
        library.text_copy(handle, types, sentences, paragraphs, names)
    finally:
        library.text_free(handle)
    return Tokens(types, sentences, paragraphs, _unpacked(names))


def _packed(names):
    return onp.frombuffer(''.join(f'{name}\n' for name in names).encode(),
                          'uint8')


def _unpacked(names):
    return names.tobytes().decode().split('\n')[:-1]


def _read_tokens(path):
    """`Tokens` of a file, kept in the user's cache under its content."""
    _check_is_file(path)
    if cache.enabled():
        unchanged = Unchanged()
        digest = unchanged.get(textfiles.DIGEST, path, textfiles.digest)
        unchanged.save()
        tokens = _load_tokens(_cached_tokens(digest))
        if tokens is not None:
            return tokens
    data = _read_bytes(path)
    tokens = _tokens_of_lines(_decode_lines(path, data))
    if cache.enabled():
        # A cache that cannot be written costs time, nothing else
        with contextlib.suppress(OSError):
            # By what was read: the file may be another by now
            _save_tokens(tokens, _cached_tokens(
                hashlib.sha256(data).hexdigest()))
    return tokens


def _cached_tokens(digest):
    """Where the `Tokens` of a text with this sha256 are kept."""
    # What lower() does is a matter of Python's Unicode tables, too
    key = hashlib.sha256(
        f'2 {unicodedata.unidata_version} {digest}'.encode()).hexdigest()
    return cache.root() / 'tokens' / f'{key[:32]}.npz'


def _save_tokens(tokens, path):
    cache.folder('tokens')
    with files.replacing(path) as part, open(part, 'wb') as f:
        onp.savez(f, types=tokens.types, sentences=tokens.sentences,
                  paragraphs=tokens.paragraphs, names=_packed(tokens.names))


def _load_tokens(path):
    """`Tokens` from the cache; None for a file that is missing or damaged."""
    try:
        with onp.load(path, allow_pickle=False) as f:
            tokens = Tokens(f['types'], f['sentences'], f['paragraphs'],
                            _unpacked(f['names']))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    if not _sound(tokens):
        return None
    cache.used(path)
    return tokens


def _sound(tokens):
    """Whether no number in `tokens` points outside: C++ will trust them."""
    for offsets, end in ((tokens.sentences, len(tokens.types)),
                         (tokens.paragraphs, len(tokens.sentences) - 1)):
        if (offsets.dtype != 'int64' or offsets.ndim != 1 or not len(offsets)
                or offsets[0] != 0 or offsets[-1] != end
                or (onp.diff(offsets) < 0).any()):
            return False
    types = tokens.types
    return (types.dtype == 'int32' and types.ndim == 1 and
            (not len(types) or (0 <= types.min()
                                and types.max() < len(tokens.names))))


# From tokens to examples

class Corpus(NamedTuple):
    """A text as vocabulary numbers, and the order of its paragraphs.

    Sentence s is ids[sentences[s]:sentences[s + 1]], paragraph q has the
    sentences paragraphs[q] up to paragraphs[q + 1]; order lists the
    paragraphs as the book's shuffled list does. The arrays may be
    memory-mapped.
    """

    ids: onp.ndarray         # (number of words,) int32
    sentences: onp.ndarray   # (number of sentences + 1,) int64
    paragraphs: onp.ndarray  # (number of paragraphs + 1,) int64
    order: onp.ndarray       # (number of paragraphs,) int64
    vocab: Vocab

    @classmethod
    def of_tokens(cls, tokens, order, min_freq=MIN_FREQ):
        """Build the vocabulary from `Tokens` and number the words by it."""
        num_sentences = onp.diff(tokens.paragraphs)
        if not len(num_sentences) or num_sentences.max() < 2:
            raise ValueError('no paragraph has two sentences: expected a '
                             f'paragraph a line, with {STOP!r} between '
                             'sentences')
        if num_sentences.min() < 1:
            raise ValueError('a paragraph is empty: leave it out')
        vocab = _build_vocab(tokens, order, min_freq)
        numbers = onp.array(vocab[tokens.names], 'int32')
        return cls(numbers[tokens.types], tokens.sentences,
                   tokens.paragraphs, order, vocab)


def _build_vocab(tokens, order, min_freq):
    """What Vocab(sentences, min_freq, RESERVED) gives, without a loop.

    Equally frequent words stand as they first come in the paragraphs'
    order, which is a random one.
    """
    starts = tokens.sentences[tokens.paragraphs]
    lengths = onp.diff(starts)[order]
    # Where each word of the text in order stands in the text as it is
    places = onp.repeat(starts[order] - onp.cumsum(lengths) + lengths, lengths)
    places += onp.arange(len(places))
    num_types = len(tokens.names)
    first = onp.empty(num_types, 'int64')
    # Of several values assigned to one place NumPy keeps the last
    first[tokens.types[places[::-1]]] = onp.arange(len(places))[::-1]
    freqs = onp.bincount(tokens.types, minlength=num_types)
    falling = onp.lexsort((first, -freqs)).tolist()
    freqs = freqs.tolist()
    return Vocab.from_freqs([(tokens.names[k], freqs[k]) for k in falling],
                            min_freq, RESERVED)


def draw_examples(corpus, max_len, rng=random):
    """Draw all examples of a corpus as columns: a `Batch` of NumPy arrays.

    rng: `random` or a random.Random, left in the state in which the book's
    code leaves it. Raises ValueError if not one pair of sentences fits.
    """
    library = _library()
    # Only CPython's own generator has a state that C++ can go on from
    if library is not None and (rng is random or type(rng) is random.Random):
        columns = _draw_compiled(library, corpus, max_len, rng)
    else:
        columns = _draw_plain(corpus, max_len, rng)
    if not len(columns.tokens_X):
        raise ValueError(f'not one pair of sentences fits max_len={max_len} '
                         'with <cls> and two <sep>: raise max_len')
    return columns


def _draw_plain(corpus, max_len, rng):
    """Draw with the page's helpers, on strings."""
    words = corpus.vocab.to_tokens(corpus.ids.tolist())
    ends = corpus.sentences.tolist()
    sentences = [words[start:end] for start, end in zip(ends, ends[1:])]
    paragraphs = [
        sentences[corpus.paragraphs[q]:corpus.paragraphs[q + 1]]
        for q in corpus.order.tolist()]
    examples = []
    for paragraph in paragraphs:
        examples.extend(_get_nsp_data_from_paragraph(
            paragraph, paragraphs, corpus.vocab, max_len, rng))
    return _pad_bert_inputs(
        [(*_get_mlm_data_from_tokens(tokens, corpus.vocab, rng), segments,
          is_next) for tokens, segments, is_next in examples],
        max_len, corpus.vocab)


def _draw_compiled(library, corpus, max_len, rng):
    """Draw in C++ from the state of `rng`: same draws, same examples."""
    version, state, gauss_next = rng.getstate()
    state = onp.array(state, 'uint32')
    num_paragraphs = len(corpus.order)
    most = int(corpus.paragraphs[-1]) - num_paragraphs
    firsts, seconds = onp.empty((2, most), 'int64')
    is_next = onp.empty(most, 'uint8')
    num_pairs = library.draw_pairs(
        state, num_paragraphs, corpus.order, corpus.paragraphs,
        corpus.sentences, max_len, firsts, seconds, is_next)
    pad, mask, cls, sep = corpus.vocab[RESERVED]
    columns = _empty_columns(num_pairs, max_len, pad)
    num_preds = onp.array([max(1, _num_preds(n)) for n in range(max_len + 1)],
                          'int32')
    failed = library.draw_masks(
        state, num_pairs, firsts, seconds, corpus.ids, corpus.sentences,
        onp.array([pad, mask, cls, sep, len(corpus.vocab)], 'int32'),
        num_preds, max_len, columns.pred_positions_X.shape[1], *columns[:6])
    if failed:
        raise MemoryError(f'no room for rows of max_len={max_len}')
    columns.nsp_y[:] = is_next[:num_pairs]
    rng.setstate((version, tuple(state.tolist()), gauss_next))
    return columns
