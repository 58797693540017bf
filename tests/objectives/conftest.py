import pytest
from whole_texts import finished_run


@pytest.fixture(scope='session')
def clm_run(tmp_path_factory):
    return finished_run(tmp_path_factory, 'clm')


@pytest.fixture(scope='session')
def denoise_run(tmp_path_factory):
    return finished_run(tmp_path_factory, 'denoise')
