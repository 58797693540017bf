"""The changes to MXNet's wheel, on a small wheel and on the installed one."""
import ast
import base64
import hashlib
import importlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest

from d2lbert.machine import cache, hardware, mxnet_compat, mxnet_wheel

CHANGED = any(map(mxnet_wheel.is_changed, hardware.mxnet_folders()))
needs_changed = pytest.mark.skipif(
    not CHANGED, reason='the installed MXNet is the stock one')

#: The least that has a place for every change
STOCK = {
    'mxnet/__init__.py': '',
    'mxnet/libmxnet.so': 'a library\n' * 1000,
    'mxnet/base.py': 'import ctypes\n'
                     'lib = ctypes.CDLL(lib_path[0], ctypes.RTLD_LOCAL)\n',
    'mxnet/util.py': 'import logging\n'
                     'def f():\n    import numpy as _np\n'
                     "    logging.info('on')\n",
    'mxnet/numpy_op_fallback.py': 'from distutils.version import '
                                  'StrictVersion\nimport numpy as np\n',
    'mxnet/_ctypes/ndarray.py': 'import ctypes\n'
                                'x = [str(s) for s in vals]\n',
    'mxnet/symbol/symbol.py': 'import ctypes\n'
                               "    attr['__shape__'] = str(shape)\n",
    'mxnet/numpy/multiarray.py':
        'def as_in_context(self, context):\n'
        "        warnings.warn('ndarray.as_in_context has been renamed to'\n"
        "                      ' ndarray.as_in_ctx', DeprecationWarning)\n"
        '        return self\n',
    'mxnet/gluon/block.py': 'import copy\n'
                            '            self._reg_params[name] = value\n',
    'mxnet/tools/measure.py': 'import numpy as np\n',
    'mxnet-1.9.1.dist-info/METADATA':
        'Metadata-Version: 2.1\nName: mxnet\nVersion: 1.9.1\n'
        'Requires-Dist: numpy (<2.0.0,>1.16.0)\n'
        'Requires-Dist: requests (<3,>=2.20.0)\n'
        'Requires-Dist: graphviz (<0.9.0,>=0.8.1)\n\nimport numpy\n',
    'mxnet-1.9.1.dist-info/WHEEL':
        'Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\n'
        'Tag: py3-none-any\n',
}
NAME = 'mxnet-1.9.1-py3-none-any.whl'


def digest(data):
    return 'sha256=' + base64.urlsafe_b64encode(
        hashlib.sha256(data).digest()).rstrip(b'=').decode()


def write_stock(folder, members=STOCK):
    path = folder / NAME
    record = [f'{name},{digest(text.encode())},{len(text)}\n'
              for name, text in members.items()]
    with zipfile.ZipFile(path, 'w') as archive:
        for name, text in members.items():
            archive.writestr(name, text)
        archive.writestr('mxnet-1.9.1.dist-info/RECORD', ''.join(record)
                         + 'mxnet-1.9.1.dist-info/RECORD,,\n')
    return path


@pytest.fixture
def changed(tmp_path):
    """{name: bytes} of a small wheel after all changes."""
    target = tmp_path / 'changed.whl'
    mxnet_wheel.change_wheel(write_stock(tmp_path), target)
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_record_holds_every_file_with_its_digest(changed):
    info = f'mxnet-{mxnet_wheel.version()}.dist-info'
    rows = [line.rsplit(',', 2)
            for line in changed[f'{info}/RECORD'].decode().splitlines()]
    assert sorted(name for name, _, _ in rows) == sorted(changed)
    for name, said, size in rows:
        if name != f'{info}/RECORD':
            assert said == digest(changed[name])
            assert int(size) == len(changed[name])


def test_the_metadata_has_the_new_version_and_no_upper_bounds(changed):
    info = f'mxnet-{mxnet_wheel.version()}.dist-info'
    text = changed[f'{info}/METADATA'].decode()
    assert f'Version: {mxnet_wheel.version()}\n' in text
    assert re.findall('Requires-Dist: (.+)', text) == [
        'numpy (>=1.17)', 'requests (>=2.20)', 'graphviz (>=0.8.1)']
    assert text.endswith('\n\nimport numpy\n')


def test_code_is_changed_and_libraries_and_tools_are_not(changed):
    def text(name):
        return changed[f'mxnet/{name}'].decode()
    for name in ('libmxnet.so', 'tools/measure.py', '__init__.py'):
        assert text(name) == STOCK[f'mxnet/{name}']
    assert '    from mxnet._compat import numpy as _np\n' in text('util.py')
    assert "logging.getLogger('mxnet').info('on')" in text('util.py')
    assert text('numpy_op_fallback.py') == (
        'from mxnet._compat import StrictVersion\n'
        'from mxnet._compat import numpy as np\n')
    assert 'parameter_string(s) for s in' in text('_ctypes/ndarray.py')
    assert '= parameter_string(shape)\n' in text('symbol/symbol.py')
    assert text('numpy/multiarray.py') == (
        'def as_in_context(self, context):\n        return self\n')
    assert 'load_library(lib_path[0])' in text('base.py')
    assert text('gluon/block.py').endswith(
        '            self._reg_params[name] = value\n'
        '            adopt_parameter(self, name, value)\n')
    for source, name in mxnet_wheel.ADDED.items():
        module = changed[f'mxnet/{name}']
        assert module == mxnet_wheel.module_bytes(source)
        assert b'd2lbert.' not in (
            b''.join(re.findall(rb'(?m)^ *(?:from|import) .*', module)))


@pytest.mark.parametrize('name', [
    name for name in STOCK if name.endswith('.py') and name not in (
        'mxnet/__init__.py', 'mxnet/tools/measure.py', 'mxnet/util.py')])
def test_a_wheel_without_a_place_for_a_change_is_refused(tmp_path, name):
    path = write_stock(tmp_path, {**STOCK, name: '# other code\n'})
    with pytest.raises(mxnet_wheel.WheelError, match='is not found in it'):
        mxnet_wheel.change_wheel(path, tmp_path / 'changed.whl')


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    for name in list(os.environ):
        if name.startswith(('PIP_', 'UV_')):
            monkeypatch.delenv(name)
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    return tmp_path / 'cache'


@pytest.fixture
def links(tmp_path, monkeypatch):
    """A folder with a small stock wheel, which pip searches."""
    folder = tmp_path / 'links'
    folder.mkdir()
    write_stock(folder)
    monkeypatch.setenv('PIP_FIND_LINKS', str(folder))
    return folder


def test_a_wheel_is_made_from_a_folder_and_kept(own_cache, links, capsys):
    made = mxnet_wheel.find_or_make('mxnet')
    assert made.parent == own_cache / 'wheels'
    assert made.name == NAME.replace('1.9.1', mxnet_wheel.version())
    assert 'downloading mxnet==1.9.1' in capsys.readouterr().err
    (links / NAME).unlink()
    assert mxnet_wheel.find_or_make('mxnet') == made
    assert not capsys.readouterr().err
    assert [entry.paths for entry in cache.entries(['wheels'])] == [(made,)]


def test_a_damaged_wheel_in_the_cache_is_made_again(own_cache, links):
    made = mxnet_wheel.find_or_make('mxnet')
    whole = made.read_bytes()
    made.write_bytes(whole[:100])
    assert mxnet_wheel.find_or_make('mxnet') == made
    assert made.read_bytes() == whole


def test_without_a_cache_the_wheel_is_a_temporary_file(
        own_cache, links, monkeypatch, tmp_path):
    monkeypatch.setenv('D2LBERT_CACHE', 'off')
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    made = mxnet_wheel.find_or_make('mxnet')
    assert made.is_file() and tmp_path in made.parents
    assert not own_cache.exists()


def test_a_failed_download_of_the_wheel_names_the_remedy(own_cache):
    with pytest.raises(mxnet_wheel.WheelError) as refused:
        mxnet_wheel.find_or_make('mxnet')
    said = str(refused.value)
    assert said.startswith('pip could not download mxnet==1.9.1 (')
    assert 'PIP_INDEX_URL' in said and 'PIP_FIND_LINKS' in said
    assert '\n' not in said
    assert not [*(own_cache / 'wheels').iterdir()]


def test_settings_of_uv_are_given_to_pip():
    settings = mxnet_wheel._pip_environ({
        'UV_DEFAULT_INDEX': 'https://index.example/simple',
        'UV_INDEX': 'own=https://own.example/a,https://own.example/b',
        'UV_FIND_LINKS': '/wheels', 'UV_OFFLINE': '1', 'PIP_TARGET': '/x',
        'SSL_CERT_FILE': '/a,  b.pem'})
    assert settings['PIP_INDEX_URL'] == 'https://index.example/simple'
    assert settings['PIP_EXTRA_INDEX_URL'] == (
        'https://own.example/a https://own.example/b')
    assert settings['PIP_FIND_LINKS'] == '/wheels'
    assert settings['PIP_NO_INDEX'] == '1'
    assert settings['PIP_CERT'] == '/a,  b.pem'
    assert 'PIP_TARGET' not in settings
    assert mxnet_wheel._pip_environ({
        'PIP_INDEX_URL': 'a', 'UV_INDEX_URL': 'b'})['PIP_INDEX_URL'] == 'a'


# Names that MXNet's modules import

INT, FLOAT = numpy.int64(3), numpy.float32(0.1)


@pytest.mark.parametrize('value, text', [
    ((INT,), '(3,)'), ((INT, 4), '(3, 4)'), ([INT, [FLOAT]], '[3, [0.1]]'),
    (((numpy.int32(-1), 2), (None, True)), '((-1, 2), (None, True))'),
    ((), '()'), ([], '[]'), (INT, '3'), (FLOAT, '0.1'), ('a', 'a'),
    (['a', numpy.bool_(True)], "['a', True]"), (None, 'None'),
    (numpy.dtype('float32'), 'float32'), (1e-5, '1e-05')])
def test_parameters_are_written_as_numpy_1_writes_them(value, text):
    assert mxnet_compat.parameter_string(value) == text


def test_old_names_equal_names_of_numpy_1():
    np, x = mxnet_compat.numpy, numpy.array([[3., 1.], [2., 4.]])
    assert np.bool is bool and np.NINF == -numpy.inf and np.PZERO == 0
    assert np.product(x) == 24 and np.sometrue(x) and np.alltrue(x)
    assert np.in1d([1, 5], [5]).tolist() == [False, True]
    assert np.msort(x).tolist() == [[2, 1], [3, 4]]
    assert np.trapz([1, 2, 3]) == 4 and np.round_(1.26, 1) == 1.3
    assert np.row_stack([x, x]).shape == (4, 2)
    assert np.linalg is numpy.linalg and np.ndarray is numpy.ndarray
    assert not hasattr(np, 'no_such_name')
    if int(numpy.__version__.split('.')[0]) > 1:
        with pytest.raises(AttributeError, match='has no npv'):
            np.npv(0.1, [1])


def test_versions_compare_by_their_numbers():
    version = mxnet_compat.LooseVersion
    assert version('1.17') >= version('1.9.1')
    assert version('2.5.0rc1') >= version('2.5')
    assert not version('1.9') >= version('1.17')


# The installed MXNet

SNAPSHOT = '''
import builtins, copyreg, ctypes, decimal, gc, locale, logging, os, random
import resource, signal, socket, sys, threading, warnings
{first}
import numpy, numpy.fft, numpy.random, numpy.testing

def openmp():
    # The threads of a library's loops, in each OpenMP that is loaded
    paths = {{line.split()[-1] for line in open('/proc/self/maps')
             if 'libgomp' in line or 'libiomp' in line}}
    return {{path: ctypes.CDLL(path).omp_get_max_threads()
            for path in sorted(paths & known)}}

def rounding():
    # Subnormal numbers, and the direction in which sums are rounded
    return [5e-324 * one, (1e16 + one).hex(), (one / 10).hex()]

def snapshot():
    libc, actions = ctypes.CDLL(None), {{}}
    for number in signal.valid_signals():
        action = ctypes.create_string_buffer(256)
        libc.sigaction(int(number), None, action)
        actions[int(number)] = action.raw[:8]     # the handler
    os.umask(os.umask(0o22))
    logger = logging.root.manager.loggerDict
    arrays = [numpy.array([0.1, 1e-9, 3]), numpy.int64(3), numpy.float32(0.1)]
    return {{
        'numpy': {{(module.__name__, name): id(value) for module in (
            numpy, numpy.fft, numpy.linalg, numpy.random, numpy.testing)
            for name, value in vars(module).items()}},
        'warnings': list(warnings.filters),
        'how warnings are shown': (warnings.showwarning, warnings.warn),
        'environment': dict(os.environ),
        'locale': locale.setlocale(locale.LC_ALL), 'signals': actions,
        'handlers': [signal.getsignal(n) for n in signal.valid_signals()],
        'masked signals': signal.pthread_sigmask(signal.SIG_BLOCK, []),
        'loggers': {{name: (one.level, one.handlers[:], one.propagate,
                           one.disabled) for name, one in sorted(
            [('root', logging.root), *logger.items()])
            if name in loggers and isinstance(one, logging.Logger)}},
        'logging': (logging.root.manager.disable, logging.getLoggerClass(),
                    logging.getLevelName(25), logging.lastResort),
        'hooks': (sys.excepthook, sys.displayhook, threading.excepthook,
                  sys.getrecursionlimit(), sys.getswitchinterval(),
                  sys.gettrace(), sys.getprofile(), threading.stack_size()),
        'importers': list(sys.meta_path), 'path hooks': list(sys.path_hooks),
        'path': list(sys.path), 'folder': os.getcwd(),
        'streams': (sys.stdin, sys.stdout, sys.stderr),
        'encodings': (sys.getdefaultencoding(), sys.stdout.encoding,
                      sys.stdout.errors, sys.getfilesystemencoding()),
        'builtins': {{name: id(value)
                     for name, value in vars(builtins).items()}},
        'modules of others': {{name: id(module) for name, module
                              in sys.modules.items() if name in others}},
        'collector': (gc.isenabled(), gc.get_threshold(), gc.callbacks[:]),
        'limits': [resource.getrlimit(getattr(resource, name))
                   for name in dir(resource) if name.startswith('RLIMIT_')],
        'processors': os.sched_getaffinity(0), 'umask': os.umask(
            os.umask(0o77)), 'niceness': os.nice(0),
        'socket': socket.getdefaulttimeout(),
        'decimal': str(decimal.getcontext()),
        'pickling': {{kind: copyreg.dispatch_table[kind] for kind in pickled}},
        'random': random.getstate(), 'rounding': rounding(),
        'OpenMP': openmp(),
        'numpy.random': str(numpy.random.get_state()),
        'numpy errors': numpy.geterr(), 'printing': numpy.get_printoptions(),
        'printed': [*map(repr, arrays), *map(str, arrays)],
        'children': open('/proc/self/task/%d/children' % os.getpid()).read(),
        **more(),
    }}

def more():
    return {{}}
{second}
one = random.choice([1.0])
known = {{line.split()[-1] for line in open('/proc/self/maps')
         if '.so' in line}}
others, pickled = set(sys.modules), set(copyreg.dispatch_table)
loggers = {{'root', *logging.root.manager.loggerDict}}
before = snapshot()
{imports}
after = snapshot()
print([name for name in before if before[name] != after[name]])
'''


def changes(first, imports, second=''):
    """The names in a SNAPSHOT that differ after the imports."""
    code = SNAPSHOT.format(first=first, second=second, imports=imports)
    done = subprocess.run([sys.executable, '-c', code], capture_output=True,
                          text=True, cwd=str(Path(__file__).parents[2]))
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return ast.literal_eval(done.stdout)


needs_proc = pytest.mark.skipif(
    not sys.platform.startswith('linux'), reason='/proc is of Linux')


@needs_changed
@needs_proc
@pytest.mark.parametrize('imports', ['import mxnet', 'import d2lbert',
                                     'import mxnet, d2lbert'])
def test_an_import_changes_nothing_that_others_see(imports):
    # Changes by matplotlib and its dependencies are not ours
    assert changes('import matplotlib.pyplot, requests\n'
                   'ctypes.CDLL("libgomp.so.1").omp_set_num_threads(7)',
                   imports) == []


@needs_changed
@needs_proc
@pytest.mark.parametrize('imports', ['mxnet', 'd2lbert', 'mxnet, d2lbert'])
def test_loops_get_every_core_whichever_is_imported_first(imports):
    # By itself MXNet takes half of the processors
    code = (f'import {imports}, ctypes\n'
            'print(ctypes.CDLL("libgomp.so.1").omp_get_max_threads())')
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True,
        cwd=str(Path(__file__).parents[2]),
        env={name: value for name, value in os.environ.items()
             if not name.startswith(('OMP_', 'MXNET_'))})
    assert done.stdout == f'{hardware.physical_cores()}\n', done.stderr


@needs_proc
@pytest.mark.parametrize('change, name', [
    ('numpy.bool8 = bool', 'numpy'), ('numpy.linalg.f = 1', 'numpy'),
    ('warnings.simplefilter("ignore")', 'warnings'),
    ('os.environ["A_NAME"] = "1"', 'environment'),
    ('locale.setlocale(locale.LC_ALL, "C.UTF-8")', 'locale'),
    ('import faulthandler; faulthandler.enable()', 'signals'),
    ('signal.signal(signal.SIGINT, signal.SIG_DFL)', 'handlers'),
    ('logging.getLogger("mine").setLevel(10)', 'loggers'),
    ('logging.basicConfig()', 'loggers'), ('logging.disable()', 'logging'),
    ('sys.meta_path.append(None)', 'importers'),
    ('ctypes.CDLL("libgomp.so.1").omp_set_num_threads(7)', 'OpenMP'),
    ('numpy.set_printoptions(legacy="1.13")', 'printed'),
    ('numpy.seterr(all="raise")', 'numpy errors'),
    ('builtins.f = 1', 'builtins'), ('random.random()', 'random'),
    # x87 and SSE: round towards zero, as C's fesetround has it
    ('ctypes.CDLL("libm.so.6").fesetround(0xc00)', 'rounding')])
def test_a_change_would_be_seen(change, name):
    if name == 'rounding' and platform.machine() != 'x86_64':
        pytest.skip('another number on other processors')
    first = ('logging.getLogger("mine")\nctypes.CDLL("libgomp.so.1")\n'
             'locale.setlocale(locale.LC_ALL, "C")')
    assert name in changes(first, change)


#: (package, what is imported of it, the number of its threads)
PEERS = [
    ('torch', 'torch', '(torch.get_num_threads(), '
     'torch.get_num_interop_threads(), torch.get_default_dtype())'),
    ('sklearn', 'sklearn.svm', 'sorted((one["filepath"], one["num_threads"])'
     ' for one in __import__("threadpoolctl").threadpool_info()'
     ' if one["filepath"] in known)'),
    ('pandas', 'pandas', 'pandas.describe_option(_print_desc=False)'),
    ('transformers', 'transformers',
     'transformers.utils.logging.get_verbosity()'),
    ('sentence_transformers', 'sentence_transformers', '0'),
]


@needs_changed
@needs_proc
@pytest.mark.parametrize('package, imported, threads', PEERS,
                         ids=[row[0] for row in PEERS])
def test_other_packages_keep_their_threads_and_settings(
        package, imported, threads):
    pytest.importorskip(package)
    # MXNet imports SciPy where there is one, which loads modules of NumPy
    scipy = importlib.util.find_spec('scipy') and ', scipy.sparse' or ''
    assert changes(
        f'import matplotlib.pyplot, requests{scipy}, {imported}',
        'import d2lbert',
        f'def more():\n    return {{"peer": {threads}}}') == []


@needs_changed
def test_parameters_of_numpy_numbers_reach_operators():
    mx = importlib.import_module('d2lbert.machine.backend').mx
    shape = tuple(numpy.array([2, 3]))
    assert mx.np.zeros(shape).shape == (2, 3)
    x = mx.nd.zeros((6,)).reshape(shape=shape)
    assert x.shape == (2, 3)
    assert mx.sym.Variable('x', shape=shape).infer_shape()[0] == [(2, 3)]
    assert mx.nd.slice(x, begin=(INT - 2, None), end=(None, INT)).shape == (
        1, 3)


@needs_changed
def test_a_parameter_set_as_an_attribute_is_collected(tmp_path):
    backend = importlib.import_module('d2lbert.machine.backend')
    gluon, mx = backend.gluon, backend.mx

    class Scale(gluon.nn.Block):
        def __init__(self):
            super().__init__()
            self.scale = gluon.Parameter('scale', shape=(3,))

        def forward(self, X):
            return X * self.scale.data()

    class Twice(gluon.nn.Block):
        def __init__(self, shared):
            super().__init__()
            self.first, self.second = Scale(), Scale()
            self.tied = shared.scale

        def forward(self, X):
            return self.second(self.first(X))

    shared = Scale()
    net = Twice(shared)
    names = list(net.collect_params())
    assert len(set(names)) == 3 and shared.scale.name in names
    assert net.first.scale.name == net.first.prefix + 'scale'
    net.initialize(mx.init.Constant(2))
    X = mx.np.ones((1, 3))
    assert net(X).tolist() == [[4, 4, 4]]
    trainer = gluon.Trainer(net.collect_params(), 'sgd',
                            {'learning_rate': 0.5}, kvstore=None)
    with mx.autograd.record():
        loss = net(X).sum()
    loss.backward()
    trainer.step(1, ignore_stale_grad=True)
    assert net.first.scale.data().tolist() == [1, 1, 1]
    net.save_parameters(str(tmp_path / 'net.params'))
    again = Twice(Scale())
    again.load_parameters(str(tmp_path / 'net.params'))
    assert again(X).tolist() == net(X).tolist() == [[1, 1, 1]]


@needs_changed
def test_the_root_logger_is_the_applications():
    code = '''
import logging
import mxnet
mxnet.npx.set_np()
mxnet.npx.reset_np()
assert not logging.root.handlers
logging.basicConfig(format='mine %(message)s')
logging.warning('heard')
'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True,
                          text=True)
    assert done.stderr.endswith('mine heard\n'), done.stderr
