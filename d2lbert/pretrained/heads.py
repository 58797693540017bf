"""Task heads on a pretrained encoder: one new layer, or two.

The kinds of tasks are as in the paper (Devlin et al. 2018, figure 4): a
label or a number for a text or a pair, a choice of one of several texts, a
tag for each word, an answer in a text. B sequences, C texts to choose from, T
tokens, R rows without padding (see `nn.packed`), H hiddens, K scores.
"""
from typing import NamedTuple, Optional

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.backend import init, nn, npx
from d2lbert.nn import packed
from d2lbert.nn.checks import host, on_device
from d2lbert.nn.layers import Dense, Model
from d2lbert.pretrained.families.bart import teacher_forced_states
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.families.nets import net_of

#: WHOLE: the head scores a text, from its first token. EACH: the head scores
#: each token (tags; begin and end of an answer).
WHOLE, EACH = ('classify', 'regress', 'choice'), ('tag', 'span')
KINDS = WHOLE + EACH

#: A score whose softmax probability is 0.
NEVER = -1e30


class About(NamedTuple):
    """The task of a fine-tuned net; entry `finetuned` of config.json."""

    task: str
    kind: str                   # one of `KINDS`
    pair: Optional[bool]        # None: single texts and pairs
    labels: Optional[tuple]     # names, by class index
    metrics: tuple              # in `metrics.METRICS`; the first decides
    max_len: int                # maximum number of tokens
    stride: int                 # tokens between the starts of windows
    null: bool                  # True if a question may have no answer
    dropout: float              # rate before the new layer

    @classmethod
    def of(cls, config):
        """Read an `About` from JSON; raises TypeError or ValueError."""
        about = cls(**config)
        if about.kind == 'classify' or about.kind == 'tag':
            if not about.labels or not all(
                    isinstance(name, str) for name in about.labels):
                raise ValueError('it has no names of labels')
            about = about._replace(labels=tuple(about.labels))
        return about._replace(metrics=tuple(about.metrics))

    @property
    def num_scores(self):
        """The number of scores of the head."""
        return {'regress': 1, 'choice': 1, 'span': 2}.get(
            self.kind) or len(self.labels)


class FineTuned(Model):
    """A pretrained encoder with a new output layer of K scores.

    bert: a `BERTModel`. Its encoder becomes part of this net; for whole
    texts, its pooler does, too. Its pretraining heads are dropped. For whole
    texts, some relatives of BERT use a new hidden layer or none: see
    `family.Head`.

    A `BARTModel` keeps its decoder, which reads the text a second time. The
    head then scores the decoder's states. It scores a whole text from the
    last token, as it does after an encoder with causal=True.

    kind: one of `KINDS`. num_scores: K; 1 for 'regress', 1 for 'choice' (for
    each of the C texts), 2 for 'span'. dropout: rate before the new layer;
    None: the rate of the encoder, as published. 'span' has no dropout.
    """

    def __init__(self, bert, kind, num_scores, dropout=None):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f'a head is one of {", ".join(KINDS)}, not '
                             f'{kind!r}')
        self.config, self.kind = dict(bert.config), kind
        self.num_scores = num_scores
        self.encoder = bert.encoder
        self.decoder = bert.decoder
        H = bert.config['num_hiddens']
        head = family_of(self.config).head_of(kind)
        self._has_hidden = kind in WHOLE and head.activation is not None
        self._drops_first = kind in WHOLE and head.has_input_dropout
        if self._has_hidden and head.hidden_name is not None:
            self.hidden = Dense(H, activation=head.activation, in_units=H,
                                precision=bert.config['precision'])
        elif self._has_hidden and bert.nsp is None and bert.hidden is None:
            # Checkpoints of some families may lack the pooler
            self.config['heads'] = ('pooler', *self.config['heads'])
            self.hidden = Dense(H, activation=head.activation, in_units=H,
                                flatten=True,
                                precision=bert.config['precision'])
        elif self._has_hidden:
            # In the first edition, the hidden layer is part of the NSP head
            self.hidden = (bert.nsp.mlp[0] if bert.hidden is None
                           else bert.hidden)
        if kind != 'span':
            self.dropout = nn.Dropout(bert.config['dropout']
                                      if dropout is None else dropout)
        self.output = Dense(num_scores, in_units=H,
                            precision=bert.config['precision'])

    @classmethod
    def of_config(cls, config, *args):
        """Make a net without weights; config: arguments of `BERTModel`."""
        return cls(net_of(config), *args)

    def forward(self, tokens, segments, valid_lens):
        """Score tokens (B, T), segments (B, T), valid_lens (B,).

        Returns (B, K) for kinds in `WHOLE`. For kinds in `EACH`, returns
        (B, T, K); scores at padding are undefined. For 'choice' the
        arguments are (B, C, T), (B, C, T) and (B, C); the result is (B, C).
        """
        count = len(tokens)
        if self.kind == 'choice':
            tokens, segments, valid_lens = _one_by_one(tokens, segments,
                                                       valid_lens)
        tokens, segments = self.encoder.check(tokens, segments)
        X, begins = self.encode(tokens, segments, valid_lens)
        if self.kind in WHOLE:
            return self.score_texts(X, begins, count)
        lens = onp.asarray(valid_lens, 'int64').reshape(-1)
        places = grid(begins, lens, tokens.shape[1])    # (B, T)
        return self.score(X, places.reshape(-1)).reshape(
            *places.shape, -1)

    def encode(self, tokens, segments, valid_lens):
        """Rows X (R, H) after the last block, and begins (B,) on the host.

        Token t of sequence b is row begins[b] + t. For whole texts there is
        only one row per sequence: the first token, or with causal=True the
        last token.
        """
        if tokens.ndim == 3:
            tokens, segments, valid_lens = _one_by_one(tokens, segments,
                                                       valid_lens)
        if self.decoder is not None:
            return self._decode(tokens, valid_lens)
        causal = self.config.get('causal')
        if self.kind in WHOLE and not causal:
            X = packed.encode_firsts(self.encoder, tokens, segments,
                                     valid_lens)
            return X, onp.arange(len(X))
        at = None
        if self.kind in WHOLE:
            # Only the last token attends to the whole text
            at = onp.arange(len(tokens)), host(valid_lens).reshape(
                -1).astype('int64') - 1
        encoded = packed.encode(self, tokens, segments, valid_lens,
                                layer=self.encoder.blks.num_layers, at=at)
        if at is None:
            return encoded.X, encoded.begins
        return encoded.taken_X, onp.arange(len(encoded.taken_X))

    def _decode(self, tokens, valid_lens):
        """As `encode`, for a net with a decoder; padding has rows in X."""
        B, T = tokens.shape
        X = teacher_forced_states(self, tokens, valid_lens)
        X, begins = X.reshape(B * T, -1), onp.arange(B) * T
        if self.kind in EACH:
            return X, begins
        lens = host(valid_lens).reshape(-1).astype('int64')
        last = begins + lens - 1
        return X.take(on_device(last, X.ctx, 'int32'), axis=0), onp.arange(B)

    def score(self, X, places):
        """Scores (M, K) of rows of X (R, H); places (M,) on the host."""
        rows, = ops.take_rows(X, on_device(places, X.ctx, 'int32'))
        if self._drops_first:
            rows = self.dropout(rows)
        if self._has_hidden:
            rows = self.hidden(rows)
        if self.kind != 'span':
            rows = self.dropout(rows)
        return self.output(rows)

    def score_texts(self, X, begins, count):
        """Scores (count, K) of whole texts; (count, C) for 'choice'."""
        scores = self.score(X, begins)
        return scores.reshape(count, -1) if self.kind == 'choice' else scores

    def losses(self, X, begins, lens, labels):
        """The mean loss, a scalar, and the number of its terms.

        X, begins: as `encode` returns them. lens (B,) and labels are on the
        host. labels: (B,) class indices, indices of the right choices, or
        values; (B, T) tag indices, -1 at positions without a tag; (B, 2)
        first and last token of the answer.
        """
        def put(A, dtype='int32'):
            return on_device(A, X.ctx, dtype)
        if self.kind == 'regress':
            error = self.score(X, begins).reshape(-1) - put(labels, 'float32')
            return (error * error).mean(), len(labels)
        if self.kind in WHOLE:
            return cross_entropy(self.score_texts(X, begins, len(labels)),
                                 put(labels)).mean(), len(labels)
        if self.kind == 'tag':
            b, t = onp.nonzero(labels >= 0)
            if not len(b):
                # The loss is 0, but every weight needs a gradient
                return (self.output(X[:1]) * 0).sum(), 0
            return cross_entropy(self.score(X, begins[b] + t),
                                 put(labels[b, t])).mean(), len(b)
        scores = self.span_scores(X, begins, lens)      # (B, 2, T)
        return cross_entropy(scores.reshape(-1, scores.shape[-1]),
                             put(labels.reshape(-1))).mean(), len(labels)

    def span_scores(self, X, begins, lens):
        """Scores (B, 2, T) of tokens as first and last; NEVER at padding."""
        T = int(lens.max())
        scores = self.score(X, grid(begins, lens, T).reshape(-1))
        scores = scores.reshape(len(lens), T, 2).swapaxes(1, 2)
        never = onp.where(onp.arange(T) < lens[:, None], 0, NEVER)
        return scores + on_device(never[:, None], X.ctx, 'float32')

    def begin(self, devices):
        """Put all weights on the devices; initialize missing ones."""
        for param in self.collect_params().values():
            if param._data is None:
                param.initialize(
                    init.Zero() if param.name.endswith('bias')
                    else init.Normal(sigma=0.02), ctx=devices,
                    force_reinit=True)
            else:
                param.reset_ctx(devices)


def _one_by_one(tokens, segments, valid_lens):
    """Reshape choices (B, C, T), (B, C) to sequences (B*C, T), (B*C,)."""
    T = tokens.shape[-1]
    return (tokens.reshape(-1, T), segments.reshape(-1, T),
            valid_lens.reshape(-1))


def cross_entropy(scores, labels):
    """-log softmax of scores (M, K) at labels (M,) int32: (M,)."""
    return -npx.pick(npx.log_softmax(scores), labels)


def grid(begins, lens, T):
    """Row numbers (B, T) of all tokens; padding repeats the last token's."""
    return begins[:, None] + onp.minimum(onp.arange(T), lens[:, None] - 1)
