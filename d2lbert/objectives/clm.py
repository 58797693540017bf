"""The next token, from left to right: the objective of GPT.

B rows, T tokens, M predicted tokens, H hiddens.
"""
from typing import NamedTuple

import numpy as onp

from d2lbert.corpus.masking import WHOLE
from d2lbert.nn import packed
from d2lbert.objectives.generative import Generative
from d2lbert.objectives.text_objective import freeze_pair_layers


class CLMFigures(NamedTuple):
    """Figures of a model on a text; see `figures.Figures`."""

    clm_loss: float         # nats for a token
    perplexity: float       # exp(clm_loss)
    accuracy: float         # share of tokens ranked first
    unknown_share: float    # of <unk> among the tokens
    known_accuracy: float   # accuracy without <unk>


class CLM(Generative):
    """Each token predicted from those before it: Radford et al. 2018.

    Rows are full sentences as in `MLM`, without masks. The model is a
    `BERTModel` with causal=True: the same head and the same encoder, in
    which no token attends to a later one. The vector of a token predicts the
    next token; `<sep>` is predicted like any other.
    """

    losses = 'clm',
    drawn = 'clm_loss',
    Figures = CLMFigures

    @property
    def model(self):
        """The arguments of the net, a dictionary."""
        return dict(super().model, causal=True)

    @classmethod
    def trained(cls, bert):
        """The model, with the layers that no loss reaches frozen."""
        freeze_pair_layers(bert)
        return bert

    def batches(self, epoch, start):
        """Yield (position, `Whole` of NumPy arrays) of an epoch."""
        s = self.settings
        return self.text.train.batches(
            s['batch_size'], s['max_len'], seed=s['seed'], epoch=epoch,
            start=start, dynamic=s['dynamic'], spans=WHOLE)

    @classmethod
    def held_out_batches(cls, text, batch_size, max_len):
        """The batches of a held-out `StoredText`, always the same."""
        return (batch for _, batch in text.batches(
            batch_size, max_len, seed=0, dynamic=False, spans=WHOLE))

    @classmethod
    def counts(cls, batch):
        """All tokens except the first of each row."""
        return (batch.valid_lens_x - 1).sum(),

    @staticmethod
    def states(net, shard, device):
        """Vectors (M, H), and the token after each: labels (M,) int32."""
        lens = shard.valid_lens_x.astype('int64')
        tokens = shard.tokens_X[:, :int(lens.max())]
        row, place = onp.nonzero(
            onp.arange(tokens.shape[1]) < lens[:, None] - 1)
        encoded = packed.encode(net, tokens, None, shard.valid_lens_x,
                                at=(row, place), device=device)
        return encoded.taken_X, tokens[row, place + 1]

    @staticmethod
    def line(figures):
        """Figures as a line of the log."""
        return (f'held-out CLM loss {figures.clm_loss:.3f}, perplexity '
                f'{figures.perplexity:.1f}, accuracy {figures.accuracy:.3f} '
                f'(of known words {figures.known_accuracy:.3f}, '
                f'{figures.unknown_share:.0%} are <unk>)')
