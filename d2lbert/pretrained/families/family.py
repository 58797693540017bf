"""The families of pretrained models, as tables of names and defaults.

A family has the fields of its config.json, the names of its tensors, and the
keywords of the `BERTModel` or `BARTModel` that represents it. All names are
from Hugging Face's library `transformers`.
"""
from typing import NamedTuple, Optional

#: {name in transformers: activation here}. There are two kinds of GELU: exact,
#: and approximated by tanh; each has several names.
ACTIVATIONS = {'gelu': 'gelu', 'gelu_python': 'gelu', 'gelu_new': 'gelu_new',
               'gelu_fast': 'gelu_new', 'gelu_pytorch_tanh': 'gelu_new',
               'relu': 'relu'}

#: {field: (the only supported value, the meaning of other values)}
FIXED = {'position_embedding_type': ('absolute',
                                     'positions of another kind'),
         'is_decoder': (False, 'a decoder'),
         'add_cross_attention': (False, 'attention to a second text'),
         'pruned_heads': ({}, 'attention heads that were cut out'),
         'quantization_config': (None, 'quantized weights')}


class Head(NamedTuple):
    """The head of a family's classifier of whole texts."""

    act: Optional[str] = 'tanh'     # the activation of the hidden layer;
                                    # None: there is no hidden layer
    name: Optional[str] = None      # of the hidden layer; None: the pooler
    drops_first: bool = False       # dropout before the hidden layer, too
    output: str = 'classifier'      # the name of the output layer


class Family(NamedTuple):
    """A family; `tensor_names.table` makes the table of its tensors."""

    title: str
    model_type: str         # in config.json
    prefix: str             # of encoder tensors; omitted in folders with only
                            # an encoder
    names: dict             # {ours: theirs}, see `tensor_names.table`
    #: {field: (keyword of `BERTModel`, default)}
    sizes: dict             # whole numbers
    shares: dict            # from 0 to less than 1
    flags: dict = {}        # true or false
    activation: tuple = ('hidden_act', 'gelu')      # the field, its default
    activations: dict = ACTIVATIONS
    structure: dict = {}    # keywords of `BERTModel` that have no field
    fixed: dict = {}        # fields with one supported value, as in FIXED
    aliases: dict = {}      # {another name of a field: its name here}
    ffn_factor: Optional[int] = None    # F / H, if F has no field
    #: Heads that may be missing in folders, and then in the net.
    optional: tuple = ()
    pad_id: int = 0
    positions_from_pad: bool = False    # position 0 is row pad_id + 1
    rows_before: int = 0    # position 0 is this row; max_position_embeddings
                            # does not count the rows before it
    copies: tuple = ()      # other names of the token embedding
    generates: bool = False     # the family has a decoder
    #: The field with the standard deviation of initial weights.
    spread: str = 'initializer_range'
    #: Dropout before a classifier of texts, and before one of tokens: the
    #: fields and their defaults (None: the value of `dropout`).
    dropouts: tuple = (('classifier_dropout', None),) * 2
    #: Classes of transformers: for a whole `BERTModel`, for an encoder with
    #: its pooler (None: the same class), and by kind of fine-tuned net.
    architecture: str = ''
    encoder_alone: Optional[str] = None
    finetuned: dict = {}
    whole: Head = Head()    # the head for a label or value of a text
    choice: Head = Head()   # the head for choosing one of several texts

    def head_of(self, kind):
        """The `Head` for a kind of task with scores of whole texts."""
        return self.choice if kind == 'choice' else self.whole


def _classes(stem, **others):
    """{kind of task: class in transformers}; others: endings of classes."""
    found = {'classify': 'ForSequenceClassification',
             'regress': 'ForSequenceClassification',
             'choice': 'ForMultipleChoice',
             'tag': 'ForTokenClassification',
             'span': 'ForQuestionAnswering', **others}
    return {kind: stem + name for kind, name in found.items()}


def _under(before, names):
    """The {ours: theirs} of names, with `before` put before each theirs."""
    return {ours: before + name for ours, name in names.items()}


_EMBEDDINGS = {
    'encoder.token_embedding': 'word_embeddings',
    'encoder.pos_embedding': 'position_embeddings',
    'encoder.segment_embedding': 'token_type_embeddings',
    'encoder.embedding_norm': 'LayerNorm'}

_BODY = {
    **_under('embeddings.', _EMBEDDINGS),
    **_under('encoder.layer.{i}.', {
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
    names={**_under('bert.', _BODY),
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
    shares={'hidden_dropout_prob': ('dropout', 0.1),
            'attention_probs_dropout_prob': ('attention_dropout', 0.1),
            'layer_norm_eps': ('layer_norm_eps', 1e-12)},
    fixed=FIXED, architecture='BertForPreTraining',
    finetuned=_classes('Bert'))

# Liu et al. 2019
ROBERTA = BERT._replace(
    title='RoBERTa', model_type='roberta', prefix='roberta.',
    names={**_under('roberta.', _BODY),
           'mlm.hidden': 'lm_head.dense', 'mlm.norm': 'lm_head.layer_norm',
           'mlm.bias': 'lm_head.bias', 'mlm.output': 'lm_head.decoder'},
    structure=dict(family='roberta', heads=('pooler', 'mlm'),
                   mlm_activation='gelu'),
    optional=('pooler',), pad_id=1, positions_from_pad=True,
    architecture='RobertaForMaskedLM', encoder_alone='RobertaModel',
    finetuned=_classes('Roberta'),
    whole=Head('tanh', 'classifier.dense', True, 'classifier.out_proj'))

# Martin et al. 2020
CAMEMBERT = ROBERTA._replace(
    title='CamemBERT', model_type='camembert',
    structure={**ROBERTA.structure, 'family': 'camembert'},
    architecture='CamembertForMaskedLM', encoder_alone='CamembertModel',
    finetuned=_classes('Camembert'))

# Sanh et al. 2019
DISTILBERT = Family(
    title='DistilBERT', model_type='distilbert', prefix='distilbert.',
    names={
        **_under('distilbert.embeddings.', _EMBEDDINGS),
        **_under('distilbert.transformer.layer.{i}.', {
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
    shares={'dropout': ('dropout', 0.1),
            'attention_dropout': ('attention_dropout', 0.1)},
    activation=('activation', 'gelu'),
    structure=dict(family='distilbert', heads=('mlm',), num_segments=0,
                   layer_norm_eps=1e-12),
    fixed=FIXED, aliases={'hidden_size': 'dim',
                          'num_attention_heads': 'n_heads',
                          'num_hidden_layers': 'n_layers'},
    dropouts=(('seq_classif_dropout', 0.2), (None, None)),
    architecture='DistilBertForMaskedLM', finetuned=_classes('DistilBert'),
    whole=Head('relu', 'pre_classifier'),
    choice=Head('relu', 'pre_classifier'))

# Lan et al. 2020
ALBERT = BERT._replace(
    title='ALBERT', model_type='albert', prefix='albert.',
    names={
        **_under('albert.embeddings.', _EMBEDDINGS),
        'encoder.projection': 'albert.encoder.embedding_hidden_mapping_in',
        **_under('albert.encoder.albert_layer_groups.{group}.'
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
        # Class 0 is two texts in their order
        'nsp.output': 'sop_classifier.classifier'},
    sizes={**BERT.sizes, 'vocab_size': ('vocab_size', 30000),
           'hidden_size': ('num_hiddens', 4096),
           'intermediate_size': ('ffn_num_hiddens', 16384),
           'num_attention_heads': ('num_heads', 64),
           'embedding_size': ('embedding_size', 128),
           'num_hidden_groups': ('num_groups', 1),
           'inner_group_num': ('inner_group_num', 1)},
    shares={**BERT.shares, 'hidden_dropout_prob': ('dropout', 0.0),
            'attention_probs_dropout_prob': ('attention_dropout', 0.0)},
    activation=('hidden_act', 'gelu_new'), structure=dict(family='albert'),
    dropouts=(('classifier_dropout_prob', 0.1),) * 2,
    architecture='AlbertForPreTraining', finetuned=_classes('Albert'))

# Le et al. 2020; the layers of XLM, Conneau and Lample 2019
FLAUBERT = Family(
    title='FlauBERT', model_type='flaubert', prefix='transformer.',
    names={
        **_under('transformer.', {
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
    shares={'dropout': ('dropout', 0.1),
            'attention_dropout': ('attention_dropout', 0.1),
            'layer_norm_eps': ('layer_norm_eps', 1e-12)},
    flags={'pre_norm': ('pre_norm', False)},
    activation=('gelu_activation', True),
    activations={True: 'gelu', False: 'relu'},
    structure=dict(family='flaubert', heads=('mlm',), num_segments=0,
                   mlm_hidden=False, final_norm=False),
    fixed={'causal': (False, 'texts read from left to right'),
           'asm': (False, 'an adaptive softmax'),
           'n_langs': (1, 'embeddings of languages'),
           'is_encoder': (True, 'a decoder'), 'pruned_heads': FIXED[
               'pruned_heads'],
           'quantization_config': FIXED['quantization_config']},
    aliases={'hidden_size': 'emb_dim', 'num_attention_heads': 'n_heads',
             'num_hidden_layers': 'n_layers', 'n_words': 'vocab_size',
             'pad_index': 'pad_token_id'},
    ffn_factor=4, pad_id=2, spread='init_std',
    dropouts=(('summary_first_dropout', 0.1), (None, None)),
    architecture='FlaubertWithLMHeadModel',
    finetuned={kind: name for kind, name in _classes(
        'Flaubert', span='ForQuestionAnsweringSimple').items()
        if kind != 'choice'},
    whole=Head(act=None, output='sequence_summary.summary'))

#: The fields of `Variant` that all BART models share.
STRUCTURE = dict(family='bart', heads=('mlm',), mlm_hidden=False,
                 num_segments=0, positional='learnable', embedding_norm=True,
                 tie_embeddings=True)

_BART_ATTENTION = {'W_q': 'q_proj', 'W_k': 'k_proj', 'W_v': 'v_proj',
                   'W_o': 'out_proj'}


def _bart_attention(ours, theirs):
    return {f'{ours}.{x}': f'layers.{{i}}.{theirs}.{name}'
            for x, name in _BART_ATTENTION.items()}


_BART_FFN = {'ffn.dense1': 'layers.{i}.fc1', 'ffn.dense2': 'layers.{i}.fc2'}

# Lewis et al. 2020
BART = Family(
    title='BART', model_type='bart', prefix='model.',
    names={
        'encoder.token_embedding': 'model.shared',
        **_under('model.encoder.', {
            'encoder.pos_embedding': 'embed_positions',
            'encoder.embedding_norm': 'layernorm_embedding',
            **_bart_attention('attention', 'self_attn'),
            'addnorm1.ln': 'layers.{i}.self_attn_layer_norm', **_BART_FFN,
            'addnorm2.ln': 'layers.{i}.final_layer_norm'}),
        **{f'decoder.{ours}': f'model.decoder.{theirs}'
           for ours, theirs in {
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
    shares={'dropout': ('dropout', 0.1),
            'attention_dropout': ('attention_dropout', 0.0),
            'activation_dropout': ('activation_dropout', 0.0)},
    flags={'scale_embedding': ('scale_embedding', False)},
    activation=('activation_function', 'gelu'),
    structure=dict(layer_norm_eps=1e-5, **{
        name: STRUCTURE[name] for name in (
            'family', 'heads', 'mlm_hidden', 'num_segments')}),
    fixed={**FIXED, 'is_encoder_decoder': (True, 'a single stack of layers'),
           'tie_word_embeddings': (True, 'separate embeddings of encoder and '
                                   'decoder')},
    aliases={'hidden_size': 'd_model',
             'num_attention_heads': 'encoder_attention_heads',
             'num_hidden_layers': 'encoder_layers'},
    pad_id=1, rows_before=2, copies=(
        'model.encoder.embed_tokens', 'model.decoder.embed_tokens'),
    generates=True, spread='init_std',
    dropouts=(('classifier_dropout', 0.0), (None, None)),
    architecture='BartForConditionalGeneration',
    finetuned={kind: name for kind, name in _classes('Bart').items()
               if kind not in ('tag', 'choice')},
    whole=Head('tanh', 'classification_head.dense', True,
               'classification_head.out_proj'))

#: {model_type: family}; the `config` of a net has the key as `family`.
FAMILIES = {family.model_type: family for family in (
    ALBERT, BART, BERT, CAMEMBERT, DISTILBERT, FLAUBERT, ROBERTA)}


def family_of(config):
    """The `Family` of a net's `config`."""
    return FAMILIES[config.get('family', 'bert')]
