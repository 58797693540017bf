"""Noisy texts restored, token by token: the objective of BART.

B rows, S tokens of the noisy text, T tokens of the original.
"""
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus.masking import Noise
from d2lbert.nn.checks import on_device
from d2lbert.objectives.generative import Generative
from d2lbert.pretrained.families.bart import teacher_forced_states
from d2lbert.pretrained.families.family import STRUCTURE
from d2lbert.pretrained.families.sizes import PUBLISHED

#: Share of the tokens that noise changes, as published.
NOISE_SHARE = 0.3


class DenoiseFigures(NamedTuple):
    """Figures of a model on a text; see `figures.Figures`."""

    denoise_loss: float     # nats for a token of the original
    perplexity: float       # exp(denoise_loss)
    accuracy: float         # share of tokens ranked first
    unknown_share: float    # of <unk> among the tokens
    known_accuracy: float   # accuracy without <unk>


class Denoise(Generative):
    """The original of a noisy text: Lewis et al. 2020.

    Rows are full sentences as in `MLM`. The noise is drawn again each epoch,
    unless dynamic=False. The model is a `BARTModel`. Its decoder is trained
    with teacher forcing: it reads the original up to each predicted token.
    """

    losses = 'denoise',
    drawn = 'denoise_loss',
    Figures = DenoiseFigures

    @property
    def model(self):
        """The arguments of the net, a dictionary."""
        s, sep = self.settings, self.vocab.special.sep
        sizes = {name: s[name] for name in (
            'num_hiddens', 'ffn_num_hiddens', 'num_heads', 'num_layers',
            'dropout', 'precision')}
        return dict(
            sizes, vocab_size=len(self.vocab), start_id=self.vocab[sep],
            max_len=max(PUBLISHED['max_len'], s['max_len']), **STRUCTURE)

    def batches(self, epoch, start):
        """Yield (position, `NoisyRows` of NumPy arrays) of an epoch."""
        s = self.settings
        return self.text.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], mask_share=s['mask_share'],
            spans=Noise(tuple(s['noise'].split('+')),
                        s['whole_word_masking']))

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """The batches of a held-out `StoredText`, always the same.

        They have the default noise, whatever noise a run trains on, so that
        figures of runs can be compared.
        """
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False,
            mask_share=NOISE_SHARE, spans=Noise()))

    @classmethod
    def counts(cls, batch):
        """Tokens of the original."""
        return batch.target_lens_y.sum(),

    @staticmethod
    def states(net, shard, device):
        """Vectors (M, H) of the decoder, and the tokens that they predict.

        Teacher forcing: the decoder reads the targets. labels (M,) int32.
        """
        def put(A):
            return on_device(A, device, 'int32')
        lens = shard.target_lens_y.astype('int64')
        longest = int(lens.max())
        targets = shard.targets_Y[:, :longest]
        tokens = shard.tokens_X[:, :int(shard.valid_lens_x.max())]
        X = teacher_forced_states(net, put(tokens), put(shard.valid_lens_x),
                                  put(targets))
        b, t = onp.nonzero(onp.arange(longest) < lens[:, None])
        return (X.reshape(-1, X.shape[-1]).take(put(b * longest + t), axis=0),
                targets[b, t])

    @staticmethod
    def line(figures):
        """Figures as a line of the log."""
        return (f'held-out denoising loss {figures.denoise_loss:.3f}, '
                f'accuracy {figures.accuracy:.3f} (of known words '
                f'{figures.known_accuracy:.3f}, {figures.unknown_share:.0%} '
                'are <unk>)')
