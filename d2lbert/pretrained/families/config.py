"""config.json of a folder, and the keywords of `BERTModel`, both ways.

Field names and their defaults are those of `transformers`. A field that
`BERTModel` cannot represent is an error: ignoring it would change results.
"""
from pathlib import Path

from d2lbert.nn.variant import BOOK
from d2lbert.pretrained.families.family import FAMILIES, family_of
from d2lbert.pretrained.tensor_files import PretrainedError, read_json

#: The id of the default first token of each decoded text.
START = {'decoder_start_token_id': 2}

#: The file with the settings of generation, and its defaults.
GENERATION = 'generation_config.json'
FORCED = {'forced_eos_token_id': 2}

#: {field of `GENERATION`: field of `generation.GenerationConfig`}
GENERATION_FIELDS = {
    'num_beams': 'num_beams', 'max_length': 'max_len',
    'min_length': 'min_len', 'length_penalty': 'length_penalty',
    'no_repeat_ngram_size': 'no_repeat_ngram',
    'early_stopping': 'early_stopping', 'forced_bos_token_id': 'first_id',
    'forced_eos_token_id': 'last_id'}

#: The field of a quantized folder, and the only value that is supported.
QUANTIZATION = 'quantization_config'
INT8 = {'quant_method': 'd2lbert', 'format': 1, 'bits': 8,
        'weights': 'symmetric, a scale for each row',
        'activations': 'symmetric, a scale for each token'}

#: Defaults of the arguments that the `config` of a net may leave out.
DEFAULTS = dict({name: getattr(BOOK, name) for name in (
    'family', 'heads', 'mlm_hidden', 'mlm_activation', 'embedding_size',
    'num_groups', 'inner_group_num', 'pre_norm', 'activation_dropout',
    'scale_embedding', 'causal')}, decoder_layers=None)

#: {optional field: its default and type}
OPTIONAL = {'tie_word_embeddings': (True, bool), 'architectures': (None, list),
            'dtype': (None, str), 'torch_dtype': (None, str)}

#: Type names for error messages.
TYPE_NAMES = {bool: 'true or false', list: 'a list', str: 'a name'}


def keywords(path):
    """The keywords of `BERTModel` or `BARTModel` for a config.json.

    Returns them and the fields of the file, two dicts. The fields include
    `initializer_range`, whatever the family calls it, and `skip`, the number
    of position rows that belong to no token. Raises `PretrainedError` for a
    field that the model cannot represent.
    """
    return _ConfigFile(path).keywords()


class _ConfigFile:
    """A config.json whose fields are checked while they are read."""

    def __init__(self, path):
        self.path, self.fields = path, read_json(path)
        kind = self.fields.get('model_type')
        if kind is not None and (not isinstance(kind, str)
                                 or kind not in FAMILIES):
            self.refuse('model_type', 'one of ' + ', '.join(FAMILIES),
                        ', as no other family of models is supported')
        self.family = FAMILIES[kind or 'bert']
        for other, field in self.family.aliases.items():
            if other in self.fields:
                self.fields.setdefault(field, self.fields[other])

    def refuse(self, field, expected, remark=''):
        raise PretrainedError(f'{self.path}: {field} is '
                              f'{self.fields[field]!r}, but expected is '
                              f'{expected}{remark}')

    def keywords(self):
        """The keywords and the fields, as the function `keywords`."""
        family = self.family
        self._check_fixed()
        found = {**self._sizes(), **self._shares()}
        self._check_division(found)
        activation = self._activation()
        self._check_types()
        found.update(self._flags())
        spread = self._spread()
        ids = self._token_ids(found['vocab_size'])
        if family.generates:
            found['start_id'] = ids['decoder_start_token_id']
            self.fields['generation'] = _generation(self.path, self.fields)
        skip = skipped(family, ids['pad_token_id'])
        found['max_len'] = self._positions(found['max_len'], skip)
        if family.ffn_factor:
            found['ffn_num_hiddens'] = (family.ffn_factor
                                        * found['num_hiddens'])
        tied = self.fields['tie_word_embeddings'] is not False
        return (dict(found, activation=activation, embedding_norm=True,
                     tie_embeddings=tied, **family.structure),
                dict(self.fields, skip=skip, initializer_range=spread))

    def _check_fixed(self):
        for field, (value, meaning) in self.family.fixed.items():
            allowed = [value, None, *[INT8] * (field == QUANTIZATION)]
            if self.fields.get(field) not in allowed:
                self.refuse(field, repr(value),
                            f', as {meaning} cannot be represented')

    def _sizes(self):
        found = {}
        for field, (keyword, default) in self.family.sizes.items():
            found[keyword] = value = self.fields.get(field, default)
            if type(value) is not int or value < 1:
                self.refuse(field, 'a whole number of at least 1')
        return found

    def _shares(self):
        found = {}
        for field, (keyword, default) in self.family.shares.items():
            found[keyword] = value = self.fields.get(field, default)
            if not _is_number(value) or not 0 <= value < 1:
                self.refuse(field, 'a number from 0 to less than 1')
        return found

    def _check_division(self, found):
        """Check that heads divide hiddens, and groups do not outnumber layers.
        """
        fields = {keyword: field for field, (keyword, _)
                  in self.family.sizes.items()}
        for heads in 'num_heads', 'decoder_heads':
            if found['num_hiddens'] % found.get(heads, 1):
                raise PretrainedError(
                    f'{self.path}: {fields[heads]}, {found[heads]}, does not '
                    f'divide {fields["num_hiddens"]}, '
                    f'{found["num_hiddens"]}')
        if found.get('num_groups', 1) > found['num_layers']:
            self.refuse('num_hidden_groups', 'at most the number of layers')

    def _activation(self):
        family = self.family
        field, default = family.activation
        value = self.fields.setdefault(field, default)
        if type(value) is not type(default) or (
                value not in family.activations):
            self.refuse(field, TYPE_NAMES[bool] if isinstance(default, bool)
                        else 'one of ' + ', '.join(family.activations))
        return family.activations[value]

    def _check_types(self):
        """Check the fields of `OPTIONAL` and the flags; add missing ones."""
        flags = {field: (default, bool) for field, (_, default)
                 in self.family.flags.items()}
        for field, (default, kind) in {**OPTIONAL, **flags}.items():
            value = self.fields.setdefault(field, default)
            if value is not None and not isinstance(value, kind):
                self.refuse(field, TYPE_NAMES[kind])

    def _flags(self):
        return {keyword: default if self.fields[field] is None
                else self.fields[field]
                for field, (keyword, default) in self.family.flags.items()}

    def _spread(self):
        """The standard deviation of initial weights; checks dropouts, too."""
        limits = {self.family.spread: None, **{
            field: 1 for field, _ in self.family.dropouts if field}}
        for field, limit in limits.items():
            value = self.fields.get(field)
            if value is not None and (
                    not _is_number(value) or value < 0
                    or (limit and value >= limit)):
                self.refuse(field, 'a number' + (f' below {limit}' if limit
                                                 else ''))
        spread = self.fields.get(self.family.spread)
        return 0.02 if spread is None else spread

    def _token_ids(self, vocab_size):
        """{field: id} of the special tokens that the model needs."""
        ids = dict(pad_token_id=self.family.pad_id)
        if self.family.generates:
            ids.update(START)
        for field, default in ids.items():
            value = self.fields.get(field)
            # transformers writes pad_token_id=-1 for no padding token
            least = -1 if field == 'pad_token_id' else 0
            if value is None:
                ids[field] = default
            elif type(value) is int and least <= value < vocab_size:
                ids[field] = value
            else:
                self.refuse(field, f'one of the {vocab_size} token ids')
        return ids

    def _positions(self, length, skip):
        """The number of positions that tokens can have."""
        # Rows that belong to no token, but that `length` counts
        counted = skip - self.family.rows_before
        if length <= counted:
            raise PretrainedError(
                f'{self.path}: max_position_embeddings is {length}, but the '
                f'first {counted} of them belong to no token')
        return length - counted


def _generation(path, config):
    """The settings of generation in a folder, a dict.

    Old folders have them in config.json, and no generation_config.json.
    """
    other = Path(path).with_name(GENERATION)
    if other.is_file():
        return read_json(other)
    return {**FORCED, **config}


def skipped(family, pad_id):
    """The number of rows of a family's positions that belong to no token."""
    return pad_id + 1 if family.positions_from_pad else family.rows_before


def _is_number(value):
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and abs(value) < 1e30)      # neither NaN nor beyond a float


def of_net(net, tokenizer):
    """The content of config.json for a net, a dict.

    Raises `PretrainedError` for a net that the format cannot represent, for
    example with sinusoidal positions.
    """
    config, family = net.config, family_of(net.config)
    if config['positional'] != 'learnable':
        raise PretrainedError(
            'this net has sinusoidal positions, as in the first edition of '
            "the book, but BERT's folders have learnt ones: train one with "
            "positional='learnable'")
    if not config['embedding_norm']:
        raise PretrainedError(
            "this net has no LayerNorm after its embeddings, as on the "
            "book's page, but BERT's folders always have one: train one with "
            'embedding_norm=True, or a run with --architecture published')
    written = {**family.sizes, **family.shares, **family.flags}
    config = dict(config)
    if config['attention_dropout'] is None:
        config['attention_dropout'] = config['dropout']
    _check_representable(family, config,
                         {keyword for keyword, _ in written.values()})
    found = {field: config.get(keyword, default)
             for field, (keyword, default) in written.items()}
    found['max_position_embeddings'] += (
        skipped(family, tokenizer.pad_id) - family.rows_before)
    field, _ = family.activation
    found[field] = next(theirs for theirs, ours in family.activations.items()
                        if ours == config['activation'])
    original = net.pretrained.config if net.pretrained else {}
    if family.generates:
        found.update(
            is_encoder_decoder=True, bos_token_id=tokenizer.cls_id,
            eos_token_id=tokenizer.sep_id,
            decoder_start_token_id=config['start_id'])
    return {
        'architectures': [architecture(net)],
        'model_type': family.model_type, **found,
        'tie_word_embeddings': config['tie_embeddings'],
        **{name: original.get(name, default) for name, default
           in family.dropouts if name},
        family.spread: original.get('initializer_range', 0.02),
        'pad_token_id': tokenizer.pad_id, 'dtype': 'float32',
        **({} if net.encoder.quantized is None else {QUANTIZATION: INT8}),
        **_head_fields(net, family)}


def generation_of_run(net, tokenizer):
    """The content of `GENERATION` for the net of a run.

    It limits texts to the length of the training: later positions have
    random vectors.
    """
    if net.config.get('causal'):
        return ({} if net.trained_len is None
                else dict(max_length=net.trained_len))
    found = dict(forced_eos_token_id=tokenizer.sep_id)
    if net.trained_len is not None:
        found['max_length'] = net.trained_len + 1   # with the start token
    return found


def generation_of_net(net, tokenizer):
    """The content of `GENERATION` for a net; None if it cannot generate."""
    if not family_of(net.config).generates or net.about is not None:
        return None
    original = (net.pretrained.config['generation'] if net.pretrained
                else generation_of_run(net, tokenizer))
    ids = dict(bos_token_id=tokenizer.cls_id, eos_token_id=tokenizer.sep_id,
               pad_token_id=tokenizer.pad_id,
               decoder_start_token_id=net.config['start_id'])
    return {**ids, **{
        name: value for name, value in original.items()
        if name in ids or name in GENERATION_FIELDS and value is not None}}


def _check_representable(family, config, written):
    """Raise for a net that the folders of its family cannot represent.

    written: keywords that have a field in config.json.
    """
    config = {**DEFAULTS, **config}

    def refuse(name, expected):
        raise PretrainedError(
            f'this net has {name}={config[name]!r}, but the folders of '
            f'{family.title} can only represent {expected}')

    expected = {**DEFAULTS, **family.structure}
    if family.ffn_factor:
        expected['ffn_num_hiddens'] = (family.ffn_factor
                                       * config['num_hiddens'])
    heads = set(expected.pop('heads'))
    if not heads - set(family.optional) <= set(config['heads']) <= heads:
        refuse('heads', ' and '.join(sorted(heads)))
    for name, value in expected.items():
        if name not in written and config.get(name, value) != value:
            refuse(name, repr(value))
    for keyword, _ in family.sizes.values():
        if not config[keyword]:
            refuse(keyword, 'whole numbers of at least 1')
    known = set(family.activations.values())
    if config['activation'] not in known:
        refuse('activation', ' and '.join(sorted(known)))


def is_encoder_alone(net):
    """True if a net is written without its MLM head.

    Such a net was loaded without an MLM head but with a pooler, and no class
    of its family has both.
    """
    return (net.pretrained is not None and net.pretrained.lacking('mlm')
            and family_of(net.config).encoder_alone is not None
            and 'pooler' in net.config.get('heads', ()))


def architecture(net):
    """The name of the class of `transformers` that loads a net."""
    family = family_of(net.config)
    if net.about is not None:
        return family.finetuned[net.about.kind]
    return (family.encoder_alone if is_encoder_alone(net)
            else family.architecture)


def _head_fields(net, family):
    """The fields of config.json for a fine-tuned net: dropout and labels."""
    about = net.about
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
