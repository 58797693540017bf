"""Many texts to vectors, some of them through the net at a time.

N texts, T tokens of a text with the special ones, H hiddens.
"""
import sys
from typing import Any, NamedTuple, Optional

import numpy as onp

from d2lbert.machine.arguments import check_model, short, whole_number
from d2lbert.machine.backend import autograd
from d2lbert.machine.terminal import warn_once
from d2lbert.nn import packed
from d2lbert.nn.layers import is_unmodified
from d2lbert.pretrained.pooling import Pooling, chosen_pooling
from d2lbert.pretrained.unknown_words import UnknownWords
from d2lbert.progress import bar, in_notebook
from d2lbert.texts.token_rows import pad_rows

#: Texts that are sorted by length together, those that the tokenizer is given
#: at once, and tokens that go through the net at once where nobody says how
#: many texts: each product of matrices arranges its weights anew, which many
#: rows pay for.
TEXTS, CUT, TOKENS = 1 << 12, 1 << 8, 1 << 13


class Text(NamedTuple):
    """A text on its way through the net, and where it comes from."""

    name: str       # of the argument, or of a line of a file
    text: str
    pair: Optional[str] = None


class Encoding(NamedTuple):
    """What the net makes of a text."""

    text: Text
    encoded: Any        # the tokenizer's `Encoded`, of T tokens
    vectors: Any        # (T, H) float32, or (H,) of a pooled one


class _Input(NamedTuple):
    """Tokens that go through the net as one sequence."""

    text: int           # which of the texts at hand
    window: int         # which of that text's windows
    ids: list
    segments: list


def encode(net, tokenizer, texts, pooling='own', layer=-1, batch_size=None,
           max_len=None, windows=None, normalize=None, show_progress=None):
    """The vectors of texts: a NumPy array (N, H) float32.

    texts: strings, or pairs of strings. pooling: what makes one vector of a
    text: 'cls', 'mean', 'max', 'mean_sqrt_len_tokens', 'weightedmean' or
    'lasttoken', over all its tokens with the special ones; 'own', what the
    model's folder says, normalizing included, else the mean; None gives the
    vectors of its tokens, a list of N arrays (T, H). normalize: whether a
    vector has a length of 1 (as pooling says). layer: behind which block of
    the net, 0 for the embeddings, -1 for the last.

    max_len: tokens of a text at most, special ones included (what the folder
    says, but never more than the model's positions). A longer one is cut,
    which a `TextWarning` says once for a tokenizer, and the logger d2lbert
    each time; or with `windows`, a number of tokens, it goes through the net
    in windows of max_len that overlap by so many: each token has the vector
    of the window in which it stands farthest from an end, the special ones
    the mean of theirs.

    batch_size: texts at a time (as many as 8,192 tokens make). It changes
    the time that this takes and nothing else: the vector of a text is the
    same to the last bit whatever other texts come with it, in whatever order
    and number, and with any number of threads. Of the net's own operators in
    C++, that is; MXNet's, which serve GPUs, machines without a compiler,
    `D2LBERT_KERNELS=off` and nets with blocks of one's own, do not promise
    it, and differ by rounding.

    show_progress: a bar on standard error, with the time that is left (after
    a second of work, in a notebook and where that is a terminal).

    Raises ValueError for an empty text, TypeError for what is none. Words
    that the vocabulary lacks are warned of as cut texts are.
    """
    encoder = TextEncoder(net, tokenizer, pooling, layer, batch_size,
                          max_len, windows, normalize)
    texts = _named(texts)
    words, vectors = UnknownWords(tokenizer), []
    with text_bar(len(texts), 'encoding', show_progress) as shown:
        for first in range(0, len(texts), TEXTS):
            for encoding in encoder.encode(texts[first:first + TEXTS],
                                           shown.update):
                words.count(encoding)
                vectors.append(encoding.vectors)
    cut = encoder.cut_words()
    if cut:
        warn_once(tokenizer, 'cut', f'{cut}; windows= would keep them')
    if words.unknown:
        warn_once(tokenizer, 'unknown', words.sentence())
    if encoder.pooling is None:
        return vectors
    if not vectors:
        H = net.encoder.token_embedding.weight.shape[1]
        return onp.zeros((0, len(encoder.pooling.modes) * H), 'float32')
    return onp.stack(vectors)


def text_bar(total, what, shown):
    """A bar of texts; shown: as `show_progress` of `encode`."""
    notebook = in_notebook()
    if shown is None:
        shown = notebook or (sys.stderr is not None and sys.stderr.isatty())
        delay = 1
    else:
        delay = 0
    return bar(total, what, 'texts', quiet=not shown, delay=delay,
               notebook=notebook)


def _named(texts):
    if isinstance(texts, str):
        raise TypeError('texts must be a list of texts, not one: give '
                        f'[{texts[:40]!r}]')
    if not hasattr(texts, '__iter__') and not hasattr(texts, '__getitem__'):
        raise TypeError(f'texts must be a list of texts, not {short(texts)}')
    named = []
    for i, text in enumerate(texts):
        parts = [text] if isinstance(text, str) else text
        if not (isinstance(parts, (list, tuple)) and len(parts) in (1, 2)
                and all(isinstance(part, str) for part in parts)):
            raise TypeError(f'texts[{i}] must be a string, or a pair of '
                            f'them, not {text!r}')
        named.append(Text(f'texts[{i}]', *parts))
    return named


def _not_empty(texts):
    for text in texts:
        for part in text[1:]:
            if part is not None and not part.strip():
                raise ValueError(f'{text.name} is empty: give at least one '
                                 'word')
    return texts


class TextEncoder:
    """A net and a tokenizer that turn `Text`s into `Encoding`s.

    Arguments as for `encode`; cuts=False refuses a text that is too long
    where neither max_len nor windows are given. `count`, `cut` and
    `left_out` say how many texts have come, how many were cut, and by how
    many tokens in all.
    """

    def __init__(self, net, tokenizer, pooling='own', layer=-1,
                 batch_size=None, max_len=None, windows=None, normalize=None,
                 cuts=True):
        check_model(net, tokenizer)
        self.net, self.tokenizer = net, tokenizer
        self.layer = whole_number('layer', layer)
        for name, value in (('batch_size', batch_size), ('max_len', max_len),
                            ('windows', windows)):
            if value is not None:
                whole_number(name, value)
        self.pooling, self._prepared = chosen_pooling(tokenizer, pooling,
                                                      normalize)
        self._cuts = cuts or (max_len, windows) != (None, None)
        self.max_len = (_limit(net, tokenizer, max_len) if self._cuts
                        else net.encoder.max_len)
        self._room = self.max_len - tokenizer.num_special()
        if self._room < 1:
            raise ValueError(f'max_len={self.max_len} leaves no room for a '
                             f'text: give {tokenizer.num_special() + 1} or '
                             'more')
        if windows is not None and not 0 <= windows < self._room:
            raise ValueError(
                f'windows={windows} must be at least 0 and less than the '
                f'{self._room} tokens of a text that max_len={self.max_len} '
                'has room for')
        if batch_size is not None and batch_size < 1:
            raise ValueError(f'batch_size={batch_size} must be at least 1')
        self._overlap, self._batch_size = windows, batch_size
        self.count = self.cut = self.left_out = 0

    def encode(self, texts, advance=lambda num_texts: None):
        """The `Encoding`s of a list of `Text`s, in its order.

        Their texts are those that the tokenizer took: a prompt is in them.
        advance: called with 1 when a text is done.
        """
        texts = [text._replace(text=self._prepared(text.text))
                 for text in _not_empty(texts)]
        encoded, vectors = [None] * len(texts), [None] * len(texts)
        waiting = {}            # what there is of texts in several windows
        inputs = self._inputs(texts, encoded)
        for batch, arrays in self._through_the_net(inputs):
            for one, X in zip(batch, arrays):
                places = self._windows(encoded[one.text])
                if len(places) > 1:
                    those = waiting.setdefault(one.text, {})
                    those[one.window] = X.copy()
                    if len(those) < len(places):
                        continue
                    X = self._joined([those[w] for w in range(len(places))],
                                     places)
                    del waiting[one.text]
                # What stays must not keep the whole batch
                vectors[one.text] = (X.copy() if self.pooling is None
                                     else self.pooling(X))
                advance(1)
        return [Encoding(*each) for each in zip(texts, encoded, vectors)]

    def cut_words(self):
        """What to say of texts that were cut, or None."""
        if not self.cut:
            return None
        return (f'{self.cut} of {self.count} texts have more than '
                f'{self.max_len} tokens and were cut; {self.left_out} tokens '
                'were left out')

    def _inputs(self, texts, encoded):
        """The `_Input`s of texts, the longest first, by their letters.

        What the tokenizer says of each comes into `encoded`. It is asked for
        a part of them at a time: the net is busy with one meanwhile.
        """
        order = sorted(range(len(texts)), key=lambda k: -sum(
            len(part or '') for part in texts[k][1:]))
        for first in range(0, len(order), CUT):
            part = order[first:first + CUT]
            found = self._tokenized([texts[k] for k in part])
            for k, one in zip(part, found):
                self.count += 1
                if len(one.ids) > self.max_len:
                    if not self._cuts:
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
        """Those of text k: one, or one for each of its windows."""
        ids, segments = encoded.ids, encoded.segments
        places = self._windows(encoded)
        if len(places) == 1:
            yield _Input(k, 0, ids, segments)
            return
        for window, first in enumerate(places):
            kept = [0, *range(first + 1, first + 1 + self._room),
                    *range(len(ids) - self._trailing, len(ids))]
            yield _Input(k, window, [ids[i] for i in kept],
                         [segments[i] for i in kept])

    def _refuse_first(self, texts):
        """Name the first text that is too long, which need not be the longest.
        """
        for text in texts:
            T = len(self._tokenized([text])[0].ids)
            if T > self.max_len:
                raise ValueError(f'{text.name}: {T} tokens are more than the '
                                 f'{self.max_len} positions of this model: '
                                 'cut the text')

    def _shortened(self, text, encoded):
        """What the net is to have of a text that is too long."""
        T = len(encoded.ids)
        if self._overlap is not None:
            if text.pair is None:
                return encoded
            raise ValueError(f'{text.name}: {T} tokens are more than '
                             f'{self.max_len}, and windows are of single '
                             'texts: cut the pair')
        encoded = self.tokenizer.encode(*text[1:], self.max_len)
        self.cut += 1
        self.left_out += T - len(encoded.ids)
        return encoded

    @property
    def _trailing(self):
        # The first special token stands before the text, the others behind
        return self.tokenizer.num_special() - 1

    def _windows(self, encoded):
        """Where the windows of a text begin, counted without <cls>."""
        if len(encoded.ids) <= self.max_len:
            return [0]
        n = len(encoded.ids) - self.tokenizer.num_special()
        return [*range(0, n - self._room, self._room - self._overlap),
                n - self._room]

    def _joined(self, parts, places):
        """One (T, H) of those of a text's windows."""
        n = places[-1] + self._room
        at = onp.arange(n) - onp.array(places)[:, None]
        nearer_end = onp.minimum(at, self._room - 1 - at)
        best = nearer_end.argmax(axis=0)                # (n,) of the windows
        parts = onp.stack(parts)
        body = parts[best, 1 + at[best, onp.arange(n)]]
        ends = parts.mean(axis=0)
        return onp.concatenate([ends[:1], body, ends[1 + self._room:]])

    def _batches(self, inputs):
        """Lists of inputs that go through the net together."""
        batch, tokens = [], 0
        for one in inputs:
            full = (tokens + len(one.ids) > TOKENS
                    if self._batch_size is None
                    else len(batch) == self._batch_size)
            if batch and full:
                yield batch
                batch, tokens = [], 0
            batch.append(one)
            tokens += len(one.ids)
        if batch:
            yield batch

    def _through_the_net(self, inputs):
        """Batches of inputs, each with the (T, H) of its `_Input`s.

        These are views of one array on the host. The next batch is computed
        while what there is of one is used.
        """
        before = None
        for batch in self._batches(inputs):
            begun = batch, self._begun(batch)
            if before:
                yield before[0], self._ended(*before)
            before = begun
        if before:
            yield before[0], self._ended(*before)

    def _begun(self, batch):
        """The rows of a batch, which the net may still be computing."""
        lens = [len(one.ids) for one in batch]
        if is_unmodified(self.net) and self.net.encoder.quantized is not None:
            return self.net.encoder.quantized.begin(
                onp.cumsum([0, *lens]), [i for one in batch for i in one.ids],
                [i for one in batch for i in one.segments], self.layer)
        ids = pad_rows([one.ids for one in batch], self.tokenizer.pad_id)
        segments = pad_rows([one.segments for one in batch])
        with autograd.pause():
            encoded = packed.encode(self.net, ids, segments, lens,
                                    layer=self.layer)
        return encoded.X, encoded.begins

    def _ended(self, batch, begun):
        X, begins = begun
        X = X.result() if hasattr(X, 'result') else X.asnumpy()
        return [X[begin:begin + len(one.ids)]
                for begin, one in zip(begins, batch)]


def _limit(net, tokenizer, max_len):
    """Tokens of a text at most."""
    positions = net.encoder.max_len
    if max_len is None:
        own = tokenizer.pooling or Pooling()
        return min(own.max_len or tokenizer.max_len or positions, positions)
    if max_len > positions:
        raise ValueError(f'max_len={max_len} is more than the {positions} '
                         'positions of this model: lower it')
    return max_len
