"""Recognize the files of WikiText-2, and describe other files."""
import hashlib
import os
import re
from typing import NamedTuple

from d2lbert.machine.files import file_digest
from d2lbert.machine.transfers import is_web_page


class Published(NamedTuple):
    """Facts about a published file."""

    size: int    # bytes
    lines: int
    tokens: int
    blob: str    # git's name for the content


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

# The beginning of a file that is read to describe it
HEAD_BYTES = 1 << 20

# WikiText's headings, unknown words and split numbers
MARKS = (re.compile(rb'^ = [^=].* = \r?$', re.MULTILINE),
         re.compile(rb' <unk> '), re.compile(rb' @[-,.]@ '))


def git_blob(path):
    """Git's name for a file's content: the SHA-1 of a header and content."""
    return file_digest(
        path, hashlib.sha1(b'blob %d\0' % os.path.getsize(path)))


def flaw(path, name, thorough=False):
    """Describe a file that is not WikiText-2's `name`; '' if it is.

    The description completes a sentence that begins with 'PATH is'. A file
    of the right size is accepted. thorough: its content must be the
    published one, or have the same number of lines and tokens, as with the
    articles in another order.
    """
    expected = PUBLISHED[name]
    try:
        size = os.path.getsize(path)
        if size == expected.size:
            if (not thorough or git_blob(path) == expected.blob
                    or _counts(path) == expected[:3]):
                return ''
            return f'another text of the same {size:,} bytes'
        # Line ends of another system are accepted, too
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
