"""This module pools the token vectors (T, H) of a text to one vector.

A folder of sentence-transformers has JSON files with the settings of pooling.
T: the number of tokens of a text. H: the size of a token vector.
"""
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as onp

from d2lbert.pretrained.tensor_files import PretrainedError, read_json

# Files of sentence-transformers. Its modules are the steps from a text to the
# vector of the text
MODULES_FILE = 'modules.json'
PROMPTS_FILE = 'config_sentence_transformers.json'
POOLING_FILE = '1_Pooling/config.json'

#: {type of module: its folder in a model that this package writes}
MODULE_FOLDERS = {'Transformer': '', 'Pooling': '1_Pooling',
                  'Normalize': '2_Normalize'}

SUPPORTED_SEQUENCES = (['Transformer', 'Pooling'],
                       ['Transformer', 'Pooling', 'Normalize'])

#: The file with max_seq_length and do_lower_case has one of these names.
LENGTH_FILES = [f'sentence_{kind}_config.json' for kind in (
    'bert', 'roberta', 'distilbert', 'camembert', 'albert', 'xlm-roberta',
    'xlnet')]

#: {boolean field: pooling mode}, as sentence-transformers before version 6
#: writes them.
SWITCHES = {'pooling_mode_cls_token': 'cls',
            'pooling_mode_max_tokens': 'max',
            'pooling_mode_mean_tokens': 'mean',
            'pooling_mode_mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
            'pooling_mode_weightedmean_tokens': 'weightedmean',
            'pooling_mode_lasttoken': 'lasttoken'}


def _weighted_mean(X):
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
    """The settings for pooling the token vectors of a text to one vector."""

    modes: tuple = ('mean',)        # names in POOLS; vectors are concatenated
    normalize: bool = False         # scale vectors to length 1
    max_len: Optional[int] = None   # maximum number of tokens; None: no limit
    prompt: str = ''                # put before each text
    lowercase: bool = False         # lower-case the prompt and the text
    refusal: str = ''               # error message if the folder's pooling is
                                    # not supported, or ''
    files: Optional[dict] = None    # {name: content} of the folder's files

    def __call__(self, X):
        """Pool token vectors X (T, H): (len(modes)*H,) float32."""
        vectors = [POOLS[mode](X) for mode in self.modes]
        return self.normalized(onp.concatenate(vectors)[None])[0]

    def normalized(self, vectors):
        """Pooled vectors (N, K) as float32, of length 1 if `normalize`."""
        if self.normalize:
            vectors = vectors.astype('float64')
            # cumsum adds in order; a dot product's order depends on the CPU
            sums_of_squares = (vectors * vectors).cumsum(axis=1)[:, -1:]
            lengths = onp.sqrt(sums_of_squares)
            # A vector of zeros stays as it is
            vectors = vectors / onp.maximum(lengths, 1e-12)
        return onp.array(vectors, dtype='float32')

    def prepare(self, text):
        text = self.prompt + text
        return text.lower() if self.lowercase else text


def choose_pooling(tokenizer, pooling, normalize):
    """Return the `Pooling` to use and `prepare` of the tokenizer's `Pooling`.

    pooling, normalize: as for `encoding.encode`. With pooling=None, the first
    result is None.
    """
    own = tokenizer.pooling or Pooling()
    if pooling is None:
        if normalize:
            raise ValueError('normalize=True is for one vector a text, but '
                             'pooling=None returns one for each token')
        return None, own.prepare
    if pooling == 'own':
        if own.refusal:
            raise ValueError(own.refusal)
        chosen = own
    elif isinstance(pooling, str) and pooling in POOLS:
        chosen = own._replace(modes=(pooling,), normalize=False)
    else:
        raise ValueError(f'pooling must be own, {", ".join(POOLS)} or None, '
                         f'not {pooling!r}')
    if normalize is not None:
        chosen = chosen._replace(normalize=normalize)
    return chosen, own.prepare


def cosines(X, Y):
    """Cosine similarities of vectors X (N, H) and Y (M, H): (N, M) float32.

    An array (H,) is one vector. A vector of zeros has similarity 0 to all.
    """
    X, Y = (onp.atleast_2d(onp.asarray(A, 'float64')) for A in (X, Y))
    if X.ndim != 2 or Y.ndim != 2 or X.shape[1] != Y.shape[1]:
        raise ValueError(f'vectors of shapes {X.shape} and {Y.shape} cannot '
                         'be compared: give an array (N, H) and an array '
                         '(M, H) with the same H')

    def with_length_1(vectors):
        lengths = onp.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        return vectors / onp.where(lengths, lengths, 1)
    return (with_length_1(X) @ with_length_1(Y).T).astype('float32')


def load_pooling(folder):
    """Read the `Pooling` of a folder: the mean if it has no modules.json.

    If the pooling is not supported, the result has a `refusal`. This is no
    error, since the model has other uses. Raises `PretrainedError` for damaged
    files and unknown pooling modes.
    """
    folder = Path(folder)
    if not (folder / MODULES_FILE).is_file():
        return Pooling()
    modules = read_json(folder / MODULES_FILE, list)
    types, paths = _types_and_paths(modules, folder)
    contents = {MODULES_FILE: modules}
    if types in SUPPORTED_SEQUENCES:
        transformer_path, pooling_path = paths[:2]
        for name in LENGTH_FILES:
            path = folder / transformer_path / name
            if path.is_file():
                contents[name] = read_json(path)
                break
        contents[POOLING_FILE] = read_json(
            folder / pooling_path / 'config.json')
        if (folder / PROMPTS_FILE).is_file():
            contents[PROMPTS_FILE] = read_json(folder / PROMPTS_FILE)
        # `save_pretrained` writes the modules to MODULE_FOLDERS
        contents[MODULES_FILE] = [dict(module, path=MODULE_FOLDERS[type_])
                                  for module, type_ in zip(modules, types)]
    return pooling_of(contents, folder)


def pooling_of(contents, folder):
    """The `Pooling` that files describe; raises `PretrainedError`.

    contents: {file name: content}. folder: path of the folder, for messages.
    """
    json_types = {MODULES_FILE: list, **dict.fromkeys(
        (*LENGTH_FILES, POOLING_FILE, PROMPTS_FILE), dict)}
    if not isinstance(contents, dict) or not all(
            name in json_types and isinstance(content, json_types[name])
            for name, content in contents.items()):
        raise PretrainedError(f'{folder} is damaged: its pooling files are '
                              'not in the format of sentence-transformers')
    types, _ = _types_and_paths(contents.get(MODULES_FILE, []), folder)
    if types not in SUPPORTED_SEQUENCES or POOLING_FILE not in contents:
        return Pooling(files=contents, refusal=(
            f'the modules of {folder} are {", ".join(types) or "none"}, '
            'but only Transformer, Pooling and an optional Normalize are '
            'supported, in this order: choose a pooling, such as mean, '
            'instead'))
    length_file = next((name for name in LENGTH_FILES if name in contents),
                       LENGTH_FILES[0])
    length_config = contents.get(length_file, {})
    modes, includes_prompt = _read_modes(contents[POOLING_FILE],
                                         folder / POOLING_FILE)
    prompt = _read_prompt(contents.get(PROMPTS_FILE, {}),
                          folder / PROMPTS_FILE)
    refusal = ''
    if prompt and not includes_prompt:
        refusal = (f'{folder} puts {prompt!r} before each text and excludes '
                   'it from the pooling, which is not supported: choose a '
                   'pooling, such as mean, to include it')
    return Pooling(modes, normalize='Normalize' in types,
                   max_len=_read_max_len(length_config, folder / length_file),
                   prompt=prompt,
                   lowercase=bool(length_config.get('do_lower_case', False)),
                   refusal=refusal, files=contents)


def files_of(pooling, num_hiddens):
    """The contents of files for a `Pooling`: {name: content}.

    With these files sentence-transformers computes the same vectors. None and
    `Pooling()` need no files. num_hiddens: H. Raises `PretrainedError` if the
    pooling came from a folder with unsupported modules.
    """
    if pooling is None or pooling == Pooling():
        return {}
    contents = pooling.files
    if contents is not None:
        original = pooling_of(contents, Path())
        # `load_pooling` reads POOLING_FILE only if all modules are supported
        if POOLING_FILE not in contents:
            raise PretrainedError(
                'the folder of this model has other modules than '
                'Transformer, Pooling and Normalize, and a copy without them '
                'would give different vectors: set tokenizer.pooling = None '
                'to write the model alone')
        # Unchanged since loading; `refusal` contains the path of the folder
        if original._replace(refusal='') == pooling._replace(refusal=''):
            return contents
    return _new_files(pooling, num_hiddens)


def _new_files(pooling, num_hiddens):
    types = ['Transformer', 'Pooling']
    if pooling.normalize:
        types.append('Normalize')
    # All versions of sentence-transformers read SWITCHES, but these fields
    # can only store modes in the order of SWITCHES
    ordered_modes = [mode for mode in SWITCHES.values()
                     if mode in pooling.modes]
    if list(pooling.modes) == ordered_modes:
        config = {'word_embedding_dimension': num_hiddens,
                  **{switch: mode in pooling.modes
                     for switch, mode in SWITCHES.items()}}
    else:
        config = {'embedding_dimension': num_hiddens,
                  'pooling_mode': list(pooling.modes)}
    contents = {
        MODULES_FILE: [dict(idx=i, name=str(i), path=MODULE_FOLDERS[type_],
                            type=f'sentence_transformers.models.{type_}')
                       for i, type_ in enumerate(types)],
        LENGTH_FILES[0]: dict(max_seq_length=pooling.max_len,
                              do_lower_case=pooling.lowercase),
        POOLING_FILE: dict(config, include_prompt=True)}
    if pooling.prompt:
        contents[PROMPTS_FILE] = dict(prompts={'default': pooling.prompt},
                                      default_prompt_name='default')
    return contents


def _types_and_paths(modules, folder):
    """The types of modules, and the paths of their folders: two lists."""
    types, paths = [], []
    for module in modules:
        if not (isinstance(module, dict)
                and isinstance(module.get('type'), str)
                and isinstance(module.get('path', ''), str)):
            raise PretrainedError(f'{folder / MODULES_FILE} is damaged: each '
                                  'module must have a type and a path; fetch '
                                  'it again')
        # The type is the dotted name of a class
        types.append(module['type'].rpartition('.')[2])
        paths.append(module.get('path', ''))
    return types, paths


def _read_max_len(length_config, path):
    max_len = length_config.get('max_seq_length')
    # Not isinstance, since True is an int
    if max_len is None or (type(max_len) is int and max_len >= 1):
        return max_len
    raise PretrainedError(f'{path} is damaged: max_seq_length must be a '
                          f'number of tokens, not {max_len!r}; fetch it again')


def _read_modes(pooling_config, path):
    """The pooling modes, and True if the pooling includes the prompt."""
    modes = pooling_config.get('pooling_mode')
    if modes is None:
        # The default of sentence-transformers is the mean
        modes = [mode for switch, mode in SWITCHES.items()
                 if pooling_config.get(switch)] or ['mean']
    mode_list = [modes] if isinstance(modes, str) else modes
    if not isinstance(mode_list, list) or not mode_list or not all(
            isinstance(mode, str) and mode in POOLS for mode in mode_list):
        raise PretrainedError(f'{path} has the unknown pooling {modes!r}: '
                              f'supported are {", ".join(POOLS)}')
    return tuple(mode_list), pooling_config.get('include_prompt', True)


def _read_prompt(prompts_config, path):
    name = prompts_config.get('default_prompt_name')
    prompts = prompts_config.get('prompts')
    if name is None:
        return ''
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(
        name, str) else None
    if not isinstance(prompt, str):
        raise PretrainedError(f'{path} is damaged: its default prompt '
                              f'{name!r} is missing; fetch it again')
    return prompt
