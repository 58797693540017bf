"""What is put on a pretrained encoder for a task: one new layer, or two.

The families of the published paper (Devlin et al. 2018, figure 4): one text
or a pair with a label or a number, a tag for each word, an answer within a
text. B sequences, T tokens, R rows (see `packing`), H hiddens, K scores.
"""
import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine.backend import init, nn, npx
from d2lbert.nn import packed
from d2lbert.nn.checks import on_device
from d2lbert.nn.layers import Dense
from d2lbert.nn.model import Model
from d2lbert.pretrained.families.bart import teacher_forced_states
from d2lbert.pretrained.families.family import family_of, net_of

#: What is scored: the whole text, by the hidden layer over its first token
#: (labels, or one number), or each of its tokens (tags; begin and end).
WHOLE, EACH = ('classify', 'regress', 'choice'), ('tag', 'span')
KINDS = WHOLE + EACH

#: A score that no softmax gives a share to.
NEVER = -1e30


class FineTuned(Model):
    """A pretrained encoder with a new output layer of K scores.

    bert: a `BERTModel`, whose encoder, and hidden layer where whole texts
    are scored, become this net's own; what it predicts words and next
    sentences with is left behind. The relatives of BERT score whole texts
    by a new hidden layer, or by none: see `pretrained.families.Head`. Of a
    `BARTModel` the decoder stays, too: it is given the text once more, and
    what it makes of a token stands for that, of the last one for all. So
    does the last token of an encoder with causal=True. kind:
    one of `KINDS`. num_scores: K; one for 'regress' and for 'choice', where
    each of C texts has one, and two for 'span'.
    dropout: of what the new layer is given; None: the encoder's, as
    published; for 'span' there is none.
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
        self._hides = kind in WHOLE and head.act is not None
        self._drops_first = kind in WHOLE and head.drops_first
        if self._hides and head.name is not None:
            self.hidden = Dense(H, activation=head.act, in_units=H,
                                precision=bert.config['precision'])
        elif self._hides and bert.nsp is None and bert.hidden is None:
            # Folders of some families may lack the pooler
            self.config['heads'] = ('pooler', *self.config['heads'])
            self.hidden = Dense(H, activation=head.act, in_units=H,
                                flatten=True,
                                precision=bert.config['precision'])
        elif self._hides:
            # The first edition's hidden layer is part of its head
            self.hidden = (bert.nsp.mlp[0] if bert.hidden is None
                           else bert.hidden)
        if kind != 'span':
            self.dropout = nn.Dropout(bert.config['dropout']
                                      if dropout is None else dropout)
        self.output = Dense(num_scores, in_units=H,
                            precision=bert.config['precision'])

    @classmethod
    def of_config(cls, config, *args):
        """The net without weights; config: arguments of `BERTModel`."""
        return cls(net_of(config), *args)

    def forward(self, tokens, segments, valid_lens):
        """Score tokens (B, T), segments (B, T), valid_lens (B,).

        Returns (B, K) of whole texts, (B, T, K) of their tokens: those of
        padding are some other's. For 'choice' the arguments are (B, C, T),
        (B, C, T) and (B, C), and the result is (B, C).
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
        """Rows X (R, H) behind the last block, and begins (B,) on the host.

        Token t of sequence b is row begins[b] + t; where whole texts are
        scored there is no row but that of the first token, with causal=True
        of the last.
        """
        if tokens.ndim == 3:
            tokens, segments, valid_lens = _one_by_one(tokens, segments,
                                                       valid_lens)
        if self.decoder is not None:
            return self._restored(tokens, valid_lens)
        causal = self.config.get('causal')
        if self.kind in WHOLE and not causal:
            X = packed.encode_firsts(self.encoder, tokens, segments,
                                     valid_lens)
            return X, onp.arange(len(X))
        at = None
        if self.kind in WHOLE:
            # The first token has seen nothing else, the last one all
            at = onp.arange(len(tokens)), packed.host(valid_lens).reshape(
                -1).astype('int64') - 1
        encoded = packed.encode(self, tokens, segments, valid_lens,
                                layer=self.encoder.blks.num_layers, at=at)
        if at is None:
            return encoded.X, encoded.begins
        return encoded.taken_X, onp.arange(len(encoded.taken_X))

    def _restored(self, tokens, valid_lens):
        """As `encode`, of a net with a decoder; padding has rows, too."""
        B, T = tokens.shape
        X = teacher_forced_states(self, tokens, valid_lens)
        X, begins = X.reshape(B * T, -1), onp.arange(B) * T
        if self.kind in EACH:
            return X, begins
        lens = packed.host(valid_lens).reshape(-1).astype('int64')
        last = begins + lens - 1
        return X.take(on_device(last, X.ctx, 'int32'), axis=0), onp.arange(B)

    def score(self, X, places):
        """Scores (M, K) at rows places (M,), on the host, of X (R, H)."""
        rows, = ops.take_rows(X, on_device(places, X.ctx, 'int32'))
        if self._drops_first:
            rows = self.dropout(rows)
        if self._hides:
            rows = self.hidden(rows)
        if self.kind != 'span':
            rows = self.dropout(rows)
        return self.output(rows)

    def score_texts(self, X, begins, count):
        """Scores (count, K) of whole texts; (count, C) of 'choice'."""
        scores = self.score(X, begins)
        return scores.reshape(count, -1) if self.kind == 'choice' else scores

    def losses(self, X, begins, lens, labels):
        """The mean loss, a scalar, and over how many things it is one.

        X, begins: what `encode` gave; lens (B,) and labels on the host:
        (B,) numbers of labels or of the right choices, or values; (B, T)
        numbers of tags, -1 where there is none; (B, 2) first and last token
        of the answer.
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
                # Nothing to learn, but a gradient for every weight
                return (self.output(X[:1]) * 0).sum(), 0
            return cross_entropy(self.score(X, begins[b] + t),
                                 put(labels[b, t])).mean(), len(b)
        scores = self.span_scores(X, begins, lens)      # (B, 2, T)
        return cross_entropy(scores.reshape(-1, scores.shape[-1]),
                             put(labels.reshape(-1))).mean(), len(labels)

    def span_scores(self, X, begins, lens):
        """Scores (B, 2, T) of each token as first and last; NEVER behind lens.
        """
        T = int(lens.max())
        scores = self.score(X, grid(begins, lens, T).reshape(-1))
        scores = scores.reshape(len(lens), T, 2).swapaxes(1, 2)
        never = onp.where(onp.arange(T) < lens[:, None], 0, NEVER)
        return scores + on_device(never[:, None], X.ctx, 'float32')

    def begin(self, devices):
        """Put all weights on the devices, new ones where there were none."""
        for param in self.collect_params().values():
            if param._data is None:
                param.initialize(
                    init.Zero() if param.name.endswith('bias')
                    else init.Normal(sigma=0.02), ctx=devices,
                    force_reinit=True)
            else:
                param.reset_ctx(devices)


def _one_by_one(tokens, segments, valid_lens):
    """Choices (B, C, T) and (B, C) as sequences (B*C, T) and (B*C,)."""
    T = tokens.shape[-1]
    return (tokens.reshape(-1, T), segments.reshape(-1, T),
            valid_lens.reshape(-1))


def cross_entropy(scores, labels):
    """-log softmax of scores (M, K) at labels (M,) int32: (M,)."""
    return -npx.pick(npx.log_softmax(scores), labels)


def grid(begins, lens, T):
    """Rows of T tokens of each sequence, (B, T); of padding, its last's."""
    return begins[:, None] + onp.minimum(onp.arange(T), lens[:, None] - 1)
