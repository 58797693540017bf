"""A sample family: ERNIE, Sun et al. 2019, as `transformers` stores it.

Its layers are BERT's. Its tensors have another prefix, and its config.json
may ask for embeddings of tasks, which `BERTModel` lacks.
"""
from d2lbert.pretrained.families.family import BERT, FIXED

ERNIE = BERT._replace(
    title='ERNIE', model_type='ernie', prefix='ernie.',
    names={ours: 'ernie.' + theirs[len(BERT.prefix):]
           if theirs.startswith(BERT.prefix) else theirs
           for ours, theirs in BERT.names.items()},
    # `family` in the config of a net leads an export back to this table
    structure=dict(family='ernie'),
    fixed={**FIXED, 'use_task_id': (False, 'embeddings of tasks')},
    architecture='ErnieForPreTraining',
    finetuned={kind: name.replace('Bert', 'Ernie')
               for kind, name in BERT.finetuned.items()})
