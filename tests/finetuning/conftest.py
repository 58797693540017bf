"""A small model and the files of tasks, made once."""
import models
import prose
import pytest


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
    """The folder of a checkpoint of our own making."""
    return models.write_folder(tmp_path_factory.mktemp('model') / 'small')


@pytest.fixture(scope='session')
def data(tmp_path_factory):
    """{task: the folder of its files}."""
    root = tmp_path_factory.mktemp('data')
    found = {task: prose.glue(root, task, 40)
             for task in ('sst2', 'stsb', 'rte')}
    for seed, part in enumerate(('train', 'dev')):
        prose.conll(root / 'tag' / f'{part}.conll', prose.tagged(40, seed))
        prose.write_squad(root / 'span' / f'{part}.json', num=40, seed=seed,
                          impossible=0.2)
    return dict(found, tag=root / 'tag', span=root / 'span')
