"""`d2lbert cache`: list and remove cached files."""
import os
import sys
import time

from d2lbert.command.flags import add_json, at_least, print_json
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
    add_json(parser.add_argument, 'one object with the kinds of files')
    parser.set_defaults(run=run)


def run(args):
    """List or remove cached files; returns the exit status."""
    kinds, older_than = args.kind, args.older_than or 0
    if args.clear:
        return _clear(kinds, older_than, args.json)
    found = [_summary(kind, older_than) for kind in kinds or cache.KINDS]
    if args.json:
        print_json(dict(folder=str(cache.root()), kinds=found))
        return 0
    print(cache.root())
    rows = [('kind', 'number', 'size', 'last used'), *map(_row, found)]
    for name, number, size, last in rows:
        print(f'{name:<9}{number:>7}{size:>12}  {last}'.rstrip())
    return 0


def _summary(kind, older_than):
    """A dictionary about the files of a kind."""
    folder = cache.root() / kind
    if folder.is_symlink():
        return dict(kind=kind, link=os.readlink(folder))
    now = time.time()
    found = [entry for entry in cache.entries([kind])
             if now - entry.used >= older_than * 86400]
    last = max((entry.used for entry in found), default=None)
    return dict(kind=kind, number=sum(not entry.is_left for entry in found),
                bytes=sum(entry.size for entry in found),
                last_used=None if last is None else
                time.strftime('%Y-%m-%d', time.localtime(last)))


def _row(found):
    """The texts of a line of the table, from a dictionary of `_summary`."""
    if 'link' in found:
        return found['kind'], '', '', f'in {found["link"]}: left alone'
    return (found['kind'], str(found['number']),
            cache.megabytes(found['bytes']), found['last_used'] or '')


def _clear(kinds, older_than, is_json):
    status, total, removed = 0, 0, {}
    lines = [str(cache.root())]
    for kind in kinds or cache.RENEWABLE:
        try:
            number, freed = cache.clear(kind, older_than)
        except BlockingIOError:
            print(f'{kind}: another process is writing some, so none is '
                  'removed; try again when it is done', file=sys.stderr)
            status = 1
            continue
        total += freed
        removed[kind] = number
        lines.append(f'{kind:<9}{number:>7} removed, '
                     f'{cache.megabytes(freed)}')
    if is_json:
        print_json(dict(folder=str(cache.root()), removed=removed,
                        bytes=total))
        return status
    kept = [kind for kind in cache.KINDS if kind not in cache.RENEWABLE
            and not kinds and any(cache.entries([kind]))]
    for kind in kept:
        lines.append(f'{kind:<9} is kept: --kind {kind} removes what was '
                     'fetched')
    print('\n'.join([*lines, f'{cache.megabytes(total)} freed']))
    return status
