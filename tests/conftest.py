"""Fixtures shared by the tests."""
import contextlib
import logging
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as onp
import pytest

# Before d2l: this makes `import mxnet` work
from d2lbert import kernels
from d2lbert.kernels import build, ops
from d2lbert.kernels import draw as draw_cc
from d2lbert.machine import cache as kept
from d2lbert.machine import terminal


def import_book():
    """The book's own package (d2l 0.17.6), or None where it is missing.

    Its `d2l/mxnet.py` imports pandas, requests and IPython for chapters
    that are not about BERT; empty modules stand in for those, for as long
    as it is imported.
    """
    stand_ins = []
    for name in ('pandas', 'requests', 'IPython'):
        try:
            __import__(name)
        except ImportError:
            module = types.ModuleType(name)
            sys.modules[name] = module
            stand_ins.append(name)
            if name == 'IPython':
                module.display = types.ModuleType('IPython.display')
                sys.modules['IPython.display'] = module.display
                stand_ins.append('IPython.display')
    try:
        from d2l import mxnet as book
    except ImportError:
        return None
    finally:
        for name in stand_ins:
            del sys.modules[name]
    return book


#: Fixtures that compare with another library, or real weights, where an
#: environment variable names them; what the library said of small models is
#: kept in files, with which other tests compare.
NEEDED = {'ask': 'D2LBERT_PEERS', 'peers_python': 'D2LBERT_PEERS',
          'released': 'D2LBERT_WEIGHTS'}


def pytest_collection_modifyitems(config, items):
    """Leave out tests whose other library is not named."""
    def is_lacking(item):
        return any(not os.environ.get(NEEDED[name])
                   for name in NEEDED.keys() & set(item.fixturenames))
    out = [item for item in items if is_lacking(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if not is_lacking(item)]


@pytest.fixture(scope='session')
def peers_python():
    """The Python in D2LBERT_PEERS, which has transformers and others."""
    return os.environ['D2LBERT_PEERS']


@pytest.fixture(scope='session')
def book():
    module = import_book()
    if module is None:
        pytest.skip("the book's package is not here: "
                    'pip install --no-deps d2l==0.17.6')
    return module


@pytest.fixture(scope='session')
def wiki_dir():
    folder = Path(os.environ.get('D2LBERT_DATA', ''), 'wikitext-2')
    if not (os.environ.get('D2LBERT_DATA')
            and (folder / 'wiki.train.tokens').is_file()):
        pytest.skip('D2LBERT_DATA does not name a folder with wikitext-2/')
    return folder


@pytest.fixture(scope='session', autouse=True)
def cache(tmp_path_factory):
    """A cache of the tests' own, but for the compiled kernels."""
    folder = tmp_path_factory.mktemp('cache')
    with contextlib.suppress(build.BuildError, OSError):
        (folder / 'kernels').symlink_to(kept.folder('kernels').resolve(),
                                        target_is_directory=True)
        # Now, so that no test sees the line that says so
        kernels.load()
        draw_cc.DRAW.get()
    # For the fixtures of modules, too, which come before `elsewhere`
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('D2LBERT_CACHE', str(folder))
        yield folder


@pytest.fixture(scope='session', autouse=True)
def standard_error():
    """Let warnings reach standard error, as in a program without logging.

    pytest gives the root logger a handler, which keeps Python from that.
    """
    class Handler(logging.Handler):
        def emit(self, record):
            print(record.getMessage(), file=sys.stderr)
    terminal.LOG.addHandler(Handler(logging.WARNING))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, cache):
    """Let no test leave files in the checkout or in the user's cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('D2LBERT_CACHE', str(cache))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of this test's own, which is on: its folder."""
    folder = tmp_path / 'cache'
    monkeypatch.setattr(kept, 'root', lambda: folder)
    monkeypatch.setattr(kept, 'enabled', lambda: True)
    return folder


@pytest.fixture(scope='session')
def compiler(tmp_path_factory):
    """Skips where nothing can be compiled; gives the source of a trifle."""
    source = tmp_path_factory.mktemp('source') / 'seven.cc'
    source.write_text('extern "C" int seven() { return 7; }\n')
    try:
        build.library('seven', [source])
    except build.BuildError as error:
        pytest.skip(f'no fused operators here: {error}')
    return source


@pytest.fixture(autouse=True)
def ctrl_c():
    """Let Ctrl-C be heeded, as tests of it need, and what they start.

    It is ignored where the tests run behind nohup or a script's `&`.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_process_left(monkeypatch):
    """Kill what a test has started and, because it failed, not ended."""
    started, init = [], subprocess.Popen.__init__

    def record(process, *args, **kwargs):
        init(process, *args, **kwargs)      # only what could be started
        started.append((process, kwargs.get('start_new_session')))
    monkeypatch.setattr(subprocess.Popen, '__init__', record)
    yield
    for process, has_group in started:
        if process.poll() is None:
            if has_group:
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()


@pytest.fixture(params=['kernels', 'plain'])
def path(request, monkeypatch):
    """Run a test on the compiled operators, and again on Gluon's own."""
    if request.param == 'plain':
        monkeypatch.setattr(kernels, 'enabled', lambda *arrays: False)
    return request.param


@pytest.fixture
def rows(monkeypatch):
    """The number of rows of each matrix product of the operators, as a list.
    """
    seen, within = [], []
    for name, layers in dict(dense=1, joined_dense=1, self_attention=2,
                             feed_forward=2).items():
        def spy(X, *args, of=getattr(ops, name), layers=layers, **kwargs):
            if not within:      # an operator may consist of others
                seen.extend([onp.prod(X.shape[:-1])] * layers)
            within.append(of)
            try:
                return of(X, *args, **kwargs)
            finally:
                within.pop()
        monkeypatch.setattr(ops, name, spy)
    return seen


@pytest.fixture
def draw():
    """A function that draws float32 NumPy arrays of a given shape."""
    rng = onp.random.RandomState(0)
    return lambda *shape: rng.normal(size=shape).astype('float32')


@pytest.fixture
def compiled():
    """Skips where texts are not cut and drawn from in C++."""
    try:
        library = draw_cc.library()
    except kernels.BuildError:
        library = None
    if library is None:
        pytest.skip('no compiled code here: no compiler, or switched off')


@pytest.fixture
def plain(monkeypatch):
    """Call it to cut and draw without the compiled code from there on."""
    def switch():
        monkeypatch.setattr(draw_cc, 'library', lambda: None)
    return switch
