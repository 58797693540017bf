"""Vectors of many texts, computed in batches without padding.

N texts, T tokens of a text including special tokens, H hiddens.
"""
import sys
from typing import Any, Iterable, List, NamedTuple, Optional, Union

import numpy as onp

from d2lbert.machine.arguments import (
    check_model,
    items_of,
    renamed,
    whole_number,
)
from d2lbert.machine.terminal import warn_once
from d2lbert.pretrained.contents import QuantizedModel
from d2lbert.pretrained.pooling import Pooling, chosen_pooling
from d2lbert.pretrained.tokenizers.encoded import UnknownWords
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer
from d2lbert.progress import bar, in_notebook
from d2lbert.texts.examples import pad_rows

#: Texts that are sorted by length together.
TEXTS = 1 << 12

#: Texts per call of the tokenizer.
TOKENIZED = 1 << 8

#: Tokens per forward pass when batch_size is None. Each matrix product packs
#: its weights again, so a pass needs many rows to be efficient. A quantized
#: encoder keeps its weights packed, so smaller passes are efficient, too.
TOKENS, QUANTIZED_TOKENS = 1 << 13, 1 << 12

#: {modes of `Pooling`: argument `rows` of `QuantizedEncoder.encode`}
QUANTIZED_POOLS = {('cls',): 'first', ('mean',): 'mean'}


class Text(NamedTuple):
    """A text or a pair of texts, and where it comes from."""

    name: str       # its argument, or its file and line, for messages
    text: str
    pair: Optional[str] = None


class Encoding(NamedTuple):
    """A text, its tokens and its vectors."""

    text: Text
    encoded: Any        # the tokenizer's `Encoded`, of T tokens
    vectors: Any        # (T, H) float32, or (H,) if pooled


class _Input(NamedTuple):
    """One input sequence of the net: a text, or a window of a text."""

    text: int           # index of the text
    window: int         # index of the window in the text
    ids: list
    segments: list


@renamed(windows='overlap')
def encode(net: Any, tokenizer: Any, texts: Iterable,
           pooling: Optional[str] = 'own', layer: int = -1,
           batch_size: Optional[int] = None, max_len: Optional[int] = None,
           overlap: Optional[int] = None, normalize: Optional[bool] = None,
           show_progress: Optional[bool] = None
           ) -> Union[onp.ndarray, List[onp.ndarray]]:
    """Encode texts as vectors: a NumPy array (N, H) float32.

    tokenizer: as `load_model` returns it, or the vocabulary of `load_run`.
    texts: strings, or pairs of strings, in a list, a tuple, a generator, an
    array or a column of a table. pooling: how the token vectors of a
    text become one vector. 'cls', 'mean', 'max', 'mean_sqrt_len_tokens',
    'weightedmean' and 'lasttoken' include special tokens. 'own' uses the
    pooling and normalization in the model's folder, or the mean. None
    returns a list of N arrays (T, H) of token vectors. normalize: True to
    scale vectors to length 1, False not to; None follows the pooling. layer:
    index of the block whose output to use; 0 is the embeddings, -1 the last
    block.

    max_len: most tokens of a text, special tokens included. The default is
    the limit in the model's folder, or the number of positions. Longer texts
    are truncated, with one `TextWarning` for each tokenizer and a log record
    of the logger d2lbert for each call. overlap: encode long texts in
    windows of max_len tokens that overlap by this number instead. A token
    then has its vector from the window in which it is farthest from an end;
    special tokens have the mean over all windows.

    batch_size: texts per forward pass. By default a pass has 8,192 tokens.
    It affects the speed only. With the C++ operators, the vector of a text
    does not depend on the other texts, their order or the number of threads,
    to the last bit. With MXNet's operators, vectors differ by rounding. These
    operators serve GPUs, machines without a compiler, `D2LBERT_KERNELS=off`
    and nets with custom blocks.

    show_progress: show a progress bar on standard error. By default it
    appears after a second, in a notebook or on a terminal.

    Raises ValueError for an empty text and TypeError for a text that is not
    a string. Words outside the vocabulary cause a warning, as truncated
    texts do.
    """
    encoder = TextEncoder(net, tokenizer, pooling, layer, batch_size,
                          max_len, overlap, normalize)
    texts, tokenizer = _named(texts), encoder.tokenizer
    words, vectors = UnknownWords(tokenizer), []
    with text_bar(len(texts), 'encoding', show_progress) as shown:
        for first in range(0, len(texts), TEXTS):
            for encoding in encoder.encode(texts[first:first + TEXTS],
                                           shown.update):
                words.count(encoding)
                vectors.append(encoding.vectors)
    note = encoder.truncation_note()
    if note:
        warn_once(tokenizer, 'cut', f'{note}; overlap= would keep them')
    words.warn()
    if encoder.pooling is None:
        return vectors
    if not vectors:
        H = net.config['num_hiddens']
        return onp.zeros((0, len(encoder.pooling.modes) * H), 'float32')
    return onp.stack(vectors)


def text_bar(total, what, shown):
    """A progress bar of texts; shown: see `show_progress` of `encode`."""
    if shown is None:
        shown = in_notebook() or (sys.stderr is not None
                                  and sys.stderr.isatty())
        delay = 1
    else:
        delay = 0
    return bar(total, what, 'texts', quiet=not shown, delay=delay)


def _named(texts):
    """Convert texts or pairs to `Text`s, named texts[0], texts[1], ..."""
    named = []
    for i, text in enumerate(items_of(texts)):
        parts = [text] if isinstance(text, str) else text
        if not (isinstance(parts, (list, tuple)) and len(parts) in (1, 2)
                and all(isinstance(part, str) for part in parts)):
            raise TypeError(f'texts[{i}] must be a string, or a pair of '
                            f'them, not {text!r}')
        named.append(Text(f'texts[{i}]', *parts))
    return named


def _check_not_empty(texts):
    """Raise ValueError if a text or a second text is empty."""
    for text in texts:
        for part in text[1:]:
            if part is not None and not part.strip():
                raise ValueError(f'{text.name} is empty: give at least one '
                                 'word')


class TextEncoder:
    """A net and a tokenizer that turn `Text`s into `Encoding`s.

    Arguments as for `encode`. With truncates=False a text that is too long
    is an error, unless max_len or overlap are given. `count` is the number
    of texts so far, `truncated` the number of truncated texts, and
    `left_out` the number of tokens that they lost.
    """

    def __init__(self, net, tokenizer, pooling='own', layer=-1,
                 batch_size=None, max_len=None, overlap=None, normalize=None,
                 truncates=True):
        tokenizer = as_tokenizer(tokenizer)
        check_model(net, tokenizer)
        self.net, self.tokenizer = net, tokenizer
        self.layer = whole_number('layer', layer)
        for name, value in (('batch_size', batch_size), ('max_len', max_len),
                            ('overlap', overlap)):
            if value is not None:
                whole_number(name, value)
        self.pooling, self._prepared = chosen_pooling(tokenizer, pooling,
                                                      normalize)
        self._truncates = truncates or (max_len, overlap) != (None, None)
        self.max_len = (_limit(net, tokenizer, max_len) if self._truncates
                        else net.encoder.max_len)
        self._room = self.max_len - tokenizer.num_special()
        if self._room < 1:
            raise ValueError(f'max_len={self.max_len} leaves no room for a '
                             f'text: give {tokenizer.num_special() + 1} or '
                             'more')
        if overlap is not None and not 0 <= overlap < self._room:
            raise ValueError(
                f'overlap={overlap} must be at least 0 and less than the '
                f'{self._room} tokens of a text that max_len={self.max_len} '
                'has room for')
        if batch_size is not None and batch_size < 1:
            raise ValueError(f'batch_size={batch_size} must be at least 1')
        self._overlap, self._batch_size = overlap, batch_size
        self.count = self.truncated = self.left_out = 0

    def encode(self, texts, advance=lambda num_texts: None):
        """Encode a list of `Text`s: a list of `Encoding`s in its order.

        The `text` of an `Encoding` includes the prompt, if there is one.
        advance: called with 1 after each text.
        """
        _check_not_empty(texts)
        texts = [text._replace(text=self._prepared(text.text))
                 for text in texts]
        encoded, vectors = [None] * len(texts), [None] * len(texts)
        unfinished = {}     # {index of a text: {window: its vectors}}
        inputs = self._inputs(texts, encoded)
        for batch, arrays in self._forward(inputs):
            for one, X in zip(batch, arrays):
                begins = self._windows(encoded[one.text])
                if len(begins) > 1:
                    windows = unfinished.setdefault(one.text, {})
                    windows[one.window] = X.copy()
                    if len(windows) < len(begins):
                        continue
                    X = _joined([windows[w] for w in range(len(begins))],
                                begins, self._room)
                    del unfinished[one.text]
                if self.pooling is None:
                    # A view would keep the whole batch in memory
                    X = X.copy()
                elif self._overlap is not None:
                    # Without overlap, `_start` has pooled it
                    X = self.pooling(X)
                vectors[one.text] = X
                advance(1)
        return [Encoding(*each) for each in zip(texts, encoded, vectors)]

    def truncation_note(self):
        """A sentence about truncated texts, or None if there are none."""
        if not self.truncated:
            return None
        return (f'{self.truncated} of {self.count} texts have more than '
                f'{self.max_len} tokens and were cut; {self.left_out} tokens '
                'were left out')

    def _inputs(self, texts, encoded):
        """Yield the `_Input`s of texts, by falling number of characters.

        The results of the tokenizer are stored in `encoded`. It tokenizes
        `TOKENIZED` texts at a time, while the net computes a batch.
        """
        order = sorted(range(len(texts)), key=lambda k: -sum(
            len(part or '') for part in texts[k][1:]))
        for first in range(0, len(order), TOKENIZED):
            part = order[first:first + TOKENIZED]
            found = self._tokenized([texts[k] for k in part])
            for k, one in zip(part, found):
                self.count += 1
                if len(one.ids) > self.max_len:
                    if not self._truncates:
                        self._refuse_first(texts)
                    one = self._shortened(texts[k], one)
                encoded[k] = one
                yield from self._inputs_of(k, one)

    def _tokenized(self, texts):
        firsts = [text.text for text in texts]
        pairs = [text.pair for text in texts]
        if pairs == [None] * len(texts):
            return self.tokenizer.encode_batch(firsts)
        return list(map(self.tokenizer.encode, firsts, pairs))

    def _inputs_of(self, k, encoded):
        """Yield the `_Input` of text k, or of each of its windows."""
        ids, segments = encoded.ids, encoded.segments
        begins = self._windows(encoded)
        if len(begins) == 1:
            yield _Input(k, 0, ids, segments)
            return
        for window, first in enumerate(begins):
            kept = [0, *range(first + 1, first + 1 + self._room),
                    *range(len(ids) - self._trailing, len(ids))]
            yield _Input(k, window, [ids[i] for i in kept],
                         [segments[i] for i in kept])

    def _refuse_first(self, texts):
        """Raise ValueError for the first text of the list that is too long.
        """
        for text in texts:
            T = len(self._tokenized([text])[0].ids)
            if T > self.max_len:
                raise ValueError(f'{text.name}: {T} tokens are more than the '
                                 f'{self.max_len} positions of this model: '
                                 'cut the text')

    def _shortened(self, text, encoded):
        """The `Encoded` of a long text: truncated, or whole for windows."""
        T = len(encoded.ids)
        if self._overlap is not None:
            if text.pair is None:
                return encoded
            raise ValueError(f'{text.name}: {T} tokens are more than '
                             f'{self.max_len}, and windows are of single '
                             'texts: cut the pair')
        encoded = self.tokenizer.encode(*text[1:], self.max_len)
        self.truncated += 1
        self.left_out += T - len(encoded.ids)
        return encoded

    @property
    def _trailing(self):
        # The first special token is before the text, the others after it
        return self.tokenizer.num_special() - 1

    def _windows(self, encoded):
        """The index of the first token of each window, <cls> not counted."""
        if len(encoded.ids) <= self.max_len:
            return [0]
        n = len(encoded.ids) - self.tokenizer.num_special()
        return [*range(0, n - self._room, self._room - self._overlap),
                n - self._room]

    def _batches(self, inputs):
        """Yield lists of inputs, one list for each forward pass."""
        batch, tokens = [], 0
        most = TOKENS if self._quantized() is None else QUANTIZED_TOKENS
        for one in inputs:
            full = (tokens + len(one.ids) > most
                    if self._batch_size is None
                    else len(batch) == self._batch_size)
            if batch and full:
                yield batch
                batch, tokens = [], 0
            batch.append(one)
            tokens += len(one.ids)
        if batch:
            yield batch

    def _forward(self, inputs):
        """Yield batches of inputs, and a list of their arrays.

        An array holds the token vectors (T, H) of an input. If texts are
        pooled and overlap is None, it is the pooled vector instead. The next
        batch is computed while the caller uses this one.
        """
        previous = None
        for batch in self._batches(inputs):
            started = batch, self._start(batch)
            if previous:
                yield previous[0], previous[1]()
            previous = started
        if previous:
            yield previous[0], previous[1]()

    def _start(self, batch):
        """Start the forward pass of a batch: a function that finishes it."""
        lens = [len(one.ids) for one in batch]
        offsets = onp.cumsum([0, *lens])
        pooled = self.pooling is not None and self._overlap is None
        quantized = self._quantized()
        if quantized is not None:
            rows = (QUANTIZED_POOLS.get(self.pooling.modes, 'all') if pooled
                    else 'all')
            future = quantized.begin(
                offsets, [i for one in batch for i in one.ids],
                [i for one in batch for i in one.segments], self.layer, rows)
            if rows != 'all':
                return lambda: self.pooling.scaled(future.result())
            wait, begins = future.result, offsets
        else:
            wait, begins = self._start_net(batch, lens)

        def finish():
            X = wait()
            arrays = [X[begin:begin + n] for begin, n in zip(begins, lens)]
            return [*map(self.pooling, arrays)] if pooled else arrays
        return finish

    def _start_net(self, batch, lens):
        """Start an MXNet net on a batch.

        Returns a function that waits for the vectors of all tokens, and the
        row at which each input begins.
        """
        from d2lbert.machine.backend import autograd
        from d2lbert.nn import packed
        from d2lbert.pretrained.heads import FineTuned
        layer = self.layer
        if layer == -1 and isinstance(self.net, FineTuned):
            layer = self.net.encoder.blks.num_layers    # below the task head
        ids = pad_rows([one.ids for one in batch], self.tokenizer.pad_id)
        segments = pad_rows([one.segments for one in batch])
        with autograd.pause():
            encoded = packed.encode(self.net, ids, segments, lens,
                                    layer=layer)
        return encoded.X.asnumpy, encoded.begins

    def _quantized(self):
        """The `QuantizedEncoder` of the net; None if MXNet encodes."""
        if isinstance(self.net, QuantizedModel):
            return self.net.encoder
        # This imports MXNet, which a `QuantizedModel` does not need
        from d2lbert.nn.layers import has_plain_call
        encoder = self.net.encoder
        return encoder.quantized if all(map(
            has_plain_call, (self.net, encoder))) else None


def _joined(parts, begins, room):
    """The (T, H) of a text, from the arrays of its windows.

    room: tokens of a window without special tokens.
    """
    n = begins[-1] + room
    # (windows, n): the index of a token in a window, <cls> not counted.
    # Outside the window the distance to the nearer end is negative
    at = onp.arange(n) - onp.array(begins)[:, None]
    nearer_end = onp.minimum(at, room - 1 - at)
    best = nearer_end.argmax(axis=0)                # (n,) window numbers
    parts = onp.stack(parts)
    body = parts[best, 1 + at[best, onp.arange(n)]]
    ends = parts.mean(axis=0)
    return onp.concatenate([ends[:1], body, ends[1 + room:]])


def _limit(net, tokenizer, max_len):
    """The most tokens of a text, special tokens included."""
    positions = net.encoder.max_len
    if max_len is None:
        own = tokenizer.pooling or Pooling()
        return min(own.max_len or tokenizer.max_len or positions, positions)
    if max_len > positions:
        raise ValueError(f'max_len={max_len} is more than the {positions} '
                         'positions of this model: lower it')
    return max_len
