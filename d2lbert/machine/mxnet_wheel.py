"""Adapt MXNet's wheel to current Python and NumPy.

MXNet 1.9.1 was built for Python 3.8 and NumPy 1.19. Its libraries work with
later versions, but some lines of its Python code and the bounds in its
metadata do not. `setup.py` calls `find_or_make`, which lets pip download the
stock wheel, changes those lines and stores the result in the cache. This
module imports neither MXNet nor NumPy.
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

#: Files of this folder that become modules of MXNet. They import only each
#: other and the standard library.
ADDED = {'mxnet_compat.py': '_compat.py', 'hardware.py': '_hardware.py',
         'mxnet_libraries.py': '_libraries.py'}

_FROM_COMPAT = 'from mxnet._compat import '
#: (pattern of file names, pattern of text, replacement). MXNet's
#: command-line tools are not changed.
CHANGES = [
    # NumPy's old names, without adding them to NumPy itself
    (r'mxnet/(?!tools/).*\.py', r'(?m)^( *)import numpy(?=$| +as | +#)',
     rf'\1{_FROM_COMPAT}numpy'),
    # Python 3.12 has no distutils
    (r'mxnet/.*\.py', r'from distutils\.version import ', _FROM_COMPAT),
    # logging.info would add a handler to the root logger
    (r'mxnet/(?!tools/).*\.py',
     r'\blogging\.(debug|info|warning|error|exception)\(',
     r"logging.getLogger('mxnet').\1("),
    # NumPy 2 writes np.int64(3) where MXNet's parser expects 3
    (r'mxnet/_ctypes/(ndarray|symbol)\.py', r'\bstr\((s|v|val)\)(?= for )',
     r'parameter_string(\1)'),
    (r'mxnet/_ctypes/(ndarray|symbol)\.py', r'(?m)^import ctypes$',
     f'import ctypes\n{_FROM_COMPAT}parameter_string'),
    (r'mxnet/symbol/symbol\.py',
     r"(?m)^( +attr\['__shape__'\] = )str\(shape\)$",
     r'\1parameter_string(shape)'),
    (r'mxnet/symbol/symbol\.py', r'(?m)^import ctypes$',
     f'import ctypes\n{_FROM_COMPAT}parameter_string'),
    # MXNet warns about a name that its own modules use
    (r'mxnet/numpy/multiarray\.py',
     r"        warnings\.warn\('ndarray\.as_in_context has been renamed to'\n"
     r".*DeprecationWarning\)\n", ''),
    # Like MXNet 2, collect parameters that are set as attributes
    (r'mxnet/gluon/block\.py',
     r'(?m)^( +)self\._reg_params\[name\] = value$',
     r'\g<0>\n\1adopt_parameter(self, name, value)'),
    (r'mxnet/gluon/block\.py', r'(?m)^import copy$',
     f'import copy\n{_FROM_COMPAT}adopt_parameter'),
    # libmxnet.so would replace the SIGSEGV handler and use half the CPUs
    (r'mxnet/base\.py', r'ctypes\.CDLL\(lib_path\[0\], ctypes\.RTLD_LOCAL\)',
     'load_library(lib_path[0])'),
    (r'mxnet/base\.py', r'(?m)^import ctypes$',
     f'import ctypes\n{_FROM_COMPAT}load_library'),
    # Remove upper bounds of versions: the code does not need them
    (r'[^/]+\.dist-info/METADATA',
     r'(?m)^(Requires-Dist: numpy).*$', r'\1 (>=1.17)'),
    (r'[^/]+\.dist-info/METADATA',
     r'(?m)^(Requires-Dist: requests).*$', r'\1 (>=2.20)'),
    (r'[^/]+\.dist-info/METADATA',
     r'(?m)^(Requires-Dist: graphviz).*$', r'\1 (>=0.8.1)'),
]


class WheelError(Exception):
    """There is no wheel of MXNet; the message has a remedy."""


def added(name):
    """The content of a file of ADDED as a module of MXNet."""
    text = Path(__file__).with_name(name).read_text(encoding='utf-8')
    return re.sub(r'(?m)^from d2lbert\.machine\.(\w+) import ',
                  r'from mxnet._\1 import ', text).encode('utf-8')


def version():
    """The version of the changed wheel, with a digest of its changes."""
    digest = hashlib.sha256(repr(CHANGES).encode()
                            + b''.join(map(added, ADDED)))
    return f'{MXNET_VERSION}+d2lbert.{digest.hexdigest()[:8]}'


def is_changed(folder):
    """True if this folder is an `mxnet` package from a changed wheel."""
    return Path(folder, '_compat.py').exists()


def find_or_make(project):
    """Path of the changed wheel of a project, `mxnet` or `mxnet-cu112`.

    The wheel is stored in the cache's folder `wheels`, or in a temporary
    folder if there is no cache. Raises WheelError if pip cannot download the
    stock wheel.
    """
    folder = _folder()
    name = project.replace('-', '_')
    for path in folder.glob(f'{name}-{version()}-*.whl'):
        if zipfile.is_zipfile(path):
            cache.used(path)
            return path
    with tempfile.TemporaryDirectory(prefix='d2lbert-mxnet-') as stock:
        downloaded = _download(project, stock)
        target = folder / downloaded.name.replace(
            f'-{MXNET_VERSION}-', f'-{version()}-', 1)
        try:
            with files.replacing(target) as part:
                change(downloaded, part)
        except OSError as error:
            raise WheelError(
                f'{target} cannot be written ({error.strerror}): set '
                'D2LBERT_CACHE to a folder with more space') from None
    return target


def _folder():
    """The cache's folder for wheels, or a temporary one."""
    if cache.enabled():
        try:
            return cache.folder('wheels')
        except OSError:
            pass
    return Path(tempfile.mkdtemp(prefix='d2lbert-wheels-'))


def _download(project, folder):
    """Download the stock wheel into a folder with pip; returns its path."""
    requirement = f'{project}=={MXNET_VERSION}'
    command = [sys.executable, '-m', 'pip', '--disable-pip-version-check',
               'download', '--no-deps', '--only-binary', ':all:',
               '--progress-bar', 'off', '--dest', folder, requirement]
    print(f'd2lbert: downloading {requirement}', file=sys.stderr, flush=True)
    done = subprocess.run(command, env=_pip_settings(os.environ),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    found = list(Path(folder).glob('*.whl'))
    if done.returncode == 0 and len(found) == 1:
        return found[0]
    lines = done.stdout.decode('utf-8', 'replace').strip().splitlines()
    errors = [line for line in lines if line.startswith('ERROR: ')]
    message = (errors or lines or ['no output'])[-1]
    if message.endswith('No module named pip'):
        raise WheelError('d2lbert needs pip to download MXNet, and this '
                         'Python has none: python -m ensurepip, or install '
                         'with build isolation')
    raise WheelError(
        f'pip could not download {requirement} ('
        f'{re.sub("^ERROR: ", "", message)}): look at the network, or name an '
        'index in PIP_INDEX_URL, or a folder with the wheel in '
        'PIP_FIND_LINKS')


def _pip_settings(environ):
    """Environment variables for pip, with uv's settings translated."""
    environ = dict(environ)

    def translate(pip, *uv):
        value = next((environ[name] for name in uv if environ.get(name)), '')
        # uv separates values by commas, pip by spaces
        value = ' '.join(re.sub(r'(^|\s)[\w-]+=(?=\w+:)', r'\1', part)
                         for part in value.replace(',', ' ').split())
        if value:
            environ.setdefault(pip, value)

    translate('PIP_INDEX_URL', 'UV_DEFAULT_INDEX', 'UV_INDEX_URL')
    translate('PIP_EXTRA_INDEX_URL', 'UV_INDEX', 'UV_EXTRA_INDEX_URL')
    translate('PIP_FIND_LINKS', 'UV_FIND_LINKS')
    translate('PIP_NO_INDEX', 'UV_NO_INDEX', 'UV_OFFLINE')
    translate('PIP_CERT', 'SSL_CERT_FILE')
    # These set where to install, but pip only downloads here
    for name in ('PIP_TARGET', 'PIP_PREFIX', 'PIP_USER', 'PIP_REQUIRE_HASHES',
                 'PIP_REQUIRE_VIRTUALENV', 'PIP_NO_BINARY', 'PIP_PYTHON',
                 'PIP_CONSTRAINT', 'PIP_REQUIREMENT'):
        environ.pop(name, None)
    return environ


def change(stock, target):
    """Write the wheel `stock` with all CHANGES to the path `target`."""
    record = []
    info = f'{MXNET_VERSION}.dist-info/'
    new_info = f'{version()}.dist-info/'
    unused = set(range(len(CHANGES)))
    with zipfile.ZipFile(stock) as old, zipfile.ZipFile(
            target, 'w', zipfile.ZIP_DEFLATED) as new:
        members = {member.filename: member for member in old.infolist()}
        record_name = next(name for name in members
                           if name.endswith(f'-{info}RECORD'))
        hashes = dict(_rows(old.read(record_name).decode('utf-8')))

        def write(name, member, data):
            if data is None:        # copy it unchanged; it may be large
                with old.open(member) as source, new.open(
                        _entry(member, name), 'w', force_zip64=True) as part:
                    shutil.copyfileobj(source, part, 2 ** 20)
                record.append(f'{name},{hashes[member.filename]}')
            else:
                with new.open(_entry(member, name), 'w') as part:
                    part.write(data)
                record.append(f'{name},sha256={_digest(data)},{len(data)}')

        for name, member in members.items():
            if name.endswith('/') or name == record_name:
                continue
            changed, used = _apply_changes(name, old, member)
            unused -= used
            write(name.replace(f'-{info}', f'-{new_info}', 1), member,
                  changed)
        for source, name in ADDED.items():
            write(f'mxnet/{name}', members['mxnet/__init__.py'],
                  added(source))
        record_member = members[record_name]
        record_name = record_name.replace(f'-{info}', f'-{new_info}', 1)
        record.append(f'{record_name},,')
        with new.open(_entry(record_member, record_name), 'w') as part:
            part.write(('\n'.join(record) + '\n').encode('utf-8'))
    if unused:
        raise WheelError(
            f'{Path(stock).name} is not the wheel of MXNet {MXNET_VERSION} '
            'that its publishers released: '
            f'{CHANGES[min(unused)][1]!r} is not found in it')


def _entry(member, name):
    """A ZipInfo like `member` with a new name, and with fast compression."""
    copy = zipfile.ZipInfo(name, member.date_time)
    copy.external_attr = member.external_attr
    copy.compress_type = zipfile.ZIP_DEFLATED
    copy._compresslevel = 1
    return copy


def _apply_changes(name, archive, member):
    """(new bytes, or None if unchanged; indices of the matching CHANGES)."""
    matching = [k for k, (file, _, _) in enumerate(CHANGES)
                if re.fullmatch(file, name)]
    used, text = set(), None
    if matching:
        text = before = archive.read(member).decode('utf-8')
        for k in matching:
            text, times = re.subn(CHANGES[k][1], CHANGES[k][2], text)
            if times:
                used.add(k)
        if name.endswith('.dist-info/METADATA'):
            text = text.replace(f'Version: {MXNET_VERSION}\n',
                                f'Version: {version()}\n', 1)
        if text == before:
            text = None
    return None if text is None else text.encode('utf-8'), used


def _digest(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return digest.rstrip(b'=').decode()


def _rows(record):
    """Yield (file name, 'digest,size') for each line of a RECORD."""
    for line in record.splitlines():
        name, digest, size = line.rsplit(',', 2)
        yield name.strip('"'), f'{digest},{size}'
