"""Facts about files (such as digests), cached until the files change.

As in git, a file with the same size, times and inode is unchanged. Each write
changes the times, but only with the resolution of the file system. So a fact
is cached only if the file has not been written to recently.
"""
import contextlib
import json
import os
import time
import zlib

from d2lbert.machine import cache, files
from d2lbert.machine.files import read_json

INDEX = 'unchanged.json'

# Increase this when the meaning of a fact changes
VERSION = 1

# The coarsest time resolution of a file system
REST_NS = 2 * 10 ** 9

# Number of facts kept; the oldest are dropped
MAX_FACTS = 1024


class Unchanged:
    """The known facts about files; `save` stores the new ones."""

    def __init__(self):
        self.facts, self.new = {}, {}
        if cache.enabled():
            self.facts = _load(_index())
            cache.used(_index())

    def get(self, what, path, find_out):
        """Return the fact `what` about a file: cached, or find_out(path).

        A fact is an object that JSON can represent.
        """
        key = f'{what} {os.path.abspath(path)}'
        begun, stamp = time.time_ns(), _stamp(path)
        known = self.facts.get(key)
        if known is not None and known[0] == stamp:
            return known[1]
        fact = find_out(path)
        # Skip a file that changed, or whose next write could be missed
        if (stamp == _stamp(path)
                and max(stamp[1], stamp[2]) < begun - REST_NS):
            self.new[key] = [stamp, fact]
        return fact

    def save(self):
        """Store the new facts; if the cache is not writable, skip this."""
        if not self.new or not cache.enabled():
            return
        # Keep facts that other processes stored (not safe against a race)
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
    """A list of numbers that changes when the file changes."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns,
            found.st_ino]


def _index():
    return cache.root() / 'tokens' / INDEX


def _sealed(facts):
    return {'version': VERSION, 'facts': facts,
            'sum': zlib.crc32(json.dumps(facts).encode())}


def _load(index):
    """The facts in an index that this user owns; empty if it is damaged."""
    if not cache.is_ours(index):
        return {}
    try:
        sealed = read_json(index)
        facts = sealed['facts']
        return facts if sealed == _sealed(facts) else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
