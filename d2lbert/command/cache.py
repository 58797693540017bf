"""Run `d2lbert cache`: list or remove cached files."""
import os
import sys
import time

from d2lbert.command.flags import add_json, at_least, print_json
from d2lbert.machine import cache

SECONDS_PER_DAY = 86400


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'cache', help='list or remove cached files',
        description='List or remove cached files: kernels are the compiled '
        'operators; tokens are digests and other facts about files; corpora '
        'are tokenized texts; data are downloads; wheels are the packages of '
        'MXNet that were installed. Only files that d2lbert made are removed.')
    parser.add_argument('--clear', action='store_true', help='remove files')
    parser.add_argument('--kind', nargs='+', choices=list(cache.KINDS),
                        metavar='KIND', help='only '
                        f'{", ".join(cache.KINDS)} (default: all; with '
                        f'--clear {", ".join(cache.RENEWABLE)}, which are '
                        'made again when needed)')
    parser.add_argument('--older-than', type=at_least(0, float),
                        metavar='DAYS',
                        help='only files unused for this many days')
    add_json(parser.add_argument, 'one object with the kinds of files')
    parser.set_defaults(run=run)


def run(args):
    """List or remove cached files; returns the exit status."""
    # Of a kind that is named twice, `_clear` would report the second removal
    kinds = list(dict.fromkeys(args.kind or ()))
    min_days = args.older_than or 0
    if args.clear:
        return _clear(kinds, min_days, args.json)
    summaries = [_summary(kind, min_days) for kind in kinds or cache.KINDS]
    if args.json:
        print_json(dict(folder=str(cache.root()), kinds=summaries))
        return 0
    print(cache.root())
    rows = [('kind', 'number', 'size', 'last used'), *map(_row, summaries)]
    for kind, number, size, last_used in rows:
        print(f'{kind:<9}{number:>7}{size:>12}  {last_used}'.rstrip())
    return 0


def _summary(kind, min_days):
    """Describe the files of a kind that were unused for `min_days` or more."""
    folder = cache.root() / kind
    if folder.is_symlink():     # `cache.entries` ignores a linked folder
        return dict(kind=kind, link=os.readlink(folder))
    now = time.time()
    entries = [entry for entry in cache.entries([kind])
               if now - entry.last_used >= min_days * SECONDS_PER_DAY]
    last_date = None
    if entries:
        last_time = max(entry.last_used for entry in entries)
        last_date = time.strftime('%Y-%m-%d', time.localtime(last_time))
    # Temporary files take space, but are no entries of the cache
    number = sum(not entry.is_temporary for entry in entries)
    return dict(kind=kind, number=number,
                bytes=sum(entry.size for entry in entries),
                last_used=last_date)


def _row(summary):
    """Return the cells of a row of the table, for a result of `_summary`."""
    if 'link' in summary:
        return (summary['kind'], '', '',
                f'a link to {summary["link"]}, never counted or cleared')
    return (summary['kind'], str(summary['number']),
            cache.megabytes(summary['bytes']), summary['last_used'] or '')


def _clear(kinds, min_days, is_json):
    status, total_freed, num_removed = 0, 0, {}
    lines = [str(cache.root())]
    for kind in kinds or cache.RENEWABLE:
        try:
            num_removed[kind], freed = cache.clear(kind, min_days)
        except BlockingIOError:
            print(f'{kind}: another process is writing files of this kind, '
                  'so no file is removed; try again when it is done',
                  file=sys.stderr)
            status = 1
            continue
        total_freed += freed
        lines.append(f'{kind:<9}{num_removed[kind]:>7} removed, '
                     f'{cache.megabytes(freed)}')
    if is_json:
        print_json(dict(folder=str(cache.root()), removed=num_removed,
                        bytes=total_freed))
        return status
    if not kinds:       # name the kinds that only --kind removes
        kept_kinds = [kind for kind in cache.KINDS
                      if kind not in cache.RENEWABLE
                      and any(cache.entries([kind]))]
        lines += [f'{kind:<9} is kept: --kind {kind} removes what was '
                  'downloaded' for kind in kept_kinds]
    print('\n'.join([*lines, f'{cache.megabytes(total_freed)} freed']))
    return status
