"""This module computes the vectors of many texts, in batches without padding.

N: the number of texts. T: the number of tokens of a text, special tokens
included. H: the size of a token vector. A pooled vector has H numbers for each
pooling mode. A window is a range of the tokens of a long text.
"""
import sys
from typing import Any, Iterable, List, NamedTuple, Optional, Union

import numpy as onp

from d2lbert.machine.arguments import (
    check_model,
    items_of,
    renamed,
    short_repr,
    whole_number,
)
from d2lbert.machine.terminal import warn_once
from d2lbert.pretrained.contents import QuantizedModel
from d2lbert.pretrained.pooling import Pooling, choose_pooling
from d2lbert.pretrained.tokenizers.encoded import UnknownWords
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer
from d2lbert.progress import bar, in_notebook
from d2lbert.texts.examples import pad_rows

#: The number of texts that are sorted by length together.
SORTED_TEXTS = 1 << 12

#: The number of texts per call of the tokenizer.
TOKENIZED_TEXTS = 1 << 8

#: The largest number of tokens in a forward pass if batch_size is None, for an
#: MXNet net and for a quantized encoder. The MXNet net rearranges its weights
#: for each product of matrices, which pays off only with many tokens. The
#: quantized encoder rearranges its weights once.
MAX_TOKENS, QUANTIZED_MAX_TOKENS = 1 << 13, 1 << 12

#: The poolings that a quantized encoder computes itself: {modes of `Pooling`:
#: argument `returned_rows` of `QuantizedEncoder.encode`}.
QUANTIZED_POOLS = {('cls',): 'first', ('mean',): 'mean'}


class Text(NamedTuple):
    """A text or a pair of texts, and its name in messages."""

    name: str       # 'texts[3]', or a file and a line
    text: str
    pair: Optional[str] = None


class Encoding(NamedTuple):
    """A text, its tokens and its vectors."""

    text: Text
    encoded: Any        # the tokenizer's `Encoded`, of T tokens
    vectors: Any        # (T, H) float32, or the pooled vector


class _Input(NamedTuple):
    """One input sequence of the net: a text, a pair, or a text's window."""

    text_index: int
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

    tokenizer: from `load_pretrained`, or the vocabulary of `load_run`.
    texts: strings, or pairs of strings, in a list, a tuple, a generator, an
    array or a column of a table. pooling: how the token vectors of a text
    become one vector. 'cls', 'mean', 'max', 'mean_sqrt_len_tokens',
    'weightedmean' and 'lasttoken' are modes of sentence-transformers. They
    pool special tokens, too. 'own' uses the pooling and normalization in the
    model's folder, or the mean. None returns a list of N arrays (T, H) of
    token vectors. normalize: True to scale vectors to length 1, False not to.
    None follows the model's folder if pooling='own', and otherwise does not
    scale. layer: index of the block whose output to use; 0 is the embeddings,
    -1 the last block.

    max_len: maximum number of tokens of a text, special tokens included. The
    default is the number of positions, or a lower limit in the model's folder.
    Longer texts are truncated. For each tokenizer, the first call that
    truncates issues a `TextWarning`; later calls log the message to the logger
    d2lbert. overlap: encode a long text in windows of max_len tokens instead.
    Each window shares this number of tokens with the next; the last two may
    share more. For a token in several windows, the vector is from the window
    in which the token is farthest from the nearer end. The vector of a special
    token is the mean over all windows.

    batch_size: texts or windows per forward pass. By default a pass has up to
    8,192 tokens, or 4,096 with int8 weights. With the C++ operators,
    batch_size changes the speed alone: the vector of a text does not depend on
    the other texts, their order or the number of threads, to the last bit.
    MXNet's operators may round differently in another batch. They compute on
    GPUs, on machines without a compiler, with `D2LBERT_KERNELS=off`, and for
    nets with custom blocks.

    show_progress: show a progress bar on standard error. By default it
    appears after a second, in a notebook or on a terminal.

    Raises ValueError for an empty text and TypeError for a text that is not
    a string. Words outside the vocabulary cause a warning, as truncated
    texts do.
    """
    encoder = TextEncoder(net, tokenizer, pooling, layer, batch_size,
                          max_len, overlap, normalize)
    texts, tokenizer = _to_texts(texts), encoder.tokenizer
    unknown, vectors = UnknownWords(tokenizer), []
    with text_bar(len(texts), 'encoding', show_progress) as progress:
        for first in range(0, len(texts), SORTED_TEXTS):
            for encoding in encoder.encode(texts[first:first + SORTED_TEXTS],
                                           progress.update):
                unknown.count(encoding)
                vectors.append(encoding.vectors)
    note = encoder.truncation_note()
    if note:
        warn_once(tokenizer, 'cut', f'{note}; overlap= would keep them')
    unknown.warn()
    if encoder.pooling is None:
        return vectors
    if not vectors:
        H = net.config['num_hiddens']
        return onp.zeros((0, len(encoder.pooling.modes) * H), 'float32')
    return onp.stack(vectors)


def text_bar(total, label, show_progress):
    """A progress bar of `total` texts; show_progress: as for `encode`."""
    delay = 0       # in seconds
    if show_progress is None:
        show_progress = in_notebook() or (sys.stderr is not None
                                          and sys.stderr.isatty())
        delay = 1
    return bar(total, label, 'texts', quiet=not show_progress, delay=delay)


def _to_texts(texts):
    """Convert texts or pairs to `Text`s, named texts[0], texts[1], ..."""
    named_texts = []
    for i, text in enumerate(items_of(texts)):
        parts = [text] if isinstance(text, str) else text
        if not (isinstance(parts, (list, tuple)) and len(parts) in (1, 2)
                and all(isinstance(part, str) for part in parts)):
            raise TypeError(f'texts[{i}] must be a string, or a pair of '
                            f'strings, not {short_repr(text)}')
        named_texts.append(Text(f'texts[{i}]', *parts))
    return named_texts


def _check_not_empty(texts):
    """Raise ValueError if a text, or a text of a pair, is empty."""
    for text in texts:
        for part in (text.text, text.pair):
            if part is not None and not part.strip():
                raise ValueError(f'{text.name} is empty: give at least one '
                                 'word')


class _Windows:
    """The windows of long texts; a short text is a single window.

    max_len: the largest number of tokens of a window, special tokens included.
    num_special: the number of special tokens, of which one (<cls>) comes
    before the text. overlap: as for `encode`; None if no text exceeds max_len.
    """

    def __init__(self, max_len, num_special, overlap):
        self._max_len, self._num_special = max_len, num_special
        self._overlap = overlap
        self._body_len = max_len - num_special      # without special tokens

    def begins(self, encoded):
        """The index of the first token of each window of a text, a list.

        The token after <cls> has index 0.
        """
        last_begin = len(encoded.ids) - self._max_len
        if last_begin <= 0:
            return [0]
        step = self._body_len - self._overlap
        return [*range(0, last_begin, step), last_begin]

    def inputs(self, text_index, encoded):
        """Yield the `_Input` of each window of a text, in order."""
        ids, segments = encoded.ids, encoded.segments
        begins = self.begins(encoded)
        if len(begins) == 1:
            yield _Input(text_index, ids, segments)
            return
        num_after = self._num_special - 1   # special tokens after the text
        for begin in begins:
            first = 1 + begin               # <cls> is token 0
            kept = [0, *range(first, first + self._body_len),
                    *range(len(ids) - num_after, len(ids))]
            yield _Input(text_index, [ids[i] for i in kept],
                         [segments[i] for i in kept])

    def join(self, vectors, begins):
        """Join the vectors of a text's windows: token vectors (T, H).

        vectors: a list with the token vectors of each window.
        """
        n = begins[-1] + self._body_len     # tokens without special tokens
        # (windows, n): the index of each token in each window; 0 follows <cls>
        indices = onp.arange(n) - onp.array(begins)[:, None]
        # Negative for tokens outside the window
        distance_to_end = onp.minimum(indices, self._body_len - 1 - indices)
        best_window = distance_to_end.argmax(axis=0)    # (n,)
        vectors = onp.stack(vectors)        # (windows, tokens of a window, H)
        body = vectors[best_window, 1 + indices[best_window, onp.arange(n)]]
        means = vectors.mean(axis=0)        # used for special tokens only
        return onp.concatenate(
            [means[:1], body, means[1 + self._body_len:]])


class TextEncoder:
    """A net and a tokenizer that turn `Text`s into `Encoding`s.

    Arguments are as for `encode`, but net may also be a `QuantizedModel`.
    truncates=False: if neither max_len nor overlap is given, a text with more
    tokens than the net has positions is an error. Attributes: num_texts,
    num_truncated and num_lost_tokens, the numbers of texts so far, of
    truncated texts, and of tokens that truncation removed.
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
                whole_number(name, value)   # raises an error for 1.5
        self.pooling, self._prepare_text = choose_pooling(tokenizer, pooling,
                                                          normalize)
        self._takes_long_texts = (truncates or max_len is not None
                                  or overlap is not None)
        self.max_len = (_choose_max_len(net, tokenizer, max_len)
                        if self._takes_long_texts else net.encoder.max_len)
        num_special = tokenizer.num_special()
        if self.max_len <= num_special:
            raise ValueError(f'max_len={self.max_len} leaves no room for a '
                             f'text: give {num_special + 1} or more')
        if overlap is not None and not (
                0 <= overlap < self.max_len - num_special):
            raise ValueError(
                f'overlap={overlap} must be at least 0 and less than '
                f'{self.max_len - num_special}, the tokens of a window of '
                f'max_len={self.max_len} without special tokens')
        self._windows = _Windows(self.max_len, num_special, overlap)
        if batch_size is not None and batch_size < 1:
            raise ValueError(f'batch_size={batch_size} must be at least 1')
        self._overlap, self._batch_size = overlap, batch_size
        self.num_texts = self.num_truncated = self.num_lost_tokens = 0

    def encode(self, texts, advance=lambda num_texts: None):
        """Encode a list of `Text`s: a list of `Encoding`s in the same order.

        In the result, `Text.text` is the output of `Pooling.prepare`. advance:
        called with 1 after each text.
        """
        _check_not_empty(texts)
        texts = [text._replace(text=self._prepare_text(text.text))
                 for text in texts]
        encoded, vectors = [None] * len(texts), [None] * len(texts)
        # `_inputs` fills `encoded`, and yields the windows of a text one after
        # another
        inputs = self._inputs(texts, encoded)
        window_vectors = []
        for batch, arrays in self._forward(inputs):
            for item, X in zip(batch, arrays):
                k = item.text_index
                begins = self._windows.begins(encoded[k])
                # Copy X where a view would keep the whole batch in memory
                if len(begins) > 1:
                    window_vectors.append(X.copy())
                    if len(window_vectors) < len(begins):
                        continue
                    X = self._windows.join(window_vectors, begins)
                    window_vectors = []
                if self.pooling is None:
                    X = X.copy()
                elif self._overlap is not None:
                    X = self.pooling(X)     # `_forward` has not pooled it
                vectors[k] = X
                advance(1)
        return [*map(Encoding, texts, encoded, vectors)]

    def truncation_note(self):
        """A sentence about truncated texts, or None without such texts."""
        if not self.num_truncated:
            return None
        return (f'{self.num_truncated} of {self.num_texts} texts have more '
                f'than {self.max_len} tokens and were cut; '
                f'{self.num_lost_tokens} tokens were left out')

    def _inputs(self, texts, encoded):
        """Yield the `_Input`s of texts, the text with most characters first.

        Store the `Encoded` of text k as encoded[k]. Tokenize a part of the
        texts at a time, so that the net computes meanwhile, see `_forward`.
        """
        order = sorted(range(len(texts)), key=lambda k: -sum(
            len(part or '') for part in (texts[k].text, texts[k].pair)))
        for first in range(0, len(order), TOKENIZED_TEXTS):
            indices = order[first:first + TOKENIZED_TEXTS]
            encoded_batch = self._tokenize([texts[k] for k in indices])
            for k, encoded_text in zip(indices, encoded_batch):
                self.num_texts += 1
                if len(encoded_text.ids) > self.max_len:
                    if not self._takes_long_texts:
                        self._raise_too_long(texts)
                    encoded_text = self._truncate_unless_overlap(
                        texts[k], encoded_text)
                encoded[k] = encoded_text
                yield from self._windows.inputs(k, encoded_text)

    def _tokenize(self, texts):
        """The `Encoded` of each `Text`, not truncated: a list."""
        first_texts = [text.text for text in texts]
        second_texts = [text.pair for text in texts]
        if second_texts == [None] * len(texts):
            return self.tokenizer.encode_batch(first_texts)
        return list(map(self.tokenizer.encode, first_texts, second_texts))

    def _raise_too_long(self, texts):
        """Raise ValueError for the first of the texts that is too long.

        `_inputs`, which calls this method, takes the texts in another order.
        """
        for text in texts:
            T = len(self._tokenize([text])[0].ids)
            if T > self.max_len:
                raise ValueError(f'{text.name}: {T} tokens are more than the '
                                 f'{self.max_len} positions of this model: '
                                 'cut the text')

    def _truncate_unless_overlap(self, text, encoded):
        """Truncate a text and count it; with overlap, return `encoded`.

        Raises ValueError for a pair with overlap.
        """
        T = len(encoded.ids)
        if self._overlap is None:
            encoded = self.tokenizer.encode(text.text, text.pair, self.max_len)
            self.num_truncated += 1
            self.num_lost_tokens += T - len(encoded.ids)
        elif text.pair is not None:
            raise ValueError(f'{text.name}: {T} tokens are more than '
                             f'{self.max_len}, and overlap= is for single '
                             'texts: shorten the pair')
        return encoded

    def _batches(self, inputs):
        """Yield lists of inputs, one list for each forward pass."""
        batch, num_tokens = [], 0
        max_tokens = (MAX_TOKENS if self._quantized_encoder() is None
                      else QUANTIZED_MAX_TOKENS)
        for item in inputs:
            is_full = (num_tokens + len(item.ids) > max_tokens
                       if self._batch_size is None
                       else len(batch) == self._batch_size)
            if batch and is_full:
                yield batch
                batch, num_tokens = [], 0
            batch.append(item)
            num_tokens += len(item.ids)
        if batch:
            yield batch

    def _forward(self, inputs):
        """Yield (list of inputs, list of their arrays) for each batch.

        An array has the token vectors (T, H) of an input. If texts are pooled
        and overlap is None, it is the pooled vector instead. The net computes
        a batch while the caller uses the batch before it, and while `inputs`
        prepares the batch after it.
        """
        batch = finish = None
        for next_batch in self._batches(inputs):
            next_finish = self._start(next_batch)
            if finish:
                yield batch, finish()
            batch, finish = next_batch, next_finish
        if finish:
            yield batch, finish()

    def _start(self, batch):
        """Start a forward pass; return a function that waits for its result.

        The result is a list of arrays, see `_forward`.
        """
        lens = [len(item.ids) for item in batch]
        is_pooled = self.pooling is not None and self._overlap is None
        quantized = self._quantized_encoder()
        if quantized is not None:
            returned_rows = (QUANTIZED_POOLS.get(self.pooling.modes, 'all')
                             if is_pooled else 'all')
            # The last entry is the number of rows
            first_rows = onp.cumsum([0, *lens])
            future = quantized.encode_async(
                first_rows, [i for item in batch for i in item.ids],
                [i for item in batch for i in item.segments], self.layer,
                returned_rows)
            if returned_rows != 'all':      # the rows are pooled
                return lambda: self.pooling.normalized(future.result())
            wait = future.result
        else:
            wait, first_rows = self._start_net(batch, lens)

        def finish():
            X = wait()      # the token vectors of all inputs
            arrays = [X[row:row + n] for row, n in zip(first_rows, lens)]
            return [*map(self.pooling, arrays)] if is_pooled else arrays
        return finish

    def _start_net(self, batch, lens):
        """Start an MXNet net on a batch, whose inputs have `lens` tokens.

        Returns a function that waits for the vectors of all tokens, one a row,
        and the first row of each input.
        """
        # These import MXNet, which a `QuantizedModel` does not need
        from d2lbert.machine.backend import autograd
        from d2lbert.nn import packed
        from d2lbert.pretrained.heads import FineTuned
        layer = self.layer
        ids = pad_rows([item.ids for item in batch], self.tokenizer.pad_id)
        segments = pad_rows([item.segments for item in batch])
        with autograd.pause():
            # -1 is for nets with the forward method of a `BERTModel`
            if layer == -1 and isinstance(self.net, FineTuned):
                if self.net.decoder is not None:
                    X, begins = self.net.decoder_rows(ids, onp.array(lens))
                    return X.asnumpy, begins
                layer = self.net.encoder.blks.num_layers
            output = packed.encode(self.net, ids, segments, lens, layer=layer)
        return output.X.asnumpy, output.begins

    def _quantized_encoder(self):
        """The `QuantizedEncoder` of the net, or None.

        None also if the net has hooks or a changed `forward`, which the
        `QuantizedEncoder` would not call.
        """
        if isinstance(self.net, QuantizedModel):
            return self.net.encoder
        # This imports MXNet, which a `QuantizedModel` does not need
        from d2lbert.nn.layers import has_plain_call
        encoder = self.net.encoder
        return encoder.quantized if all(map(
            has_plain_call, (self.net, encoder))) else None


def _choose_max_len(net, tokenizer, max_len):
    """The largest number of tokens of a text; max_len: as for `encode`."""
    num_positions = net.encoder.max_len
    if max_len is None:
        # A limit in the files of sentence-transformers has priority
        pooling = tokenizer.pooling or Pooling()
        return min(pooling.max_len or tokenizer.max_len or num_positions,
                   num_positions)
    if max_len > num_positions:
        raise ValueError(f'max_len={max_len} is more than the {num_positions} '
                         'positions of this model: lower it')
    return max_len
