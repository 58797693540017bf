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
    return prose.write_tasks(tmp_path_factory.mktemp('data'))
