"""BART has an encoder, and a decoder that generates text from encoded text.

The model is from Lewis et al. 2020. B: the number of texts in a batch. S: of
tokens in an input text. T: of tokens to decode. P: of predicted positions. H:
of hidden units. N: of attention heads. D: of hidden units of a head. V: of
tokens in the vocabulary.
"""
import numpy as onp

from d2lbert.bert import BERTEncoder, MaskLM
from d2lbert.kernels import ops
from d2lbert.machine.arguments import check_sizes
from d2lbert.machine.backend import nn, np
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
        the number of valid tokens of each text; None: all are valid. Output t
        depends on tokens up to t. caches: the `Caches` of the preceding
        tokens, which earlier calls decoded; None if no tokens precede. The new
        tokens are added to the caches. If the caches hold the keys and values
        of the encoded text, encoded_X is ignored.
        """
        caches = Caches(len(self.blks)) if caches is None else caches
        # position: of the first new token, which follows the cached tokens
        position, T = caches.length, tokens.shape[1]
        # Tokens on the host go to the device of the parameters
        ctx = (tokens.ctx if isinstance(tokens, np.ndarray)
               else self.pos_embedding.list_ctx()[0])
        tokens = on_device(check_tokens(
            tokens, encoder.vocab_size, self.max_len - position), ctx, 'int32')
        if valid_lens is not None:
            check_whole(valid_lens, 'valid length')
            valid_lens = on_device(valid_lens, tokens.ctx)
        X = self._embed(tokens, encoder, position)
        # seen_lens: the number of decoded tokens that each new token attends
        # to, itself included. None: all, which is right for a single new token
        seen_lens = None
        if T > 1:
            seen_lens = on_device(onp.broadcast_to(
                onp.arange(position + 1, position + T + 1), (len(tokens), T)),
                tokens.ctx, 'int32')
        for blk, cache in zip(self.blks, caches.of_blocks):
            X = blk(X, encoded_X, valid_lens, seen_lens, cache)
        caches.length += T
        return X

    def _embed(self, tokens, encoder, position):
        """Embed tokens (B, T): (B, T, H). position: of the first column."""
        ctx, weight = tokens.ctx, encoder.token_embedding.weight
        positions = on_device(onp.broadcast_to(
            onp.arange(position, position + tokens.shape[1]), tokens.shape),
            ctx, 'int32')
        # ops.embed needs segments. All are 0, embedded as a vector of zeros
        X = ops.embed(
            tokens, np.zeros_like(tokens), positions,
            encoder.scale(weight.data(ctx)),
            np.zeros((1, weight.shape[1]), ctx=ctx),
            self.pos_embedding.data(ctx).reshape(-1, weight.shape[1]),
            # For each of the three tables. The reshape obeys the grad_req of
            # pos_embedding, so 'write' is right for the last table
            grad_req=(*grad_reqs(weight), 'null', 'write'))
        return self.embedding_dropout(self.embedding_norm(X))


class Caches:
    """Keys and values of B sequences, reused to decode their next tokens.

    length: the number of cached tokens of each sequence. of_blocks: a list
    with a dict for each block, which the block fills. Entry 'tokens' has the
    keys and values (B*N, length, D) of the decoded tokens. Entry 'text' has
    the keys and values (B*N, S, D) of the encoded text.
    """

    def __init__(self, num_blocks):
        self.length = 0
        self.of_blocks = [{} for _ in range(num_blocks)]

    def select(self, indices, num_sequences):
        """Keep the sequences with these indices, in this order.

        indices: a list. An index may occur several times, or never.
        num_sequences: B, the number of sequences before the call.
        """
        for cache in self.of_blocks:
            for name, keys_values in cache.items():
                cache[name] = tuple(
                    _take_sequences(X, indices, num_sequences)
                    for X in keys_values)


def _take_sequences(X, indices, num_sequences):
    """Take the keys or values of the sequences with these indices.

    X (B*N, S or length, D): the keys or values of B = num_sequences sequences.
    """
    rows = X.reshape(num_sequences, -1)     # a row for each sequence
    indices = on_device(indices, X.ctx, 'int32')
    return rows.take(indices, axis=0).reshape(-1, *X.shape[1:])


class BARTModel(Model):
    """Encoder, decoder, and the head that scores the decoder's next token.

    Arguments are as for `BERTModel`, without num_blks and variant. num_layers,
    num_heads and ffn_num_hiddens are the encoder's. decoder_layers,
    decoder_heads and decoder_ffn are the decoder's, and default to the
    encoder's. start_id: the id of the first token of every decoder input.
    Keywords in `BART_STRUCTURE` (family.py) can only have the values there.
    Encoder, decoder and head share one token embedding. The bias of the head
    is not trained, as published.
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
            decoder_layers=decoder_layers or num_layers,
            decoder_heads=decoder_heads or num_heads,
            decoder_ffn=decoder_ffn or ffn_num_hiddens)
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

    #: False: the decoder needs padded texts, and nn/packed.py removes padding
    packable = False
    #: False: a BART has no next sentence head
    has_pair_head = False

    def forward(self, tokens, segments=None, valid_lens=None,
                pred_positions=None):
        """Encode and decode the same texts; arguments are as for `BERTModel`.

        The decoder reads the text shifted by one token, as when the published
        model was trained. The decoder's state t predicts token t, which the
        encoder has read, too. segments are ignored. Returns the decoder's
        states (B, T, H), mlm_Y_hat (B, P, V) or None, and None.
        """
        states = teacher_forced_states(self, tokens, valid_lens)
        mlm_Y_hat = None
        if pred_positions is not None:
            mlm_Y_hat = self.mlm(states, pred_positions)
        return states, mlm_Y_hat, None


def encode_text(net, tokens, valid_lens):
    """Encode texts with a net's encoder: (B, S, H).

    tokens (B, S). valid_lens (B,), or None if all tokens are valid.
    """
    return net.encoder(tokens, onp.zeros(onp.shape(tokens), 'int32'),
                       valid_lens)


def teacher_forced_states(net, tokens, valid_lens, targets=None):
    """Decoder states (B, T, H) for given target tokens.

    net: a `BARTModel`, or a net with the encoder, decoder and config of one.
    tokens (B, S), valid_lens (B,) or None: the input texts. targets (B, T):
    the tokens to predict; None: the input texts. State t depends on the input
    text and on the targets before t.
    """
    encoded_X = encode_text(net, tokens, valid_lens)
    return net.decoder(
        decoder_inputs(tokens if targets is None else targets,
                       net.config['start_id'], encoded_X.ctx),
        net.encoder, encoded_X, valid_lens)


def decoder_inputs(tokens, start_id, ctx):
    """The inputs of a decoder that predicts tokens (B, T): int32 (B, T).

    A row of the result is start_id, then a row of `tokens` without its last
    token.
    """
    tokens = on_device(tokens, ctx, 'int32')
    start = np.full((len(tokens), 1), start_id, dtype='int32', ctx=ctx)
    return np.concatenate([start, tokens[:, :-1]], axis=1)
