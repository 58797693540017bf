"""Mistakes drawn at random, and whether the tests notice them.

    python tests/bench/drawn.py [--seed N] [--count 60] [--list] [--out FILE]

Chance alone chooses these mistakes: each is one change of an operator below,
drawn over all rooms by a seed, which is printed. They are made one at a time
in a copy of the checkout, as mutants.py does. The tests run in three parts
until one fails: the file named like the source file, the files that import
it, and the other tests of its room. Of each file only the tests run that
reach the changed line, the shortest first; reached.py finds out which.
The test that failed has to pass without the mistake.

The table goes to FILE, by default results/drawn.txt beside this script. EQUAL
names the survivors that do not matter, and says why. With --rows a file keeps
the draw and each verdict, and a second call goes on from there. The exit
status is 0 only if 90 % are caught. Needs Python 3.9.
"""
import argparse
import ast
import collections
import contextlib
import copy
import hashlib
import json
import random
import re
import resource
import shutil
import sys
import tempfile
import threading
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
#: Seconds for a file of tests without a mistake, for the start of pytest, and
#: for compiling; how much longer tests may take than they did before.
FILE_SECONDS, START_SECONDS, COMPILE_SECONDS, SLOWER = 900, 90, 240, 6
#: Bytes of memory for each process.
MEMORY = 16 << 30

#: Survivors that change nothing that counts: {what `Drawn.name` is: why}.
EQUAL = {
    'd2lbert/texts/examples.py: rng.random() < 0.8 -> (rng.random() <= 0.8)':
        'one random number in 2 ** 53 is 0.8',
    'd2lbert/kernels/amx.h: exponent(a.least_max) + exponent(b.least_max) >= '
    'MIN_PROD... -> exponent(a.least_max) + exponent(b.least_max) > '
    'MIN_PRODU...':
        'at the bound vectors compute what tiles could compute as well',
    'd2lbert/objectives/text_objective.py: not num_preds or not num_pairs -> '
    '(not num_preds)':
        'each pair has a prediction, so there are both or none',
    'd2lbert/kernels/amx_dense.h: ahead.add(dy + m * N, next_m * N * 4); -> '
    'ahead.add(dy + m * N, next_m * N);':
        'numbers that are fetched later are the same',
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


def changes_of(place):
    """All changes of a source file."""
    text = (ROOT / place).read_text('utf-8')
    return (of_python if place.endswith('.py') else of_cpp)(place, text)


# The draw

def drawn(count, seed):
    """So many changes: rooms take turns, the rest is chance."""
    rng, by_room = random.Random(seed), {}
    for name in mutants.tracked(ROOT):
        if re.fullmatch(r'd2lbert/.*\.(py|cc|h)', name):
            for change in changes_of(name):
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
    folder = 'tests' if room == '.' else f'tests/{room.split("/")[0]}'
    stems = {path.stem} if path.suffix == '.py' else {
        path.stem, path.stem.split('_')[0]}
    own = [name for name in names
           if Path(name).stem.partition('test_')[2] in stems]
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


def lines_of(change, text):
    """The lines of the statement with a change, or None.

    None is for what runs on import, or in C++: no test is known to reach it.
    """
    if not change.place.endswith('.py'):
        return None
    around, is_late = None, False
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.stmt, ast.ExceptHandler)) or not (
                node.lineno <= change.line <= node.end_lineno):
            continue
        body = getattr(node, 'body', None)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_late |= body[0].lineno <= change.line
        if around is None or node.lineno >= around[0]:
            around = node.lineno, (max(body[0].lineno - 1, change.line)
                                   if body else node.end_lineno)
    return range(around[0], around[1] + 1) if is_late else None


class Reached:
    """The tests of each file that pass, and which changes they reach.

    `numbered` is {number of a change: `Drawn`}. A file of tests is run when
    it is first asked for, and is known from then on.
    """

    def __init__(self, numbered, rows):
        self._rows, self._lock = rows, threading.Lock()
        self._lines, self._anywhere = {}, set()
        for number, change in numbered.items():
            lines = lines_of(change, (ROOT / change.place).read_text('utf-8'))
            if lines is None:
                self._anywhere.add(number)
            for line in lines or ():
                self._lines.setdefault(change.place, {}).setdefault(
                    line, []).append(number)

    def tests(self, checkout, part, number):
        """{test: seconds} of those that reach a change, the shortest first."""
        found = {}
        for name in part:
            with self._lock:
                known = self._rows.reached(name) or self._measure(
                    checkout, name)
            for test, seconds, reached in known['tests']:
                if number in reached or number in known['shared'] or (
                        number in self._anywhere):
                    found[test] = seconds
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _measure(self, checkout, name):
        here = Path(__file__).with_name('reached.py')
        rows = checkout.folder / 'reached.jsonl'
        rows.write_text('')
        asked = checkout.root / 'reached.json'
        asked.write_text(json.dumps({'rows': str(rows), 'lines': {
            str(checkout.root / place): lines
            for place, lines in self._lines.items()}}), 'utf-8')
        site = checkout.root / 'sitecustomize.py'
        shutil.copy(here, site)
        try:
            with contextlib.suppress(mutants.Broken):
                checkout.run(FILE_SECONDS, [name], '-p', 'sitecustomize',
                             '--tb=no', '-p', 'no:xdist')
        finally:
            site.unlink()
            asked.unlink()
        seconds, wrong = collections.Counter(), set()
        reached, shared = collections.defaultdict(set), set()
        for line in rows.read_text('utf-8').splitlines():
            row = json.loads(line)
            if 'reached' in row:
                reached[row['test']].update(row['reached'])
                # A fixture of several tests tells of the first of them
                shared.update(row['reached'] if row['shared'] else ())
            else:
                seconds[row['test']] += row['seconds']
                wrong.update(() if row['passed'] else [row['test']])
        return self._rows.add_reached(name, [
            [test, round(seconds[test], 2), sorted(reached[test])]
            for test in seconds if test not in wrong], sorted(shared))


def attempt(checkout, number, change, reached):
    """(verdict, test that noticed) of one change."""
    before = (checkout.root / change.place).read_text('utf-8')
    case = mutants.Case(Mistake(change.name, before, change.text, ''),
                        change.place, [])
    compiling = 0 if change.place.endswith('.py') else COMPILE_SECONDS
    for part in parts(checkout.root, change):
        tests = reached.tests(checkout, part, number)
        while tests:
            limit = START_SECONDS + compiling + SLOWER * sum(tests.values())
            with checkout.having(case):
                verdict, output = run(checkout, limit, list(tests))
            if verdict == mutants.SURVIVED:
                break
            test = noticed_by(verdict, output)
            if test is None:    # no test could be collected
                return verdict, part[0]
            limit = START_SECONDS + compiling + SLOWER * tests.get(test, 0)
            if verdict == mutants.HUNG:     # this test, or all together?
                with checkout.having(case):
                    is_noticed = run(checkout, limit, [test])[0] != (
                        mutants.SURVIVED)
            else:
                is_noticed = True
            if is_noticed and run(checkout, limit, [test])[0] == (
                    mutants.SURVIVED):
                return verdict, test
            # It fails without the mistake, too, or takes its time
            names = list(tests)
            for name in names[:names.index(test) + 1
                              if test in tests else len(names)]:
                del tests[name]
    return mutants.SURVIVED, ''


def run(checkout, seconds, tests):
    """(verdict, output) of tests, one of which may fail."""
    try:
        return checkout.run(seconds, tests, '-x', '-vv', '--tb=no',
                            '-p', 'no:xdist')
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


# What is kept

class Rows:
    """A file of rows in JSON: the draw, its verdicts, what tests reach."""

    def __init__(self, path):
        self._path, self._lock = path, threading.Lock()
        self._reached = {}
        self.drawn, self.verdicts = None, {}
        for line in path.read_text('utf-8').splitlines() if (
                path and path.exists()) else ():
            row = json.loads(line)
            if 'drawn' in row:
                self.drawn = row
            elif 'verdict' in row:
                self.verdicts[row['number']] = (
                    row['verdict'], row['test'], row['seconds'])
            else:
                self._reached[row['file'], row['digest']] = row

    def _add(self, row):
        if self._path:
            with self._lock, open(self._path, 'a', encoding='utf-8') as file:
                file.write(json.dumps(row) + '\n')
        return row

    def draw(self, seed, count):
        """The changes: those of the file, or new ones, which are kept."""
        if self.drawn is None:
            changes = drawn(count, seed)
            self.drawn = self._add({'seed': seed, 'drawn': [
                [change.operator, change.place, change.line, change.old,
                 change.new, _line(change)] for change in changes]})
            return changes
        if (self.drawn['seed'], len(self.drawn['drawn'])) != (seed, count):
            raise mutants.Broken(
                f'{self._path} has {len(self.drawn["drawn"])} mistakes of '
                f'seed {self.drawn["seed"]}, not {count} of seed {seed}: name '
                'another file with --rows')
        return [_found_again(*row) for row in self.drawn['drawn']]

    def add_verdict(self, number, verdict, test, seconds):
        """Keep what was found of a change."""
        self.verdicts[number] = verdict, test, seconds
        self._add({'number': number, 'verdict': verdict, 'test': test,
                   'seconds': round(seconds)})

    def reached(self, name):
        """What is known of a file of tests as it is now, or None."""
        return self._reached.get((name, _digest(name)))

    def add_reached(self, name, tests, shared):
        """Keep what the tests of a file reach."""
        row = self._reached[name, _digest(name)] = self._add(
            {'file': name, 'digest': _digest(name), 'tests': tests,
             'shared': shared})
        return row


def _line(change):
    text = (ROOT / change.place).read_text('utf-8')
    return text.split('\n')[change.line - 1]


def _digest(name):
    return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()[:16]


def _found_again(operator, place, line, old, new, whole):
    """The same change of the source as it is now."""
    same = [change for change in changes_of(place)
            if (change.operator, change.old, change.new) == (
                operator, old, new) and _line(change) == whole]
    if not same:
        raise mutants.Broken(
            f'{place} has no line {whole.strip()!r} any more, which a mistake '
            'changes: draw with another file of rows')
    return min(same, key=lambda change: abs(change.line - line))


# All of it

def try_all(numbered, wanted, copies, rows):
    """Find the verdicts on the wanted changes, and tell them as they come."""
    free, reached = Queue(), Reached(numbered, rows)
    for checkout in copies:
        free.put(checkout)

    def one(number):
        change, checkout, begun = numbered[number], free.get(), time.time()
        try:
            verdict, test = attempt(checkout, number, change, reached)
        finally:
            free.put(checkout)
        rows.add_verdict(number, verdict, test, time.time() - begun)
        print(f'{number:>3} {verdict:<9}{time.time() - begun:>4.0f} s  '
              f'{change.name} [line {change.line}] {test}', flush=True)

    with futures.ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(one, wanted))


def table(seed, numbered, verdicts):
    """The lines of the table, and the share that was caught."""
    count, caught = collections.Counter(), collections.Counter()
    equal, tried = 0, {k: numbered[k] for k in numbered if k in verdicts}
    for number, change in tried.items():
        survived = verdicts[number][0] == mutants.SURVIVED
        equal += survived and change.name in EQUAL
        for key in (change.room, change.operator, 'all'):
            count[key] += 1
            caught[key] += not survived
    lines = [f'seed {seed}, {len(tried)} mistakes', '',
             f'{"":<24}{"mistakes":>9}{"caught":>8}']
    for keys in ({change.room for change in tried.values()},
                 {change.operator for change in tried.values()}, ['all']):
        lines += [f'{key:<24}{count[key]:>9}{caught[key]:>8}'
                  for key in sorted(keys)] + ['']
    share = caught['all'] / count['all']
    lines += [f'{share:.1%} caught; of the others {equal} change nothing that '
              'counts', '']
    for number, change in tried.items():
        verdict, test, _ = verdicts[number]
        lines.append(f'{number} {verdict}: {change.name} ({change.operator}, '
                     f'line {change.line})')
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
                        help='try these of them, counted from 1, also again')
    parser.add_argument('--list', action='store_true',
                        help='only say which they are')
    parser.add_argument('--rows', type=Path, metavar='FILE',
                        help='keeps the draw and the verdicts as they come; '
                        'those that it has are not tried again')
    parser.add_argument('--out', type=Path, metavar='FILE',
                        default=Path(__file__).parent / 'results/drawn.txt',
                        help='of the table (default: results/drawn.txt)')
    args = parser.parse_args(argv)
    try:
        rows = Rows(args.rows)
        seed = args.seed
        if seed is None:
            seed = (rows.drawn or {'seed': random.randrange(10 ** 6)})['seed']
        print(f'seed {seed}', flush=True)
        numbered = dict(enumerate(rows.draw(seed, args.count), 1))
        if args.list:
            for number, change in numbered.items():
                print(f'{number:>3} {change.operator:<22}{change.name} '
                      f'[line {change.line}]')
            return 0
        for number in args.only or ():
            rows.verdicts.pop(number, None)
        wanted = [number for number in args.only or numbered
                  if number not in rows.verdicts]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with tempfile.TemporaryDirectory(prefix='drawn-') as folder:
            _try(numbered, wanted, args.jobs, rows, Path(folder))
    except mutants.Broken as error:
        print(error, file=sys.stderr)
        return 2
    lines, share = table(seed, numbered, rows.verdicts)
    print('\n' + '\n'.join(lines))
    if len(rows.verdicts) == len(numbered):
        args.out.write_text('\n'.join(lines) + '\n', 'utf-8')
    return 0 if share >= ENOUGH else 1


def _try(numbered, wanted, jobs, rows, folder):
    cache = folder / 'cache'
    cache.mkdir()
    copies = [mutants.Copy(folder / str(k), cache)
              for k in range(min(jobs, len(wanted)))]
    if wanted:
        # What is compiled for it serves all that leaves the C++ as it is
        mutants.check_without(copies[0], [mutants.Case(
            None, '', ['tests/kernels/test_kernels.py::'
                       'test_dense_is_the_float64_product'])], cache)
        try_all(numbered, wanted, copies, rows)


if __name__ == '__main__':
    sys.exit(main())
