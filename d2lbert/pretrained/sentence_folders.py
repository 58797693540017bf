"""What a folder of sentence-transformers says of one vector for a text.

Such a folder is that of a pretrained model with `modules.json` beside it:
the modules that its library runs one after another, read here for what they
do and never run.
"""
from pathlib import Path

from d2lbert.pooling import POOLS, Pooling
from d2lbert.pretrained.storage import PretrainedError, read_json

MODULES, PROMPTS = 'modules.json', 'config_sentence_transformers.json'

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
    kinds = {}
    for module in read_json(folder / MODULES, list):
        if not (isinstance(module, dict) and isinstance(
                module.get('type'), str) and isinstance(
                    module.get('path', ''), str)):
            raise PretrainedError(f'{folder / MODULES} is damaged: each '
                                  'module has a type and a path; fetch it '
                                  'again')
        kinds[module['type'].rpartition('.')[2]] = module.get('path', '')
    order = list(kinds)
    if order not in (['Transformer', 'Pooling'],
                     ['Transformer', 'Pooling', 'Normalize']):
        return Pooling(refusal=(
            f'{folder / MODULES} lists {", ".join(order) or "nothing"}, and '
            'only Transformer, Pooling and, last, Normalize are served: '
            'choose a pooling, as mean, to do without the others'))
    config = {}
    for name in LENGTHS:
        path = folder / kinds['Transformer'] / name
        if path.is_file():
            config = read_json(path)
            break
    modes, with_prompt = _modes(folder / kinds['Pooling'] / 'config.json')
    prompt = _prompt(folder / PROMPTS)
    refusal = ''
    if prompt and not with_prompt:
        refusal = (f'{folder} puts {prompt!r} before each text and leaves it '
                   'out of the pooling, which is not served: choose a '
                   'pooling, as mean, to have it counted')
    return Pooling(modes, 'Normalize' in order, _length(config, path), prompt,
                   bool(config.get('do_lower_case', False)), refusal)


def _length(config, path):
    length = config.get('max_seq_length')
    if length is None or (isinstance(length, int) and length >= 1
                          and length is not True):
        return length
    raise PretrainedError(f'{path} is damaged: max_seq_length must be a '
                          f'number of tokens, not {length!r}; fetch it again')


def _modes(path):
    """The kinds of pooling, and whether a prompt counts in them."""
    config = read_json(path)
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


def _prompt(path):
    """What is put before each text where nothing else is asked for."""
    if not path.is_file():
        return ''
    config = read_json(path)
    name, prompts = config.get('default_prompt_name'), config.get('prompts')
    if name is None:
        return ''
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    if not isinstance(prompt, str):
        raise PretrainedError(f'{path} is damaged: it has no prompt {name!r},'
                              ' which is its default; fetch it again')
    return prompt
