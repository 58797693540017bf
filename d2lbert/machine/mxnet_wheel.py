"""Adapt MXNet's wheel to current Python and NumPy.

MXNet 1.9.1 was built for Python 3.8 and NumPy 1.19. Its compiled libraries
work with later versions, but some lines of its Python code do not, and its
metadata excludes later versions. `setup.py` calls `find_or_make` before MXNet
and NumPy are installed, so this module imports neither. The stock wheel is the
wheel that MXNet's publishers released.
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from d2lbert.machine import cache, files
from d2lbert.machine.hardware import MXNET_VERSION

#: {file of this folder: its name in the folder mxnet}. These files import only
#: each other, NumPy and the standard library.
ADDED = {'mxnet_compat.py': '_compat.py', 'hardware.py': '_hardware.py',
         'mxnet_libraries.py': '_libraries.py'}

_FROM_COMPAT = 'from mxnet._compat import '
#: (pattern of file names, pattern of text, replacement). `(?!tools/)` excludes
#: MXNet's command-line tools.
CHANGES = [
    # Import a NumPy that has the old names; NumPy itself remains unchanged
    (r'mxnet/(?!tools/).*\.py', r'(?m)^( *)import numpy(?=$| +as | +#)',
     rf'\1{_FROM_COMPAT}numpy'),
    # Python 3.12 removed distutils
    (r'mxnet/.*\.py', r'from distutils\.version import ', _FROM_COMPAT),
    # logging.info and similar functions add a handler to the root logger;
    # methods of a logger do not
    (r'mxnet/(?!tools/).*\.py',
     r'\blogging\.(debug|info|warning|error|exception)\(',
     r"logging.getLogger('mxnet').\1("),
    # str((np.int64(3),)) is '(np.int64(3),)' in NumPy 2; MXNet expects '(3,)'
    (r'mxnet/_ctypes/(ndarray|symbol)\.py', r'\bstr\((s|v|val)\)(?= for )',
     r'parameter_string(\1)'),
    (r'mxnet/_ctypes/(ndarray|symbol)\.py', r'(?m)^import ctypes$',
     f'import ctypes\n{_FROM_COMPAT}parameter_string'),
    (r'mxnet/symbol/symbol\.py',
     r"(?m)^( +attr\['__shape__'\] = )str\(shape\)$",
     r'\1parameter_string(shape)'),
    (r'mxnet/symbol/symbol\.py', r'(?m)^import ctypes$',
     f'import ctypes\n{_FROM_COMPAT}parameter_string'),
    # Remove a DeprecationWarning of a method that MXNet's modules call
    (r'mxnet/numpy/multiarray\.py',
     r"        warnings\.warn\('ndarray\.as_in_context has been renamed to'\n"
     r".*DeprecationWarning\)\n", ''),
    # Like MXNet 2, collect parameters that are set as attributes
    (r'mxnet/gluon/block\.py',
     r'(?m)^( +)self\._reg_params\[name\] = value$',
     r'\g<0>\n\1adopt_parameter(self, name, value)'),
    (r'mxnet/gluon/block\.py', r'(?m)^import copy$',
     f'import copy\n{_FROM_COMPAT}adopt_parameter'),
    # Loaded by ctypes alone, libmxnet.so replaces the handler of SIGSEGV, and
    # uses only half of the CPUs
    (r'mxnet/base\.py', r'ctypes\.CDLL\(lib_path\[0\], ctypes\.RTLD_LOCAL\)',
     'load_library(lib_path[0])'),
    (r'mxnet/base\.py', r'(?m)^import ctypes$',
     f'import ctypes\n{_FROM_COMPAT}load_library'),
    # Remove upper bounds of versions: later versions work, too
    (r'[^/]+\.dist-info/METADATA',
     r'(?m)^(Requires-Dist: numpy).*$', r'\1 (>=1.17)'),
    (r'[^/]+\.dist-info/METADATA',
     r'(?m)^(Requires-Dist: requests).*$', r'\1 (>=2.20)'),
    (r'[^/]+\.dist-info/METADATA',
     r'(?m)^(Requires-Dist: graphviz).*$', r'\1 (>=0.8.1)'),
]


class WheelError(Exception):
    """The changed wheel cannot be made; the message names a remedy."""


def module_bytes(name):
    """The bytes of a file in ADDED, changed to import mxnet, not d2lbert."""
    text = Path(__file__).with_name(name).read_text(encoding='utf-8')
    return re.sub(r'(?m)^from d2lbert\.machine\.(\w+) import ',
                  r'from mxnet._\1 import ', text).encode('utf-8')


def version():
    """The version of the changed wheel; it ends in a digest of the changes."""
    digest = hashlib.sha256(repr(CHANGES).encode()
                            + b''.join(map(module_bytes, ADDED)))
    return f'{MXNET_VERSION}+d2lbert.{digest.hexdigest()[:8]}'


def is_changed(folder):
    """True if this folder is an `mxnet` package from a changed wheel."""
    return Path(folder, '_compat.py').exists()


def find_or_make(project):
    """Return the path of the changed wheel; make the wheel if necessary.

    project: 'mxnet' or 'mxnet-cu112'. Raises WheelError if the stock wheel
    cannot be downloaded, if it lacks a text that CHANGES replaces, or if the
    changed wheel cannot be written.
    """
    folder = _wheel_folder()
    name = project.replace('-', '_')
    for path in folder.glob(f'{name}-{version()}-*.whl'):
        if zipfile.is_zipfile(path):    # else the file is damaged
            cache.mark_used(path)
            return path
    with tempfile.TemporaryDirectory(prefix='d2lbert-mxnet-') as temporary:
        stock = _download(project, temporary)
        target = folder / stock.name.replace(
            f'-{MXNET_VERSION}-', f'-{version()}-', 1)
        try:
            with files.replacing(target) as partial_path:
                change_wheel(stock, partial_path)
        except OSError as error:
            raise WheelError(
                f'{target} cannot be written ({error.strerror}): set '
                'D2LBERT_CACHE to a folder that you can write, on a disk with '
                'enough free space') from None
    return target


def _wheel_folder():
    if cache.enabled():
        try:
            return cache.folder('wheels')
        except OSError:
            pass
    return Path(tempfile.mkdtemp(prefix='d2lbert-wheels-'))


def _download(project, folder):
    """Let pip download the stock wheel; return its path."""
    requirement = f'{project}=={MXNET_VERSION}'
    command = [sys.executable, '-m', 'pip', '--disable-pip-version-check',
               'download', '--no-deps', '--only-binary', ':all:',
               '--progress-bar', 'off', '--dest', folder, requirement]
    print(f'd2lbert: downloading {requirement}', file=sys.stderr, flush=True)
    process = subprocess.run(command, env=_pip_environ(os.environ),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
    wheels = list(Path(folder).glob('*.whl'))
    if process.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    lines = process.stdout.decode('utf-8', 'replace').strip().splitlines()
    errors = [line for line in lines if line.startswith('ERROR: ')]
    message = (errors or lines or ['no output'])[-1]
    if message.endswith('No module named pip'):
        raise WheelError('d2lbert needs pip to download MXNet, and this '
                         'Python has no pip: run python -m ensurepip, or '
                         'install d2lbert without --no-build-isolation')
    raise WheelError(
        f'pip could not download {requirement} ('
        f'{re.sub("^ERROR: ", "", message)}): check the network connection, '
        'or set PIP_INDEX_URL to a package index that you can reach, or '
        'PIP_FIND_LINKS to a folder with the wheel')


def _pip_environ(environ):
    """A copy of `environ` for pip, with uv's settings translated."""
    environ = dict(environ)

    def translate(pip_name, *uv_names):
        """Copy the first variable of uv that is set, unless pip's is set."""
        value = next((environ[name] for name in uv_names if environ.get(name)),
                     '')
        # uv separates links by commas and indexes by spaces, pip both by
        # spaces. Only uv accepts a name of an index: own=https://own.example
        value = ' '.join(re.sub(r'(^|\s)[\w-]+=(?=\w+:)', r'\1', item)
                         for item in value.replace(',', ' ').split())
        if value:
            environ.setdefault(pip_name, value)

    translate('PIP_INDEX_URL', 'UV_DEFAULT_INDEX', 'UV_INDEX_URL')
    translate('PIP_EXTRA_INDEX_URL', 'UV_INDEX', 'UV_EXTRA_INDEX_URL')
    translate('PIP_FIND_LINKS', 'UV_FIND_LINKS')
    translate('PIP_NO_INDEX', 'UV_NO_INDEX', 'UV_OFFLINE')
    if environ.get('SSL_CERT_FILE'):    # a path may have commas and blanks
        environ.setdefault('PIP_CERT', environ['SSL_CERT_FILE'])
    # Remove settings with which `pip download` fails or gets another file
    for name in ('PIP_TARGET', 'PIP_PREFIX', 'PIP_USER', 'PIP_REQUIRE_HASHES',
                 'PIP_REQUIRE_VIRTUALENV', 'PIP_NO_BINARY', 'PIP_PYTHON',
                 'PIP_CONSTRAINT', 'PIP_REQUIREMENT'):
        environ.pop(name, None)
    return environ


def change_wheel(stock, target):
    """Write the wheel `stock` to `target`, with CHANGES and ADDED.

    Raises WheelError if a pattern of text in CHANGES is not found.
    """
    record_lines = []   # 'name,digest,size' in RECORD, the list of files
    stock_dist_info = f'-{MXNET_VERSION}.dist-info/'
    new_dist_info = f'-{version()}.dist-info/'
    applied = set()
    with zipfile.ZipFile(stock) as old, zipfile.ZipFile(
            target, 'w', zipfile.ZIP_DEFLATED) as new:
        infos = {info.filename: info for info in old.infolist()}
        record_name = next(name for name in infos
                           if name.endswith(f'{stock_dist_info}RECORD'))
        digests_and_sizes = dict(_parse_record(
            old.read(record_name).decode('utf-8')))

        def write(name, stock_info, data):
            # The new file gets the date and mode of the stock file and, if
            # `data` is None, its content
            new_info = _copy_info(stock_info, name)
            if data is None:    # copy in pieces: the file may be large
                with old.open(stock_info) as source, new.open(
                        new_info, 'w', force_zip64=True) as file:
                    shutil.copyfileobj(source, file, 2 ** 20)
                digest_and_size = digests_and_sizes[stock_info.filename]
            else:
                with new.open(new_info, 'w') as file:
                    file.write(data)
                digest_and_size = f'sha256={_digest(data)},{len(data)}'
            record_lines.append(f'{name},{digest_and_size}')

        for name, info in infos.items():
            if name.endswith('/') or name == record_name:
                continue
            new_data, applied_here = _apply_changes(old, info)
            applied |= applied_here
            write(name.replace(stock_dist_info, new_dist_info, 1), info,
                  new_data)
        for module, name in ADDED.items():
            write(f'mxnet/{name}', infos['mxnet/__init__.py'],
                  module_bytes(module))
        new_name = record_name.replace(stock_dist_info, new_dist_info, 1)
        record_lines.append(f'{new_name},,')
        with new.open(_copy_info(infos[record_name], new_name), 'w') as file:
            file.write(('\n'.join(record_lines) + '\n').encode('utf-8'))
    not_found = [change[1] for change in CHANGES if change not in applied]
    if not_found:
        raise WheelError(
            f'{Path(stock).name} is not the wheel of MXNet {MXNET_VERSION} '
            f'that its publishers released: {not_found[0]!r} is not found in '
            'it; let pip download the wheel from https://pypi.org')


def _copy_info(info, name):
    copy = zipfile.ZipInfo(name, info.date_time)
    copy.external_attr = info.external_attr
    copy.compress_type = zipfile.ZIP_DEFLATED
    copy._compresslevel = 1     # the fastest
    return copy


def _apply_changes(archive, info):
    """Return (changed bytes or None, set of the applied CHANGES)."""
    name = info.filename
    candidates = [change for change in CHANGES
                  if re.fullmatch(change[0], name)]
    if not candidates:
        return None, set()
    before = archive.read(info).decode('utf-8')
    applied, text = set(), before
    for change in candidates:
        _, pattern, replacement = change
        text, num_replaced = re.subn(pattern, replacement, text)
        if num_replaced:
            applied.add(change)
    if name.endswith('.dist-info/METADATA'):
        text = text.replace(f'Version: {MXNET_VERSION}\n',
                            f'Version: {version()}\n', 1)
    return (None if text == before else text.encode('utf-8')), applied


def _digest(data):
    """The SHA-256 of bytes in base64, as in the RECORD of a wheel."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return digest.rstrip(b'=').decode()


def _parse_record(text):
    """Yield (file name, 'digest,size') for each line of the file RECORD."""
    for line in text.splitlines():
        name, digest, size = line.rsplit(',', 2)
        yield name.strip('"'), f'{digest},{size}'
