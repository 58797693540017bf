"""`d2lbert cache`: list and remove cached files."""
import os
import sys
import time

from d2lbert.command.flags import at_least
from d2lbert.machine import cache


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'cache', help='list or remove cached files',
        description='List or remove cached files: kernels are the compiled '
        'operators; tokens and corpora are tokenized texts; data are '
        'downloads; wheels are MXNet as it was installed. Only files that '
        'd2lbert made are removed.')
    parser.add_argument('--clear', action='store_true', help='remove files')
    parser.add_argument('--kind', nargs='+', choices=list(cache.KINDS),
                        metavar='KIND', help='only '
                        f'{", ".join(cache.KINDS)} (all; with --clear '
                        f'{", ".join(cache.RENEWABLE)}, which are made '
                        'again when needed)')
    parser.add_argument('--older-than', type=at_least(0, float),
                        metavar='DAYS',
                        help='only files unused for this many days')
    parser.set_defaults(run=run)


def run(args):
    """List or remove cached files; returns the exit status."""
    kinds, older_than = args.kind, args.older_than
    print(cache.root())
    if args.clear:
        return _clear(kinds, older_than or 0)
    rows = [('kind', 'number', 'size', 'last used'),
            *(_row(kind, older_than or 0) for kind in kinds or cache.KINDS)]
    for name, number, bulk, last in rows:
        print(f'{name:<9}{number:>7}{bulk:>12}  {last}'.rstrip())
    return 0


def _row(kind, older_than):
    folder = cache.root() / kind
    if folder.is_symlink():
        return kind, '', '', f'in {os.readlink(folder)}: left alone'
    now = time.time()
    found = [entry for entry in cache.entries([kind])
             if now - entry.used >= older_than * 86400]
    number = sum(not entry.is_left for entry in found)
    last = max((entry.used for entry in found), default=None)
    return (kind, str(number), cache.megabytes(sum(e.size for e in found)),
            '' if last is None else
            time.strftime('%Y-%m-%d', time.localtime(last)))


def _clear(kinds, older_than):
    status, total = 0, 0
    for kind in kinds or cache.RENEWABLE:
        try:
            number, freed = cache.clear(kind, older_than)
        except BlockingIOError:
            print(f'{kind}: another process is making some, so all are '
                  'left; try again when it is done', file=sys.stderr)
            status = 1
            continue
        total += freed
        print(f'{kind:<9}{number:>7} removed, {cache.megabytes(freed)}')
    kept = [kind for kind in cache.KINDS if kind not in cache.RENEWABLE
            and not kinds and any(cache.entries([kind]))]
    for kind in kept:
        print(f'{kind:<9} is kept: --kind {kind} removes what was fetched')
    print(f'{cache.megabytes(total)} freed')
    return status
