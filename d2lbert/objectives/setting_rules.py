"""Requirements of the objectives of `pretrain` on the settings of a run.

The command checks settings before it starts anything, hence this module
imports neither MXNet nor the objectives.
"""
from typing import NamedTuple


class SettingRules(NamedTuple):
    """Defaults and required values of settings for one objective.

    defaults: {setting: value}, in place of the defaults of the recipe.
    required: tuples of (setting, allowed values, reason). The reason is the
    error message after the words "objective=NAME".
    """

    defaults: dict
    required: tuple

    def check(self, objective, values):
        """Raise ValueError for a value that the objective does not allow."""
        for name, allowed, reason in self.required:
            if values[name] not in allowed:
                raise ValueError(f'objective={objective} {reason}')


#: Named corpora. Their words must occur as often as in the book, even in the
#: small sample.
NAMED = 'wikitext-2', 'sample'

#: The default of the setting `noise`, which only `denoise` reads.
NOISE = 'infilling+sentences'

_NO_NOISE = ('noise', (NOISE,), 'adds no noise, which is for '
             'objective=denoise: add that (--objective denoise), or leave '
             'noise (--noise) out')

#: Objectives on pairs of sentences.
PAIRS = SettingRules({}, (
    ('architecture', ('book', 'published'), 'asks for a head over pairs, '
     'which architecture=distilbert does not have: give objective=mlm '
     '(--objective mlm)'), _NO_NOISE))

# For rows of full sentences
_FULL_DEFAULTS = dict(fill_sequences=True, dynamic=True, nsp_weight=1.0)

_FULL_RULES = (
    ('fill_sequences', (True,), 'fills its sequences with full sentences: '
     'leave fill_sequences=False out'),
    ('nsp_weight', (1,), 'has no next sentences: leave nsp_weight '
     '(--nsp-weight) out'))

#: Objectives on masked words of full sentences.
SENTENCES = SettingRules(_FULL_DEFAULTS, (*_FULL_RULES, _NO_NOISE))


def _as_in_bart(name, value):
    return (name, (value,), f'trains a BART, which has {name}={value}: leave '
            f'{name} (--{name.replace("_", "-")}) out')


#: Noisy text, restored by a BART.
DENOISE = SettingRules(
    dict(_FULL_DEFAULTS, mask_share=0.3, architecture='published'), (
        *_FULL_RULES, _as_in_bart('architecture', 'published'),
        _as_in_bart('pre_norm', False), _as_in_bart('teacher', None),
        _as_in_bart('embedding_size', None),
        _as_in_bart('share_layers', False)))


def _without_masks(name, value):
    return (name, (value,), 'predicts the next token, and nothing is masked: '
            f'leave {name} (--{name.replace("_", "-")}) out')


#: Next tokens of full sentences.
NEXT_TOKENS = SettingRules(_FULL_DEFAULTS, (
    *_FULL_RULES, _NO_NOISE, _without_masks('mask_share', 0.15),
    _without_masks('whole_word_masking', False),
    _without_masks('teacher', None)))

#: The rules of each objective, by its name among the settings.
RULES = {'mlm+nsp': PAIRS, 'mlm+sop': PAIRS, 'mlm': SENTENCES,
         'span': SENTENCES, 'denoise': DENOISE, 'clm': NEXT_TOKENS}
