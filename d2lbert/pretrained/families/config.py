"""Convert the config.json of a checkpoint to arguments of a net, and back.

The net is a `BERTModel` or a `BARTModel`. Fields have the names and defaults
of the library `transformers`. A value that the net cannot represent raises an
error, because ignoring it would change results.
"""
from pathlib import Path

from d2lbert.nn.variant import BOOK
from d2lbert.pretrained.families.family import FAMILIES, family_of
from d2lbert.pretrained.tensor_files import PretrainedError, read_json

#: The file with the settings of text generation.
GENERATION_FILE = 'generation_config.json'

#: {field of GENERATION_FILE: field of `GenerationConfig` (../generation.py)}
GENERATION_FIELDS = {
    'num_beams': 'num_beams', 'max_length': 'max_len',
    'min_length': 'min_len', 'length_penalty': 'length_penalty',
    'no_repeat_ngram_size': 'no_repeat_ngram',
    'early_stopping': 'early_stopping', 'forced_bos_token_id': 'first_id',
    'forced_eos_token_id': 'last_id'}

#: The field of config.json for quantized weights, and its supported value.
QUANTIZATION = 'quantization_config'
INT8 = {'quant_method': 'd2lbert', 'format': 1, 'bits': 8,
        'weights': 'symmetric, a scale for each row',
        'activations': 'symmetric, a scale for each token'}

#: {keyword that the `config` of a net may lack: its default}
DEFAULTS = dict({name: getattr(BOOK, name) for name in (
    'family', 'heads', 'mlm_hidden', 'mlm_activation', 'embedding_size',
    'num_groups', 'inner_group_num', 'pre_norm', 'activation_dropout',
    'scale_embedding', 'causal')}, decoder_layers=None)

#: {field that every family has: (default, type)}
COMMON_FIELDS = {
    'tie_word_embeddings': (True, bool), 'architectures': (None, list),
    'dtype': (None, str), 'torch_dtype': (None, str)}

#: {type: its name in error messages}
TYPE_NAMES = {bool: 'true or false', list: 'a list', str: 'a name'}


def read_keywords_and_fields(path):
    """Read a config.json: (keywords of the net, fields of the file).

    The fields also include some defaults, `num_skipped_rows`,
    `initializer_range` (in every family) and `generation_fields` (with a
    decoder). Raises `PretrainedError` for a value that the net cannot
    represent.
    """
    return _ConfigFile(path).keywords_and_fields()


class _ConfigFile:
    """A config.json, with methods that check and convert its fields."""

    def __init__(self, path):
        self.path, self.fields = path, read_json(path)
        model_type = self.fields.get('model_type')
        if model_type is not None and (not isinstance(model_type, str)
                                       or model_type not in FAMILIES):
            self.refuse('model_type', 'one of ' + ', '.join(FAMILIES),
                        ', as no other family of models is supported')
        self.family = FAMILIES[model_type or 'bert']
        for alias, field in self.family.aliases.items():
            if alias in self.fields:
                self.fields.setdefault(field, self.fields[alias])

    def refuse(self, field, expected, reason=''):
        raise PretrainedError(f'{self.path}: {field} is '
                              f'{self.fields[field]!r}, expected {expected}'
                              f'{reason}')

    def keywords_and_fields(self):
        family = self.family
        self._check_fixed()
        keywords = {**self._sizes(), **self._fractions()}
        self._check_attention_heads_and_groups(keywords)
        activation = self._activation()
        self._check_types()
        keywords.update(self._flags())
        initializer_range = self._initializer_range()
        self._check_task_head_dropouts()
        ids = self._token_ids(keywords['vocab_size'])
        if family.has_decoder:
            keywords['start_id'] = ids['decoder_start_token_id']
            self.fields['generation_fields'] = self._generation_fields()
        num_skipped = num_skipped_rows(family, ids['pad_token_id'])
        max_position_embeddings = keywords['max_len']
        keywords['max_len'] = self._max_len(max_position_embeddings,
                                            num_skipped)
        if family.ffn_factor:
            keywords['ffn_num_hiddens'] = (family.ffn_factor
                                           * keywords['num_hiddens'])
        # null means the default, True
        tied = self.fields['tie_word_embeddings'] is not False
        return (dict(keywords, activation=activation, embedding_norm=True,
                     tie_embeddings=tied, **family.structure),
                dict(self.fields, num_skipped_rows=num_skipped,
                     initializer_range=initializer_range))

    def _check_fixed(self):
        for field, (value, unsupported) in self.family.fixed.items():
            allowed = [value, None]     # None: null, or no such field
            if field == QUANTIZATION:
                allowed.append(INT8)
            if self.fields.get(field) not in allowed:
                self.refuse(field, repr(value),
                            f', as {unsupported} cannot be represented')

    def _sizes(self):
        keywords = {}
        for field, (keyword, default) in self.family.sizes.items():
            keywords[keyword] = value = self.fields.get(field, default)
            if type(value) is not int or value < 1:
                self.refuse(field, 'a whole number of at least 1')
        return keywords

    def _fractions(self):
        keywords = {}
        for field, (keyword, default) in self.family.fractions.items():
            keywords[keyword] = value = self.fields.get(field, default)
            if not _is_number(value) or not 0 <= value < 1:
                self.refuse(field, 'a number from 0 to less than 1')
        return keywords

    def _check_attention_heads_and_groups(self, keywords):
        field_of = {keyword: field for field, (keyword, _)
                    in self.family.sizes.items()}
        for keyword in 'num_heads', 'decoder_heads':
            if keywords['num_hiddens'] % keywords.get(keyword, 1):
                raise PretrainedError(
                    f'{self.path}: {field_of[keyword]} is '
                    f'{keywords[keyword]}, which does not divide '
                    f'{field_of["num_hiddens"]}, '
                    f'{keywords["num_hiddens"]}')
        if keywords.get('num_groups', 1) > keywords['num_layers']:
            self.refuse('num_hidden_groups', 'at most the number of layers')

    def _activation(self):
        """d2lbert's name for the activation of the feed-forward networks."""
        family = self.family
        field, default = family.activation_field
        # A name, or a bool as in FlauBERT's field gelu_activation
        value = self.fields.setdefault(field, default)
        if type(value) is not type(default) or (
                value not in family.activations):
            self.refuse(field, TYPE_NAMES[bool] if isinstance(default, bool)
                        else 'one of ' + ', '.join(family.activations))
        return family.activations[value]

    def _check_types(self):
        """Check the types of flags and of `COMMON_FIELDS`; add defaults."""
        flags = {field: (default, bool) for field, (_, default)
                 in self.family.flags.items()}
        for field, (default, type_) in {**COMMON_FIELDS, **flags}.items():
            value = self.fields.setdefault(field, default)
            if value is not None and not isinstance(value, type_):
                self.refuse(field, TYPE_NAMES[type_])

    def _flags(self):
        return {keyword: default if self.fields[field] is None
                else self.fields[field]
                for field, (keyword, default) in self.family.flags.items()}

    def _initializer_range(self):
        """The standard deviation of initial weights."""
        field = self.family.init_std_field
        value = self.fields.get(field)
        if value is None:
            return 0.02
        if not _is_number(value) or value < 0:
            self.refuse(field, 'a number of at least 0')
        return value

    def _check_task_head_dropouts(self):
        for field, _ in self.family.dropouts:
            value = self.fields.get(field)
            if value is not None and (
                    not _is_number(value) or not 0 <= value < 1):
                self.refuse(field, 'a number from 0 to less than 1')

    def _token_ids(self, vocab_size):
        """{field: id} of the special tokens that the model needs."""
        defaults, ids = dict(pad_token_id=self.family.pad_id), {}
        if self.family.has_decoder:
            defaults['decoder_start_token_id'] = 2      # as in transformers
        for field, default in defaults.items():
            value = self.fields.get(field)
            # transformers writes pad_token_id=-1 for no padding token
            min_id = -1 if field == 'pad_token_id' else 0
            if value is None:
                ids[field] = default
            elif type(value) is int and min_id <= value < vocab_size:
                ids[field] = value
            else:
                self.refuse(field, f'one of the {vocab_size} token ids')
        return ids

    def _max_len(self, max_position_embeddings, num_skipped):
        # max_position_embeddings does not count the first `rows_before` rows
        num_skipped_counted = num_skipped - self.family.rows_before
        if max_position_embeddings <= num_skipped_counted:
            raise PretrainedError(
                f'{self.path}: max_position_embeddings is '
                f'{max_position_embeddings}, but the first '
                f'{num_skipped_counted} positions belong to no token')
        return max_position_embeddings - num_skipped_counted

    def _generation_fields(self):
        """Settings for text generation, of GENERATION_FILE or config.json."""
        generation_path = Path(self.path).with_name(GENERATION_FILE)
        if generation_path.is_file():
            return read_json(generation_path)
        # Older versions of transformers did not write this default
        return {'forced_eos_token_id': 2, **self.fields}


def num_skipped_rows(family, pad_id):
    """The number of rows before position 0 in a folder's position embedding.

    No token uses these rows, so the net does not have them.
    """
    return pad_id + 1 if family.positions_from_pad else family.rows_before


def _is_number(value):
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and abs(value) < 1e30)      # within float32, and not NaN


def fields_of_net(net, tokenizer):
    """The fields of config.json for a net, a dict.

    Raises `PretrainedError` for a net that the format cannot represent.
    """
    keywords, family = dict(net.config), family_of(net.config)
    if keywords['positional'] != 'learnable':
        raise PretrainedError(
            'this net has sinusoidal positions, as in the first edition of '
            "the book, but BERT's folders have learnt positions: train a net "
            "with positional='learnable'")
    if not keywords['embedding_norm']:
        raise PretrainedError(
            'this net has no LayerNorm after its embeddings, like the net of '
            "the book, but BERT's folders always have it: train a net with "
            'embedding_norm=True, or a run with --architecture published')
    if keywords['attention_dropout'] is None:
        keywords['attention_dropout'] = keywords['dropout']
    _check_representable(family, keywords)
    fields = {field: keywords.get(keyword, default)
              for field, (keyword, default) in _keyword_fields(family).items()}
    # The inverse of `_ConfigFile._max_len`
    fields['max_position_embeddings'] += (
        num_skipped_rows(family, tokenizer.pad_id) - family.rows_before)
    activation_field, _ = family.activation_field
    fields[activation_field] = next(
        value for value, activation in family.activations.items()
        if activation == keywords['activation'])
    loaded_fields = net.pretrained.fields if net.pretrained else {}
    if family.has_decoder:
        fields.update(
            is_encoder_decoder=True, bos_token_id=tokenizer.cls_id,
            eos_token_id=tokenizer.sep_id,
            decoder_start_token_id=keywords['start_id'])
    return {
        'architectures': [_transformers_class(net)],
        'model_type': family.model_type, **fields,
        'tie_word_embeddings': keywords['tie_embeddings'],
        **{field: loaded_fields.get(field, default)
           for field, default in family.dropouts if field},
        family.init_std_field: loaded_fields.get('initializer_range', 0.02),
        'pad_token_id': tokenizer.pad_id, 'dtype': 'float32',
        **({} if net.encoder.quantized is None else {QUANTIZATION: INT8}),
        **_head_fields(net, family)}


def generation_fields_of_run(net, tokenizer):
    """The settings for text generation of a net from a run: a dict.

    An imported run keeps the settings of its folder. Other runs limit the
    length to `net.trained_len`, the largest number of tokens in training,
    because the embeddings of later positions are random.
    """
    if net.generation_fields is not None:
        return net.generation_fields
    if net.config.get('causal'):    # a `BERTModel`, which continues texts
        return ({} if net.trained_len is None
                else dict(max_length=net.trained_len))
    fields = dict(forced_eos_token_id=tokenizer.sep_id)
    if net.trained_len is not None:
        # The decoder's text also has the start token
        fields['max_length'] = net.trained_len + 1
    return fields


def generation_fields_of_net(net, tokenizer):
    """The fields of GENERATION_FILE, or None for a net without this file."""
    is_finetuned = net.about is not None
    if not family_of(net.config).has_decoder or is_finetuned:
        return None
    settings = (net.pretrained.fields['generation_fields'] if net.pretrained
                else generation_fields_of_run(net, tokenizer))
    ids = dict(bos_token_id=tokenizer.cls_id, eos_token_id=tokenizer.sep_id,
               pad_token_id=tokenizer.pad_id,
               decoder_start_token_id=net.config['start_id'])
    # None in `settings` replaces an id, but is left out for other fields
    return {**ids, **{
        field: value for field, value in settings.items()
        if field in ids or (field in GENERATION_FIELDS and value is not None)}}


def _keyword_fields(family):
    """{field: (keyword, default)}"""
    return {**family.sizes, **family.fractions, **family.flags}


def _check_representable(family, keywords):
    """Raise `PretrainedError` if a family's folders cannot represent a net."""
    keywords = {**DEFAULTS, **keywords}
    names_with_field = {name for name, _ in _keyword_fields(family).values()}

    def refuse(name, supported):
        raise PretrainedError(
            f'this net has {name}={keywords[name]!r}, but the folders of '
            f'{family.title} can only represent {supported}')

    # A keyword without a field has one value in all folders of the family
    expected = {**DEFAULTS, **family.structure}
    if family.ffn_factor:
        expected['ffn_num_hiddens'] = (family.ffn_factor
                                       * keywords['num_hiddens'])
    heads = set(expected.pop('heads'))
    required_heads = heads - set(family.optional_heads)
    if not required_heads <= set(keywords['heads']) <= heads:
        refuse('heads', ' and '.join(sorted(heads)))
    for name, value in expected.items():
        if (name not in names_with_field
                and keywords.get(name, value) != value):
            refuse(name, repr(value))
    for name, _ in family.sizes.values():
        if not keywords[name]:
            refuse(name, 'whole numbers of at least 1')
    activations = set(family.activations.values())
    if keywords['activation'] not in activations:
        refuse('activation', ' and '.join(sorted(activations)))


def omits_mlm_head(net):
    """True if saving a net omits its MLM head in favour of its pooler.

    The MLM head in the net's folder was incomplete, so some of its weights are
    random. No class of `transformers` for the family has both heads.
    """
    return (net.pretrained is not None and net.pretrained.lacks('mlm')
            and family_of(net.config).encoder_architecture is not None
            and 'pooler' in net.config.get('heads', ()))


def _transformers_class(net):
    family = family_of(net.config)
    if net.about is not None:
        return family.finetuned[net.about.kind]
    return (family.encoder_architecture if omits_mlm_head(net)
            else family.architecture)


def _head_fields(net, family):
    """Fields of config.json that only a fine-tuned net has."""
    about = net.about
    if about is None:
        return {}
    scores_whole_texts = about.kind in ('classify', 'regress', 'choice')
    text_dropout, token_dropout = family.dropouts
    field, _ = text_dropout if scores_whole_texts else token_dropout
    fields = {field: about.dropout} if field else {}
    if about.kind != 'span':
        names = about.labels or ('LABEL_0',)
        fields.update(id2label={str(k): name for k, name in enumerate(names)},
                      label2id={name: k for k, name in enumerate(names)})
    problem_type = {'classify': 'single_label_classification',
                    'regress': 'regression'}.get(about.kind)
    return dict(fields, problem_type=problem_type) if problem_type else fields
