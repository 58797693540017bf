"""A `Family`, a table of names and defaults, for each family of models.

The table maps the fields of config.json to keywords of `BERTModel` or
`BARTModel`, and the names of layers in d2lbert to names in folders. The names
of tensors, fields and classes are those of Hugging Face's `transformers`.
"""
from typing import NamedTuple, Optional

#: {name in transformers: name in nn/variant.py}
ACTIVATIONS = {'gelu': 'gelu', 'gelu_python': 'gelu', 'gelu_new': 'gelu_new',
               'gelu_fast': 'gelu_new', 'gelu_pytorch_tanh': 'gelu_new',
               'relu': 'relu'}

#: {field: (the supported value, what an unsupported value means)}, for most
#: families. quantization_config may also be INT8 (config.py).
FIXED = {'position_embedding_type': ('absolute',
                                     'positions of another kind'),
         'is_decoder': (False, 'a decoder'),
         'add_cross_attention': (False, 'attention to a second text'),
         'pruned_heads': ({}, 'attention heads that were cut out'),
         'quantization_config': (None, 'quantized weights')}


class Head(NamedTuple):
    """The layers by which a fine-tuned net of a family scores a whole text."""

    activation: Optional[str] = 'tanh'  # of the hidden layer; None: no such
                                        # layer
    hidden_name: Optional[str] = None   # of the hidden layer in a folder;
                                        # None: the layer is the pooler
    has_input_dropout: bool = False     # dropout before the hidden layer, too
    output_name: str = 'classifier'     # of the output layer in a folder


class Family(NamedTuple):
    """Names and defaults in a family's folders, and its transformers classes.

    Below, a field is a field of config.json, and a keyword is an argument of
    the net.
    """

    title: str              # for messages
    model_type: str         # the value of the field model_type
    prefix: str             # of the names of encoder, decoder and pooler
                            # tensors; a folder of these alone may lack it
    names: dict             # {key in `tensor_names.table`: name in folders};
                            # {i}, {group} and {inner} number the blocks
    # sizes, fractions and flags are {field: (keyword, default)}
    sizes: dict             # whole numbers from 1
    fractions: dict         # numbers from 0 to less than 1
    flags: dict = {}        # true or false
    activation_field: tuple = ('hidden_act', 'gelu')    # (field, default)
    activations: dict = ACTIVATIONS     # {value of the field: name here}
    structure: dict = {}    # {keyword without a field: value}
    fixed: dict = {}        # fields with one supported value, as in FIXED
    aliases: dict = {}      # {second name of a field: its name in this table}
    #: ffn_num_hiddens / num_hiddens, if ffn_num_hiddens has no field
    ffn_factor: Optional[int] = None
    optional_heads: tuple = ()  # heads in `structure` that a net may lack
    pad_id: int = 0         # default of pad_token_id
    #: The row of position 0 in a folder's position embedding: the folder's
    #: pad_token_id + 1 if `positions_from_pad` is True, else `rows_before`.
    #: max_position_embeddings does not count the first `rows_before` rows.
    positions_from_pad: bool = False
    rows_before: int = 0
    embedding_copies: tuple = ()    # further layers in folders whose weights
                                    # are copies of the token embedding
    has_decoder: bool = False
    #: The field with the standard deviation of initial weights
    init_std_field: str = 'initializer_range'
    #: (field, default) of the dropout before the output layer of a fine-tuned
    #: net, for scores of texts and for scores of tokens. Field None: no field.
    #: Default None: the keyword `dropout`.
    dropouts: tuple = (('classifier_dropout', None),
                       ('classifier_dropout', None))
    #: The classes of transformers that load a pretrained net, and an encoder
    #: with its pooler (None: the same class)
    architecture: str = ''
    encoder_architecture: Optional[str] = None
    finetuned: dict = {}        # {kind of task: class of transformers}
    text_head: Head = Head()    # the head for a label or number of a text
    choice_head: Head = Head()  # the head for choosing one of several texts

    def head_of(self, kind):
        """The `Head` for a kind of task that scores whole texts."""
        return self.choice_head if kind == 'choice' else self.text_head


def _classes(stem, **other_suffixes):
    """A family's `finetuned`. A suffix of None leaves out the kind of task."""
    suffixes = {'classify': 'ForSequenceClassification',
                'regress': 'ForSequenceClassification',
                'choice': 'ForMultipleChoice',
                'tag': 'ForTokenClassification',
                'span': 'ForQuestionAnswering', **other_suffixes}
    return {kind: stem + suffix for kind, suffix in suffixes.items() if suffix}


def _prefixed(prefix, names):
    """Entries of `Family.names`, with `prefix` before each name in folders."""
    return {layer: prefix + name for layer, name in names.items()}


# {key in `Family.names`: last part of the name in folders}
_EMBEDDINGS = {
    'encoder.token_embedding': 'word_embeddings',
    'encoder.pos_embedding': 'position_embeddings',
    'encoder.segment_embedding': 'token_type_embeddings',
    'encoder.embedding_norm': 'LayerNorm'}

_BERT_LAYERS = {
    **_prefixed('embeddings.', _EMBEDDINGS),
    **_prefixed('encoder.layer.{i}.', {
        'attention.W_q': 'attention.self.query',
        'attention.W_k': 'attention.self.key',
        'attention.W_v': 'attention.self.value',
        'attention.W_o': 'attention.output.dense',
        'addnorm1.ln': 'attention.output.LayerNorm',
        'ffn.dense1': 'intermediate.dense', 'ffn.dense2': 'output.dense',
        'addnorm2.ln': 'output.LayerNorm'}),
    'hidden': 'pooler.dense'}

BERT = Family(
    title='BERT', model_type='bert', prefix='bert.',
    names={**_prefixed('bert.', _BERT_LAYERS),
           'mlm.hidden': 'cls.predictions.transform.dense',
           'mlm.norm': 'cls.predictions.transform.LayerNorm',
           'mlm.bias': 'cls.predictions.bias',
           'mlm.output': 'cls.predictions.decoder',
           'nsp.output': 'cls.seq_relationship'},
    sizes={'vocab_size': ('vocab_size', 30522),
           'hidden_size': ('num_hiddens', 768),
           'intermediate_size': ('ffn_num_hiddens', 3072),
           'num_attention_heads': ('num_heads', 12),
           'num_hidden_layers': ('num_layers', 12),
           'max_position_embeddings': ('max_len', 512),
           'type_vocab_size': ('num_segments', 2)},
    fractions={'hidden_dropout_prob': ('dropout', 0.1),
               'attention_probs_dropout_prob': ('attention_dropout', 0.1),
               'layer_norm_eps': ('layer_norm_eps', 1e-12)},
    fixed=FIXED, architecture='BertForPreTraining',
    finetuned=_classes('Bert'))

# Liu et al. 2019
ROBERTA = BERT._replace(
    title='RoBERTa', model_type='roberta', prefix='roberta.',
    names={**_prefixed('roberta.', _BERT_LAYERS),
           'mlm.hidden': 'lm_head.dense', 'mlm.norm': 'lm_head.layer_norm',
           'mlm.bias': 'lm_head.bias', 'mlm.output': 'lm_head.decoder'},
    structure=dict(family='roberta', heads=('pooler', 'mlm'),
                   mlm_activation='gelu'),
    optional_heads=('pooler',), pad_id=1, positions_from_pad=True,
    architecture='RobertaForMaskedLM', encoder_architecture='RobertaModel',
    finetuned=_classes('Roberta'),
    text_head=Head(hidden_name='classifier.dense', has_input_dropout=True,
                   output_name='classifier.out_proj'))

# Martin et al. 2020
CAMEMBERT = ROBERTA._replace(
    title='CamemBERT', model_type='camembert',
    structure={**ROBERTA.structure, 'family': 'camembert'},
    architecture='CamembertForMaskedLM', encoder_architecture='CamembertModel',
    finetuned=_classes('Camembert'))

# Sanh et al. 2019
DISTILBERT = Family(
    title='DistilBERT', model_type='distilbert', prefix='distilbert.',
    names={
        **_prefixed('distilbert.embeddings.', _EMBEDDINGS),
        **_prefixed('distilbert.transformer.layer.{i}.', {
            'attention.W_q': 'attention.q_lin',
            'attention.W_k': 'attention.k_lin',
            'attention.W_v': 'attention.v_lin',
            'attention.W_o': 'attention.out_lin',
            'addnorm1.ln': 'sa_layer_norm', 'ffn.dense1': 'ffn.lin1',
            'ffn.dense2': 'ffn.lin2', 'addnorm2.ln': 'output_layer_norm'}),
        'mlm.hidden': 'vocab_transform', 'mlm.norm': 'vocab_layer_norm',
        'mlm.bias': 'vocab_projector.bias', 'mlm.output': 'vocab_projector'},
    sizes={'vocab_size': ('vocab_size', 30522), 'dim': ('num_hiddens', 768),
           'hidden_dim': ('ffn_num_hiddens', 3072),
           'n_heads': ('num_heads', 12), 'n_layers': ('num_layers', 6),
           'max_position_embeddings': ('max_len', 512)},
    fractions={'dropout': ('dropout', 0.1),
               'attention_dropout': ('attention_dropout', 0.1)},
    activation_field=('activation', 'gelu'),
    structure=dict(family='distilbert', heads=('mlm',), num_segments=0,
                   layer_norm_eps=1e-12),
    fixed=FIXED, aliases={'hidden_size': 'dim',
                          'num_attention_heads': 'n_heads',
                          'num_hidden_layers': 'n_layers'},
    dropouts=(('seq_classif_dropout', 0.2), (None, None)),
    architecture='DistilBertForMaskedLM', finetuned=_classes('DistilBert'),
    text_head=Head(activation='relu', hidden_name='pre_classifier'),
    choice_head=Head(activation='relu', hidden_name='pre_classifier'))

# Lan et al. 2020
ALBERT = BERT._replace(
    title='ALBERT', model_type='albert', prefix='albert.',
    names={
        **_prefixed('albert.embeddings.', _EMBEDDINGS),
        'encoder.projection': 'albert.encoder.embedding_hidden_mapping_in',
        **_prefixed('albert.encoder.albert_layer_groups.{group}.'
                    'albert_layers.{inner}.', {
                        'attention.W_q': 'attention.query',
                        'attention.W_k': 'attention.key',
                        'attention.W_v': 'attention.value',
                        'attention.W_o': 'attention.dense',
                        'addnorm1.ln': 'attention.LayerNorm',
                        'ffn.dense1': 'ffn', 'ffn.dense2': 'ffn_output',
                        'addnorm2.ln': 'full_layer_layer_norm'}),
        'hidden': 'albert.pooler',
        'mlm.hidden': 'predictions.dense', 'mlm.norm': 'predictions.LayerNorm',
        'mlm.bias': 'predictions.bias', 'mlm.output': 'predictions.decoder',
        # The head of sentence order prediction; class 0 is the right order
        'nsp.output': 'sop_classifier.classifier'},
    sizes={**BERT.sizes, 'vocab_size': ('vocab_size', 30000),
           'hidden_size': ('num_hiddens', 4096),
           'intermediate_size': ('ffn_num_hiddens', 16384),
           'num_attention_heads': ('num_heads', 64),
           'embedding_size': ('embedding_size', 128),
           'num_hidden_groups': ('num_groups', 1),
           'inner_group_num': ('inner_group_num', 1)},
    fractions={**BERT.fractions, 'hidden_dropout_prob': ('dropout', 0.0),
               'attention_probs_dropout_prob': ('attention_dropout', 0.0)},
    activation_field=('hidden_act', 'gelu_new'),
    structure=dict(family='albert'),
    dropouts=(('classifier_dropout_prob', 0.1),
              ('classifier_dropout_prob', 0.1)),
    architecture='AlbertForPreTraining', finetuned=_classes('Albert'))

# Le et al. 2020; the layers are those of XLM (Conneau and Lample 2019)
FLAUBERT = Family(
    title='FlauBERT', model_type='flaubert', prefix='transformer.',
    names={
        **_prefixed('transformer.', {
            'encoder.token_embedding': 'embeddings',
            'encoder.pos_embedding': 'position_embeddings',
            'encoder.embedding_norm': 'layer_norm_emb',
            'attention.W_q': 'attentions.{i}.q_lin',
            'attention.W_k': 'attentions.{i}.k_lin',
            'attention.W_v': 'attentions.{i}.v_lin',
            'attention.W_o': 'attentions.{i}.out_lin',
            'addnorm1.ln': 'layer_norm1.{i}', 'ffn.dense1': 'ffns.{i}.lin1',
            'ffn.dense2': 'ffns.{i}.lin2', 'addnorm2.ln': 'layer_norm2.{i}'}),
        'mlm.bias': 'pred_layer.proj.bias', 'mlm.output': 'pred_layer.proj'},
    sizes={'vocab_size': ('vocab_size', 30145),
           'emb_dim': ('num_hiddens', 2048), 'n_heads': ('num_heads', 16),
           'n_layers': ('num_layers', 12),
           'max_position_embeddings': ('max_len', 512)},
    fractions={'dropout': ('dropout', 0.1),
               'attention_dropout': ('attention_dropout', 0.1),
               'layer_norm_eps': ('layer_norm_eps', 1e-12)},
    flags={'pre_norm': ('pre_norm', False)},
    activation_field=('gelu_activation', True),
    activations={True: 'gelu', False: 'relu'},
    structure=dict(family='flaubert', heads=('mlm',), num_segments=0,
                   mlm_hidden=False, final_norm=False),
    fixed={'causal': (False, 'texts read from left to right'),
           'asm': (False, 'an adaptive softmax'),
           'n_langs': (1, 'embeddings of languages'),
           'is_encoder': (True, 'a decoder'),
           'summary_type': ('first', 'scores of another token than the '
                            'first'),
           'summary_activation': (None, 'an activation of scores'),
           'pruned_heads': FIXED['pruned_heads'],
           'quantization_config': FIXED['quantization_config']},
    aliases={'hidden_size': 'emb_dim', 'num_attention_heads': 'n_heads',
             'num_hidden_layers': 'n_layers', 'n_words': 'vocab_size',
             'pad_index': 'pad_token_id'},
    ffn_factor=4, pad_id=2, init_std_field='init_std',
    dropouts=(('summary_first_dropout', 0.1), (None, None)),
    architecture='FlaubertWithLMHeadModel',
    finetuned=_classes('Flaubert', choice=None,
                       span='ForQuestionAnsweringSimple'),
    text_head=Head(activation=None, output_name='sequence_summary.summary'))

#: {keyword: its value in every `BARTModel`}
BART_STRUCTURE = dict(family='bart', heads=('mlm',), mlm_hidden=False,
                      num_segments=0, positional='learnable',
                      embedding_norm=True, tie_embeddings=True)


def _bart_attention(key, name_in_block):
    """Entries of `Family.names` for the dense layers of an attention."""
    return {f'{key}.{W}': f'layers.{{i}}.{name_in_block}.{W_name}'
            for W, W_name in (('W_q', 'q_proj'), ('W_k', 'k_proj'),
                              ('W_v', 'v_proj'), ('W_o', 'out_proj'))}


_BART_FFN = {'ffn.dense1': 'layers.{i}.fc1', 'ffn.dense2': 'layers.{i}.fc2'}

# Lewis et al. 2020
BART = Family(
    title='BART', model_type='bart', prefix='model.',
    names={
        'encoder.token_embedding': 'model.shared',
        **_prefixed('model.encoder.', {
            'encoder.pos_embedding': 'embed_positions',
            'encoder.embedding_norm': 'layernorm_embedding',
            **_bart_attention('attention', 'self_attn'),
            'addnorm1.ln': 'layers.{i}.self_attn_layer_norm', **_BART_FFN,
            'addnorm2.ln': 'layers.{i}.final_layer_norm'}),
        **{f'decoder.{layer}': f'model.decoder.{name}'
           for layer, name in {
               'pos_embedding': 'embed_positions',
               'embedding_norm': 'layernorm_embedding',
               **_bart_attention('attention1', 'self_attn'),
               'addnorm1.ln': 'layers.{i}.self_attn_layer_norm',
               **_bart_attention('attention2', 'encoder_attn'),
               'addnorm2.ln': 'layers.{i}.encoder_attn_layer_norm',
               **_BART_FFN,
               'addnorm3.ln': 'layers.{i}.final_layer_norm'}.items()},
        'mlm.bias': 'final_logits_bias', 'mlm.output': 'lm_head'},
    sizes={'vocab_size': ('vocab_size', 50265),
           'd_model': ('num_hiddens', 1024),
           'encoder_ffn_dim': ('ffn_num_hiddens', 4096),
           'encoder_attention_heads': ('num_heads', 16),
           'encoder_layers': ('num_layers', 12),
           'decoder_ffn_dim': ('decoder_ffn', 4096),
           'decoder_attention_heads': ('decoder_heads', 16),
           'decoder_layers': ('decoder_layers', 12),
           'max_position_embeddings': ('max_len', 1024)},
    fractions={'dropout': ('dropout', 0.1),
               'attention_dropout': ('attention_dropout', 0.0),
               'activation_dropout': ('activation_dropout', 0.0)},
    flags={'scale_embedding': ('scale_embedding', False)},
    activation_field=('activation_function', 'gelu'),
    structure=dict(layer_norm_eps=1e-5, family='bart', heads=('mlm',),
                   mlm_hidden=False, num_segments=0),
    fixed={**FIXED, 'is_encoder_decoder': (True, 'a single stack of layers'),
           'tie_word_embeddings': (True, 'separate embeddings of encoder and '
                                   'decoder')},
    aliases={'hidden_size': 'd_model',
             'num_attention_heads': 'encoder_attention_heads',
             'num_hidden_layers': 'encoder_layers'},
    pad_id=1, rows_before=2, embedding_copies=(
        'model.encoder.embed_tokens', 'model.decoder.embed_tokens',
        'lm_head'),
    has_decoder=True, init_std_field='init_std',
    dropouts=(('classifier_dropout', 0.0), (None, None)),
    architecture='BartForConditionalGeneration',
    finetuned=_classes('Bart', tag=None, choice=None),
    text_head=Head(hidden_name='classification_head.dense',
                   has_input_dropout=True,
                   output_name='classification_head.out_proj'))

#: {model_type: `Family`}; the keyword `family` of a net is one of these keys.
FAMILIES = {family.model_type: family for family in (
    ALBERT, BART, BERT, CAMEMBERT, DISTILBERT, FLAUBERT, ROBERTA)}


def family_of(config):
    """The `Family` of a net's `config`."""
    return FAMILIES[config.get('family', 'bert')]
