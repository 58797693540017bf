"""BART: an encoder, and a decoder that says a text from what it encodes.

Lewis et al. 2020. B batch, S tokens of the text, T tokens that are decoded,
H hiddens, N heads, V vocabulary.
"""
import numpy as onp

from d2lbert.bert import BERTEncoder, MaskLM
from d2lbert.kernels import ops
from d2lbert.machine.backend import nn, np
from d2lbert.nn.checks import (
    check_sizes,
    check_tokens,
    check_whole,
    on_device,
)
from d2lbert.nn.layers import LayerNorm, grad_reqs
from d2lbert.nn.variant import Variant
from d2lbert.transformer import TransformerDecoderBlock

#: The fields of `Variant` that every BART has.
STRUCTURE = dict(family='bart', heads=('mlm',), mlm_hidden=False,
                 num_segments=0, positional='learnable', embedding_norm=True,
                 tie_embeddings=True)


class BARTDecoder(nn.Block):
    """Embeddings of token and position, then decoder blocks.

    The token embedding is the encoder's, an argument of each call. Other
    arguments as for `BERTEncoder`.
    """

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, num_layers,
                 dropout, max_len, variant, **kwargs):
        super().__init__(**kwargs)
        self.max_len = max_len
        self.pos_embedding = self.params.get(
            'pos_embedding', shape=(1, max_len, num_hiddens))
        self.embedding_norm = LayerNorm(epsilon=variant.layer_norm_eps,
                                        in_channels=num_hiddens)
        self.embedding_dropout = nn.Dropout(dropout)
        self.blks = nn.Sequential()
        for _ in range(num_layers):
            self.blks.add(TransformerDecoderBlock(
                num_hiddens, ffn_num_hiddens, num_heads, dropout, True,
                variant))

    def forward(self, tokens, encoder, encoded_X, valid_lens, caches=None):
        """Decode tokens (B, T) behind a text encoded_X (B, S, H): (B, T, H).

        encoder: a `BERTEncoder`, whose token embedding is used; valid_lens
        (B,): how many tokens of the text count, None: all. Row t depends on
        tokens up to t. caches: a `Caches`, for tokens that follow others;
        None: these are the first ones.
        """
        caches = Caches(len(self.blks)) if caches is None else caches
        first, T = caches.length, tokens.shape[1]
        ctx = (tokens.ctx if isinstance(tokens, np.ndarray)
               else self.pos_embedding.list_ctx()[0])
        tokens = on_device(check_tokens(
            tokens, encoder.vocab_size, self.max_len - first), ctx, 'int32')
        if valid_lens is not None:
            check_whole(valid_lens, 'valid length')
            valid_lens = on_device(valid_lens, tokens.ctx)
        X = self._embed(tokens, encoder, first)
        seen_lens = None
        if T > 1:
            seen_lens = on_device(onp.broadcast_to(
                onp.arange(first + 1, first + T + 1), (len(tokens), T)),
                tokens.ctx, 'int32')
        for blk, cache in zip(self.blks, caches.of_blocks):
            X = blk(X, encoded_X, valid_lens, seen_lens, cache)
        caches.length += T
        return X

    def _embed(self, tokens, encoder, first):
        """Embed tokens (B, T) at positions from `first` on: (B, T, H)."""
        ctx, words = tokens.ctx, encoder.token_embedding.weight
        positions = on_device(onp.broadcast_to(
            onp.arange(first, first + tokens.shape[1]), tokens.shape),
            ctx, 'int32')
        X = ops.embed(
            tokens, np.zeros_like(tokens), positions,
            encoder.scale(words.data(ctx)),
            np.zeros((1, words.shape[1]), ctx=ctx),
            self.pos_embedding.data(ctx).reshape(-1, words.shape[1]),
            grad_req=(*grad_reqs(words), 'null', 'write'))
        return self.embedding_dropout(self.embedding_norm(X))


class Caches:
    """What a decoder keeps of B sequences, for the tokens that follow.

    length: how many tokens it has seen of each.
    """

    def __init__(self, num_blocks):
        self.length = 0
        self.of_blocks = [{} for _ in range(num_blocks)]

    def choose(self, order, num_sequences):
        """Let the sequences be those with the numbers `order`, a list.

        A sequence may come several times, or never. num_sequences: B.
        """
        for cache in self.of_blocks:
            for name, kept in cache.items():
                cache[name] = tuple(_chosen(X, order, num_sequences)
                                    for X in kept)


def _chosen(X, order, num_sequences):
    """Those rows of X (B*N, T, D) that belong to sequences `order`."""
    rows = X.reshape(num_sequences, -1)
    order = on_device(order, X.ctx, 'int32')
    return rows.take(order, axis=0).reshape(-1, *X.shape[1:])


class BARTModel(nn.Block):
    """Encoder, decoder, and the head that scores the decoder's next token.

    Arguments as for `BERTModel`; num_layers, num_heads and ffn_num_hiddens
    are the encoder's. decoder_layers, decoder_heads and decoder_ffn are the
    decoder's, the encoder's if None. start_id: the token before every
    decoded text. The fields of the variant are a BART's, see `STRUCTURE`.
    Encoder, decoder and head share one token embedding; the head's bias is
    never trained, as published.
    """

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers, dropout, max_len=1024, decoder_layers=None,
                 decoder_heads=None, decoder_ffn=None, start_id=2, **kwargs):
        for name, expected in STRUCTURE.items():
            value = kwargs.setdefault(name, expected)
            if (tuple(value) if name == 'heads' else value) != expected:
                raise ValueError(f'a BART has {name}={expected!r}, not '
                                 f'{value!r}: leave it out')
        kwargs.setdefault('activation', 'gelu')
        variant = Variant.of(None, kwargs)
        super().__init__(**kwargs)
        ops.check_precision(variant.precision)
        sizes = dict(
            decoder_layers=decoder_layers or num_layers,
            decoder_heads=decoder_heads or num_heads,
            decoder_ffn=decoder_ffn or ffn_num_hiddens)
        check_sizes(**sizes)
        check_sizes(0, start_id=start_id)
        if start_id >= vocab_size:
            raise ValueError(f'start_id={start_id} is none of the '
                             f'{vocab_size} tokens')
        self.config = dict(
            vocab_size=vocab_size, num_hiddens=num_hiddens,
            ffn_num_hiddens=ffn_num_hiddens, num_heads=num_heads,
            num_layers=num_layers, dropout=dropout, max_len=max_len,
            **sizes, start_id=start_id,
            scale_embedding=variant.scale_embedding,
            activation_dropout=variant.activation_dropout,
            **{name: value for name, value in variant.config().items()
               if name not in ('scale_embedding', 'activation_dropout')})
        self.vocab = self.hidden = self.nsp = None
        self.encoder = BERTEncoder(
            vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_layers,
            dropout, max_len, variant=variant)
        self.decoder = BARTDecoder(
            num_hiddens, sizes['decoder_ffn'], sizes['decoder_heads'],
            sizes['decoder_layers'], dropout, max_len, variant)
        self.mlm = MaskLM(vocab_size, num_hiddens, variant, num_hiddens,
                          self.encoder.token_embedding)
        self.mlm.mlp[0].bias.grad_req = 'null'

    #: The decoder needs (B, T, H), padding included
    packable = False
    scores_pairs = False

    def forward(self, tokens, segments=None, valid_lens=None,
                pred_positions=None):
        """Encode texts, and decode them again: as for `BERTModel`.

        The decoder is given the text that the encoder reads, one place
        later, as in the published model's tasks: what it makes of token t
        stands for it, and scores the word there. segments are not looked at.
        Returns encoded_X (B, T, H), mlm_Y_hat (B, P, V) or None, None.
        """
        encoded_X, mlm_Y_hat = restored(self, tokens, valid_lens), None
        if pred_positions is not None:
            mlm_Y_hat = self.mlm(encoded_X, pred_positions)
        return encoded_X, mlm_Y_hat, None


def read(net, tokens, valid_lens):
    """What the encoder of a net makes of tokens (B, S): (B, S, H)."""
    return net.encoder(tokens, onp.zeros(onp.shape(tokens), 'int32'),
                       valid_lens)


def restored(net, tokens, valid_lens, targets=None):
    """What the decoder of a net makes of targets (B, T): (B, T, H).

    net: a `BARTModel`, or one with its encoder, decoder and config. tokens
    (B, S) and valid_lens (B,), or None: the text that is read, which has to
    be said itself where there are no targets. Row t is given the targets
    before t.
    """
    encoded_X = read(net, tokens, valid_lens)
    return net.decoder(
        shifted(tokens if targets is None else targets,
                net.config['start_id'], encoded_X.ctx),
        net.encoder, encoded_X, valid_lens)


def shifted(tokens, start_id, ctx):
    """What a decoder is given to say tokens (B, T): int32 (B, T).

    start_id, and all tokens but the last.
    """
    tokens = on_device(tokens, ctx, 'int32')
    start = np.full((len(tokens), 1), start_id, dtype='int32', ctx=ctx)
    return np.concatenate([start, tokens[:, :-1]], axis=1)
