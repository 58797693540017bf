"""The net of a family, from the `config` of a folder or a run."""
from d2lbert.bert import BERTModel
from d2lbert.pretrained.families.bart import BARTModel
from d2lbert.pretrained.families.family import family_of


def net_of(config):
    """Construct the `BERTModel` or `BARTModel` of a `config`."""
    if not isinstance(config, dict):
        raise TypeError('the config of a model must be a dict of arguments, '
                        f'not {config!r}')
    generates = family_of(config).generates
    return (BARTModel if generates else BERTModel)(**config)
