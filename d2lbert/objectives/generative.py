"""Define objectives that predict all tokens of a text: `CLM` and `Denoise`.

M: the number of predicted tokens. H: the number of hidden units.
"""
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus.masking import NO_MASKS, Noise
from d2lbert.machine.backend import autograd, np
from d2lbert.nn import packed
from d2lbert.nn.checks import on_device
from d2lbert.nn.steps import shards
from d2lbert.objectives.text_objective import (
    TextObjective,
    freeze_pair_layers,
    mlm_figures,
    mlm_sums,
)
from d2lbert.pretrained.families.bart import teacher_forced_states
from d2lbert.pretrained.families.family import BART_STRUCTURE
from d2lbert.pretrained.families.nets import PUBLISHED
from d2lbert.progress import Accumulator
from d2lbert.text import UNK_ID

#: `figures` scores at most this number of tokens at once, to save memory.
SCORED_TOKENS = 1 << 10


class Generative(TextObjective):
    """The base class of `CLM` and `Denoise`: one loss, a mean over tokens."""

    unit = 'sequences'

    @staticmethod
    def states(net, shard, device):
        """(X, labels): hidden states (M, H), and the tokens (M,) to predict.

        Row m of X predicts labels[m]. X is on the device, labels on the host.
        """
        raise NotImplementedError

    @classmethod
    def shard_losses(cls, net, batch, devices):
        device_losses = []
        for shard, device in shards(batch, devices):
            X, labels = cls.states(net, shard, device)
            loss = net.mlm.loss(X, on_device(labels, device, 'int32'),
                                np.ones(len(labels), ctx=device))
            device_losses.append([(loss, float(len(labels)))])
        return device_losses

    @classmethod
    def figures(cls, net, batches, devices):
        sums = Accumulator(5)
        unk = UNK_ID if net.vocab is None else net.vocab.unk
        for batch in batches:
            for shard, device in shards(batch, devices):
                with autograd.pause():
                    X, labels = cls.states(net, shard, device)
                    for k in range(0, len(labels), SCORED_TOKENS):
                        chunk = slice(k, k + SCORED_TOKENS)
                        sums.add(*mlm_sums(net.mlm.mlp(X[chunk]),
                                           labels[chunk], unk).asnumpy())
        num_preds = sums[2]
        if not num_preds:
            raise ValueError('there is nothing to evaluate on: the text has '
                             'no word')
        return cls.Figures(*mlm_figures(*sums.data))


class CLMFigures(NamedTuple):
    """Figures of a model on a text; see `text_objective.Figures`."""

    clm_loss: float         # nats for a token
    perplexity: float       # exp(clm_loss)
    accuracy: float         # share of tokens ranked first
    unknown_share: float    # share of <unk> among the tokens
    known_accuracy: float   # accuracy without <unk>


class CLM(Generative):
    """Predict each token from the tokens before it: Radford et al. 2018.

    Rows hold full sentences as in `mlm.MLM`, without masks. The model is a
    `BERTModel` with causal=True: no token attends to a later token. The vector
    of a token predicts the next token, also if it is `<sep>`.
    """

    losses = ('clm',)
    plotted = ('clm_loss',)
    Figures = CLMFigures

    @property
    def net_config(self):
        return dict(super().net_config, causal=True)

    @classmethod
    def net_to_train(cls, bert):
        freeze_pair_layers(bert)
        return bert

    def batches(self, epoch, start):
        """Yield (position, `corpus.masking.UnmaskedRows`)."""
        s = self.settings
        return self.corpus.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], spans=NO_MASKS)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False, spans=NO_MASKS))

    @classmethod
    def counts(cls, batch):
        # The first token of a row is not predicted
        return ((batch.valid_lens_x - 1).sum(),)

    @staticmethod
    def states(net, shard, device):
        lens = shard.valid_lens_x.astype('int64')
        tokens = shard.tokens_X[:, :int(lens.max())]
        # Row m of X is the vector of token t[m] of sequence b[m]. The last
        # token of a sequence has no next token
        b, t = onp.nonzero(
            onp.arange(tokens.shape[1]) < lens[:, None] - 1)
        encoded = packed.encode(net, tokens, None, shard.valid_lens_x,
                                at=(b, t), device=device)
        return encoded.taken_X, tokens[b, t + 1]

    @staticmethod
    def line(figures):
        return (f'held-out CLM loss {figures.clm_loss:.3f}, perplexity '
                f'{figures.perplexity:.1f}, accuracy {figures.accuracy:.3f} '
                f'(of known words {figures.known_accuracy:.3f}, '
                f'{figures.unknown_share:.0%} are <unk>)')


#: Share of the tokens that the noise of held-out text changes, as in BART.
NOISE_SHARE = 0.3


class DenoiseFigures(NamedTuple):
    """Figures of a model on a text; see `text_objective.Figures`."""

    denoise_loss: float     # nats for a token of the original
    perplexity: float       # exp(denoise_loss)
    accuracy: float         # share of tokens ranked first
    unknown_share: float    # share of <unk> among the tokens
    known_accuracy: float   # accuracy without <unk>


class Denoise(Generative):
    """Restore the original of a noisy text: Lewis et al. 2020.

    Rows hold full sentences as in `mlm.MLM`. The noise is drawn again in each
    epoch, unless the setting dynamic is False. The model is a `BARTModel`,
    trained with teacher forcing.
    """

    losses = ('denoise',)
    plotted = ('denoise_loss',)
    Figures = DenoiseFigures

    @property
    def net_config(self):
        s = self.settings
        from_settings = {name: s[name] for name in (
            'num_hiddens', 'ffn_num_hiddens', 'num_heads', 'num_layers',
            'dropout', 'precision')}
        # As in BART, the decoder starts with <sep>
        start_id = self.vocab[self.vocab.special.sep]
        return dict(
            from_settings, vocab_size=len(self.vocab), start_id=start_id,
            max_len=max(PUBLISHED['max_len'], s['max_len']), **BART_STRUCTURE)

    def batches(self, epoch, start):
        """Yield (position, `corpus.masking.NoisyRows`)."""
        s = self.settings
        return self.corpus.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], mask_share=s['mask_share'],
            spans=Noise(tuple(s['noise'].split('+')),
                        s['whole_word_masking']))

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        # Always the default noise, so that figures of runs can be compared
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False,
            mask_share=NOISE_SHARE, spans=Noise()))

    @classmethod
    def counts(cls, batch):
        return (batch.target_lens_y.sum(),)

    @staticmethod
    def states(net, shard, device):
        def put(A):
            return on_device(A, device, 'int32')
        lens = shard.target_lens_y.astype('int64')
        longest = int(lens.max())
        targets = shard.targets_Y[:, :longest]
        tokens = shard.tokens_X[:, :int(shard.valid_lens_x.max())]
        padded_X = teacher_forced_states(
            net, put(tokens), put(shard.valid_lens_x), put(targets))
        # Row m of X predicts token t[m] of sequence b[m]. Padding is left out
        b, t = onp.nonzero(onp.arange(longest) < lens[:, None])
        X = padded_X.reshape(-1, padded_X.shape[-1]).take(
            put(b * longest + t), axis=0)
        return X, targets[b, t]

    @staticmethod
    def line(figures):
        return (f'held-out denoising loss {figures.denoise_loss:.3f}, '
                f'accuracy {figures.accuracy:.3f} (of known words '
                f'{figures.known_accuracy:.3f}, {figures.unknown_share:.0%} '
                'are <unk>)')
