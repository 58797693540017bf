"""This module pools the token vectors (T, H) of a text to one vector (H,).

A folder of sentence-transformers has files with the settings of pooling.
`load_pooling` reads these files, and `files_of` makes them. N: the number of
texts. T: the number of tokens of a text. H: the size of a token vector.
"""
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as onp

from d2lbert.pretrained.tensor_files import PretrainedError, read_json

# Files of sentence-transformers: the list of modules, the prompts that are put
# before texts, and the settings of the module Pooling
MODULES, PROMPTS = 'modules.json', 'config_sentence_transformers.json'
POOLING = '1_Pooling/config.json'

#: {type of module: its folder}. A module is a step from a text to its vector.
MODULE_FOLDERS = {'Transformer': '', 'Pooling': '1_Pooling',
                  'Normalize': '2_Normalize'}

#: The supported lists of module types.
SUPPORTED = ['Transformer', 'Pooling'], ['Transformer', 'Pooling', 'Normalize']

#: Names of the file with the maximum number of tokens, for each type of model.
LENGTH_FILES = [f'sentence_{kind}_config.json' for kind in (
    'bert', 'roberta', 'distilbert', 'camembert', 'albert', 'xlm-roberta',
    'xlnet')]

#: {field: pooling mode}. Before version 6, sentence-transformers writes a
#: boolean field for each pooling mode.
SWITCHES = {'pooling_mode_cls_token': 'cls',
            'pooling_mode_max_tokens': 'max',
            'pooling_mode_mean_tokens': 'mean',
            'pooling_mode_mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
            'pooling_mode_weightedmean_tokens': 'weightedmean',
            'pooling_mode_lasttoken': 'lasttoken'}


def _weighted_mean(X):
    """The mean of X (T, H) with weights 1, 2, ..., T."""
    weights = onp.arange(1, len(X) + 1, dtype=X.dtype)[:, None]
    return (X * weights).sum(axis=0) / weights.sum()


#: {name of a mode in sentence-transformers: function from (T, H) to (H,)}.
#: Means add rows from first to last, as int8.cc does, for equal rounding.
POOLS = {'cls': lambda X: X[0],
         'mean': lambda X: X.sum(axis=0) / len(X),
         'max': lambda X: X.max(axis=0),
         'mean_sqrt_len_tokens': lambda X: X.sum(axis=0) / len(X) ** 0.5,
         'weightedmean': _weighted_mean,
         'lasttoken': lambda X: X[-1]}


class Pooling(NamedTuple):
    """The settings by which token vectors become one vector of a text.

    A tokenizer from a folder has the folder's `Pooling` as its `pooling`.
    """

    modes: tuple = ('mean',)        # names in POOLS; their vectors are joined
    normalize: bool = False         # scale vectors to length 1
    max_len: Optional[int] = None   # maximum number of tokens; None: no limit
    prompt: str = ''                # put before each text
    lowercase: bool = False         # lower-case texts before tokenizing
    refusal: str = ''               # error message if the folder's pooling is
                                    # not supported, or ''
    files: Optional[dict] = None    # {name: JSON} of the folder's files

    def __call__(self, X):
        """Pool token vectors X (T, H): (len(modes)*H,) float32."""
        vectors = [POOLS[mode](X) for mode in self.modes]
        return self.normalized(onp.concatenate(vectors)[None])[0]

    def normalized(self, vectors):
        """Pooled vectors (N, H) as float32, with length 1 if `normalize`."""
        if self.normalize:
            exact = vectors.astype('float64')
            # cumsum adds in order; a dot product's order depends on the CPU
            squares = (exact * exact).cumsum(axis=1)[:, -1:]
            vectors = exact / onp.maximum(onp.sqrt(squares), 1e-12)
        return onp.array(vectors, dtype='float32')

    def prepare(self, text):
        """Put the prompt before a text; lower-case both if `lowercase`."""
        text = self.prompt + text
        return text.lower() if self.lowercase else text


def choose_pooling(tokenizer, pooling, normalize):
    """Return the `Pooling` to use, and a function that prepares a text.

    pooling, normalize: arguments of `encode`. With pooling=None, the first
    result is None: token vectors are not pooled.
    """
    own = tokenizer.pooling or Pooling()
    if pooling is None:
        if normalize:
            raise ValueError('normalize=True is for one vector a text, which '
                             'pooling=None does not make')
        return None, own.prepare
    chosen = own
    if pooling == 'own':
        if own.refusal:
            raise ValueError(own.refusal)
    else:
        if pooling not in POOLS:
            raise ValueError(f'pooling must be own, {", ".join(POOLS)} or '
                             f'None, not {pooling!r}')
        chosen = own._replace(modes=(pooling,), normalize=False)
    if normalize is not None:
        chosen = chosen._replace(normalize=normalize)
    return chosen, own.prepare


def cosines(X, Y):
    """Cosine similarities of N vectors X and M vectors Y: (N, M) float32.

    X (N, H); Y (M, H). A vector of zeros has similarity 0 to all.
    """
    def unit(vectors):
        vectors = onp.asarray(vectors, 'float64')
        lengths = onp.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        return vectors / onp.where(lengths, lengths, 1)
    return (unit(X) @ unit(Y).T).astype('float32')


def load_pooling(folder):
    """Read the `Pooling` of a folder: the mean if it has no modules.json.

    Unsupported modules are no error, since the model has other uses: the
    `refusal` of the result names them. Raises `PretrainedError` for damaged
    files.
    """
    folder = Path(folder)
    if not (folder / MODULES).is_file():
        return Pooling()
    modules = read_json(folder / MODULES, list)
    module_paths, contents = _module_paths(modules, folder), {MODULES: modules}
    types, paths = [kind for kind, _ in module_paths], dict(module_paths)
    if types in SUPPORTED:
        for name in LENGTH_FILES:
            path = folder / paths['Transformer'] / name
            if path.is_file():
                contents[name] = read_json(path)
                break
        contents[POOLING] = read_json(
            folder / paths['Pooling'] / 'config.json')
        if (folder / PROMPTS).is_file():
            contents[PROMPTS] = read_json(folder / PROMPTS)
        # `save_pretrained` writes the modules to these folders
        contents[MODULES] = [dict(module, path=MODULE_FOLDERS[kind])
                             for module, kind in zip(modules, types)]
    return pooling_of(contents, folder)


def pooling_of(contents, folder):
    """The `Pooling` that files describe; raises `PretrainedError`.

    contents: {file name: its JSON}. folder: path of the folder, for messages.
    """
    # A file that is not listed here fits no type: ()
    json_types = {MODULES: list, **{
        name: dict for name in (*LENGTH_FILES, POOLING, PROMPTS)}}
    if not isinstance(contents, dict) or not all(
            isinstance(content, json_types.get(name, ()))
            for name, content in contents.items()):
        raise PretrainedError(f'{folder} is damaged: its pooling files are '
                              'not in the format of sentence-transformers')
    modules = [module_type for module_type, _
               in _module_paths(contents.get(MODULES, []), folder)]
    if modules not in SUPPORTED or POOLING not in contents:
        return Pooling(files=contents, refusal=(
            f'{folder / MODULES} lists {", ".join(modules) or "nothing"}, but '
            'only Transformer, Pooling and, last, Normalize are supported: '
            'choose a pooling, such as mean, to ignore the others'))
    length_file = next((name for name in LENGTH_FILES if name in contents),
                       LENGTH_FILES[0])
    length_config = contents.get(length_file, {})
    modes, with_prompt = _modes(contents[POOLING], folder / POOLING)
    prompt = _prompt(contents.get(PROMPTS, {}), folder / PROMPTS)
    refusal = ''
    if prompt and not with_prompt:
        refusal = (f'{folder} puts {prompt!r} before each text and excludes '
                   'it from the pooling, which is not supported: choose a '
                   'pooling, such as mean, to include it')
    return Pooling(modes, normalize='Normalize' in modules,
                   max_len=_length(length_config, folder / length_file),
                   prompt=prompt,
                   lowercase=bool(length_config.get('do_lower_case', False)),
                   refusal=refusal, files=contents)


def files_of(pooling, num_hiddens):
    """The files for a `Pooling`: {name: JSON}; {} for None and the mean.

    With these files sentence-transformers computes the same vectors.
    num_hiddens: H. Raises `PretrainedError` if the pooling came from a folder
    with unsupported modules.
    """
    if pooling is None or pooling == Pooling():
        return {}
    contents = pooling.files
    if contents is not None:
        original = pooling_of(contents, Path())
        # `load_pooling` reads POOLING only if all modules are supported
        if original.refusal and POOLING not in contents:
            raise PretrainedError(
                'the folder of this model has other modules than '
                'Transformer, Pooling and Normalize, and a copy without them '
                'would give different vectors: set tokenizer.pooling = None '
                'to write the model alone')
        # The original files, if `pooling` is as it was loaded
        if original._replace(refusal='') == pooling._replace(refusal=''):
            return contents
    return _new_files(pooling, num_hiddens)


def _new_files(pooling, num_hiddens):
    """New files for a `Pooling`, as its `files` are None or do not fit it."""
    modules = ['Transformer', 'Pooling', *['Normalize'] * pooling.normalize]
    # All versions of sentence-transformers read SWITCHES, but those fields
    # cannot store the modes in another order
    switched = [mode for mode in SWITCHES.values() if mode in pooling.modes]
    if list(pooling.modes) == switched:
        config = {'word_embedding_dimension': num_hiddens,
                  **{switch: mode in pooling.modes
                     for switch, mode in SWITCHES.items()}}
    else:
        config = {'embedding_dimension': num_hiddens,
                  'pooling_mode': list(pooling.modes)}
    contents = {
        MODULES: [dict(idx=i, name=str(i), path=MODULE_FOLDERS[kind],
                       type=f'sentence_transformers.models.{kind}')
                  for i, kind in enumerate(modules)],
        LENGTH_FILES[0]: dict(max_seq_length=pooling.max_len,
                              do_lower_case=pooling.lowercase),
        POOLING: dict(config, include_prompt=True)}
    if pooling.prompt:
        contents[PROMPTS] = dict(prompts={'default': pooling.prompt},
                                 default_prompt_name='default')
    return contents


def _module_paths(modules, folder):
    """[(type of module, its path)], in the order of modules.json."""
    found = []
    for module in modules:
        if not (isinstance(module, dict) and isinstance(
                module.get('type'), str) and isinstance(
                    module.get('path', ''), str)):
            raise PretrainedError(f'{folder / MODULES} is damaged: each '
                                  'module must have a type and a path; fetch '
                                  'it again')
        found.append((module['type'].rpartition('.')[2],
                      module.get('path', '')))
    return found


def _length(config, path):
    """The maximum number of tokens, or None; path: of config, for errors."""
    length = config.get('max_seq_length')
    if length is None or (isinstance(length, int) and length >= 1
                          and length is not True):
        return length
    raise PretrainedError(f'{path} is damaged: max_seq_length must be a '
                          f'number of tokens, not {length!r}; fetch it again')


def _modes(config, path):
    """The pooling modes, and True if the pooling includes the prompt.

    path: of `config`, for errors.
    """
    modes = config.get('pooling_mode')
    if modes is None:
        # The default of sentence-transformers is the mean
        modes = [mode for switch, mode in SWITCHES.items()
                 if config.get(switch)] or ['mean']
    mode_list = [modes] if isinstance(modes, str) else modes
    if not isinstance(mode_list, list) or not mode_list or not all(
            isinstance(mode, str) and mode in POOLS for mode in mode_list):
        raise PretrainedError(f'{path} has the unknown pooling {modes!r}: '
                              f'supported are {", ".join(POOLS)}')
    return tuple(mode_list), config.get('include_prompt', True)


def _prompt(config, path):
    """The default prompt of a text; path: of `config`, for errors."""
    name, prompts = config.get('default_prompt_name'), config.get('prompts')
    if name is None:
        return ''
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(
        name, str) else None
    if not isinstance(prompt, str):
        raise PretrainedError(f'{path} is damaged: its default prompt '
                              f'{name!r} is missing; fetch it again')
    return prompt
