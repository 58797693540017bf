"""A small BERT of our own making: its folder, and its numbers by NumPy.

Names and equations are written out here once more, so that the package is
compared with something that is not itself: the names with those that the
published checkpoints have, the numbers with Devlin et al. 2018 and Vaswani et
al. 2017 in float64.
"""
import json
import math

import numpy as onp
from safetensors.numpy import save_file

#: Fields of config.json as the checkpoints have them; small, and no two
#: sizes alike.
CONFIG = dict(
    model_type='bert', architectures=['BertForPreTraining'], vocab_size=23,
    hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
    intermediate_size=20, hidden_act='gelu', hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.2, max_position_embeddings=9,
    type_vocab_size=2, initializer_range=0.02, layer_norm_eps=1e-12,
    pad_token_id=0)

VOCAB = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b', 'c', '##a',
         '##b', '##c', 'the', 'crane', 'is', 'fly', '##ing', 'he', 'just',
         'left', '.', ',', '?', '!']


def shapes(config):
    """{name: shape} of all tensors of `BertForPreTraining`."""
    V, H, F = (config[name] for name in (
        'vocab_size', 'hidden_size', 'intermediate_size'))
    e = 'bert.embeddings'
    found = {f'{e}.word_embeddings.weight': (V, H),
             f'{e}.position_embeddings.weight':
                 (config['max_position_embeddings'], H),
             f'{e}.token_type_embeddings.weight':
                 (config['type_vocab_size'], H)}
    norms = [f'{e}.LayerNorm', 'cls.predictions.transform.LayerNorm']
    denses = {'bert.pooler.dense': (H, H), 'cls.seq_relationship': (2, H),
              'cls.predictions.transform.dense': (H, H)}
    for i in range(config['num_hidden_layers']):
        layer = f'bert.encoder.layer.{i}'
        denses.update({f'{layer}.attention.{name}': (H, H) for name in (
            'self.query', 'self.key', 'self.value', 'output.dense')})
        denses.update({f'{layer}.intermediate.dense': (F, H),
                       f'{layer}.output.dense': (H, F)})
        norms += [f'{layer}.attention.output.LayerNorm',
                  f'{layer}.output.LayerNorm']
    for name, shape in {**denses, **{name: (H,) for name in norms}}.items():
        found[f'{name}.weight'], found[f'{name}.bias'] = shape, shape[:1]
    found['cls.predictions.bias'] = (V,)
    if not config.get('tie_word_embeddings', True):
        found['cls.predictions.decoder.weight'] = (V, H)
        found['cls.predictions.decoder.bias'] = (V,)
    return found


def draw(config, seed=0):
    """Random tensors, none of whose parts could be forgotten unnoticed."""
    rng = onp.random.RandomState(seed)
    return {name: rng.normal(float('Norm.weight' in name), 0.4, shape)
            .astype('float32') for name, shape in shapes(config).items()}


def write(folder, config=None, tensors=None, vocab=VOCAB):
    """Write a folder of a checkpoint; returns its path."""
    config = {**CONFIG, **(config or {})}
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'vocab.txt').write_text(''.join(f'{t}\n' for t in vocab))
    save_file(draw(config) if tensors is None else tensors,
              str(folder / 'model.safetensors'), {'format': 'pt'})
    return folder


def forward(config, tensors, ids, segments):
    """What the model says of one text: ids, segments (T,).

    Returns hidden, a list of (T, H) for the embeddings and each layer;
    pooled (H,); mlm (T, V); nsp (2,), whose first is "b follows a".
    """
    config = {**CONFIG, **config}
    w = {name: tensor.astype('float64') for name, tensor in tensors.items()}
    H, N = config['hidden_size'], config['num_attention_heads']

    def dense(X, name):
        return X @ w[f'{name}.weight'].T + w[f'{name}.bias']

    def norm(X, name):
        X = X - X.mean(-1, keepdims=True)
        X /= onp.sqrt((X ** 2).mean(-1, keepdims=True)
                      + config['layer_norm_eps'])
        return X * w[f'{name}.weight'] + w[f'{name}.bias']

    def softmax(X):
        X = onp.exp(X - X.max(-1, keepdims=True))
        return X / X.sum(-1, keepdims=True)

    act = {'relu': lambda X: onp.maximum(X, 0),
           'gelu': lambda X: X / 2 * (1 + onp.vectorize(math.erf)(
               X / math.sqrt(2))),
           'gelu_new': lambda X: X / 2 * (1 + onp.tanh(
               math.sqrt(2 / math.pi) * (X + 0.044715 * X ** 3)))
           }[config['hidden_act']]
    e = 'bert.embeddings'
    X = norm(w[f'{e}.word_embeddings.weight'][ids]
             + w[f'{e}.position_embeddings.weight'][:len(ids)]
             + w[f'{e}.token_type_embeddings.weight'][segments],
             f'{e}.LayerNorm')
    hidden = [X]
    for i in range(config['num_hidden_layers']):
        layer = f'bert.encoder.layer.{i}'
        q, k, v = (dense(X, f'{layer}.attention.self.{name}')
                   .reshape(-1, N, H // N).transpose(1, 0, 2)
                   for name in ('query', 'key', 'value'))
        Y = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(H // N)) @ v
        Y = dense(Y.transpose(1, 0, 2).reshape(-1, H),
                  f'{layer}.attention.output.dense')
        X = norm(X + Y, f'{layer}.attention.output.LayerNorm')
        Y = dense(act(dense(X, f'{layer}.intermediate.dense')),
                  f'{layer}.output.dense')
        X = norm(X + Y, f'{layer}.output.LayerNorm')
        hidden.append(X)
    pooled = onp.tanh(dense(X[0], 'bert.pooler.dense'))
    head = 'cls.predictions'
    Y = norm(act(dense(X, f'{head}.transform.dense')),
             f'{head}.transform.LayerNorm')
    decoder = w.get(f'{head}.decoder.weight',
                    w[f'{e}.word_embeddings.weight'])
    bias = w.get(f'{head}.decoder.bias', w[f'{head}.bias'])
    return (hidden, pooled, Y @ decoder.T + bias,
            dense(pooled, 'cls.seq_relationship'))


def scores(net, ids, segments, lens):
    """What a net says of texts ids, segments (B, T) of lens (B,) tokens.

    Returns for each text, as `forward`, its last hidden states (lens[b], H),
    pooled, mlm (lens[b], V) and nsp (2,), in the order that a net has them.
    """
    from d2lbert.machine.backend import np
    B, T = ids.shape
    places = onp.broadcast_to(onp.arange(T), (B, T))
    X, mlm, nsp = net(*(np.array(a, dtype='int32') for a in (
        ids, segments, lens, places)))
    pooled = net.hidden(X[:, 0, :])
    X, mlm, nsp, pooled = (a.asnumpy() for a in (X, mlm, nsp, pooled))
    return [(X[b, :n], pooled[b], mlm[b, :n], nsp[b])
            for b, n in enumerate(lens)]
