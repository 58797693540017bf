"""Products by AMX tiles, emulated where the CPU has none.

These tests rely on the emulation. So each emulated instruction is compared
with NumPy first.
"""
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys

import emulation
import numpy
import pytest
import tiles
from emulation import flushed

from d2lbert import kernels
from d2lbert.kernels import build, products
from d2lbert.machine.processor import find_processor

HERE = emulation.HERE


@pytest.fixture(scope='module')
def emulated(compiler):
    """The variables that give a process emulated tiles for all products."""
    return emulation.variables(tiles=True)


def python(arguments, variables):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **variables, 'OMP_NUM_THREADS': '3'},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


@pytest.fixture(scope='module')
def found(emulated, tmp_path_factory):
    """{case: {product: [arrays]}} and the numbers of tiles' products."""
    path = tmp_path_factory.mktemp('tiles') / 'tiles.npz'
    python([tiles.__file__, path], emulated)
    cases, dots = {}, {}
    with numpy.load(str(path)) as arrays:
        for key in arrays.files:
            name, product, i = key.split('/')
            if i == 'dots':
                dots[name, product] = int(arrays[key])
            else:
                cases.setdefault(name, {}).setdefault(product, []).append(
                    arrays[key])
    return cases, dots


TILES = HERE / 'tiles.cc', kernels.FOLDER / 'amx_permission.cc'


@pytest.fixture(scope='module')
def driver(compiler):
    """The emulated instructions."""
    with pytest.MonkeyPatch.context() as patch:
        path = emulation.library('tiles', TILES, patch, tiles=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(scope='module', params=['emulated', 'real'])
def instructions(request, compiler):
    """The instructions, emulated and, if this processor has them, its own."""
    if request.param == 'emulated':
        return request.getfixturevalue('driver')
    if not {'amx_bf16', 'amx_int8'} <= set(find_processor().features):
        pytest.skip('this processor has no AMX')
    return ctypes.CDLL(str(build.library('real-tiles', TILES,
                                         options=(f'-I{kernels.FOLDER}',))))


# The emulation

def np_dot(A, B, C):
    """C + A B as TDPBF16PS sums it; A (m, 2k) and B (2k, n) float32."""
    sums = numpy.zeros((2, *C.shape), 'float32')
    for k in range(A.shape[1]):
        # A product of two bfloat16 is exact, so this is rounded once
        one = flushed(A[:, k:k + 1]) * flushed(B[k])
        sums[k % 2] = flushed(sums[k % 2] + one)
    return flushed(flushed(C) + flushed(sums[0] + sums[1]))


@pytest.mark.parametrize('m, k, n', [(16, 16, 16), (3, 16, 16), (16, 5, 7),
                                     (1, 1, 1)])
@pytest.mark.parametrize('powers', [0, 30, 60])
def test_the_product_of_bfloat16_is_the_documented_one(instructions, m, k, n,
                                                       powers):
    rng = numpy.random.RandomState(m + k + n + powers)

    def bf16(*shape):
        x = rng.normal(size=shape) * 2. ** rng.uniform(-powers, powers, shape)
        bits = x.astype('float32').view('uint32') & 0xffff0000
        # Some are denormals
        return numpy.where(rng.uniform(size=shape) < 0.05, bits & 0x807fffff,
                           bits).astype('uint32').view('float32')

    def words(pairs):       # (..., 2)
        bits = numpy.ascontiguousarray(pairs).view('uint32') >> 16
        return numpy.ascontiguousarray(
            bits[..., 0] | bits[..., 1] << 16).astype('uint32')
    A, B = bf16(m, 2 * k), bf16(2 * k, n)
    C = bf16(m, n) if powers == 60 else numpy.zeros((m, n), 'float32')
    a = words(A.reshape(m, k, 2))
    b = words(B.reshape(k, 2, n).transpose(0, 2, 1))
    got = C.copy()
    instructions.dot(m, k, n, *pointers(a, b, got))
    numpy.testing.assert_array_equal(got, np_dot(A, B, C))


def pointers(*arrays):
    return [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]


@pytest.mark.parametrize('m, k, n', [(16, 16, 16), (3, 16, 16), (16, 5, 7),
                                     (1, 1, 1)])
def test_the_product_of_bytes_is_the_documented_one(instructions, m, k, n):
    rng = numpy.random.RandomState(m + k + n)
    A = rng.randint(0, 256, (m, 4 * k)).astype('uint8')
    B = rng.randint(-128, 128, (4 * k, n)).astype('int8')
    C = rng.randint(-2 ** 31, 2 ** 31, (m, n)).astype('int32')
    wanted = (C + A.astype('int64') @ B.astype('int64')).astype('int32')
    # The words of B: four numbers of a column
    words = numpy.ascontiguousarray(
        B.reshape(k, 4, n).transpose(0, 2, 1))
    instructions.dot_bytes(m, k, n, *pointers(A, words, C))
    numpy.testing.assert_array_equal(C, wanted)


@pytest.mark.parametrize('call, ends', [
    ('without_leave', signal.SIGABRT),
    ('without_configuration', signal.SIGABRT),
    ('after_release', signal.SIGABRT), ('after_fork', 0)])
def test_the_emulation_faults_where_the_processor_does(driver, call, ends):
    driver.dot(1, 1, 1, *[(ctypes.c_uint32 * 1)() for _ in range(3)])
    child = os.fork()       # has not asked, whatever its parent did
    if not child:
        faulthandler.disable()
        os.close(2)
        getattr(driver, call)()
        os._exit(0)
    assert os.waitpid(child, 0)[1] & 0x7f == ends


# Operators

def same_kind(got, plain, tolerance, by_rows):
    """Require equality up to rounding, and the same infinities and NaN.

    by_rows: relative to the largest number of each row, not of the array.
    """
    rows = len(got) if by_rows and got.ndim > 1 else 1
    got, plain = (x.reshape(rows, -1).astype('float64')
                  for x in (got, plain))
    numpy.testing.assert_array_equal(numpy.isnan(got), numpy.isnan(plain))
    infinite = numpy.isinf(plain)
    numpy.testing.assert_array_equal(numpy.isinf(got), infinite)
    numpy.testing.assert_array_equal(got[infinite], plain[infinite])
    got, plain = (numpy.where(numpy.isfinite(plain), x, 0)
                  for x in (got, plain))
    largest = abs(plain).max(1, keepdims=True)
    assert (abs(got - plain) <= tolerance * largest).all()


TOLERANCE = {'split': 2e-5, 'tiles': 4e-2}


def test_unusual_numbers_give_what_vectors_give(found):
    cases, dots = found
    assert len(cases) > 50
    for name, by_product in cases.items():
        if name == 'threads':
            continue
        for product, tolerance in TOLERANCE.items():
            if 'large logits' in name and product == 'tiles':
                continue    # whose exponentials magnify what bf16 rounds off
            for got, plain in zip(by_product[product], by_product['plain']):
                same_kind(got, plain, tolerance, name.startswith('dense'))
            assert dots[name, product] or 'weights' in name, name


@pytest.mark.parametrize('case', ['dense', 'dense gelu'])
def test_rows_beside_unusual_ones_do_not_change(found, case):
    cases = found[0]
    strange = numpy.arange(3, 3 + 3 * len(tiles.STRANGE), 3)
    for product in TOLERANCE:
        for i in (0, 1):        # Y and dX
            got, clean, plain = (x[i] for x in (
                cases[f'{case} rows'][product], cases[case][product],
                cases[f'{case} rows']['plain']))
            numpy.testing.assert_array_equal(got[strange], plain[strange])
            others = numpy.setdiff1d(numpy.arange(tiles.R), strange)
            numpy.testing.assert_array_equal(got[others], clean[others])
            assert (got[others] != plain[others]).any()


def test_vectors_compute_unusual_rows_of_the_vocabulary(found):
    strange = [3, 6, 9]
    for product in TOLERANCE:
        for i in (0, 2):        # losses and dX
            got, clean, plain = (x[i] for x in (
                found[0]['vocab rows'][product], found[0]['vocab'][product],
                found[0]['vocab rows']['plain']))
            numpy.testing.assert_array_equal(got[strange], plain[strange])
            others = numpy.setdiff1d(numpy.arange(len(got)), strange)
            numpy.testing.assert_array_equal(got[others], clean[others])


def test_vectors_compute_an_unusual_head_and_no_other(found):
    cases = found[0]
    for name in tiles.STRANGE:
        for product in TOLERANCE:
            got, clean = (cases[case][product][0]
                          for case in (f'attention {name}', 'attention'))
            same = got == clean
            assert same[:33].all() and same[40:].all() and same[:, 10:].all()
    got, plain = (cases['attention inf'][product][0][33:40, :10]
                  for product in ('split', 'plain'))
    numpy.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize('case', ['normal 128', 'normal 768', 'spread 128',
                                  'spread 768'])
def test_three_parts_are_no_less_accurate_than_fp32(found, case):
    cases, dots = found
    kind, k = case.split()
    spread, k = (20 if kind == 'spread' else 0), int(k)

    def values(shape, seed, power_seed):
        x = tiles.normal(*shape, seed=seed)
        powers = numpy.random.RandomState(power_seed).uniform(
            -spread, spread, shape)
        return (x * 2 ** powers).astype('float32').astype('float64')
    X, W = values((96, k), 0, 5), values((64, k), 1, 6)
    up = values((96, 64), 9, 7)
    by_product = cases[f'accuracy {case}']
    # Every tile of the three products
    deep = -(-k // 32)
    assert dots[f'accuracy {case}', 'split'] == 6 * (
        6 * 4 * deep + 6 * 2 * deep * 2 + 4 * 2 * deep * 3)
    for i, (A, B) in enumerate(((X, W.T), (up, W), (up.T, X))):
        sizes = abs(A) @ abs(B)     # a few numbers dominate the spread ones

        def error(product, i=i, exact=A @ B, sizes=sizes):
            off = (by_product[product][i] - exact) / sizes
            return numpy.sqrt((off ** 2).mean())
        assert error('split') <= error('plain')


def test_threads_and_a_forked_process_give_the_same(found):
    wanted, *others = found[0]['threads']['both']
    assert len(others) == 21
    for got in others:
        numpy.testing.assert_array_equal(got, wanted)


# The choice of the kernel

class Library:
    """A library with given answers to the calls of `products`."""

    def __init__(self, tiles=2, seconds=(4, 3, 1, 2.1), errors=(2, 9, 9, 1)):
        self.tiles, self.chosen, self.trials = tiles, None, 0
        self.seconds, self.errors = seconds, errors

        def trial(product, rows, inputs, outputs, X, W, Y, times):
            self.trials += 1
            as_array = numpy.ctypeslib.as_array
            X, W, Y = (as_array(
                ctypes.cast(p, ctypes.POINTER(ctypes.c_float)), shape)
                for p, shape in ((X, (rows.value, inputs.value)),
                                 (W, (outputs.value, inputs.value)),
                                 (Y, (rows.value, outputs.value))))
            Y[:64] = X[:64] @ W.T + 1e-4 * self.errors[product]
            return self.seconds[product]
        self.d2lbert_trial = trial

    def d2lbert_bf16(self):
        return 1

    def d2lbert_tiles(self):
        assert os.environ.get('D2LBERT_AMX') != 'off'
        return self.tiles

    def d2lbert_choose(self, fp32, bf16):
        self.chosen = products.NAMES[fp32], products.NAMES[bf16]


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """Choose for a library: returns the choice. Restores the real choice."""
    for name in ('library', 'choice'):
        monkeypatch.setattr(products._State, name,
                            getattr(products._State, name))
    monkeypatch.setenv('D2LBERT_AMX', 'auto')
    monkeypatch.setattr(products, 'cpu', lambda: 'this CPU')

    def function(library, name='ops.so'):
        products.choose(library, tmp_path / name)
        return library.chosen
    return function


@pytest.mark.parametrize('library, chosen', [
    (Library(), ('split', 'tiles')),
    (Library(tiles=1), ('plain', 'pairs')),             # refused
    (Library(seconds=(1, 3, 2, 4)), ('plain', 'plain')),    # fp32 is faster
    (Library(tiles=0, seconds=(1, 3)), ('plain', 'plain')),
    (Library(seconds=(4, 1, 2, 3.9)), ('plain', 'pairs')),
    (Library(seconds=(4, 3, 1, 2.3)), ('plain', 'tiles')),  # hardly faster
    (Library(errors=(1, 9, 9, 2)), ('plain', 'tiles')),     # less accurate
    (Library(errors=(90, 9, 9, 80)), ('plain', 'tiles')),
])
def test_the_fastest_accurate_kernel_is_chosen(choose, library, chosen):
    assert choose(library) == chosen


def test_a_machine_is_measured_once(choose, monkeypatch):
    for library, measured in ((Library(), True), (Library(), False)):
        choose(library)
        assert (library.trials > 0) == measured
        assert products.chosen().why.startswith(
            'AMX can be used; milliseconds of one product, measured once: '
            '4000.00 by fp32 vectors')
    assert choose(Library(tiles=1)) == ('plain', 'pairs')
    monkeypatch.setattr(products, 'cpu', lambda: 'another CPU')
    library = Library(seconds=(1, 3, 2, 4))
    assert choose(library) == ('plain', 'plain')
    assert library.trials > 0


@pytest.mark.parametrize('damage', ['{', '[]', '{"cpu": "this CPU"}'])
def test_a_damaged_measurement_is_made_again(choose, tmp_path, damage):
    (tmp_path / 'ops.so.products').write_text(damage)
    library = Library()
    assert choose(library) == ('split', 'tiles') and library.trials


def test_a_variable_turns_tiles_off_or_requires_them(choose, monkeypatch):
    monkeypatch.setenv('D2LBERT_AMX', 'off')
    assert choose(Library()) == ('plain', 'pairs')
    assert products.chosen().why.startswith('D2LBERT_AMX is off')
    monkeypatch.setenv('D2LBERT_AMX', 'require')
    assert choose(Library(seconds=(1, 1, 9, 9))) == ('split', 'tiles')
    with pytest.raises(ValueError, match='require.* refuses AMX.*unset'):
        choose(Library(tiles=1))
    monkeypatch.setenv('D2LBERT_AMX', 'yes')
    with pytest.raises(ValueError, match="'yes'.*auto, off or require"):
        choose(Library())


def test_a_resumed_run_keeps_its_kernel(choose, monkeypatch):
    choose(Library())
    before = products.record('fp32')
    assert before == {'product': 'split', 'cpu': 'this CPU'}
    slow = Library(seconds=(1, 3, 2, 4))
    assert choose(slow, 'other.so') == ('plain', 'plain')
    assert products.resume(before, 'fp32') is None
    assert slow.chosen == ('split', 'plain')
    assert products.record('fp32') == before
    assert products.resume(None, 'fp32') is None    # an older version
    # A clause names the change, on another CPU or if tiles are off
    choose(slow, 'other.so')
    said = products.resume(dict(before, cpu='that CPU'), 'fp32')
    assert said == ('matrices were multiplied by bfloat16 tiles with three '
                    'parts per number (AMX) on that CPU, and are now '
                    'multiplied by fp32 vectors on this CPU')
    monkeypatch.setenv('D2LBERT_AMX', 'off')
    assert products.resume(before, 'fp32') and slow.chosen[0] == 'plain'
    assert 'own operators' in products.resume(before, 'fp32', fused=False)
    # Pairs need no tiles
    pairs = dict(product='pairs', cpu='this CPU')
    assert products.resume(pairs, 'bf16') is None and slow.chosen[1] == 'pairs'


def test_denied_tiles_fall_back_to_vectors_silently(emulated):
    code = ('from d2lbert import kernels\n'
            'assert kernels.load()\n'
            'print(kernels.products.chosen().why)\n')
    said = python(['-c', code], {**emulated, 'D2LBERT_AMX': 'auto',
                                 'D2LBERT_AMX_REFUSED': '1'})
    assert said.splitlines()[-1].startswith(
        'the system refuses AMX to this process')
    assert 'Error' not in said and 'slower' not in said


@pytest.mark.slow
def test_all_tests_of_operators_pass_with_tiles(emulated):
    emulation.check_operators({**emulated, 'OMP_NUM_THREADS': '3'})
