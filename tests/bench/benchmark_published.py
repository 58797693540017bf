"""The peers of bench_sizes: BERT as published, here and in transformers.

Both have random weights, score two classes by a layer of their own on the
pooled first token, and are trained by Adam at 2e-5. A batch has the seven
fields of the others' benchmarks, of which tokens, segments, lengths and, as
labels, nsp_y are read.
"""
import numpy as onp
from benchmark_worker import Gluon, Torch, ours

CLASSES, RATE = 2, 2e-5


class Published(Gluon):
    """Ours, with nothing computed on padding."""

    def __init__(self):
        peer = ours()
        super().__init__(peer.d2l, peer.about)

    def build(self, vocab_size, sizes, precision):
        from d2lbert.nn.layers import Dense
        from d2lbert.pretrained.families.nets import PUBLISHED
        hiddens, ffn_hiddens, heads, layers, dropout = sizes
        self.net = self.d2l.BERTModel(
            vocab_size, hiddens, ffn_hiddens, heads, layers,
            **dict(PUBLISHED, dropout=dropout, precision=precision))
        self.output = Dense(CLASSES, in_units=hiddens)
        # As a net is that is only asked; `step` makes another of it
        self.net.collect_params().setattr('grad_req', 'null')
        for block in (self.net, self.output):
            block.initialize(self.mx.init.Normal(0.02))
        self.trainer = None

    def _begin(self):
        """Give gradients to what the loss reaches, and a trainer."""
        params = [param for block in (self.net.encoder, self.net.hidden,
                                      self.output)
                  for param in block.collect_params().values()]
        for param in params:
            param.grad_req = 'write'
        self.loss = self.mx.gluon.loss.SoftmaxCELoss()
        self.trainer = self.mx.gluon.Trainer(params, 'adam',
                                             {'learning_rate': RATE})

    def _encode(self, shards):
        from d2lbert.nn import packed
        (tokens,), (segments,), (lens,) = shards[:3]
        return packed.encode(self.net, tokens, segments, lens)

    def step(self, shards):
        np = self.mx.np
        if self.trainer is None:
            self._begin()
        with self.mx.autograd.record():
            encoded = self._encode(shards)
            first = encoded.X.take(np.array(encoded.begins, dtype='int32'),
                                   axis=0)
            scores = self.output(self.net.hidden(first))
            loss = self.loss(scores, shards[-1][0]).mean()
        loss.backward()
        self.trainer.step(1)
        return float(loss), 0.0

    def forward(self, shards, predictions):
        self._encode(shards)
        self.wait()


class Transformers(Torch):
    """`transformers` on PyTorch, with padding and a mask, as it is used."""

    def __init__(self):
        import torch
        import transformers
        torch.manual_seed(0)
        self.torch, self.module = torch, transformers
        self.about = (f'transformers {transformers.__version__}, PyTorch '
                      f'{torch.__version__}')

    def build(self, vocab_size, sizes, precision):
        hiddens, ffn_hiddens, heads, layers, dropout = sizes
        self.bf16 = precision == 'bf16'
        config = self.module.BertConfig(
            vocab_size=vocab_size, hidden_size=hiddens,
            num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=ffn_hiddens, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout, num_labels=CLASSES)
        self.net = self.module.BertForSequenceClassification(config)
        self.trainer = self.torch.optim.Adam(self.net.parameters(), lr=RATE)

    def _inputs(self, fields):
        tokens, segments, lens = fields[:3]
        T = int(lens.max())
        mask = self.torch.arange(T)[None] < lens[:, None]
        return dict(input_ids=tokens[:, :T], token_type_ids=segments[:, :T],
                    attention_mask=mask.long())

    def step(self, fields):
        self.net.train()
        self.trainer.zero_grad()
        with self._autocast():
            loss = self.net(**self._inputs(fields), labels=fields[-1]).loss
        loss.backward()
        self.trainer.step()
        return float(loss.detach()), 0.0

    def forward(self, fields, predictions):
        self.net.eval()
        with self.torch.no_grad(), self._autocast():
            self.net.bert(**self._inputs(fields))


def mixed_lengths(rng, num_rows, length, vocab_size):
    """Columns of random tokens: lengths as in sentence pairs, half of
    `length` on the average, one in each batch of it full."""
    lens = onp.clip(rng.gamma(5, length / 10, num_rows).astype('int64'), 4,
                    length)
    tokens = rng.randint(5, vocab_size, (num_rows, length))
    places = onp.arange(length)
    segments = (places >= lens[:, None] // 2) & (places < lens[:, None])
    return lens, [tokens * (places < lens[:, None]), segments.astype('int64'),
                  lens.astype('float32'), onp.zeros((num_rows, 1), 'int64'),
                  onp.zeros((num_rows, 1), 'float32'),
                  onp.zeros((num_rows, 1), 'int64'),
                  rng.randint(0, CLASSES, num_rows)]
