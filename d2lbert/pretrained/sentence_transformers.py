"""What a folder of sentence-transformers says of one vector for a text.

Such a folder is that of a pretrained model with `modules.json` beside it:
the modules that its library runs one after another, read here for what they
do and never run.
"""
from pathlib import Path

from d2lbert.pretrained.pooling import POOLS, Pooling
from d2lbert.pretrained.tensor_files import PretrainedError, read_json

MODULES, PROMPTS = 'modules.json', 'config_sentence_transformers.json'
POOLING = '1_Pooling/config.json'

#: The folder of each kind of module.
PLACES = {'Transformer': '', 'Pooling': '1_Pooling',
          'Normalize': '2_Normalize'}

#: Lists of modules that are served.
SERVED = ['Transformer', 'Pooling'], ['Transformer', 'Pooling', 'Normalize']

#: The file of the first module, by the kinds of models it was called after.
LENGTHS = [f'sentence_{kind}_config.json' for kind in (
    'bert', 'roberta', 'distilbert', 'camembert', 'albert', 'xlm-roberta',
    'xlnet')]

#: A switch for each kind of pooling, before version 6 named it.
SWITCHES = {'pooling_mode_cls_token': 'cls',
            'pooling_mode_max_tokens': 'max',
            'pooling_mode_mean_tokens': 'mean',
            'pooling_mode_mean_sqrt_len_tokens': 'mean_sqrt_len_tokens',
            'pooling_mode_weightedmean_tokens': 'weightedmean',
            'pooling_mode_lasttoken': 'lasttoken'}


def load_pooling(folder):
    """The `Pooling` of a folder: as its modules.json says, else the mean.

    What that lists besides is the `refusal` of it, as such a folder is good
    for other things. Raises `PretrainedError` for files that are damaged.
    """
    folder = Path(folder)
    if not (folder / MODULES).is_file():
        return Pooling()
    modules = read_json(folder / MODULES, list)
    places, found = _places(modules, folder), {MODULES: modules}
    if list(places) in SERVED:
        for name in LENGTHS:
            path = folder / places['Transformer'] / name
            if path.is_file():
                found[name] = read_json(path)
                break
        found[POOLING] = read_json(folder / places['Pooling'] / 'config.json')
        if (folder / PROMPTS).is_file():
            found[PROMPTS] = read_json(folder / PROMPTS)
        # As they are written again, whatever the folders were called
        found[MODULES] = [dict(module, path=PLACES[kind])
                          for module, kind in zip(modules, places)]
    return pooling_of(found, folder)


def pooling_of(found, folder):
    """The `Pooling` that files describe; raises as `load_pooling` does.

    found: {name: what the JSON file of that name in `folder` holds}.
    """
    kinds = {MODULES: list, **{name: dict for name in (*LENGTHS, POOLING,
                                                       PROMPTS)}}
    if not isinstance(found, dict) or not all(
            isinstance(content, kinds.get(name, ()))
            for name, content in found.items()):
        raise PretrainedError(f'{folder} is damaged: its pooling is not that '
                              'of a folder of sentence-transformers')
    order = list(_places(found.get(MODULES, []), folder))
    if order not in SERVED or POOLING not in found:
        return Pooling(files=found, refusal=(
            f'{folder / MODULES} lists {", ".join(order) or "nothing"}, and '
            'only Transformer, Pooling and, last, Normalize are served: '
            'choose a pooling, as mean, to do without the others'))
    name = next((name for name in LENGTHS if name in found), LENGTHS[0])
    config = found.get(name, {})
    modes, with_prompt = _modes(found[POOLING], folder / POOLING)
    prompt = _prompt(found.get(PROMPTS, {}), folder / PROMPTS)
    refusal = ''
    if prompt and not with_prompt:
        refusal = (f'{folder} puts {prompt!r} before each text and leaves it '
                   'out of the pooling, which is not served: choose a '
                   'pooling, as mean, to have it counted')
    return Pooling(modes, 'Normalize' in order,
                   _length(config, folder / name), prompt,
                   bool(config.get('do_lower_case', False)), refusal, found)


def files_of(pooling, num_hiddens):
    """{name: JSON} of the files that describe a `Pooling`, {} of none.

    With them sentence-transformers computes the same vectors. num_hiddens:
    numbers of a token's vector. Raises `PretrainedError` where the folder
    that it comes from has modules that are not served.
    """
    if pooling is None or pooling == Pooling():
        return {}
    found = pooling.files
    if found is not None:
        before = pooling_of(found, Path())
        if before.refusal and POOLING not in found:
            raise PretrainedError(
                'the folder that this model comes from has more modules than '
                'Transformer, Pooling and Normalize: a copy without them '
                'would give other vectors, so none is written; set '
                'tokenizer.pooling = None to write the model alone')
        if before._replace(refusal='') == pooling._replace(refusal=''):
            return found
    return _described(pooling, num_hiddens)


def _described(pooling, num_hiddens):
    """The files of a `Pooling` that no folder holds."""
    kinds = ['Transformer', 'Pooling', *['Normalize'] * pooling.normalize]
    switched = [mode for mode in SWITCHES.values() if mode in pooling.modes]
    if list(pooling.modes) == switched:     # as all versions read it
        config = {'word_embedding_dimension': num_hiddens,
                  **{switch: mode in pooling.modes
                     for switch, mode in SWITCHES.items()}}
    else:
        config = {'embedding_dimension': num_hiddens,
                  'pooling_mode': list(pooling.modes)}
    found = {
        MODULES: [dict(idx=i, name=str(i), path=PLACES[kind],
                       type=f'sentence_transformers.models.{kind}')
                  for i, kind in enumerate(kinds)],
        LENGTHS[0]: dict(max_seq_length=pooling.max_len,
                         do_lower_case=pooling.lowercase),
        POOLING: dict(config, include_prompt=True)}
    if pooling.prompt:
        found[PROMPTS] = dict(prompts={'default': pooling.prompt},
                              default_prompt_name='default')
    return found


def _places(modules, folder):
    """{kind of module: its path} in their order."""
    places = {}
    for module in modules:
        if not (isinstance(module, dict) and isinstance(
                module.get('type'), str) and isinstance(
                    module.get('path', ''), str)):
            raise PretrainedError(f'{folder / MODULES} is damaged: each '
                                  'module has a type and a path; fetch it '
                                  'again')
        places[module['type'].rpartition('.')[2]] = module.get('path', '')
    return places


def _length(config, path):
    length = config.get('max_seq_length')
    if length is None or (isinstance(length, int) and length >= 1
                          and length is not True):
        return length
    raise PretrainedError(f'{path} is damaged: max_seq_length must be a '
                          f'number of tokens, not {length!r}; fetch it again')


def _modes(config, path):
    """The kinds of pooling, and whether a prompt counts in them."""
    modes = config.get('pooling_mode')
    if modes is None:
        # As their library: the mean where no switch is on
        modes = [mode for switch, mode in SWITCHES.items()
                 if config.get(switch)] or ['mean']
    named = [modes] if isinstance(modes, str) else modes
    if not isinstance(named, list) or not named or not all(
            isinstance(mode, str) and mode in POOLS for mode in named):
        raise PretrainedError(f'{path} names the pooling {modes!r}: known '
                              f'are {", ".join(POOLS)}')
    return tuple(named), config.get('include_prompt', True)


def _prompt(config, path):
    """What is put before each text where nothing else is asked for."""
    name, prompts = config.get('default_prompt_name'), config.get('prompts')
    if name is None:
        return ''
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(
        name, str) else None
    if not isinstance(prompt, str):
        raise PretrainedError(f'{path} is damaged: it has no prompt {name!r},'
                              ' which is its default; fetch it again')
    return prompt
