"""Mistakes drawn at random, and whether the tests notice them.

    python tests/bench/drawn.py [--seed N] [--count 60] [--list] [--out FILE]

Nobody chooses these mistakes: each is one change of an operator below, drawn
over all rooms by a seed, which is printed. They are made one at a time in a
copy of the checkout, as mutants.py does. The tests run in three parts until
one fails: the file named like the source file, the files that import it, and
the other tests of its room. The test that failed has to pass without the
mistake. The table goes to FILE, by default results/drawn.txt beside this
script. EQUAL names the survivors that do not matter, and says why. The exit
status is 0 only if 90 % are caught. Needs Python 3.9.
"""
import argparse
import ast
import collections
import contextlib
import copy
import random
import re
import resource
import sys
import tempfile
import time
from concurrent import futures
from pathlib import Path
from queue import Queue
from typing import NamedTuple

import mutants
from mistakes import Mistake

ROOT = mutants.ROOT
#: What share of the mistakes must be caught.
ENOUGH = 0.9
#: Seconds for one part of the tests, and bytes of memory for each process.
SECONDS, MEMORY = 420, 16 << 30

#: Survivors that change nothing that counts: {what `Drawn.name` is: why}.
EQUAL = {
}


class Drawn(NamedTuple):
    """A change at one place of a source file."""

    operator: str
    place: str      # relative to the checkout
    line: int
    old: str        # what the line has
    new: str        # what takes its place
    text: str       # of the whole file, with the mistake

    @property
    def room(self):
        """The folder; C++ and the book's pages are rooms of their own."""
        _, room, *rest = self.place.split('/')
        if not self.place.endswith('.py'):
            return f'{room}, C++'
        return room if rest else 'pages'

    @property
    def name(self):
        """One line that says what is changed, and where."""
        return f'{self.place}: {_short(self.old)} -> {_short(self.new)}'


def _short(text):
    text = ' '.join(text.split())
    return text if len(text) <= 60 else f'{text[:57]}...'


# Changes of Python

SWAPPED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
           ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
           ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot,
           ast.IsNot: ast.Is}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
              ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Add}


def python_changes(node):
    """(operator, node that takes the place of `node`) for each change."""
    def other(**fields):
        changed = copy.copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        return changed

    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield 'swap a comparison', other(
            ops=[SWAPPED[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.BinOp) and not _is_text(node):
        if isinstance(node.op, (ast.Add, ast.Sub)):
            yield 'drop a term', node.left
        if type(node.op) in ARITHMETIC:
            yield 'swap arithmetic', other(op=ARITHMETIC[type(node.op)]())
    if isinstance(node, ast.BoolOp):
        yield 'drop a term', other(values=node.values[:-1]) if len(
            node.values) > 2 else node.values[0]
        yield 'swap and with or', other(
            op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield 'drop a not', node.operand
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield 'wrong constant', ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield 'off by one', ast.Constant(node.value + 1)
        elif isinstance(node.value, float):
            yield 'wrong constant', ast.Constant(node.value * 2 or 1.0)
    if isinstance(node, ast.keyword) and node.arg == 'axis':
        with contextlib.suppress(ValueError):
            axis = ast.literal_eval(node.value)
            if isinstance(axis, int):
                yield 'wrong axis', other(
                    value=ast.Constant(0 if axis else 1))
    if isinstance(node, ast.If):
        yield 'drop a branch', (node.test, ast.Constant(False))
        yield 'always take a branch', (node.test, ast.Constant(True))
    if isinstance(node, ast.IfExp):
        yield 'drop a branch', node.orelse
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield 'drop a statement', ast.Pass()
    if isinstance(node, ast.AugAssign):
        yield 'drop a term', ast.Assign([node.target], node.value, lineno=0)
    if isinstance(node, ast.Call) and len(node.args) > 1 and not any(
            isinstance(arg, ast.Starred) for arg in node.args):
        yield 'swap arguments', other(
            args=[node.args[1], node.args[0], *node.args[2:]])


def _is_text(node):
    """Whether an operation is on a string that stands there."""
    return any(isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple))
               or isinstance(side, ast.Constant)
               and isinstance(side.value, (str, bytes))
               for side in (node.left, node.right))


def of_python(place, text):
    """All changes of a source file in Python."""
    data, starts = text.encode(), [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _walk(ast.parse(text)):
        for operator, new in python_changes(node):
            old, new = new if isinstance(new, tuple) else (node, new)
            begin = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            # In brackets, so that it binds as it did
            code = ast.unparse(ast.fix_missing_locations(new))
            if isinstance(old, ast.expr) and not isinstance(
                    new, (ast.Constant, ast.Name)):
                code = f'({code})'
            changed = (data[:begin] + code.encode() + data[end:]).decode()
            try:
                ast.parse(changed)
            except SyntaxError:
                continue
            yield Drawn(operator, place, old.lineno,
                        data[begin:end].decode(), code, changed)


def _walk(node):
    """All nodes but those in f-strings, which have no places, and types."""
    yield node
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.JoinedStr) or name in (
                'annotation', 'returns'):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)


# Changes of C++

CPP = [
    ('swap a comparison', r' < ', ' <= '),
    ('swap a comparison', r' <= ', ' < '),
    ('swap a comparison', r' > ', ' >= '),
    ('swap a comparison', r' >= ', ' > '),
    ('swap a comparison', r' == ', ' != '),
    ('swap a comparison', r' != ', ' == '),
    ('drop a term', r' [+-] 1\b', ''),
    ('drop a term', r' [+-]= ', ' = '),
    ('drop a term', r' \* \w+(?=[;),])', ''),
    ('swap arithmetic', r' \+ ', ' - '),
    ('swap arithmetic', r' - ', ' + '),
    ('swap arithmetic', r' \* (?=\w)', ' + '),
    ('swap and with or', r' && ', ' || '),
    ('swap and with or', r' \|\| ', ' && '),
    ('drop a not', r'(?<=[( ])!(?=\w)', ''),
    ('off by one', r'(?<== )0(?=;)', '1'),
    ('off by one', r'(?<=\[)0(?=\])', '1'),
    ('wrong constant', r'\b1\.f\b', '2.f'),
    ('wrong constant', r'\b0\.5f?\b', '0.25'),
    ('wrong constant', r'\btrue\b', 'false'),
    ('drop a branch', r'(?<=\bif )\([^()]+\)(?= )', '(false)'),
    ('drop a statement', r'(?m)^ +(?!return|break|continue)\w[\w.]*\([^()]*\)'
     r';$', ';'),
    ('swap two bounds', r'\bmin\(', 'max('),
    ('swap two bounds', r'\bmax\(', 'min('),
]


def of_cpp(place, text):
    """All changes of a source file in C++, outside of comments."""
    bare = re.sub(r'//[^\n]*|/\*.*?\*/|^#[^\n]*',
                  lambda found: re.sub(r'[^\n]', '~', found.group()), text,
                  flags=re.DOTALL | re.MULTILINE)
    for operator, pattern, new in CPP:
        for found in re.finditer(pattern, bare):
            line = text.count('\n', 0, found.start())
            old = text.split('\n')[line]
            changed = text[:found.start()] + new + text[found.end():]
            yield Drawn(operator, place, line + 1, old,
                        changed.split('\n')[line], changed)


# The draw

def drawn(count, seed):
    """So many changes: rooms take turns, the rest is chance."""
    rng, by_room = random.Random(seed), {}
    for name in mutants.tracked(ROOT):
        if re.fullmatch(r'd2lbert/.*\.(py|cc|h)', name):
            text = (ROOT / name).read_text('utf-8')
            for change in (of_python if name.endswith('.py')
                           else of_cpp)(name, text):
                by_room.setdefault(change.room, {}).setdefault(
                    change.operator, []).append(change)
    found, taken = [], set()
    while len(found) < count:
        for room in rng.sample(sorted(by_room), len(by_room)):
            for _ in range(100):
                operator = rng.choice(sorted(by_room[room]))
                change = rng.choice(by_room[room][operator])
                if (change.place, change.line) not in taken:
                    taken.add((change.place, change.line))
                    found.append(change)
                    break
    return found[:count]


# The tests

def parts(root, change):
    """The test files that may notice a change, the likeliest first."""
    texts = {path.relative_to(root).as_posix(): path.read_text('utf-8')
             for path in sorted(root.glob('tests/**/test_*.py'))}
    names = list(texts)
    path = Path(change.place)
    room = path.parent.relative_to('d2lbert').as_posix()
    folder = 'tests' if room == '.' else f'tests/{room}'
    own = [name for name in names if Path(name).name == f'test_{path.stem}.py']
    module = '.'.join(path.with_suffix('').parts)
    parent = re.escape(module.rpartition('.')[0])
    imports = re.compile(
        rf'\b{re.escape(module)}\b|^from {parent} import '
        rf'(\([^)]*|.*)\b{path.stem}\b', re.MULTILINE)
    users = [name for name in names if imports.search(texts[name])]
    rest = [name for name in names
            if Path(name).parent.as_posix() == folder]
    seen = set()
    for part in own, users, rest:
        part = [name for name in part if name not in seen]
        seen.update(part)
        if part:
            yield part


def attempt(checkout, change):
    """(verdict, test that noticed) of one change."""
    before = (checkout.root / change.place).read_text('utf-8')
    case = mutants.Case(Mistake(change.name, before, change.text, ''),
                        change.place, [])
    for part in parts(checkout.root, change):
        passed_over = []
        while True:
            with checkout.having(case):
                verdict, output = run(checkout, part, passed_over)
            if verdict == mutants.SURVIVED:
                break
            test = noticed_by(verdict, output)
            if test is None:    # no test could be collected
                return verdict, ', '.join(part[:1])
            if run(checkout, [test], [])[0] == mutants.SURVIVED:
                return verdict, test
            passed_over.append(test)    # it fails without the mistake, too
    return mutants.SURVIVED, ''


def run(checkout, tests, passed_over):
    """(verdict, output) of tests, which may be the none that are left."""
    options = [f'--deselect={test}' for test in passed_over]
    try:
        return checkout.run(SECONDS, tests, '-x', '-v', '--tb=no',
                            '-p', 'no:xdist', *options)
    except mutants.Broken as error:
        if 'during collection' in str(error) or 'conftest' in str(error):
            return mutants.CAUGHT, str(error)
        return mutants.SURVIVED, str(error)


def noticed_by(verdict, output):
    """The test that failed, or that ran when the process ended."""
    found = re.findall(r'^(?:FAILED|ERROR) (\S+::\S+(?: [^-]\S*)*)', output,
                       re.MULTILINE)
    if not found and verdict != mutants.CAUGHT:
        found = re.findall(r'^(tests/\S+::\S+)', output, re.MULTILINE)
    return found[-1] if found else None


# All of it

def try_all(changes, copies):
    """[(verdict, test, seconds)] of the changes, told as they come."""
    free = Queue()
    for checkout in copies:
        free.put(checkout)

    def one(change):
        checkout, begun = free.get(), time.monotonic()
        try:
            verdict, test = attempt(checkout, change)
        finally:
            free.put(checkout)
        seconds = time.monotonic() - begun
        print(f'{verdict:<9}{seconds:>4.0f} s  {change.name} '
              f'[line {change.line}] {test}', flush=True)
        return verdict, test, seconds

    with futures.ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(one, changes))


def table(seed, changes, found):
    """The lines of the table, and the share that was caught."""
    count, caught = collections.Counter(), collections.Counter()
    equal = 0
    for change, (verdict, _, _) in zip(changes, found):
        survived = verdict == mutants.SURVIVED
        equal += survived and change.name in EQUAL
        for key in (change.room, change.operator, 'all'):
            count[key] += 1
            caught[key] += not survived
    lines = [f'seed {seed}, {len(changes)} mistakes', '',
             f'{"":<24}{"mistakes":>9}{"caught":>8}']
    for keys in ({change.room for change in changes},
                 {change.operator for change in changes}, ['all']):
        lines += [f'{key:<24}{count[key]:>9}{caught[key]:>8}'
                  for key in sorted(keys)] + ['']
    share = caught['all'] / count['all']
    lines += [f'{share:.1%} caught; of the others {equal} change nothing that '
              'counts', '']
    for change, (verdict, test, _) in zip(changes, found):
        lines.append(f'{verdict}: {change.name} ({change.operator}, line '
                     f'{change.line})')
        lines.append('    ' + (test or EQUAL.get(change.name, 'no reason')))
    return lines, share


def main(argv=None):
    """Run the script; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seed', type=int, metavar='N',
                        help='of the draw (default: another each time)')
    parser.add_argument('--count', type=int, default=60, metavar='N',
                        help='how many mistakes (default: 60)')
    parser.add_argument('--jobs', type=int, default=1, metavar='N',
                        help='how many are tried at a time (default: 1)')
    parser.add_argument('--only', type=int, nargs='+', metavar='N',
                        help='only these of them, counted from 1')
    parser.add_argument('--list', action='store_true',
                        help='only say which they are')
    parser.add_argument('--out', type=Path, metavar='FILE',
                        default=Path(__file__).parent / 'results/drawn.txt',
                        help='of the table (default: results/drawn.txt)')
    args = parser.parse_args(argv)
    seed = random.randrange(10 ** 6) if args.seed is None else args.seed
    print(f'seed {seed}', flush=True)
    changes = drawn(args.count, seed)
    if args.only:
        changes = [changes[k - 1] for k in args.only]
    if args.list:
        for change in changes:
            print(f'{change.operator:<22}{change.name} [line {change.line}]')
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory(prefix='drawn-') as folder:
        cache = Path(folder, 'cache')
        cache.mkdir()
        copies = [mutants.Copy(Path(folder, str(k)), cache)
                  for k in range(min(args.jobs, len(changes)))]
        # What is compiled for it serves all that leaves the C++ as it is
        mutants.check_without(copies[0], [mutants.Case(
            None, '', ['tests/kernels/test_kernels.py::'
                       'test_dense_is_the_float64_product'])], cache)
        found = try_all(changes, copies)
    lines, share = table(seed, changes, found)
    print('\n' + '\n'.join(lines))
    if not args.only:
        args.out.write_text('\n'.join(lines) + '\n', 'utf-8')
    return 0 if share >= ENOUGH else 1


if __name__ == '__main__':
    sys.exit(main())
