"""The book's DATA_HUB and `download`, and where WikiText-2 is found.

`download` is from the page "Predicting House Prices". Data is looked for on
this machine first and fetched last; a fetched file is kept only if its
checksum is right.
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
    """Facts about a published file."""

    size: int    # bytes
    lines: int
    tokens: int
    blob: str    # git's hash of the content


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

# Bytes that are read from the beginning of a file to describe it
HEAD_BYTES = 1 << 20

# WikiText's headings, unknown words and split numbers
MARKS = (re.compile(rb'^ = [^=].* = \r?$', re.MULTILINE),
         re.compile(rb' <unk> '), re.compile(rb' @[-,.]@ '))


def git_blob(path):
    """Git's hash of a file: the SHA-1 of a header and the content."""
    return file_digest(
        path, hashlib.sha1(b'blob %d\0' % os.path.getsize(path)))


def flaw_of(path, name, thorough=False):
    """Describe a file that is not WikiText-2's `name`; '' if it is.

    The description completes a sentence that begins with 'PATH is'. A file
    of the right size is accepted. thorough: read its content, too, which
    must be the published one, or have the same number of lines and tokens.
    Copies with the articles in another order are in use.
    """
    expected = PUBLISHED[name]
    try:
        size = os.path.getsize(path)
        if size == expected.size:
            if (not thorough or git_blob(path) == expected.blob
                    or _counts(path) == expected[:3]):
                return ''
            return f'another text of the same {size:,} bytes'
        # Windows ends each line with one byte more
        if (expected.size < size <= expected.size + expected.lines
                and _counts(path) == expected[:3]):
            return ''
        return _described(path, name, size)
    except OSError as error:
        return f'unreadable ({error.strerror})'


def _counts(path):
    """(bytes without carriage returns, lines, tokens) of a file."""
    size = lines = tokens = 0
    with open(path, 'rb') as f:
        for line in f:
            size += len(line) - line.endswith(b'\r\n')
            lines += 1
            tokens += len(line.split())
    return size, lines, tokens


def _described(path, name, size):
    """Describe a file of `size` bytes that is not WikiText-2's `name`."""
    if not size:
        return 'empty'
    with open(path, 'rb') as f:
        head = f.read(HEAD_BYTES)
    if is_web_page(head):
        return f'a web page of {size:,} bytes, not WikiText-2'
    for other, published in PUBLISHED.items():
        if size == published.size and git_blob(path) == published.blob:
            return f"WikiText-2's {other}"
    whole = PUBLISHED[name].size
    if size < whole and all(mark.search(head) for mark in MARKS):
        return f'WikiText-2, but cut: {size:,} of {whole:,} bytes'
    return f'another text of {size:,} bytes, not WikiText-2 ({whole:,} bytes)'


DATA_URL = 'http://d2l-data.s3-accelerate.amazonaws.com/'

# name: (address, sha1). The book's own address of WikiText-2 is left out: it
# has answered with status 403 since 2024.
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

# The addresses of DATA_URL are tried over https first
_SECURE_DATA_URL = DATA_URL.replace('http:', 'https:')

#: Largest accepted sizes of files in bytes; of others: downloads.MAX_BYTES
MOST_BYTES = {'wikitext-2-v1.zip': 16 << 20, 'snli_1.0.zip': 256 << 20,
              'bert.base.zip': 2 << 30, 'bert.small.zip': 512 << 20,
              'train-00000-of-00001.parquet': 64 << 20}

# The training text as the living edition fetches it
WIKITEXT_2_URL = ('https://huggingface.co/datasets/Salesforce/wikitext/'
                  'resolve/main/wikitext-2-v1/train-00000-of-00001.parquet')
WIKITEXT_2_SHA1 = '98ee727e59fcc34fddaadae93e15b1f8ed5561a4'

# The page may put another address into DATA_HUB; the checksum stays the same
_ARCHIVE_SHA1 = DATA_HUB['wikitext-2'][1]


class LooseFile(NamedTuple):
    """A file of an archive that has an address of its own."""

    url: str
    blob: str    # git's hash of the content
    name: str


_EXAMPLES = ('https://raw.githubusercontent.com/pytorch/examples/main/'
             'word_language_model/data/wikitext-2/')

# Archives whose files can be fetched one by one: name -> (folder, files)
LOOSE_FILES = {
    'wikitext-2': ('wikitext-2', (
        LooseFile(_EXAMPLES + 'train.txt', PUBLISHED[TRAIN_FILE].blob,
                  TRAIN_FILE),
        LooseFile(_EXAMPLES + 'valid.txt', PUBLISHED[VALID_FILE].blob,
                  VALID_FILE),
        LooseFile(_EXAMPLES + 'test.txt', PUBLISHED[TEST_FILE].blob,
                  TEST_FILE))),
}


def _sha1(path):
    return file_digest(path, hashlib.sha1())


def _by_hand(folder):
    return (f'by hand: put {TRAIN_FILE} into {folder}, or let D2LBERT_DATA '
            'name the folder that holds it')


def download(name: str, folder: Optional[PathLike] = None,
             sha1_hash: Optional[str] = None,
             cache_dir: Optional[PathLike] = None) -> str:
    """Fetch a file unless it is on this machine; return its path.

    name: a name in DATA_HUB, or an address. `folder` and `cache_dir` are one
    argument, the folder for the file. Without it the file is looked for in
    the folder that D2LBERT_DATA names, in the repository's data/ and in the
    folder `data` of the user's cache. It is fetched into the cache, not into
    the book's ../data, which depends on the working directory. sha1_hash:
    the SHA-1 digest of an address's file; other content is rejected. Raises
    HubError if the file cannot be fetched, ValueError for a name that
    DATA_HUB lacks.
    """
    if None not in (folder, cache_dir):
        raise TypeError('folder and cache_dir are one argument: give one')
    given = folder if cache_dir is None else cache_dir
    url, sha1 = DATA_HUB.get(name, (name, sha1_hash))
    if '://' not in url:
        raise ValueError(f'{name!r} is not in DATA_HUB, which has '
                         f'{", ".join(map(repr, DATA_HUB))}; add it as '
                         'DATA_HUB[name] = (address, sha1), or give an '
                         'address')
    folder, file = _base(given), urllib.parse.urlsplit(url).path.split('/')[-1]
    if not file:
        raise ValueError(f'{url!r} ends in no file name: give the address '
                         'of a file')
    other_files = []    # of this name, but with other content
    for place in _places() if given is None else [folder]:
        path = place / file
        if path.is_file():
            if sha1 is None or _sha1(path) == sha1:
                return str(path)
            other_files.append(path)
    cache.remove_leftovers('data')
    try:
        _fetch_first(_addresses(url), folder / file, sha1)
    except HubError as error:
        if sha1 == WIKITEXT_2_SHA1 and find_wikitext2() is not None:
            return str(_parquet_of_tokens(folder / file, error))
        found = ''.join(f'; {path} is another file, with checksum '
                        f'{_sha1(path)}' for path in other_files)
        raise HubError(f'{name} could not be fetched: {error}{found}; by '
                       f'hand: put {file} into {folder}') from error
    return str(folder / file)


def _addresses(url):
    """The addresses of a file, in the order in which they are tried."""
    if url.startswith(DATA_URL):
        return [_SECURE_DATA_URL + url[len(DATA_URL):], url]
    return [url]


def _fetch_first(urls, path, sha1):
    """Fetch a file from the first address that serves it."""
    most = MOST_BYTES.get(path.name, downloads.MAX_BYTES)
    errors = []
    for url in urls:
        try:
            return fetch(url, path, _sha1, sha1, most)
        except HubError as error:
            errors.append(error)
    raise HubError('; '.join(map(str, errors))) from errors[-1]


def _parquet_of_tokens(path, error):
    """Write this machine's WikiText-2 training text as a parquet file.

    It replaces the published file, which could not be fetched.
    """
    try:
        pyarrow = importlib.import_module('pyarrow')
        parquet = importlib.import_module('pyarrow.parquet')
    except ImportError:
        raise HubError(f'{error}; to make {path.name} from the WikiText-2 of '
                       'this machine: pip install pyarrow') from error
    source = find_wikitext2() / TRAIN_FILE
    with open(source, encoding='utf-8', newline='\n') as file:
        table = pyarrow.table({'text': file.readlines()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        parquet.write_table(table, str(part))
    warn(f'd2lbert: {error}; {path} was made from {source} instead')
    return path


def _base(cache_dir):
    """The folder into which files are fetched and unpacked."""
    return cache.root() / 'data' if cache_dir is None else Path(cache_dir)


def download_extract(name: str, folder: Optional[str] = None,
                     cache_dir: Optional[PathLike] = None) -> str:
    """Fetch an archive listed in DATA_HUB and unpack it; return its folder.

    cache_dir: the folder to unpack in; by default the folder `data` of the
    user's cache. folder: the name of the folder that the archive makes
    there; by default the archive's name without its extension. Without
    `cache_dir`, WikiText-2 on this machine is used where it is. If the
    archive cannot be fetched, its files are fetched one by one where their
    addresses are known (LOOSE_FILES). Raises HubError, which lists all
    attempts.
    """
    if cache_dir is None and DATA_HUB.get(name, ('', ''))[1] == _ARCHIVE_SHA1:
        found = find_wikitext2()
        if found is not None:
            return str(_checked(found))
    try:
        archive = download(name, cache_dir)
    except HubError as error:
        if name not in LOOSE_FILES:
            raise
        return str(_fetch_loose(name, cache_dir, error))
    base = str(_base(cache_dir))
    try:
        unpack(archive, base)
    except ArchiveError as error:
        raise HubError(str(error)) from error
    return os.path.join(base, folder or os.path.splitext(
        os.path.basename(archive))[0])


def _fetch_loose(name, cache_dir, archive_error):
    """Fetch the files of an archive one by one; return their folder."""
    folder, files = LOOSE_FILES[name]
    folder = _base(cache_dir) / folder
    for url, blob, file in files:
        path = folder / file
        if path.is_file() and git_blob(path) == blob:
            continue
        try:
            fetch(url, path, git_blob, blob,
                  PUBLISHED[file].size)
        except HubError as error:
            raise HubError(f'{name} could not be fetched: '
                           f'{archive_error.__cause__}; {error}; '
                           f'{_by_hand(folder)}') from error
    return folder


def _repository():
    """The root of a checkout of this package, or None.

    It is above this file, or it is the working directory.
    """
    for root in (Path(__file__).resolve().parent.parent, Path.cwd()):
        if (root / 'setup.py').is_file() and (
                root / 'd2lbert' / '_version.py').is_file():
            return root
    return None


def _folder_of_text(folder):
    """Return `folder` or its wikitext-2/, or None.

    The returned folder holds the training text.
    """
    for candidate in (Path(folder), Path(folder) / 'wikitext-2'):
        if (candidate / TRAIN_FILE).is_file():
            return candidate
    return None


def _places():
    """The folders of this machine that may hold WikiText-2, in order."""
    if os.environ.get('D2LBERT_DATA'):
        yield Path(os.environ['D2LBERT_DATA']).expanduser()
    if _repository():
        yield _repository() / 'data'
    with contextlib.suppress(cache.CacheError):
        yield cache.root() / 'data'


def find_wikitext2():
    """The folder of this machine that holds WikiText-2, or None."""
    return next(filter(None, map(_folder_of_text, _places())), None)


def wikitext2_flaws(folder, thorough=False):
    """Sentences about files in `folder` that are not WikiText-2's.

    thorough: compare the content, not only the size. Missing files are not
    reported.
    """
    flaws = [(path, flaw_of(path, path.name, thorough))
             for path in (Path(folder, name) for name in PUBLISHED)
             if path.is_file()]
    return [f'{path} is {flaw}' for path, flaw in flaws if flaw]


# Flaws that a warning has named
_warned = set()


def _checked(folder):
    """Return `folder`; warn once of files in it that are not WikiText-2's."""
    cache.mark_used(folder)
    with contextlib.suppress(FileNotFoundError):
        if os.path.samefile(folder, sample_dir()):
            return folder       # a sample, which is not WikiText-2's text
    for flaw in wikitext2_flaws(folder):
        if flaw not in _warned:
            warn(f'{flaw}; it is used as it is')
            _warned.add(flaw)
    return folder


def wikitext2_dir(data_dir=None):
    """Return the folder that holds wiki.train.tokens; fetch it if missing.

    With `data_dir` only this folder and its wikitext-2/ are searched.
    Without it these are searched: $D2LBERT_DATA, the repository's data/, the
    folder `data` of the user's cache, and wikitext-2/ in each of them; then
    the text is fetched. If files differ from the published ones, they are
    used with a warning. Raises FileNotFoundError for a `data_dir` without
    the text, HubError if the text cannot be fetched.
    """
    if data_dir is not None:
        folder = _folder_of_text(Path(data_dir).expanduser())
        if folder is None:
            raise FileNotFoundError(
                f'data_dir={str(data_dir)!r} holds neither {TRAIN_FILE} nor '
                f'wikitext-2/{TRAIN_FILE}: name the folder that does, or '
                'leave data_dir (--data-dir) out to have WikiText-2 looked '
                'for')
    else:
        folder = find_wikitext2()
    if folder is not None:
        return _checked(folder)
    try:
        return Path(download_extract('wikitext-2', 'wikitext-2'))
    except OSError as error:
        looked = ', '.join(map(str, _places()))
        raise HubError(f'WikiText-2 is not on this machine (looked in '
                       f'{looked}), and {error}') from None


def sample_dir():
    """The folder of the small corpus that is part of d2lbert.

    It is data/sample in the repository and d2lbert/sample once installed.
    """
    places = [Path(__file__).resolve().parent / 'sample']
    if _repository():
        places.insert(0, _repository() / 'data' / 'sample')
    for folder in places:
        if (folder / TRAIN_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f'the bundled corpus is missing (looked in '
        f'{", ".join(map(str, places))}): install d2lbert again')
