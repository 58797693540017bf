"""Task heads on a pretrained encoder.

The kinds of tasks are as in the paper (Devlin et al. 2018, figure 4): a label
or a number for a text or a pair ('classify', 'regress'), a choice of one of
several texts ('choice'), a tag for each word ('tag'), an answer in a text
('span').

Numbers. N: examples of a batch. C: texts to choose from. B: sequences of a
batch, N * C for 'choice', else N. T: tokens of a sequence. H: hidden units. K:
scores of a text or token. R: rows, which are the tokens of a batch without
padding (see `nn.packed`). M: rows that are scored.
"""
from typing import NamedTuple, Optional

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.backend import init, nn
from d2lbert.nn import packed
from d2lbert.nn.checks import host, on_device
from d2lbert.nn.layers import Dense, Model, cross_entropy
from d2lbert.pretrained.families.bart import teacher_forced_states
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.families.nets import net_of

#: TEXT_KINDS: the head scores a text by the vector of one token. TOKEN_KINDS:
#: it scores each token, for each tag or as an answer's first and last token.
TEXT_KINDS, TOKEN_KINDS = ('classify', 'regress', 'choice'), ('tag', 'span')
KINDS = TEXT_KINDS + TOKEN_KINDS

#: Added to the score of padding, so that its softmax probability is 0.
IMPOSSIBLE = -1e30


class About(NamedTuple):
    """The task of a net; entry `finetuned` in a run's config.json."""

    task: str                   # the name of the task, or ''
    kind: str                   # one of `KINDS`
    pair: Optional[bool]        # True: pairs of texts; False: single texts;
                                # None: both
    labels: Optional[tuple]     # names, by class index
    metrics: tuple              # keys of `metrics.METRICS`, the main one first
    max_len: int                # maximum number of tokens
    stride: int                 # tokens from one window's start to the next's
    null: bool                  # True if a question may have no answer
    dropout: float              # rate before the output layer

    @classmethod
    def of(cls, config):
        """Make an `About` of a JSON dict; raises TypeError or ValueError."""
        about = cls(**config)
        if about.kind in ('classify', 'tag'):
            if not about.labels or not all(
                    isinstance(name, str) for name in about.labels):
                raise ValueError('the task has no names of labels')
            about = about._replace(labels=tuple(about.labels))
        return about._replace(metrics=tuple(about.metrics))

    @property
    def num_scores(self):
        return {'regress': 1, 'choice': 1, 'span': 2}.get(
            self.kind) or len(self.labels)


class FineTuned(Model):
    """A pretrained encoder with a new output layer of K scores.

    bert: a `BERTModel` or a `BARTModel`, whose encoder becomes part of this
    net. For `TEXT_KINDS`, the pooler becomes a part, too; some relatives have
    a new hidden layer in its place, or none (see `family.Head`). A `BARTModel`
    keeps its decoder, which reads the text a second time, and the head scores
    the decoder's states. The pretraining heads are left out.

    For `TEXT_KINDS`, the head scores the last token if `bert` has a decoder or
    causal=True, else the first.

    kind: one of `KINDS`. num_scores: K; 1 for 'regress' and 'choice', 2 for
    'span'. dropout: the rate before the output layer; None for the rate of the
    encoder, as in BERT. 'span' has no such dropout.
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
        H, precision = bert.config['num_hiddens'], bert.config['precision']
        head = family_of(self.config).head_of(kind)
        self._has_hidden = kind in TEXT_KINDS and head.activation is not None
        self._has_input_dropout = kind in TEXT_KINDS and head.has_input_dropout
        if not self._has_hidden:
            pass
        elif head.hidden_name is not None:      # in place of the pooler
            self.hidden = Dense(H, activation=head.activation, in_units=H,
                                precision=precision)
        elif bert.hidden is not None:
            self.hidden = bert.hidden
        elif bert.nsp is not None:
            # In the book's first edition, the NSP head includes the pooler
            self.hidden = bert.nsp.mlp[0]
        else:
            # The pooler is new: checkpoints of some families lack it
            self.config['heads'] = ('pooler', *self.config['heads'])
            self.hidden = Dense(H, activation=head.activation, in_units=H,
                                flatten=True, precision=precision)
        if kind != 'span':
            self.dropout = nn.Dropout(bert.config['dropout']
                                      if dropout is None else dropout)
        self.output = Dense(num_scores, in_units=H, precision=precision)

    @classmethod
    def of_config(cls, config, *args):
        """Make an uninitialized net of a `bert` with the keywords `config`."""
        return cls(net_of(config), *args)

    def forward(self, tokens, segments, valid_lens):
        """Score tokens (B, T), segments (B, T), valid_lens (B,).

        Returns (B, K) for `TEXT_KINDS`, and (B, T, K) for `TOKEN_KINDS`, where
        scores at padding are undefined. For 'choice' the arguments are
        (N, C, T), (N, C, T) and (N, C); the result is (N, C).
        """
        num_examples = len(tokens)
        if self.kind == 'choice':
            tokens, segments, valid_lens = _flatten_choices(
                tokens, segments, valid_lens)
        tokens, segments = self.encoder.check(tokens, segments)
        X, begins = self.encode(tokens, segments, valid_lens)
        if self.kind in TEXT_KINDS:
            return self.score_texts(X, begins, num_examples)
        lens = onp.asarray(valid_lens, 'int64').reshape(-1)
        rows = _padded_rows(begins, lens, tokens.shape[1])  # (B, T)
        return self.score(X, rows.reshape(-1)).reshape(*rows.shape, -1)

    def encode(self, tokens, segments, valid_lens):
        """Return the vectors X (R, H) to score, and begins (B,) on the host.

        For `TOKEN_KINDS`, token t of sequence b is row begins[b] + t of X. For
        `TEXT_KINDS`, X is (B, H): row begins[b] is the token of sequence b
        that the head scores.
        """
        if tokens.ndim == 3:
            tokens, segments, valid_lens = _flatten_choices(
                tokens, segments, valid_lens)
        if self.decoder is not None:
            return self._decode(tokens, valid_lens)
        if self.kind in TEXT_KINDS and not self.config.get('causal'):
            X = packed.encode_first_tokens(self.encoder, tokens, segments,
                                           valid_lens)
            return X, onp.arange(len(X))
        at = None       # encode all tokens, select none
        if self.kind in TEXT_KINDS:
            # In a causal net, only the last token attends to all tokens
            lens = host(valid_lens).reshape(-1).astype('int64')
            at = onp.arange(len(tokens)), lens - 1
        # Not -1, which needs `has_pair_head` and the outputs of a `BERTModel`
        encoded = packed.encode(self, tokens, segments, valid_lens,
                                layer=self.encoder.blks.num_layers, at=at)
        if at is None:
            return encoded.X, encoded.begins
        return encoded.taken_X, onp.arange(len(encoded.taken_X))

    def decoder_rows(self, tokens, valid_lens):
        """The decoder's states as rows (B * T, H), and each text's first row.

        tokens (B, T), valid_lens (B,): as for `encode`. Padding has rows, too.
        """
        B, T = tokens.shape
        X = teacher_forced_states(self, tokens, valid_lens)
        return X.reshape(B * T, -1), onp.arange(B) * T

    def _decode(self, tokens, valid_lens):
        """As `encode`, by the decoder; `TOKEN_KINDS` have rows for padding."""
        X, begins = self.decoder_rows(tokens, valid_lens)
        if self.kind in TOKEN_KINDS:
            return X, begins
        lens = host(valid_lens).reshape(-1).astype('int64')
        last = begins + lens - 1        # the row of each last token
        return (X.take(on_device(last, X.ctx, 'int32'), axis=0),
                onp.arange(len(last)))

    def score(self, X, rows):
        """Scores (M, K) of X[rows], X (R, H); rows (M,) are on the host."""
        vectors, = ops.take_rows(X, on_device(rows, X.ctx, 'int32'))
        if self._has_input_dropout:
            vectors = self.dropout(vectors)
        if self._has_hidden:
            vectors = self.hidden(vectors)
        if self.kind != 'span':
            vectors = self.dropout(vectors)
        return self.output(vectors)

    def score_texts(self, X, begins, num_examples):
        """Scores (N, K), or (N, C) for 'choice'; X, begins: from `encode`."""
        scores = self.score(X, begins)
        return (scores if self.kind != 'choice'
                else scores.reshape(num_examples, -1))

    def losses(self, X, begins, lens, labels):
        """Return the mean loss, a scalar, and the number of labels in it.

        The two positions of an answer count as one label. X, begins: as
        `encode` returns them. lens (B,) and labels are on the host. labels by
        kind: 'classify': (N,) class indices; 'regress': (N,) numbers;
        'choice': (N,) indices of the right choices; 'tag': (B, T) tag
        indices, -1 at positions without a tag; 'span': (B, 2) positions of
        the answer's first and last token.
        """
        def put(A, dtype='int32'):
            return on_device(A, X.ctx, dtype)
        if self.kind == 'regress':
            error = self.score(X, begins).reshape(-1) - put(labels, 'float32')
            return (error * error).mean(), len(labels)
        if self.kind in TEXT_KINDS:
            return cross_entropy(self.score_texts(X, begins, len(labels)),
                                 put(labels)).mean(), len(labels)
        if self.kind == 'tag':
            b, t = onp.nonzero(labels >= 0)
            if not len(b):
                # 0, computed by the layers, since they need gradients
                return (self.output(X[:1]) * 0).sum(), 0
            return cross_entropy(self.score(X, begins[b] + t),
                                 put(labels[b, t])).mean(), len(b)
        scores = self.span_scores(X, begins, lens)      # (B, 2, T)
        return cross_entropy(scores.reshape(-1, scores.shape[-1]),
                             put(labels.reshape(-1))).mean(), len(labels)

    def span_scores(self, X, begins, lens):
        """Scores (B, 2, T) of each token as an answer's first and last token.

        X, begins: from `encode`. lens (B,): on the host. T: the largest of
        lens, perhaps less than the padded length.
        """
        T = int(lens.max())
        scores = self.score(X, _padded_rows(begins, lens, T).reshape(-1))
        scores = scores.reshape(len(lens), T, 2).swapaxes(1, 2)
        penalty = onp.where(onp.arange(T) < lens[:, None], 0, IMPOSSIBLE)
        return scores + on_device(penalty[:, None], X.ctx, 'float32')

    def begin(self, devices):
        """Move all weights to the devices, and initialize missing weights."""
        for param in self.collect_params().values():
            # The weights of a folder at eight bits are filled on first read
            is_missing = param._data is None and not param._deferred_init
            if is_missing:
                param.initialize(
                    init.Zero() if param.name.endswith('bias')
                    else init.Normal(sigma=0.02), ctx=devices)
            else:
                param.reset_ctx(devices)


def _flatten_choices(tokens, segments, valid_lens):
    """Reshape (N, C, T), (N, C, T), (N, C) to (B, T), (B, T), (B,)."""
    T = tokens.shape[-1]
    return (tokens.reshape(-1, T), segments.reshape(-1, T),
            valid_lens.reshape(-1))


def _padded_rows(begins, lens, T):
    """The row in X of each token, (B, T); padding has the last token's row.

    X and begins: from `FineTuned.encode`.
    """
    return begins[:, None] + onp.minimum(onp.arange(T), lens[:, None] - 1)
