"""Digests of everything that the package computes, before and after a change.

    python tests/bench/digests.py --write before.json
    python tests/bench/digests.py --compare before.json     # after the change

A change of structure leaves every digest as it was. Compared are small runs
of each objective, with and without the compiled operators, on one and two
devices, vectors of texts, fine-tuned and resumed runs, exported folders, and
what commands print: `--list` names them. A case is sha256 over the sorted
(name, dtype, shape, bytes) of its arrays and files.

Digests depend on the processor and on the versions of MXNet and NumPy. The
file records these, and digests of another machine are refused. The product
of bfloat16 matrices is chosen by a measurement for each compiled library. If
the case bf16 alone differs, compare the products that `d2lbert doctor` prints.
AMX is off; `D2LBERT_AMX=require` in the environment gives digests of it.

Exit status: 0, all digests are equal, or the file is written; 1, a case
differs or fails; 2, the command line or the file is wrong.
"""
import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import digests_cases
import numpy
from digests_cases import CASES, MAYBE, CaseError, Lab


def main(argv=None):
    """Run the command; return the exit status."""
    args = _parser().parse_args(argv)
    cases = [case for case in CASES
             if all(word in case.name for word in args.only)]
    if not cases:
        return _refuse(f'no case has all of the words {" ".join(args.only)}: '
                       'see --list')
    if args.list:
        print('\n'.join(case.name for case in cases))
        return 0
    try:
        machine = surroundings()
        if args.write:
            _check_new(args.write)
        else:
            before = _read(args.compare, machine)
    except (OSError, ValueError) as error:
        return _refuse(error)
    found, failed = digests(cases, args.jobs, args.folder)
    if args.write:
        if failed:
            print(f'{len(failed)} cases failed: nothing is written')
            return 1
        _write(args.write, dict(machine=machine, digests=found))
        print(f'wrote {len(found)} digests to {args.write}')
        return 0
    names = [case.name for case in cases]
    if not args.only:
        names += [name for name in before if name not in names]
    return _compare(before, found, failed, names)


def _parser():
    parser = argparse.ArgumentParser(
        description=__doc__.partition('\n')[0],
        epilog='The docstring of the file says what is compared.')
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('--write', metavar='FILE', type=Path,
                      help='write the digests to a new file')
    what.add_argument('--compare', metavar='FILE', type=Path,
                      help='compare the digests with a file, and name each '
                      'case that differs')
    what.add_argument('--list', action='store_true', help='name the cases')
    parser.add_argument('--only', nargs='+', default=[], metavar='WORD',
                        help='only cases whose names have all of these words')
    parser.add_argument('--jobs', type=int, default=2, metavar='N',
                        choices=range(1, 65), help='cases at a time (2)')
    parser.add_argument('--folder', metavar='DIR', type=Path, help='make the '
                        'runs in this new folder, and keep it')
    return parser


def _refuse(reason):
    print(f'digests.py: {reason}', file=sys.stderr)
    return 2


def surroundings():
    """Everything besides the package on which the digests depend."""
    from d2lbert.machine.processor import find_processor
    found = find_processor()
    return dict(
        machine=found.machine,
        processor=f'{found.name} {found.family} {found.model}',
        instructions=' '.join(sorted(
            flag for flag in found.features if flag.startswith(
                ('avx', 'amx', 'fma', 'asimd', 'sve', 'bf16')))),
        isa=os.environ.get('D2LBERT_ISA', 'native'),
        amx=os.environ.get('D2LBERT_AMX', 'off'),
        threads=digests_cases.THREADS, mxnet=digests_cases.mxnet().__version__,
        numpy=numpy.__version__, python=platform.python_version())


def digest(entries):
    """sha256 of {name: array or bytes}, as hexadecimal digits."""
    found = hashlib.sha256()
    for name in sorted(entries):
        data = digests_cases.as_bytes(entries[name])
        found.update(f'{len(name)} {name} {len(data)} '.encode() + data)
    return found.hexdigest()


def digests(cases, jobs, folder=None):
    """{name: digest or None}, and {name: reason} of cases that failed.

    A case whose objective the package lacks has None.
    """
    found, failed = {}, {}

    def work(case):
        begin = time.monotonic()
        try:
            found[case.name] = digest(case.entries(lab))
        except CaseError as error:
            if (any(f'pretrain {name},' in case.name for name in MAYBE)
                    and 'objective must be' in str(error)):
                found[case.name] = None
            else:
                failed[case.name] = str(error)
        except Exception as error:      # one case must not end the others
            failed[case.name] = f'{type(error).__name__}: {error}'
        said = (f'FAILED: {failed[case.name]}' if case.name in failed
                else found[case.name] or 'not here')
        print(f'{time.monotonic() - begin:5.1f} s  {case.name}: {said}',
              flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        if folder is not None:
            folder.mkdir(parents=True)
        lab = Lab((folder or Path(temporary)).resolve())
        try:
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(work, cases))
        finally:
            lab.close()
    return {case.name: found[case.name] for case in cases
            if case.name in found}, failed


def _compare(before, found, failed, names):
    """Print the cases that differ; return the exit status."""
    bad, new = [], 0
    for name in names:
        if name in failed:
            bad.append(f'FAILED   {name}: {failed[name]}')
        elif before.get(name) is None:
            new += name in found and found[name] is not None
        elif name not in found or found[name] is None:
            bad.append(f'MISSING  {name}')
        elif found[name] != before[name]:
            bad.append(f'DIFFERS  {name}')
    print(*bad, sep='\n', end='\n' if bad else '')
    print(f'{len(names) - len(bad) - new} of {len(names)} cases are equal'
          + (f', {new} are new' if new else ''))
    return 1 if bad else 0


def _check_new(path):
    if path.exists():
        raise ValueError(f'{path} exists: remove it, or name a new file')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'there is no folder {path.absolute().parent}')


def _write(path, content):
    part = path.with_name(f'{path.name}.part')
    part.write_text(json.dumps(content, indent=1) + '\n', 'utf-8')
    os.replace(str(part), str(path))


def _read(path, machine):
    """{name: digest} of a file that was written on a machine like this."""
    try:
        content = json.loads(path.read_text('utf-8'))
        there, before = dict(content['machine']), dict(content['digests'])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f'{path} is no file of --write') from None
    others = [f'{name} {there.get(name)!r}, here {value!r}'
              for name, value in machine.items() if there.get(name) != value]
    if others:
        raise ValueError(f'{path} was written on another machine '
                         f'({"; ".join(others)}): write one here')
    return before


if __name__ == '__main__':
    sys.exit(main())
