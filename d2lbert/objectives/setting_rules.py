"""Requirements of the objectives of `pretrain` on the settings of a run.

The command checks settings before it starts anything. Hence this module
imports neither MXNet nor the objectives, which take long to import.
"""
from typing import NamedTuple

from d2lbert.machine.arguments import flag_of


class SettingRules(NamedTuple):
    """Defaults and required values of settings for one objective.

    defaults: {setting: value}, in place of the defaults of the recipe.
    required: tuples of (setting, allowed values, end of the message). The
    error message is "objective=NAME" and this end.
    """

    defaults: dict
    required: tuple

    def check(self, objective, values):
        """Raise ValueError for a value that the objective does not allow."""
        for name, allowed, message_end in self.required:
            if values[name] not in allowed:
                raise ValueError(f'objective={objective} {message_end}')


#: Values of the setting `corpus` that are not paths.
NAMED_CORPORA = 'wikitext-2', 'sample'

#: The default of the setting `noise`, which only `denoise` reads.
DEFAULT_NOISE = 'infilling+sentences'

_NO_NOISE_RULE = ('noise', (DEFAULT_NOISE,), 'adds no noise, and noise '
                  '(--noise) is for objective=denoise: give that objective '
                  '(--objective denoise), or leave noise out')

PAIR_RULES = SettingRules({}, (
    ('architecture', ('book', 'published'), 'needs a head for sentence '
     'pairs, which architecture=distilbert lacks: give objective=mlm '
     '(--objective mlm)'), _NO_NOISE_RULE))

# Of the objectives on full sentences, without pairs
_NO_PAIR_DEFAULTS = dict(fill_sequences=True, dynamic=True, nsp_weight=1.0)

_NO_PAIR_RULES = (
    ('fill_sequences', (True,), 'fills its sequences with full sentences: '
     'leave fill_sequences=False out'),
    ('nsp_weight', (1,), 'has no next sentences: leave nsp_weight '
     '(--nsp-weight) out'))

MLM_RULES = SettingRules(_NO_PAIR_DEFAULTS, (*_NO_PAIR_RULES, _NO_NOISE_RULE))


def _bart_rule(name, value):
    return (name, (value,), f'trains a BART, and needs {name}={value}: leave '
            f'{name} ({flag_of(name)}) out')


DENOISE_RULES = SettingRules(
    dict(_NO_PAIR_DEFAULTS, mask_share=0.3, architecture='published'), (
        *_NO_PAIR_RULES, _bart_rule('architecture', 'published'),
        _bart_rule('pre_norm', False), _bart_rule('teacher', None),
        _bart_rule('embedding_size', None),
        _bart_rule('share_layers', False)))


def _no_mask_rule(name, default):
    return (name, (default,), 'predicts the next token, and nothing is '
            f'masked: leave {name} ({flag_of(name)}) out')


CLM_RULES = SettingRules(_NO_PAIR_DEFAULTS, (
    *_NO_PAIR_RULES, _NO_NOISE_RULE, _no_mask_rule('mask_share', 0.15),
    _no_mask_rule('whole_word_masking', False),
    _no_mask_rule('teacher', None)))    # a teacher predicts masked words

#: {value of the setting `objective`: its rules}
RULES = {'mlm+nsp': PAIR_RULES, 'mlm+sop': PAIR_RULES,
         'mlm': MLM_RULES, 'span': MLM_RULES,
         'denoise': DENOISE_RULES, 'clm': CLM_RULES}
