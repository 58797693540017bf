"""Define and check the settings of a pretraining run.

`GROUPS` describes each setting once. The keywords of `d2l.pretrain`, the flags
of the command, the checks and the table in the manual are derived from it.
`python -m d2lbert.training.settings` prints the table.
"""
import inspect
import math
import numbers
import os
import textwrap
from typing import Any, List, Literal, NamedTuple, Optional, Union

from d2lbert.machine.arguments import (
    PathLike,
    did_you_mean,
    flag_of,
    listed,
    rename_keywords,
)
from d2lbert.objectives.setting_rules import DEFAULT_NOISE, RULES

#: The `Setting.kind` of a path, or of a list of paths.
PATHS = 'paths'

#: The choices of the setting `noise`, see `corpus.masking.Noise`.
NOISES = ('masking', 'deletion', 'infilling', 'sentences',
          'masking+sentences', 'deletion+sentences', 'infilling+sentences')


class Setting(NamedTuple):
    """A setting of a run, given as a keyword or as a flag."""

    name: str
    kind: Any               # str, int, float, bool or PATHS
    default: Any            # None: the setting may stay unset
    help: str
    metavar: str = 'N'      # stands for the value in the command's help
    learn: Any = None       # the default in the recipe learn, if different
    least: Any = None       # the least int, or what a float must be above
    choices: tuple = ()     # the allowed values; (): all of the type
    is_share: bool = False  # True if the value must be below 1
    several: bool = False   # True if a list of paths is allowed
    changeable: bool = False    # True if the value may change on resume
    replaced_by: Any = None     # the setting that replaces this one, if given
    earlier: str = ''       # an earlier name, which is still accepted

    @property
    def type(self):
        """The type hint of the setting."""
        kind = self.kind
        if kind == PATHS:
            kind = (Union[PathLike, List[PathLike]] if self.several
                    else PathLike)
        elif self.choices:
            kind = Literal[self.choices]
        return Optional[kind] if self.default is None else kind

    def checked(self, value):
        """Validate a value; return it as a type that JSON can hold."""
        if value is None and self.default is None:
            return None
        if self.kind == PATHS:
            paths = _checked_paths(self.name, value)
            if isinstance(paths, list) and not self.several:
                raise ValueError(f'{self.name} takes one path, not '
                                 f'{len(paths)}: give one')
            return paths
        value = _converted(self.name, value, self.kind)
        if self.choices and value not in self.choices:
            raise ValueError(f'{self.name} must be {listed(self.choices)}, '
                             f'not {value!r}'
                             + did_you_mean(value, self.choices))
        if self.kind is int and self.least is not None and (
                value < self.least):
            raise ValueError(f'{self.name} must be a whole number of at '
                             f'least {self.least}, not {value}')
        if self.kind is float and not 0 <= value < math.inf:
            raise ValueError(f'{self.name} must be finite and not negative, '
                             f'not {value}')
        if self.kind is float and self.least is not None and (
                value <= self.least):
            raise ValueError(f'{self.name} must be above {self.least}, not '
                             f'{value}')
        if self.is_share and value >= 1:
            raise ValueError(f'{self.name} is a share and must lie below 1, '
                             f'not {value}')
        return value


def _converted(name, value, kind):
    """Convert a value to `kind`: str, bool, int or float."""
    if kind is str and isinstance(value, str):
        return value
    # Compare names of types: numpy.bool_ is no subclass of bool, and this
    # module does not import NumPy
    if kind is bool and type(value).__name__ in ('bool', 'bool_'):
        return bool(value)
    is_real = isinstance(value, numbers.Real)   # also True for bools
    if kind in (int, float) and is_real and not isinstance(value, bool):
        try:
            # int() of infinity raises OverflowError
            if kind is float or (math.isfinite(value) and int(value) == value):
                return kind(value)
        except OverflowError:   # an int beyond the largest float
            raise ValueError(f'{name} must have at most 308 digits, and this '
                             'number has more') from None
    expected = {str: 'a name', bool: 'True or False', int: 'a whole number',
                float: 'a number'}[kind]
    # For an int, 0.5 is a wrong value rather than a wrong type
    error_type = ValueError if kind is int and is_real else TypeError
    raise error_type(f'{name} must be {expected}, not {value!r}')


def _checked_paths(name, paths):
    """One path as a string, or several as a list of strings.

    A list of one path counts as one path.
    """
    if isinstance(paths, (list, tuple)):
        checked_paths = [_checked_paths(name, path) for path in paths]
        return checked_paths[0] if len(checked_paths) == 1 else checked_paths
    if not isinstance(paths, (str, os.PathLike)):
        raise TypeError(f'{name} must be the path of a file or folder, not '
                        f'a {type(paths).__name__}')
    path = os.fspath(paths)
    if not path:        # Path('') would be the current folder
        raise ValueError(f'{name} ({flag_of(name)}) is empty: name a file or '
                         'folder')
    return path


#: {title of a group in the command's help: its settings}
GROUPS = {
    'the text': (
        Setting('corpus', PATHS, 'wikitext-2', 'the text: wikitext-2, '
                "sample, or text files and folders, plain or in WikiText's "
                'format, also compressed; - is standard input', 'FILE',
                several=True, changeable=True),
        Setting('data_dir', PATHS, None, 'folder with wiki.train.tokens or '
                'wikitext-2/', 'DIR', changeable=True),
        Setting('text_field', str, None, 'field of JSON lines that holds '
                'the text', 'NAME', changeable=True),
        Setting('split', str, 'auto', "how sentences are found. book: at "
                "' . ', with white space between words; prose: as people "
                'write; punkt: like prose, with the library NLTK; auto: book '
                'or prose, by a look at the text', 'NAME',
                choices=('auto', 'book', 'prose', 'punkt')),
        Setting('tokenizer', str, 'words', 'words: separated by white space; '
                'wordpiece: word pieces, learnt from the text', 'NAME',
                choices=('words', 'wordpiece')),
        Setting('vocab_size', int, None, 'largest number of tokens in the '
                'vocabulary (wordpiece: 8000; words: no limit)', least=6),
        Setting('min_freq', int, None, 'least number of times that a word of '
                'the vocabulary occurs (5; less for a small text of your '
                'own, so that at most a tenth of its words is unknown)',
                least=1),
        Setting('vocab', PATHS, None, 'use this vocabulary instead of a new '
                'one: a token on each line; for wordpiece a vocab.txt, a '
                'tokenizer.json or a folder with one', 'FILE',
                changeable=True),
        Setting('valid', PATHS, None, 'held-out text files', 'FILE',
                several=True, changeable=True),
        Setting('valid_share', float, 0.05, 'share of the articles to hold '
                'out for eval_every if valid is not given', 'SHARE',
                is_share=True),
        Setting('fill_sequences', bool, False, 'fill sequences with several '
                'sentences, as the published BERT does', earlier='fill'),
        Setting('dynamic', bool, False, 'draw new masks and pairs in each '
                'epoch', learn=True),
        Setting('mask_share', float, 0.15, 'share of the tokens to predict '
                '(objective denoise: 0.3, the share of tokens with noise)',
                'SHARE', least=0, is_share=True),
        Setting('whole_word_masking', bool, False, 'mask all pieces of a '
                'word or none'),
    ),
    'the model': (
        Setting('max_len', int, 64, 'largest number of tokens in a sequence, '
                'special tokens included', least=5),
        Setting('num_hiddens', int, 128, 'size of the vector of a token'),
        Setting('ffn_num_hiddens', int, 256, 'size of the hidden layer of '
                'the feed-forward networks'),
        Setting('num_heads', int, 2, 'attention heads in a layer', learn=4),
        Setting('num_layers', int, 2, 'layers of the encoder'),
        Setting('embedding_size', int, None, 'size of the token embeddings, '
                'as in ALBERT; a dense layer maps them to num_hiddens (if '
                'not given: num_hiddens, and no such layer)', least=1),
        Setting('share_layers', bool, False, 'use the same weights in all '
                'layers, as ALBERT does'),
        Setting('dropout', float, 0.2, 'dropout probability', 'P',
                learn=0.0),
        Setting('architecture', str, 'book', 'book: the network of the '
                'chapter; published: with GELU, LayerNorm after the '
                'embeddings and tied embeddings, as d2lbert export requires '
                '(with embedding_size it is an ALBERT); distilbert: '
                'published, without segments and pooler', 'NAME',
                learn='published',
                choices=('book', 'published', 'distilbert')),
        Setting('tie_embeddings', bool, False, 'use the token embeddings as '
                'weights of the last layer of the MLM head, as the published '
                'BERT does'),
        Setting('pre_norm', bool, False, 'apply LayerNorm before attention '
                'and feed-forward networks (pre-LN), not after them'),
        Setting('precision', str, 'fp32', 'fp32 or bf16: number format of '
                'matrix products', 'NAME', choices=('fp32', 'bf16')),
    ),
    'the training': (
        Setting('objective', str, 'mlm+nsp', 'what is predicted. mlm+nsp: '
                'masked words and next sentences, as in the book; mlm+sop: '
                'masked words and the order of sentences, as in ALBERT; mlm: '
                'masked words in full sentences, as in RoBERTa; span: masked '
                'spans from their boundaries, as in SpanBERT; denoise: the '
                'text, from a noisy copy, as in BART; clm: the next token, '
                'as in GPT', 'NAME', choices=tuple(RULES)),
        Setting('noise', str, DEFAULT_NOISE, 'noise of objective denoise: '
                'masking or deletion of tokens, or infilling, which replaces '
                'a span of words by one mask; +sentences also shuffles the '
                'sentences',
                'NAME', choices=NOISES),
        Setting('recipe', str, 'book', 'book: the settings of the chapter; '
                'learn: settings that learn more in ten minutes', 'NAME',
                choices=('book', 'learn')),
        Setting('batch_size', int, 512, 'examples in a step: sentence pairs '
                'or sequences', learn=64, least=1),
        Setting('grow_batch', float, 0.0, 'share of the run with smaller '
                'batches: an eighth, a quarter and half of batch_size, for '
                'a third of this share each', 'SHARE', is_share=True),
        Setting('accumulate', int, 1, 'number of parts in which a batch is '
                'computed, to save memory (gradient accumulation)', 'K',
                least=1),
        Setting('num_steps', int, 50, 'training steps', learn=4000,
                least=1, changeable=True, replaced_by='minutes'),
        Setting('minutes', float, None, 'training time in minutes, instead '
                'of num_steps; learning rate and batch size then follow the '
                'clock', least=0, changeable=True),
        Setting('lr', float, 0.01, 'highest learning rate of Adam', 'RATE',
                learn=0.0015),
        Setting('warmup', float, 0.0, 'share of the run in which the '
                'learning rate rises', 'SHARE', learn=0.1, is_share=True),
        Setting('decay', str, 'none', 'none, linear or cosine: how the '
                'learning rate falls', 'NAME', learn='linear',
                choices=('none', 'linear', 'cosine')),
        Setting('nsp_weight', float, 1.0, 'weight of the NSP loss in the sum '
                'of the losses', 'W'),
        Setting('weight_decay', float, 0.0, 'decoupled weight decay, as in '
                'AdamW', 'RATE', learn=0.3),
        Setting('clip', float, 0.0, 'largest norm of the gradient; 0: no '
                'limit', 'NORM', learn=1.0),
        Setting('average', float, 0.0, 'decay of an exponential moving '
                'average of the weights, for example 0.999; the average is '
                'evaluated and saved; 0: no average', 'SHARE', is_share=True),
        Setting('initializer', str, 'xavier', 'initial weights: xavier, '
                'normal, mimetic (tokens first attend to tokens like '
                'themselves) or topical (also to tokens of the same topics)',
                'NAME', learn='topical',
                choices=('xavier', 'normal', 'mimetic', 'topical')),
        Setting('seed', int, None, 'seed of all random numbers (a new one '
                'for each run)'),
    ),
    'the teacher': (
        Setting('teacher', PATHS, None, 'learn from this model '
                '(distillation): a run, or the folder of a pretrained model. '
                'Tokenizer, architecture and sizes that are not given are '
                'those of the teacher, with half as many layers', 'FOLDER',
                changeable=True),
        Setting('temperature', float, 2.0, 'divide the scores of teacher and '
                'student by this number before comparing them', 'T'),
        Setting('soft_weight', float, 5.0, 'weight of the loss against the '
                'predictions of the teacher', 'W'),
        Setting('mlm_weight', float, 2.0, 'weight of the MLM loss beside the '
                'losses of the teacher', 'W'),
        Setting('cosine_weight', float, 1.0, 'weight of the cosine loss '
                'between the last hidden states of teacher and student',
                'W'),
    ),
    'the run': (
        Setting('log_interval', int, 1, 'steps between two log entries; if '
                'not given, a run of num_steps=20 or more has at least 20 '
                'entries', learn=100, least=1),
        Setting('eval_every', int, None, 'steps between two evaluations on '
                'held-out text', least=1, changeable=True),
        Setting('save_every', int, None, 'steps between two checkpoints; 0: '
                'no checkpoints (if not given: one every five minutes, of '
                'which the last is kept)',
                least=0, changeable=True),
        Setting('keep', int, 3, 'number of checkpoints of save_every to '
                'keep, the last ones; 0: all', least=0, changeable=True),
    ),
}

#: {name: `Setting`}
SETTINGS = {setting.name: setting for group in GROUPS.values()
            for setting in group}

#: Earlier names of settings, {old: new}.
EARLIER_NAMES = {setting.earlier: name for name, setting in SETTINGS.items()
                 if setting.earlier}

#: The recipes: the settings of the chapter, and settings that learn more in
#: the same time by many small steps.
BOOK = {name: setting.default for name, setting in SETTINGS.items()}
LEARN = {name: setting.default if setting.learn is None else setting.learn
         for name, setting in SETTINGS.items()}
RECIPES = {'book': BOOK, 'learn': LEARN}

#: A run of this many steps or more has at least this many log entries, unless
#: log_interval is given.
MIN_LOG_ENTRIES = 20

#: The end of a run, its evaluations and checkpoints, and where its text,
#: vocabulary and teacher are. Their files may be moved, but not changed.
CHANGEABLE_ON_RESUME = [name for name, setting in SETTINGS.items()
                        if setting.changeable]


def complete(keywords):
    """All settings of a run: checked `keywords`, and defaults for the others.

    A missing seed is drawn. Raises ValueError or TypeError for unknown
    settings, wrong values and contradictions.
    """
    keywords = rename_keywords(EARLIER_NAMES, keywords)
    recipe = SETTINGS['recipe'].checked(keywords.get('recipe', 'book'))
    objective = SETTINGS['objective'].checked(
        keywords.get('objective', 'mlm+nsp'))
    rules = RULES[objective]
    defaults = {**RECIPES[recipe], **rules.defaults}
    values = checked_values(SETTINGS, defaults, keywords)
    if 'log_interval' not in keywords and values['num_steps'] is not None:
        # A short run logs more often, so that its plot shows curves
        max_interval = max(1, values['num_steps'] // MIN_LOG_ENTRIES)
        values['log_interval'] = min(values['log_interval'], max_interval)
    rules.check(objective, values)
    _check_vocabulary(values)
    _check_distillation(values)
    if values['data_dir'] is not None and values['corpus'] != 'wikitext-2':
        raise ValueError('data_dir (--data-dir) is the folder of '
                         'WikiText-2, and corpus (--corpus) names another '
                         'text: leave one of them out')
    # A teacher's sizes may still replace the defaults. The net of the student
    # checks the final sizes
    if values['teacher'] is None:
        _check_heads(values['num_hiddens'], values['num_heads'])
    return values


def _check_vocabulary(values):
    if values['vocab_size'] is not None and values['vocab'] is not None:
        raise ValueError('vocab (--vocab) and vocab_size (--vocab-size) both '
                         'determine the vocabulary: leave one of them out')
    if values['min_freq'] is not None and (values['vocab'] is not None
                                           or values['tokenizer'] != 'words'):
        raise ValueError('min_freq (--min-freq) is for a new vocabulary of '
                         'words: leave it out')
    if values['whole_word_masking'] and values['tokenizer'] == 'words':
        raise ValueError('whole_word_masking (--whole-word-masking) is for '
                         "pieces of words: add tokenizer='wordpiece' "
                         '(--tokenizer wordpiece), or leave it out')


def _check_heads(num_hiddens, num_heads):
    if num_heads < 1 or num_hiddens % num_heads:
        raise ValueError(
            f'{num_heads} heads do not divide {num_hiddens} hiddens: choose '
            'num_hiddens (--num-hiddens) as a multiple of num_heads '
            '(--num-heads)')


def check_files(settings, values, known_names=()):
    """Raise ValueError if a file or folder of a setting does not exist.

    settings: {name: `Setting`}. values: {name: value}. known_names: names of
    texts or models, such as 'sample', that are allowed in place of a path.
    Standard input, '-', is always allowed.
    """
    for name, value in values.items():
        if settings[name].kind != PATHS or value is None:
            continue
        paths = value if isinstance(value, list) else [value]
        for path in paths:
            if path not in (*known_names, '-') and not os.path.exists(
                    os.path.expanduser(path)):
                raise ValueError(
                    f'there is no file or folder {path}: name an existing '
                    f'one for {name} ({flag_of(name)})' + did_you_mean(
                        path, known_names))


def _check_distillation(values):
    if values['teacher'] is None:
        for name in ('temperature', 'soft_weight', 'mlm_weight',
                     'cosine_weight'):
            if values[name] != SETTINGS[name].default:
                raise ValueError(f'{name} ({flag_of(name)}) is for runs with '
                                 'a teacher: add teacher (--teacher), or '
                                 f'leave {name} out')
    elif not values['temperature']:
        raise ValueError('temperature must be above 0: scores are divided by '
                         'it')
    elif not (values['soft_weight'] or values['cosine_weight']):
        raise ValueError('with soft_weight=0 and cosine_weight=0 the teacher '
                         'has no effect: raise one of them, or '
                         'leave teacher out')


def check_clock(minutes, num_workers):
    """Raise ValueError if `minutes` is given and there are several workers."""
    if minutes is not None and num_workers > 1:
        raise ValueError(f'minutes={minutes:g} is for one worker, since the '
                         f'clocks of {num_workers} workers differ: give '
                         'num_steps (--num-steps) in place of minutes')


def check_kept(keywords, saved, changeable, subject='a resumed run keeps its'):
    """Raise ValueError if `keywords` changes a setting that a run keeps.

    saved: the settings of the run. changeable: names of settings that may
    change. subject: the beginning of the message.
    """
    refused = sorted(name for name, value in keywords.items()
                     if name not in changeable and value != saved.get(name))
    if refused:
        raise ValueError(f'{subject} settings: {", ".join(refused)} cannot be '
                         f'changed, only {", ".join(changeable)} and devices')


def checked_values(settings, defaults, keywords):
    """The value of each setting, checked: from `keywords`, else `defaults`.

    settings: {name: `Setting`}, among them seed, batch_size and accumulate.
    A missing seed is drawn. A setting that another one replaces
    (`Setting.replaced_by`) gets the value None.
    """
    unknown = sorted(set(keywords) - set(settings))
    if unknown:
        hint = did_you_mean(unknown[0], settings)
        raise TypeError(f'unknown setting {unknown[0]}'
                        + (hint or f': there are {", ".join(settings)}'))
    values = {**defaults, **keywords}
    if values['seed'] is None:
        values['seed'] = int.from_bytes(os.urandom(4), 'little')
    replacements = {name: setting.replaced_by
                    for name, setting in settings.items()
                    if setting.replaced_by is not None
                    and values.get(setting.replaced_by) is not None}
    for name, other in replacements.items():
        if keywords.get(name) is not None:
            raise ValueError(
                f'{name} ({flag_of(name)}) and {other} ({flag_of(other)}) '
                'both set the length of a run: give only one of them, and '
                'for a resumed run the setting that the run began with')
    values = {name: (None if name in replacements
                     else setting.checked(values[name]))
              for name, setting in settings.items()}
    if values['batch_size'] % values['accumulate']:
        raise ValueError(f'accumulate={values["accumulate"]} does not divide '
                         f'batch_size={values["batch_size"]}')
    return values


def takes_settings(groups):
    """Decorate a function whose `**keywords` are settings.

    `inspect.signature` and `help` then list the settings after the other
    parameters of the function. groups: {title: settings}.
    """
    def decorate(function):
        signature = inspect.signature(function)
        own_parameters = [
            parameter for parameter in signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD]
        own_names = {parameter.name for parameter in own_parameters}
        doc_lines, setting_parameters = [], []
        for title, settings in groups.items():
            doc_lines += ['', f'{title[0].upper()}{title[1:]}:', '']
            for setting in settings:
                # 71 columns: `help` of a module indents a docstring by 8
                doc_lines += textwrap.wrap(
                    f'{setting.name}: {setting.help}'
                    + _bracketed_default(setting), 71,
                    subsequent_indent='    ', break_on_hyphens=False)
                # `finetune` has some settings as parameters, such as `task`
                if setting.name not in own_names:
                    setting_parameters.append(inspect.Parameter(
                        setting.name, inspect.Parameter.KEYWORD_ONLY,
                        default=setting.default, annotation=setting.type))
        function.__signature__ = signature.replace(
            parameters=[*own_parameters, *setting_parameters])
        function.__doc__ = (inspect.cleandoc(function.__doc__) + '\n'
                            + '\n'.join(doc_lines) + '\n')
        return function
    return decorate


def _bracketed_default(setting):
    """The defaults of both recipes, for `help`: ' [512; 64 in learn]'.

    A bool gives ' [True in learn]' or '', a setting without a default ''.
    """
    default = described_default(setting)
    if setting.learn is None:
        return f' [{default}]' if default else ''
    return (f' [True {default}]' if setting.kind is bool
            else f' [{default} in learn]')


def described_default(setting):
    """The defaults of both recipes, for tables and flags: '512; 64'.

    A bool gives 'in learn' or '', a setting without a default ''.
    """
    if setting.default is None or setting.kind is bool:
        return 'in learn' if setting.learn else ''
    if setting.learn is None:
        return f'{setting.default}'
    return f'{setting.default}; {setting.learn}'


def table(groups=GROUPS, default_heading='default; in `learn`'):
    """The table of settings in the manual, in Markdown.

    groups: as for `takes_settings`.
    """
    lines = [f'| setting | {default_heading} | |', '|---|---|---|']
    for title, settings in groups.items():
        lines.append(f'| *{title}* | | |')
        lines += [f'| `{setting.name}` | {described_default(setting)} | '
                  f'{setting.help} |' for setting in settings]
    return '\n'.join(lines) + '\n'


if __name__ == '__main__':
    print(table(), end='')
