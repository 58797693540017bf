"""config.json of a folder, and the keywords of `BERTModel`, both ways.

Its fields, and the values of those that are not there, are those of
`transformers`. What `BERTModel` cannot do is refused by name: a field that
is passed over in silence gives other numbers.
"""
from pathlib import Path

from d2lbert.nn.variant import BOOK
from d2lbert.pretrained.families.family import FAMILIES, family_of
from d2lbert.pretrained.tensor_files import PretrainedError, read_json

#: The token that a text is decoded behind, where no field says it.
START = {'decoder_start_token_id': 2}

#: The file that says how texts are generated, and what holds without it.
GENERATION = 'generation_config.json'
FORCED = {'forced_eos_token_id': 2}

#: {field of it: what `generation.How` calls it}
GENERATED = {'num_beams': 'num_beams', 'max_length': 'max_len',
             'min_length': 'min_len', 'length_penalty': 'length_penalty',
             'no_repeat_ngram_size': 'no_repeat_ngram',
             'early_stopping': 'early_stopping',
             'forced_bos_token_id': 'first_id',
             'forced_eos_token_id': 'last_id'}

#: Defaults of the arguments that the `config` of a net may leave out.
OTHERWISE = dict({name: getattr(BOOK, name) for name in (
    'family', 'heads', 'mlm_hidden', 'mlm_activation', 'embedding_size',
    'num_groups', 'inner_group_num', 'pre_norm', 'activation_dropout',
    'scale_embedding', 'causal')}, decoder_layers=None)


def keywords(path):
    """The keywords of `BERTModel` for a config.json, and all that it says.

    Or of `BARTModel`. Two dicts; the second has `initializer_range`,
    whatever its family calls that, and `skip`, the rows of positions that no
    token has. Raises `PretrainedError` for what these cannot do.
    """
    config = read_json(path)

    def refuse(field, expected, remark=''):
        raise PretrainedError(f'{path}: {field} is {config[field]!r}, but '
                              f'expected is {expected}{remark}')

    kind = config.get('model_type')
    if kind is not None and (not isinstance(kind, str)
                             or kind not in FAMILIES):
        refuse('model_type', 'one of ' + ', '.join(FAMILIES),
               ', as another family of models cannot be served here')
    family = FAMILIES[kind or 'bert']
    for other, field in family.aliases.items():
        if other in config:
            config.setdefault(field, config[other])
    for field, (value, meaning) in family.fixed.items():
        if config.get(field) not in (value, None):
            refuse(field, repr(value),
                   f', as {meaning} cannot be served here')
    found = {}
    for field, (keyword, default) in family.sizes.items():
        found[keyword] = value = config.get(field, default)
        if type(value) is not int or value < 1:
            refuse(field, 'a whole number of at least 1')
    for field, (keyword, default) in family.shares.items():
        found[keyword] = value = config.get(field, default)
        if not _is_number(value) or not 0 <= value < 1:
            refuse(field, 'a number from 0 to less than 1')
    fields = {keyword: field for field, (keyword, _)
              in family.sizes.items()}
    for heads in 'num_heads', 'decoder_heads':
        if found['num_hiddens'] % found.get(heads, 1):
            raise PretrainedError(
                f'{path}: {fields[heads]}, {found[heads]}, does not divide '
                f'{fields["num_hiddens"]}, {found["num_hiddens"]}')
    if found.get('num_groups', 1) > found['num_layers']:
        refuse('num_hidden_groups', 'at most the number of layers')
    field, default = family.activation
    act = config.setdefault(field, default)
    if type(act) is not type(default) or act not in family.activations:
        refuse(field, 'true or false' if isinstance(default, bool) else
               'one of ' + ', '.join(family.activations))
    for name, default, kind in (
            ('tie_word_embeddings', True, bool),
            ('architectures', None, list), ('dtype', None, str),
            ('torch_dtype', None, str),
            *((name, value, bool) for name, (_, value)
              in family.flags.items())):
        if config.setdefault(name, default) is not None and not isinstance(
                config[name], kind):
            refuse(name, {bool: 'true or false', list: 'a list',
                          str: 'a name'}[kind])
    for name, (keyword, default) in family.flags.items():
        found[keyword] = default if config[name] is None else config[name]
    for name, limit in ((family.spread, None), *(
            (name, 1) for name, _ in family.dropouts if name)):
        value = config.get(name)
        if value is not None and (not _is_number(value) or value < 0 or (
                limit and value >= limit)):
            refuse(name, 'a number' + (f' below {limit}' if limit else ''))
    ids = dict(pad_token_id=family.pad_id)
    if family.generates:
        ids.update(START)
    for name, default in ids.items():
        value = config.get(name)
        if value is None:
            ids[name] = default
        elif type(value) is not int or not (
                -(name == 'pad_token_id') <= value < found['vocab_size']):
            refuse(name, f"one of the {found['vocab_size']} numbers of "
                   'tokens')
        else:
            ids[name] = value
    if family.generates:
        found['start_id'] = ids['decoder_start_token_id']
        config['generation'] = _generation(path, config)
    skip = skipped(family, ids['pad_token_id'])
    before = skip - family.rows_before      # of those that the field counts
    if found['max_len'] <= before:
        raise PretrainedError(
            f'{path}: max_position_embeddings is {found["max_len"]}, but the '
            f'first {before} of them belong to no token')
    found['max_len'] -= before
    if family.ffn_factor:
        found['ffn_num_hiddens'] = family.ffn_factor * found['num_hiddens']
    spread = config.get(family.spread)
    return (dict(found, activation=family.activations[act],
                 embedding_norm=True,
                 tie_embeddings=config['tie_word_embeddings'] is not False,
                 **family.structure),
            dict(config, skip=skip,
                 initializer_range=0.02 if spread is None else spread))


def _generation(path, config):
    """What a folder says of how texts are generated, a dict.

    That is generation_config.json alone; before it was invented,
    config.json.
    """
    other = Path(path).with_name(GENERATION)
    if other.is_file():
        return read_json(other)
    return {**FORCED, **config}


def skipped(family, pad_id):
    """How many rows of a family's positions belong to no token."""
    return pad_id + 1 if family.positions_from_pad else family.rows_before


def _is_number(value):
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and abs(value) < 1e30)      # neither NaN nor beyond a float


def of_net(net, tokenizer):
    """What config.json says of a net; `PretrainedError` if it can't.

    The format has no words for a net without LayerNorm behind its
    embeddings, nor for positions that are not learnt.
    """
    config, family = net.config, family_of(net.config)
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
    said = {**family.sizes, **family.shares, **family.flags}
    config = dict(config)
    if config['attention_dropout'] is None:
        config['attention_dropout'] = config['dropout']
    _check_sayable(family, config, {keyword for keyword, _ in said.values()})
    found = {field: config.get(keyword, default)
             for field, (keyword, default) in said.items()}
    found['max_position_embeddings'] += (
        skipped(family, tokenizer.pad_id) - family.rows_before)
    field, _ = family.activation
    found[field] = next(theirs for theirs, ours in family.activations.items()
                        if ours == config['activation'])
    described = getattr(net, 'pretrained', None)
    before = described.config if described else {}
    if family.generates:
        found.update(
            is_encoder_decoder=True, bos_token_id=tokenizer.cls_id,
            eos_token_id=tokenizer.sep_id,
            decoder_start_token_id=config['start_id'])
    return {
        'architectures': [architecture(net)],
        'model_type': family.model_type, **found,
        'tie_word_embeddings': config['tie_embeddings'],
        **{name: before.get(name, default) for name, default
           in family.dropouts if name},
        family.spread: before.get('initializer_range', 0.02),
        'pad_token_id': tokenizer.pad_id, 'dtype': 'float32',
        **_of_head(net, family)}


def generation_of_run(net, tokenizer):
    """The settings of `GENERATION` for the net of a run.

    Later positions than those of its training have random vectors.
    """
    trained_len = getattr(net, 'trained_len', None)
    if net.config.get('causal'):
        return {} if trained_len is None else dict(max_length=trained_len)
    found = dict(forced_eos_token_id=tokenizer.sep_id)
    if trained_len is not None:
        found['max_length'] = trained_len + 1   # with the start token
    return found


def generation_of_net(net, tokenizer):
    """What `GENERATION` says of a net; None of one that says no texts."""
    family, described = family_of(net.config), getattr(net, 'pretrained',
                                                       None)
    if not family.generates or hasattr(net, 'about'):
        return None
    before = (described.config['generation'] if described
              else generation_of_run(net, tokenizer))
    ours = dict(bos_token_id=tokenizer.cls_id, eos_token_id=tokenizer.sep_id,
                pad_token_id=tokenizer.pad_id,
                decoder_start_token_id=net.config['start_id'])
    return {**ours, **{
        name: value for name, value in before.items()
        if name in ours or name in GENERATED and value is not None}}


def _check_sayable(family, config, said):
    """Refuse a net that is not what the folders of its family mean."""
    config = {**OTHERWISE, **config}

    def refuse(name, expected):
        raise PretrainedError(
            f'this net has {name}={config[name]!r}, and the folders of '
            f'{family.title} have no word for another than {expected}')

    expected = {**OTHERWISE, **family.structure}
    if family.ffn_factor:
        expected['ffn_num_hiddens'] = (family.ffn_factor
                                       * config['num_hiddens'])
    heads = set(expected.pop('heads'))
    if not heads - set(family.optional) <= set(config['heads']) <= heads:
        refuse('heads', ' and '.join(sorted(heads)))
    for name, value in expected.items():
        if name not in said and config.get(name, value) != value:
            refuse(name, repr(value))
    for keyword, _ in family.sizes.values():
        if not config[keyword]:
            refuse(keyword, 'whole numbers of at least 1')
    known = set(family.activations.values())
    if config['activation'] not in known:
        refuse('activation', ' and '.join(sorted(known)))


def is_encoder_alone(net):
    """Whether a net goes out without the head that predicts words.

    So do those that came without it and with a pooler, in families whose
    classes have the one or the other.
    """
    described = getattr(net, 'pretrained', None)
    return (described is not None and described.lacking('mlm')
            and family_of(net.config).encoder_alone is not None
            and 'pooler' in net.config.get('heads', ()))


def architecture(net):
    """The class of `transformers` that a net is one of."""
    family, about = family_of(net.config), getattr(net, 'about', None)
    if about is not None:
        return family.finetuned[about.kind]
    return (family.encoder_alone if is_encoder_alone(net)
            else family.architecture)


def _of_head(net, family):
    """What config.json says of a fine-tuned net: dropout and labels."""
    about = getattr(net, 'about', None)
    if about is None:
        return {}
    whole = about.kind in ('classify', 'regress', 'choice')
    field, _ = family.dropouts[0 if whole else 1]
    found = {field: about.dropout} if field else {}
    if about.kind != 'span':
        names = about.labels or ('LABEL_0',)
        found.update(id2label={str(k): name for k, name in enumerate(names)},
                     label2id={name: k for k, name in enumerate(names)})
    problem = {'classify': 'single_label_classification',
               'regress': 'regression'}.get(about.kind)
    return dict(found, problem_type=problem) if problem else found
