"""Facts about files that cost a reading, kept until the files change.

As git does: a file whose size, times and inode are what they were has the
content it had. Its times change with each write, but only as finely as the
file system counts, so a fact is kept only of a file that had been at rest.
"""
import contextlib
import json
import os
import time
import zlib

from d2lbert.machine import cache, files
from d2lbert.machine.files import read_json

INDEX = 'unchanged.json'

# To be raised when what is found out about files is another thing
VERSION = 1

# The coarsest clock of a file system
REST_NS = 2 * 10 ** 9

# Facts kept; the oldest are forgotten
MAX_FACTS = 1024


class Unchanged:
    """The facts known about files; what is new is kept with `save`."""

    def __init__(self):
        self.facts, self.new = {}, {}
        if cache.enabled():
            self.facts = _load(_index())
            cache.used(_index())

    def get(self, what, path, find_out):
        """The fact called `what` about a file: known, or find_out(path).

        A fact is what JSON can hold.
        """
        key = f'{what} {os.path.abspath(path)}'
        begun, stamp = time.time_ns(), _stamp(path)
        known = self.facts.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        fact = find_out(path)
        # Written to since, or so lately that one more write would not show
        if (stamp == _stamp(path)
                and max(stamp[1], stamp[2]) < begun - REST_NS):
            self.new[key] = [stamp, fact]
        return fact

    def save(self):
        """Keep what is new; a cache that cannot be written costs time."""
        if not self.new or not cache.enabled():
            return
        # What others have kept meanwhile stays, but for a race
        facts = {key: value for key, value in _load(_index()).items()
                 if key not in self.new}
        facts = dict(list({**facts, **self.new}.items())[-MAX_FACTS:])
        self.facts, self.new = facts, {}
        with contextlib.suppress(OSError):
            _index().parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(_index()) as part:
                part.write_text(json.dumps(_sealed(facts)), 'utf-8')
                cache.make_private(part)


def _stamp(path):
    """What changes when a file does, a list of numbers."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns,
            found.st_ino]


def _index():
    return cache.root() / 'tokens' / INDEX


def _sealed(facts):
    return {'version': VERSION, 'facts': facts,
            'sum': zlib.crc32(json.dumps(facts).encode())}


def _load(index):
    """The facts in an index of this user's; none if it is damaged."""
    if not cache.is_ours(index):
        return {}
    try:
        sealed = read_json(index)
        facts = sealed['facts']
        return facts if sealed == _sealed(facts) else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
