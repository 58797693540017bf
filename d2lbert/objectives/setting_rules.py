"""Requirements of the objectives of `pretrain` on the settings of a run.

The command checks settings before it starts anything. Hence this module
imports neither MXNet nor the objectives, which take long to import.
"""
from typing import NamedTuple


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


#: Values of the setting `corpus` that are not paths. For these texts, the
#: default of the setting min_freq is the book's minimum frequency. For any
#: other text, this default may be lower if the text is small.
NAMED_CORPORA = 'wikitext-2', 'sample'

#: The default of the setting `noise`, which only `denoise` reads.
DEFAULT_NOISE = 'infilling+sentences'

# For objectives without noise: the setting `noise`, which they do not read,
# must keep its default
_NO_NOISE_RULE = ('noise', (DEFAULT_NOISE,), 'adds no noise, and noise '
                  '(--noise) is for objective=denoise: give that objective '
                  '(--objective denoise), or leave noise out')

#: For the objectives on pairs of sentences.
PAIR_RULES = SettingRules({}, (
    ('architecture', ('book', 'published'), 'needs a head for sentence '
     'pairs, which architecture=distilbert lacks: give objective=mlm '
     '(--objective mlm)'), _NO_NOISE_RULE))

# Defaults and rules of the objectives on full sentences, without pairs
_FULL_DEFAULTS = dict(fill_sequences=True, dynamic=True, nsp_weight=1.0)

_FULL_RULES = (
    ('fill_sequences', (True,), 'fills its sequences with full sentences: '
     'leave fill_sequences=False out'),
    ('nsp_weight', (1,), 'has no next sentences: leave nsp_weight '
     '(--nsp-weight) out'))

#: For the objectives on masked words of full sentences.
SENTENCE_RULES = SettingRules(_FULL_DEFAULTS, (*_FULL_RULES, _NO_NOISE_RULE))


def _bart_rule(name, value):
    """The rule that a setting has `value`, the only value for a BART."""
    return (name, (value,), f'trains a BART, and needs {name}={value}: leave '
            f'{name} (--{name.replace("_", "-")}) out')


#: For the objective that restores noisy text, with a BART.
DENOISE_RULES = SettingRules(
    dict(_FULL_DEFAULTS, mask_share=0.3, architecture='published'), (
        *_FULL_RULES, _bart_rule('architecture', 'published'),
        _bart_rule('pre_norm', False), _bart_rule('teacher', None),
        _bart_rule('embedding_size', None),
        _bart_rule('share_layers', False)))


def _no_mask_rule(name, value):
    """The rule that a setting for masked words keeps its default `value`."""
    return (name, (value,), 'predicts the next token, and nothing is masked: '
            f'leave {name} (--{name.replace("_", "-")}) out')


#: For the objective that predicts the next tokens of full sentences.
NEXT_TOKEN_RULES = SettingRules(_FULL_DEFAULTS, (
    *_FULL_RULES, _NO_NOISE_RULE, _no_mask_rule('mask_share', 0.15),
    _no_mask_rule('whole_word_masking', False),
    _no_mask_rule('teacher', None)))    # a teacher predicts masked words

#: {value of the setting `objective`: its rules}
RULES = {'mlm+nsp': PAIR_RULES, 'mlm+sop': PAIR_RULES,
         'mlm': SENTENCE_RULES, 'span': SENTENCE_RULES,
         'denoise': DENOISE_RULES, 'clm': NEXT_TOKEN_RULES}
