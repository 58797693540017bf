"""The initial weights of nets that are pretrained."""
import math

from d2lbert.attention import MultiHeadAttention
from d2lbert.bert import BERTEncoder
from d2lbert.corpus.topics import topics
from d2lbert.machine.backend import init, np
from d2lbert.transformer import PositionWiseFFN

#: Standard deviation of the published weights (Devlin et al. 2018), and the
#: number of hiddens that it was chosen for.
SPREAD, PUBLISHED_HIDDENS = 0.02, 768

#: The initial attention score of a token with itself, with `mimetic`. In a
#: text of 64 tokens, other tokens of the same word then get about a tenth of
#: the attention.
SELF_SCORE = 3.5

#: The share of the topic in the initial vector of a token, with `topical`.
#: The rest is random, so that no two vectors are equal.
TOPIC = 0.97


def initialize(net, how, devices, text=None):
    """Give all parameters of `net` initial weights on every device.

    how: one of

    - 'xavier': Glorot and Bengio 2010, as on the pages;
    - 'normal': N(0, 0.02²), as published;
    - 'mimetic': tokens attend to similar tokens from the first step on, as
      in trained nets (Trockman and Kolter 2023, "Mimetic Initialization of
      Self-Attention Layers"). Keys equal queries. Segment and position
      embeddings have half the scale of token embeddings. The matrices of the
      blocks are N(0, 0.02² 768 / H) for H hiddens;
    - 'topical': 'mimetic', with similar embeddings for tokens of the same
      topics, which `corpus.topics` finds in `text`, a `Corpus` or None.
    """
    mimetic = how in ('mimetic', 'topical')
    if mimetic:
        net.apply(_spread)
    net.initialize(init.Xavier() if how == 'xavier' else init.Normal(SPREAD),
                   ctx=devices)
    if mimetic:
        net.apply(_match)
    if how == 'topical' and text is not None:
        net.apply(lambda block: _set_topics(block, text))


def _set_topics(block, text):
    if not isinstance(block, BERTEncoder):
        return
    weight = block.token_embedding.weight
    first = weight.data(weight.list_ctx()[0]).asnumpy()
    H = first.shape[1]
    tokens, vectors = topics(text, H)
    first[tokens] *= math.sqrt(1 - TOPIC ** 2)
    first[tokens] += TOPIC * SPREAD * math.sqrt(H) * vectors
    weight.set_data(np.array(first))


def _spread(block):
    if isinstance(block, BERTEncoder):
        if block.segment_embedding is not None:
            block.segment_embedding.weight.init = init.Normal(SPREAD / 2)
        if block.learnable:
            block.pos_embedding.init = init.Normal(SPREAD / 2)
    elif isinstance(block, PositionWiseFFN):
        for layer in (block.dense1, block.dense2):
            layer.weight.init = _scaled(block.dense2._units)
    elif isinstance(block, MultiHeadAttention):
        H = block.W_o._units
        for layer in (block.W_v, block.W_o):
            layer.weight.init = _scaled(H)
        # For d numbers in a head and inputs of H normalized numbers, the
        # score of x with itself is |Wx|² / √d, on average √d H σ²
        block.W_q.weight.init = init.Normal(math.sqrt(
            SELF_SCORE / (H * math.sqrt(H / block.num_heads))))


def _scaled(H):
    return init.Normal(SPREAD * math.sqrt(PUBLISHED_HIDDENS / H))


def _match(block):
    if isinstance(block, MultiHeadAttention):
        block.W_k.weight.set_data(block.W_q.weight.data(
            block.W_q.weight.list_ctx()[0]))
