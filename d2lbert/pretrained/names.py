"""The table of BERT's tensors: their names in a folder, ours, their shapes.

V vocabulary, L positions, S kinds of segments, H hiddens, F feed-forward
hiddens. Weights of dense layers are (out, in) on both sides. The names are
those of the checkpoints that Hugging Face's library `transformers` writes.
"""
import re
from typing import NamedTuple

#: The parts of a checkpoint. One without the first is none; the others are
#: heads, and many checkpoints lack some.
PARTS = {'encoder': 'encoder', 'pooler': 'pooler',
         'mlm': 'masked language model head', 'nsp': 'next sentence head'}
HEADS = tuple(PARTS)[1:]


class Tensor(NamedTuple):
    """A line of the table."""

    name: str               # in the folder
    ours: str               # in `BERTModel`
    shape: tuple            # in the folder; ours may have a leading 1
    part: str               # of PARTS
    turned: bool = False    # whether the order of its rows is the other one
    also: str = None        # a second name of the same tensor


def bert(config):
    """The table, a list of `Tensor`, of a `BERTModel` of this `config`."""
    V, L, S, H, F = (config[name] for name in (
        'vocab_size', 'max_len', 'num_segments', 'num_hiddens',
        'ffn_num_hiddens'))

    def dense(name, ours, shape, part, turned=False):
        return [Tensor(f'{name}.weight', f'{ours}.weight', shape, part,
                       turned),
                Tensor(f'{name}.bias', f'{ours}.bias', shape[:1], part,
                       turned)]

    def norm(name, ours, part):
        return [Tensor(f'{name}.weight', f'{ours}.gamma', (H,), part),
                Tensor(f'{name}.bias', f'{ours}.beta', (H,), part)]

    table = [
        Tensor('bert.embeddings.word_embeddings.weight',
               'encoder.token_embedding.weight', (V, H), 'encoder'),
        Tensor('bert.embeddings.position_embeddings.weight',
               'encoder.pos_embedding', (L, H), 'encoder'),
        Tensor('bert.embeddings.token_type_embeddings.weight',
               'encoder.segment_embedding.weight', (S, H), 'encoder'),
        *norm('bert.embeddings.LayerNorm', 'encoder.embedding_norm',
              'encoder')]
    for i in range(config['num_layers']):
        name, ours = f'bert.encoder.layer.{i}', f'encoder.blks.{i}'
        for theirs, W in (('self.query', 'W_q'), ('self.key', 'W_k'),
                          ('self.value', 'W_v'), ('output.dense', 'W_o')):
            table += dense(f'{name}.attention.{theirs}',
                           f'{ours}.attention.{W}', (H, H), 'encoder')
        table += [
            *norm(f'{name}.attention.output.LayerNorm',
                  f'{ours}.addnorm1.ln', 'encoder'),
            *dense(f'{name}.intermediate.dense', f'{ours}.ffn.dense1',
                   (F, H), 'encoder'),
            *dense(f'{name}.output.dense', f'{ours}.ffn.dense2', (H, F),
                   'encoder'),
            *norm(f'{name}.output.LayerNorm', f'{ours}.addnorm2.ln',
                  'encoder')]
    head = 'cls.predictions'
    table += [*dense('bert.pooler.dense', 'hidden', (H, H), 'pooler'),
              *dense(f'{head}.transform.dense', 'mlm.mlp.0', (H, H), 'mlm'),
              *norm(f'{head}.transform.LayerNorm', 'mlm.mlp.1', 'mlm'),
              Tensor(f'{head}.bias', 'mlm.mlp.2.bias', (V,), 'mlm',
                     also=f'{head}.decoder.bias')]
    if not config['tie_embeddings']:
        table.append(Tensor(DECODER, 'mlm.mlp.2.weight', (V, H), 'mlm'))
    # Published BERT's class 0 is "b follows a", which is the book's 1
    return table + dense('cls.seq_relationship', 'nsp.output', (2, H), 'nsp',
                         turned=True)


#: The heads of fine-tuned nets, by kind: the class in `transformers`, what
#: its new layer is called, the parts of the table that it has.
FINETUNED = {
    'classify': ('BertForSequenceClassification', 'classifier',
                 ('encoder', 'pooler')),
    'regress': ('BertForSequenceClassification', 'classifier',
                ('encoder', 'pooler')),
    'tag': ('BertForTokenClassification', 'classifier', ('encoder',)),
    'span': ('BertForQuestionAnswering', 'qa_outputs', ('encoder',))}


def finetuned(config, kind, num_scores):
    """The table of a `finetuning.heads.FineTuned`, as `bert` gives one."""
    _, head, parts = FINETUNED[kind]
    shape = num_scores, config['num_hiddens']
    return [line for line in bert(config) if line.part in parts] + [
        Tensor(f'{head}.weight', 'output.weight', shape, 'head'),
        Tensor(f'{head}.bias', 'output.bias', shape[:1], 'head')]


#: The last weight of the masked language model head, where it is not that of
#: the words' embeddings, and the latter.
DECODER = 'cls.predictions.decoder.weight'
EMBEDDING = 'bert.embeddings.word_embeddings.weight'


def in_table(names):
    """{name in the table: name in the folder} of the tensors of a folder.

    The encoder's come with the prefix `bert.` or without; old checkpoints
    say gamma and beta for the weight and bias of a LayerNorm, and of nothing
    else. A name that no table has stands for itself; what old checkpoints
    counted (position_ids) is no weight and left out.
    """
    found = {}
    for name in sorted(names, key=lambda name: (_current(name) != name,
                                                name)):
        if re.fullmatch(r'(bert\.)?embeddings\.(position|token_type)_ids',
                        name):
            continue
        # Of two names for one tensor the second is a stranger
        current = _current(name)
        found[name if current in found else current] = name
    return found


def _current(name):
    if name.startswith(('embeddings.', 'encoder.', 'pooler.')):
        name = f'bert.{name}'
    for old, new in (('gamma', 'weight'), ('beta', 'bias')):
        name = re.sub(rf'(^|\.)LayerNorm\.{old}$', rf'\1LayerNorm.{new}',
                      name)
    return name
