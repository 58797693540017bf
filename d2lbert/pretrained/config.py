"""config.json of a BERT folder, and the keywords of `BERTModel`, both ways.

Its fields, and the values of those that are not there, are those of
`transformers`. What `BERTModel` cannot do is refused by name: a field that
is passed over in silence gives other numbers.
"""
from d2lbert.pretrained.names import FINETUNED
from d2lbert.pretrained.storage import PretrainedError, read_json

#: {field: (keyword, value where it is missing)}
SIZES = {'vocab_size': ('vocab_size', 30522),
         'hidden_size': ('num_hiddens', 768),
         'intermediate_size': ('ffn_num_hiddens', 3072),
         'num_attention_heads': ('num_heads', 12),
         'num_hidden_layers': ('num_layers', 12),
         'max_position_embeddings': ('max_len', 512),
         'type_vocab_size': ('num_segments', 2)}
SHARES = {'hidden_dropout_prob': ('dropout', 0.1),
          'attention_probs_dropout_prob': ('attention_dropout', 0.1),
          'layer_norm_eps': ('layer_norm_eps', 1e-12)}

#: What the kinds of GELU are called there. There are two: the exact one, and
#: that by a tanh, which different programs have written down.
ACTIVATIONS = {'gelu': 'gelu', 'gelu_python': 'gelu', 'gelu_new': 'gelu_new',
               'gelu_fast': 'gelu_new', 'gelu_pytorch_tanh': 'gelu_new',
               'relu': 'relu'}

#: {field: (the only value that is served, what another would mean)}
FIXED = {'model_type': ('bert', 'another family of models'),
         'position_embedding_type': ('absolute', 'positions of another kind'),
         'is_decoder': (False, 'a decoder'),
         'add_cross_attention': (False, 'attention to a second text'),
         'pruned_heads': ({}, 'attention heads that were cut out'),
         'quantization_config': (None, 'quantized weights')}


def keywords(path):
    """The keywords of `BERTModel` for a config.json, and all that it says.

    Two dicts. Raises `PretrainedError` for what `BERTModel` cannot do.
    """
    config = read_json(path)

    def refuse(field, expected, remark=''):
        raise PretrainedError(f'{path}: {field} is {config[field]!r}, but '
                              f'expected is {expected}{remark}')

    for field, (value, meaning) in FIXED.items():
        if config.get(field) not in (value, None):
            refuse(field, repr(value),
                   f', as {meaning} cannot be served here')
    found = {}
    for field, (keyword, default) in SIZES.items():
        found[keyword] = value = config.get(field, default)
        if type(value) is not int or value < 1:
            refuse(field, 'a whole number of at least 1')
    for field, (keyword, default) in SHARES.items():
        found[keyword] = value = config.get(field, default)
        if not _is_number(value) or not 0 <= value < 1:
            refuse(field, 'a number from 0 to less than 1')
    if found['num_hiddens'] % found['num_heads']:
        raise PretrainedError(
            f'{path}: num_attention_heads, {found["num_heads"]}, does not '
            f'divide hidden_size, {found["num_hiddens"]}')
    act = config.setdefault('hidden_act', 'gelu')
    if not isinstance(act, str) or act not in ACTIVATIONS:
        refuse('hidden_act', 'one of ' + ', '.join(ACTIVATIONS))
    for field, default, kind in (('tie_word_embeddings', True, bool),
                                 ('architectures', None, list),
                                 ('dtype', None, str),
                                 ('torch_dtype', None, str)):
        if config.setdefault(field, default) is not None and not isinstance(
                config[field], kind):
            refuse(field, {bool: 'true or false', list: 'a list',
                           str: 'a name'}[kind])
    if config.get('initializer_range') is None:
        config['initializer_range'] = 0.02
    for field, limit in (('initializer_range', None),
                         ('classifier_dropout', 1)):
        value = config.get(field)
        if value is not None and (not _is_number(value) or value < 0 or (
                limit and value >= limit)):
            refuse(field, 'a number' + (f' below {limit}' if limit else ''))
    pad = config.get('pad_token_id')
    if pad is not None and (type(pad) is not int or not
                            -1 <= pad < found['vocab_size']):
        refuse('pad_token_id', f"one of the {found['vocab_size']} numbers "
               'of tokens')
    return dict(found, activation=ACTIVATIONS[act], embedding_norm=True,
                tie_embeddings=config['tie_word_embeddings'] is not False
                ), config


def _is_number(value):
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and abs(value) < 1e30)      # neither NaN nor beyond a float


def of_net(net, pad_id):
    """What config.json says of a `BERTModel`; `PretrainedError` if it can't.

    The format has no words for a net without LayerNorm behind its
    embeddings, nor for positions that are not learnt.
    """
    config = net.config
    if config['positional'] != 'learnable':
        raise PretrainedError(
            'this net has sinusoidal positions, as the first edition of the '
            "book, and BERT's folders have learnt ones: train one with "
            "positional='learnable'")
    if not config['embedding_norm']:
        raise PretrainedError(
            "this net has no LayerNorm behind its embeddings, as the book's "
            "page, and BERT's folders always have one: train one with "
            'embedding_norm=True')
    described = getattr(net, 'pretrained', None)
    before = described.config if described else {}
    found = {field: config[keyword] for field, (keyword, _)
             in (*SIZES.items(), *SHARES.items())}
    if found['attention_probs_dropout_prob'] is None:
        found['attention_probs_dropout_prob'] = config['dropout']
    return {
        'architectures': ['BertForPreTraining'], 'model_type': 'bert',
        **found, 'hidden_act': config['activation'],
        'tie_word_embeddings': config['tie_embeddings'],
        'classifier_dropout': before.get('classifier_dropout'),
        'initializer_range': before.get('initializer_range', 0.02),
        'pad_token_id': pad_id, 'dtype': 'float32', **_of_head(net)}


def _of_head(net):
    """What config.json says of a fine-tuned net: its class, its labels."""
    about = getattr(net, 'about', None)
    if about is None:
        return {}
    found = {'architectures': [FINETUNED[about.kind][0]],
             'classifier_dropout': about.dropout}
    if about.kind != 'span':
        names = about.labels or ('LABEL_0',)
        found.update(id2label={str(k): name for k, name in enumerate(names)},
                     label2id={name: k for k, name in enumerate(names)})
    problem = {'classify': 'single_label_classification',
               'regress': 'regression'}.get(about.kind)
    return dict(found, problem_type=problem) if problem else found
