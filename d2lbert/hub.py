"""Find data on this machine, or fetch it.

DATA_HUB, `download` and `download_extract` are from the book's page
"Predicting House Prices".
"""
import contextlib
import hashlib
import importlib
import os
import re
import urllib.parse
from pathlib import Path
from typing import NamedTuple, Optional

from d2lbert.machine import cache, downloads
from d2lbert.machine.arguments import PathLike
from d2lbert.machine.downloads import (
    ArchiveError,
    HubError,
    fetch,
    is_web_page,
    unpack,
)
from d2lbert.machine.files import file_digest, replacing
from d2lbert.machine.terminal import warn


class Published(NamedTuple):
    """A file of WikiText-2 as it was published."""

    size: int    # bytes
    lines: int
    tokens: int
    git_hash: str


TRAIN_FILE = 'wiki.train.tokens'
VALID_FILE = 'wiki.valid.tokens'
TEST_FILE = 'wiki.test.tokens'

PUBLISHED = {
    TRAIN_FILE: Published(10797148, 36718, 2051910,
                          '2d84b35af79e411d73ea7cae83c73964c6ac83b4'),
    VALID_FILE: Published(1121681, 3760, 213886,
                          'eec944eb2d9e46061cd34a6913528797db6842fc'),
    TEST_FILE: Published(1256449, 4358, 241211,
                         '6f3fc88e4cd88456ea892971f9f12243e8428624'),
}

# Web pages and WikiText are recognized by the first HEAD_BYTES of a file
HEAD_BYTES = 1 << 20

# WikiText has all of these: headings, unknown words, and marks within numbers
# and words, as in 1 @,@ 000
WIKITEXT_PATTERNS = (re.compile(rb'^ = [^=].* = \r?$', re.MULTILINE),
                     re.compile(rb' <unk> '), re.compile(rb' @[-,.]@ '))


def git_hash(path):
    """Return git's hash of a file: the SHA-1 of a header and the content."""
    return file_digest(
        path, hashlib.sha1(b'blob %d\0' % os.path.getsize(path)))


def flaw_of(path, name, thorough=False):
    """Describe how a file differs from WikiText-2's file `name`; '' if equal.

    The description completes a sentence that begins with 'PATH is'. A file of
    the published size counts as equal without being read. With `thorough`, it
    is read, and must have the published numbers of lines and tokens. The
    tokens may differ, since copies with another order of the articles are in
    use. CRLF line ends are no flaw.
    """
    expected = PUBLISHED[name]
    expected_counts = expected[:3]
    try:
        size = os.path.getsize(path)
        if size == expected.size:
            if (not thorough or git_hash(path) == expected.git_hash
                    or _counts(path) == expected_counts):
                return ''
            return f'another text of the same {size:,} bytes'
        # Any number of lines may end with CRLF, which has one more byte
        if (expected.size < size <= expected.size + expected.lines
                and _counts(path) == expected_counts):
            return ''
        return _describe_other_text(path, name, size)
    except OSError as error:
        return f'unreadable ({error.strerror})'


def _counts(path):
    """Return a file's (bytes, lines, tokens); CRLF counts as one byte."""
    size = lines = tokens = 0
    with open(path, 'rb') as f:
        for line in f:
            size += len(line) - line.endswith(b'\r\n')
            lines += 1
            tokens += len(line.split())
    return size, lines, tokens


def _describe_other_text(path, expected_name, size):
    if not size:
        return 'empty'
    with open(path, 'rb') as f:
        head = f.read(HEAD_BYTES)
    if is_web_page(head):
        return f'a web page of {size:,} bytes, not WikiText-2'
    for other_name, published in PUBLISHED.items():
        if size == published.size and git_hash(path) == published.git_hash:
            return f"WikiText-2's {other_name}"
    full_size = PUBLISHED[expected_name].size
    is_wikitext = all(pattern.search(head) for pattern in WIKITEXT_PATTERNS)
    if size < full_size and is_wikitext:
        return f'WikiText-2, but cut: {size:,} of {full_size:,} bytes'
    return (f'another text of {size:,} bytes, not WikiText-2 ({full_size:,} '
            'bytes)')


DATA_URL = 'http://d2l-data.s3-accelerate.amazonaws.com/'

# {name of an archive: (address, SHA-1 digest)}. WikiText-2 has another address
# than in the book: since 2024, the book's address answers with status 403
DATA_HUB = {
    'wikitext-2': ('https://wikitext.smerity.com/wikitext-2-v1.zip',
                   '3c914d17d80b1459be871a5039ac23e752a53cbe'),
    'SNLI': ('https://nlp.stanford.edu/projects/snli/snli_1.0.zip',
             '9fcde07509c7e87ec61c640c1b2753d9041758e4'),
    'bert.base': (DATA_URL + 'bert.base.zip',
                  '7b3820b35da691042e5d34c0971ac3edbd80d3f4'),
    'bert.small': (DATA_URL + 'bert.small.zip',
                   'a4e718a47137ccd1809c9107ab4f5edd317bae2c'),
}

# Addresses that begin with DATA_URL are tried over https first
_SECURE_DATA_URL = DATA_URL.replace('http:', 'https:')

#: {file name: maximum bytes to fetch}; downloads.MAX_BYTES for other files
MAX_BYTES_OF_FILES = {
    'wikitext-2-v1.zip': 16 << 20, 'snli_1.0.zip': 256 << 20,
    'bert.base.zip': 2 << 30, 'bert.small.zip': 512 << 20,
    'train-00000-of-00001.parquet': 64 << 20}

# The training text as the book's living edition fetches it
WIKITEXT_2_URL = ('https://huggingface.co/datasets/Salesforce/wikitext/'
                  'resolve/main/wikitext-2-v1/train-00000-of-00001.parquet')
WIKITEXT_2_SHA1 = '98ee727e59fcc34fddaadae93e15b1f8ed5561a4'

# Identifies the archive of WikiText-2, even if a page of the book puts another
# address into DATA_HUB
_WIKITEXT_2_ZIP_SHA1 = DATA_HUB['wikitext-2'][1]


class LooseFile(NamedTuple):
    """A file that can be fetched by itself, without its archive."""

    url: str
    git_hash: str
    name: str        # in the archive


_EXAMPLES_URL = ('https://raw.githubusercontent.com/pytorch/examples/main/'
                 'word_language_model/data/wikitext-2/')

# {SHA-1 digest of an archive: (name of its folder, its files)}
LOOSE_FILES = {
    _WIKITEXT_2_ZIP_SHA1: ('wikitext-2', (
        LooseFile(_EXAMPLES_URL + 'train.txt', PUBLISHED[TRAIN_FILE].git_hash,
                  TRAIN_FILE),
        LooseFile(_EXAMPLES_URL + 'valid.txt', PUBLISHED[VALID_FILE].git_hash,
                  VALID_FILE),
        LooseFile(_EXAMPLES_URL + 'test.txt', PUBLISHED[TEST_FILE].git_hash,
                  TEST_FILE))),
}


def _sha1(path):
    return file_digest(path, hashlib.sha1())


def download(name: str, folder: Optional[PathLike] = None,
             sha1_hash: Optional[str] = None,
             cache_dir: Optional[PathLike] = None) -> str:
    """Fetch a file unless it is on this machine; return its path.

    name: a name in DATA_HUB, or an address. folder, cache_dir: two names of
    one argument, the folder of the file. By default, three folders are
    searched: the folder that D2LBERT_DATA names, the data/ of d2lbert's
    repository, and the folder `data` of the user's cache. A missing file is
    fetched into the last of these; the book's ../data would depend on the
    working directory. sha1_hash: if name is an address, the SHA-1 digest that
    the file must have. If it is WIKITEXT_2_SHA1 and the file cannot be
    fetched, the file is made from a WikiText-2 on this machine. Raises
    HubError if neither is possible, and ValueError for a name that is neither
    in DATA_HUB nor the address of a file.
    """
    if folder is not None and cache_dir is not None:
        raise TypeError('folder and cache_dir are one argument: give one')
    given_folder = folder if cache_dir is None else cache_dir
    url, sha1 = DATA_HUB.get(name, (name, sha1_hash))
    if '://' not in url:
        raise ValueError(f'{name!r} is not in DATA_HUB, which has '
                         f'{", ".join(map(repr, DATA_HUB))}; add it as '
                         'DATA_HUB[name] = (address, sha1), or give an '
                         'address')
    file_name = urllib.parse.urlsplit(url).path.split('/')[-1]
    if not file_name:
        raise ValueError(f'{url!r} ends in no file name: give the address '
                         'of a file')
    wrong_paths = []    # files of this name with other content
    folders = _data_folders() if given_folder is None else [Path(given_folder)]
    for data_folder in folders:
        path = data_folder / file_name
        if path.is_file():
            if (sha1 is None or _sha1(path) == sha1
                    or sha1 == WIKITEXT_2_SHA1 and _has_training_text(path)):
                return str(path)
            wrong_paths.append(path)
    target_folder = _target_folder(given_folder)
    target = target_folder / file_name
    cache.remove_leftovers('data')      # of killed processes
    try:
        _fetch_from_any(_addresses(url), target, sha1)
    except HubError as error:
        if sha1 != WIKITEXT_2_SHA1 or find_wikitext2() is None:
            wrong = ''.join(f'; {path} is another file, with checksum '
                            f'{_sha1(path)}' for path in wrong_paths)
            raise HubError(f'{name} could not be fetched: {error}{wrong}; by '
                           f'hand: put {file_name} into {target_folder}'
                           ) from error
        _write_parquet(target, error)
    return str(target)


def _addresses(url):
    if url.startswith(DATA_URL):
        return [_SECURE_DATA_URL + url[len(DATA_URL):], url]
    return [url]


def _fetch_from_any(urls, path, sha1):
    """Fetch a file from the first address that serves it.

    Raises HubError, which lists the errors of all addresses, if none does.
    """
    max_bytes = MAX_BYTES_OF_FILES.get(path.name, downloads.MAX_BYTES)
    errors = []
    for url in urls:
        try:
            fetch(url, path, _sha1, sha1, max_bytes)
            return
        except HubError as error:
            errors.append(error)
    raise HubError('; '.join(map(str, errors))) from errors[-1]


def _write_parquet(path, fetch_error):
    """Write this machine's WikiText-2 training text as a parquet file."""
    try:
        pyarrow = importlib.import_module('pyarrow')
        parquet = importlib.import_module('pyarrow.parquet')
    except ImportError:
        raise HubError(f'{fetch_error}; to make {path.name} from the '
                       'WikiText-2 of this machine: pip install pyarrow'
                       ) from fetch_error
    source = find_wikitext2() / TRAIN_FILE
    table = pyarrow.table({'text': _training_lines(source)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial_path:
        parquet.write_table(table, str(partial_path))
    warn(f'd2lbert: {fetch_error}; {path} was made from {source} instead')


def _training_lines(path):
    with open(path, encoding='utf-8', newline='\n') as file:
        return file.readlines()


def _has_training_text(path):
    """True if a parquet file has this machine's WikiText-2 training text."""
    folder = find_wikitext2()
    if folder is None:
        return False
    # Any error counts as False: a damaged file or text, or a missing pyarrow
    with contextlib.suppress(Exception):
        parquet = importlib.import_module('pyarrow.parquet')
        table = parquet.read_table(str(path))
        return (table.column('text').to_pylist()
                == _training_lines(folder / TRAIN_FILE))
    return False


def _target_folder(cache_dir):
    return cache.root() / 'data' if cache_dir is None else Path(cache_dir)


def download_extract(name: str, folder: Optional[str] = None,
                     cache_dir: Optional[PathLike] = None) -> str:
    """Fetch an archive listed in DATA_HUB and unpack it; return its folder.

    cache_dir: the folder to unpack in; by default the folder `data` of the
    user's cache. folder: the name of the folder in the archive; by default the
    archive's file name without its extension.

    Without `cache_dir`, a WikiText-2 on this machine is used where it is. If
    an archive cannot be fetched, but LOOSE_FILES has addresses of its files,
    the files are fetched one by one. In both cases `folder` is ignored. Raises
    HubError if neither the archive nor its files can be fetched, or if the
    archive cannot be unpacked.
    """
    _, sha1 = DATA_HUB.get(name, (None, None))
    if cache_dir is None and sha1 == _WIKITEXT_2_ZIP_SHA1:
        found = find_wikitext2()
        if found is not None:
            return str(_mark_used_and_warn(found))
    try:
        archive = download(name, cache_dir)
    except HubError as error:
        if sha1 not in LOOSE_FILES:
            raise
        return str(_fetch_loose(name, sha1, cache_dir, error))
    target = str(_target_folder(cache_dir))
    try:
        unpack(archive, target)
    except ArchiveError as error:
        raise HubError(str(error)) from error
    return os.path.join(target, folder or os.path.splitext(
        os.path.basename(archive))[0])


def _fetch_loose(archive_name, archive_sha1, cache_dir, download_error):
    """Fetch the files of an archive one by one; return their folder."""
    folder_name, files = LOOSE_FILES[archive_sha1]
    folder = _target_folder(cache_dir) / folder_name
    for url, expected_hash, file_name in files:
        path = folder / file_name
        if path.is_file() and git_hash(path) == expected_hash:
            continue
        try:
            fetch(url, path, git_hash, expected_hash,
                  PUBLISHED[file_name].size)
        except HubError as error:
            # Only the cause: download_error also names the folder to put the
            # archive into
            raise HubError(f'{archive_name} could not be fetched: '
                           f'{download_error.__cause__}; {error}; '
                           f'by hand: put {TRAIN_FILE} into {folder}, or let '
                           'D2LBERT_DATA name the folder that holds it'
                           ) from error
    return folder


def _repository():
    """Return the root of a checkout of d2lbert, or None."""
    for root in (Path(__file__).resolve().parent.parent, Path.cwd()):
        if (root / 'setup.py').is_file() and (
                root / 'd2lbert' / '_version.py').is_file():
            return root
    return None


def _folder_with_text(folder):
    """Return `folder` or its wikitext-2/ if one has TRAIN_FILE, else None."""
    for candidate in (Path(folder), Path(folder) / 'wikitext-2'):
        if (candidate / TRAIN_FILE).is_file():
            return candidate
    return None


def _data_folders():
    """Yield the folders of this machine that may hold data, in order."""
    # Path.expanduser would raise an error if there is no such user
    if os.environ.get('D2LBERT_DATA'):
        yield Path(os.path.expanduser(os.environ['D2LBERT_DATA']))
    if _repository():
        yield _repository() / 'data'
    with contextlib.suppress(cache.CacheError):
        yield cache.root() / 'data'


def find_wikitext2():
    """Return the folder of this machine that holds WikiText-2, or None."""
    for data_folder in _data_folders():
        folder = _folder_with_text(data_folder)
        if folder is not None:
            return folder
    return None


def wikitext2_flaws(folder, thorough=False):
    """Return a sentence for each flawed file of WikiText-2 in `folder`.

    Missing files are no flaws. thorough: as for `flaw_of`.
    """
    sentences = []
    for name in PUBLISHED:
        path = Path(folder, name)
        flaw = flaw_of(path, name, thorough) if path.is_file() else ''
        if flaw:
            sentences.append(f'{path} is {flaw}')
    return sentences


# The sentences of `wikitext2_flaws` that this process has printed
_warned_flaws = set()


def _mark_used_and_warn(folder):
    """Mark WikiText-2 in `folder` as used, warn of flaws; return `folder`.

    Each flaw is printed once in a process, and none for the bundled corpus.
    """
    cache.mark_used(folder)
    with contextlib.suppress(FileNotFoundError):    # raised by `sample_dir`
        if os.path.samefile(folder, sample_dir()):
            return folder
    for sentence in wikitext2_flaws(folder):
        if sentence not in _warned_flaws:
            warn(f'{sentence}; it is used as it is')
            _warned_flaws.add(sentence)
    return folder


def wikitext2_dir(data_dir=None):
    """Return a folder that holds wiki.train.tokens; fetch the text if needed.

    With `data_dir`, only data_dir and its wikitext-2/ are searched, and
    nothing is fetched. Without it, the folders that `download` searches and
    their wikitext-2/ are searched first. Files that differ from the published
    files are used, with a warning except in the bundled corpus. Raises
    FileNotFoundError for a `data_dir` without the text, HubError if the text
    cannot be fetched.
    """
    if data_dir is not None:
        folder = _folder_with_text(os.path.expanduser(data_dir))
        if folder is None:
            raise FileNotFoundError(
                f'data_dir={str(data_dir)!r} holds neither {TRAIN_FILE} nor '
                f'wikitext-2/{TRAIN_FILE}: name a folder that holds one '
                'of them, or leave data_dir (--data-dir) out, and d2lbert '
                'searches for WikiText-2')
    else:
        folder = find_wikitext2()
    if folder is not None:
        return _mark_used_and_warn(folder)
    try:
        return Path(download_extract('wikitext-2', 'wikitext-2'))
    except OSError as error:
        places = ', '.join(map(str, _data_folders()))
        raise HubError(f'WikiText-2 is not on this machine (looked in '
                       f'{places}), and {error}') from None


def sample_dir():
    """Return the folder of the small corpus that is bundled with d2lbert.

    It is data/sample in a checkout, and sample/ in an installed package.
    """
    folders = [Path(__file__).resolve().parent / 'sample']
    if _repository():
        folders.insert(0, _repository() / 'data' / 'sample')
    for folder in folders:
        if (folder / TRAIN_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f'the bundled corpus is missing (looked in '
        f'{", ".join(map(str, folders))}): install d2lbert again')
