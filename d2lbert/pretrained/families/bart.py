"""BART has an encoder, and a decoder that generates text from encoded text.

The model is from Lewis et al. 2020. Letters in shapes: B texts of a batch, S
tokens of an input text, T tokens to decode, P predicted positions of a text, H
hidden units, N attention heads, D hidden units of a head, V tokens of the
vocabulary.
"""
import numpy as onp

from d2lbert.bert import BERTEncoder, MaskLM
from d2lbert.kernels import ops
from d2lbert.machine.arguments import check_sizes
from d2lbert.machine.backend import mx, nn, np
from d2lbert.nn.checks import check_tokens, check_whole, on_device
from d2lbert.nn.layers import LayerNorm, Model, grad_reqs
from d2lbert.nn.variant import Variant
from d2lbert.pretrained.families.family import BART_STRUCTURE
from d2lbert.transformer import TransformerDecoderBlock


class BARTDecoder(nn.Block):
    """Token and position embeddings, then decoder blocks.

    The token embedding belongs to the encoder, so each call receives the
    encoder. Arguments are as for `BERTEncoder`.
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
                num_hiddens, ffn_num_hiddens, num_heads, dropout,
                use_bias=True, variant=variant))

    def forward(self, tokens, encoder, encoded_X, valid_lens, caches=None):
        """Decode tokens (B, T) given texts encoded_X (B, S, H): (B, T, H).

        encoder: the `BERTEncoder` with the token embedding. valid_lens (B,):
        the number of tokens of each text before the padding; None: all S.
        Output t depends on tokens up to t. caches: the `Caches` of the tokens
        that earlier calls decoded; this call adds its tokens. None: there are
        no earlier tokens. encoded_X is ignored if the caches hold the text.
        """
        caches = Caches(len(self.blks)) if caches is None else caches
        num_cached, T = caches.length, tokens.shape[1]
        # Tokens on the host go to the device of the parameters
        ctx = (tokens.ctx if isinstance(tokens, mx.nd.NDArray)
               else self.pos_embedding.list_ctx()[0])
        max_new = self.max_len - num_cached
        tokens = on_device(check_tokens(tokens, encoder.vocab_size, max_new),
                           ctx, 'int32')
        if valid_lens is not None:
            check_whole(valid_lens, 'valid length')
            valid_lens = on_device(valid_lens, ctx)
        X = self._embed(tokens, encoder, first_position=num_cached)
        seen_lens = None        # a single new token attends to all tokens
        if T > 1:
            num_seen = onp.arange(num_cached + 1, num_cached + T + 1)
            seen_lens = on_device(
                onp.broadcast_to(num_seen, tokens.shape), ctx, 'int32')
        for blk, cache in zip(self.blks, caches.per_block):
            X = blk(X, encoded_X, valid_lens, seen_lens, cache)
        caches.length += T
        return X

    def _embed(self, tokens, encoder, first_position):
        """Embed tokens (B, T), of which the first is at first_position."""
        ctx, weight = tokens.ctx, encoder.token_embedding.weight
        positions = first_position + onp.arange(tokens.shape[1])
        positions = on_device(
            onp.broadcast_to(positions, tokens.shape), ctx, 'int32')
        # ops.embed needs segments: all are 0, embedded as a vector of zeros
        X = ops.embed(
            tokens, np.zeros_like(tokens), positions,
            encoder.scale(weight.data(ctx)),
            np.zeros((1, weight.shape[1]), ctx=ctx),
            self.pos_embedding.data(ctx).reshape(-1, weight.shape[1]),
            # For the three tables. The reshape obeys the grad_req of
            # pos_embedding, so 'write' is right for the last one
            grad_req=(*grad_reqs(weight), 'null', 'write'))
        return self.embedding_dropout(self.embedding_norm(X))


class Caches:
    """Keys and values of B sequences, reused to decode their next tokens.

    length: the number of cached tokens of each sequence. per_block: a dict for
    each block, which the block fills. 'tokens': keys and values
    (B*N, length, D) of the decoded tokens. 'text': keys and values (B*N, S, D)
    of the encoded text.
    """

    def __init__(self, num_blocks):
        self.length = 0
        self.per_block = [{} for _ in range(num_blocks)]

    def select(self, indices, num_sequences):
        """Keep the sequences with these indices, a list, in this order.

        An index may occur several times. num_sequences: B before the call.
        """
        for cache in self.per_block:
            for name, keys_values in cache.items():
                cache[name] = tuple(
                    _take_sequences(X, indices, num_sequences)
                    for X in keys_values)


def _take_sequences(X, indices, num_sequences):
    """Select sequences of X (B*N, S or length, D), keys or values."""
    rows = X.reshape(num_sequences, -1)     # a row for each sequence
    indices = on_device(indices, X.ctx, 'int32')
    return rows.take(indices, axis=0).reshape(-1, *X.shape[1:])


class BARTModel(Model):
    """Encoder, decoder, and the head that scores the decoder's next token.

    Arguments are as for `BERTModel`, without num_blks and variant. num_layers,
    num_heads and ffn_num_hiddens are the encoder's; decoder_layers,
    decoder_heads and decoder_ffn default to them. start_id: the id of the
    first token of every decoder input. Keywords in `BART_STRUCTURE`
    (family.py) can only have the values there. Encoder, decoder and head share
    one token embedding. The bias of the head is not trained, as published.
    """

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads,
                 num_layers, dropout, max_len=1024, decoder_layers=None,
                 decoder_heads=None, decoder_ffn=None, start_id=2, **kwargs):
        for name, expected in BART_STRUCTURE.items():
            value = kwargs.setdefault(name, expected)
            if (tuple(value) if name == 'heads' else value) != expected:
                raise ValueError(f'a BART has {name}={expected!r}, not '
                                 f'{value!r}: leave it out')
        kwargs.setdefault('activation', 'gelu')
        variant = Variant.of(None, kwargs)      # removes keywords from kwargs
        super().__init__(**kwargs)
        ops.check_precision(variant.precision)
        decoder_sizes = dict(
            decoder_layers=(num_layers if decoder_layers is None
                            else decoder_layers),
            decoder_heads=(num_heads if decoder_heads is None
                           else decoder_heads),
            decoder_ffn=(ffn_num_hiddens if decoder_ffn is None
                         else decoder_ffn))
        check_sizes(**decoder_sizes)
        check_sizes(least=0, start_id=start_id)
        if start_id >= vocab_size:
            raise ValueError(f'start_id={start_id} must be one of the '
                             f'{vocab_size} token ids')
        config = dict(
            vocab_size=vocab_size, num_hiddens=num_hiddens,
            ffn_num_hiddens=ffn_num_hiddens, num_heads=num_heads,
            num_layers=num_layers, dropout=dropout, max_len=max_len,
            **decoder_sizes, start_id=start_id,
            # `variant.config` leaves out these two if they have the defaults
            scale_embedding=variant.scale_embedding,
            activation_dropout=variant.activation_dropout)
        self.config = {**config, **variant.config()}
        self.hidden = self.nsp = None       # no pooler, no next sentence head
        self.encoder = BERTEncoder(
            vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_layers,
            dropout, max_len, variant=variant)
        self.decoder = BARTDecoder(
            num_hiddens, decoder_sizes['decoder_ffn'],
            decoder_sizes['decoder_heads'], decoder_sizes['decoder_layers'],
            dropout, max_len, variant)
        self.mlm = MaskLM(vocab_size, num_hiddens, variant, num_hiddens,
                          self.encoder.token_embedding)
        self.mlm.mlp[0].bias.grad_req = 'null'

    #: The decoder needs padded texts, and nn/packed.py removes padding
    packable = False
    has_pair_head = False

    def forward(self, tokens, segments=None, valid_lens=None,
                pred_positions=None):
        """Encode and decode the same texts; arguments are as for `BERTModel`.

        As in training, the decoder reads the text shifted right by one token,
        so its state t predicts token t. segments are ignored. Returns the
        decoder's states (B, T, H), mlm_Y_hat (B, P, V) or None, and None.
        """
        states = teacher_forced_states(self, tokens, valid_lens)
        mlm_Y_hat = None
        if pred_positions is not None:
            mlm_Y_hat = self.mlm(states, pred_positions)
        return states, mlm_Y_hat, None


def encode_text(net, tokens, valid_lens):
    """Encode tokens (B, S): (B, S, H).

    valid_lens (B,): the number of tokens before the padding; None: all S.
    """
    return net.encoder(tokens, onp.zeros(onp.shape(tokens), 'int32'),
                       valid_lens)


def teacher_forced_states(net, tokens, valid_lens, targets=None):
    """Decoder states (B, T, H) for given target tokens.

    net: a `BARTModel`, or a `FineTuned` net that was made from one.
    tokens (B, S), valid_lens (B,): as for `encode_text`. targets (B, T): the
    tokens to predict; None: the input texts. State t depends on the input text
    and on the targets before t.
    """
    encoded_X = encode_text(net, tokens, valid_lens)
    inputs = _shift_right(tokens if targets is None else targets,
                          net.config['start_id'], encoded_X.ctx)
    return net.decoder(inputs, net.encoder, encoded_X, valid_lens)


def _shift_right(tokens, start_id, ctx):
    """Put start_id before each row, and drop its last token: int32 (B, T)."""
    tokens = on_device(tokens, ctx, 'int32')
    start = np.full((len(tokens), 1), start_id, dtype='int32', ctx=ctx)
    return np.concatenate([start, tokens[:, :-1]], axis=1)
