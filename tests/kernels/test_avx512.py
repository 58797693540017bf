"""Operators for AVX-512, emulated where the CPU has none.

Each emulated instruction is compared with NumPy; on a CPU that has them the
same comparisons are with its own.
"""
import ctypes

import emulation
import numpy
import pytest
from emulation import flushed

HERE = emulation.HERE
LANES = 16


@pytest.fixture(scope='module')
def call(compiler):
    """Call an instruction by name: arrays in, an array of bytes out."""
    with pytest.MonkeyPatch.context() as patch:
        driver = ctypes.CDLL(str(emulation.library(
            'avx512', [HERE / 'avx512.cc'], patch)))

    def function(name, *arguments, out=None):
        to = numpy.full(64, 0xa5, 'uint8') if out is None else out
        getattr(driver, name)(*(
            x.ctypes.data_as(ctypes.c_void_p)
            if isinstance(x, numpy.ndarray) else ctypes.c_long(x)
            for x in (to, *arguments)))
        return to
    return function


def bits(x):
    return numpy.asarray(x, 'float32').view('uint32')


def floats(x):
    return numpy.asarray(x, 'uint32').view('float32')


TINY, HUGE = numpy.finfo('float32').tiny, numpy.finfo('float32').max
STRANGE = numpy.array([0, -0., numpy.inf, -numpy.inf, numpy.nan, TINY / 8,
                       -TINY / 2, TINY, HUGE, -HUGE, 1, -1], 'float32')


def numbers(seed, share=0.3):
    """Lanes of usual size, a share of them of the strange ones."""
    rng = numpy.random.RandomState(seed)
    x = rng.normal(size=LANES) * 2. ** rng.randint(-6, 6, LANES)
    return numpy.where(rng.uniform(size=LANES) < share,
                       rng.choice(STRANGE, LANES), x).astype('float32')


def integers(seed, kind):
    return numpy.random.RandomState(seed).randint(
        0, 1 << 8 * numpy.dtype(kind).itemsize, 64 // numpy.dtype(kind)
        .itemsize, 'int64').astype(kind)


def np_bfloat16(x):
    """The upper halves of float32 numbers, rounded to nearest even."""
    word = bits(flushed(x)).astype('uint64')
    nearest = (word + 0x7fff + (word >> 16 & 1)) >> 16
    return numpy.where(numpy.isnan(x), word >> 16 | 0x40,
                       nearest).astype('uint16')


def np_scaled(a, b):
    with numpy.errstate(all='ignore'):
        power = numpy.floor(b.astype('float64'))
        # Zero stays zero, unless the power is infinite
        power = numpy.where(numpy.isinf(power), power, power.clip(-400, 400))
        power = numpy.exp2(power)
        return (a.astype('float64') * power).astype('float32')


def np_dpbf16(c, a, b):
    """c + a b of the pairs in words a and b, the odd ones first."""
    with numpy.errstate(all='ignore'):
        for part in (lambda x: x & 0xffff0000, lambda x: x << 16):
            x, y, c = (flushed(v) for v in (floats(part(a)), floats(part(b)),
                                            c))
            # Products are exact, and so are sums in double precision of
            # numbers that are of any size here
            c = flushed((x.astype('float64') * y + c).astype('float32'))
    return c


SEEDS = range(20)


@pytest.mark.parametrize('name, function', [
    ('add_ps', lambda a, b: a + b),
    ('max_ps', lambda a, b: numpy.where(a > b, a, b)),
    ('min_ps', lambda a, b: numpy.where(a < b, a, b)),
    ('scalef_ps', np_scaled)])
@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_two_vectors_of_floats(call, name, function):
    for seed in SEEDS:
        a, b = numbers(seed), numbers(seed + 100)
        got, wanted = call(name, a, b).view('float32'), function(a, b)
        numpy.testing.assert_array_equal(got, wanted)
        there = ~numpy.isnan(wanted)
        numpy.testing.assert_array_equal(numpy.signbit(got[there]),
                                         numpy.signbit(wanted[there]))


def test_scaling_reaches_the_smallest_and_the_largest(call):
    a = numpy.float32([1, 1, 1.5, 1.5, 1, 1.9999999, -1, 1] * 2)
    b = numpy.float32([-149, -150, -149, 127.9, 128, -127, -126.5, 0.5] * 2)
    got = call('scalef_ps', a, b).view('float32')
    numpy.testing.assert_array_equal(got, np_scaled(a, b))
    assert (got[:4] > 0).tolist() == [True, False, True, True]


def test_roots_are_the_nearest(call):
    for seed in SEEDS:
        a = numbers(seed)
        with numpy.errstate(invalid='ignore'):
            wanted = numpy.sqrt(a)
        got = call('sqrt_ps', a).view('float32')
        numpy.testing.assert_array_equal(got, wanted)


def test_a_product_and_a_sum_are_rounded_once(call):
    rng = numpy.random.RandomState(5)
    once = twice = 0
    for _ in SEEDS:
        # Exact in double precision: 20 bits times 20, of about one size
        a, b = (rng.randint(1 << 19, 1 << 20, LANES) * 2. ** -19
                for _ in range(2))
        c = rng.randint(-99, 99, LANES) * 2. ** -9 - a * b * (a < b)
        a, b, c = (x.astype('float32') for x in (a, b, c))
        exact = a.astype('float64') * b + c
        got = call('fmadd_ps', a, b, c).view('float32')
        numpy.testing.assert_array_equal(got, exact.astype('float32'))
        once += (got == a * b + c).sum()
        twice += (got != a * b + c).sum()
    assert once and twice


@pytest.mark.parametrize('name, function', [
    ('max_epu32', numpy.maximum), ('min_epu32', numpy.minimum),
    ('permutexvar_epi16', lambda order, x: x.view('uint16')[
        order.view('uint16') & 31].view('uint32'))])
def test_two_vectors_of_whole_numbers(call, name, function):
    for seed in SEEDS:
        a, b = integers(seed, 'uint32'), integers(seed + 100, 'uint32')
        numpy.testing.assert_array_equal(call(name, a, b).view('uint32'),
                                         function(a, b))


def test_the_least_and_the_most_of_a_vector(call):
    for seed in SEEDS:
        a = integers(seed, 'uint32')
        assert call('reduce_max_epu32', a).view('uint32')[0] == a.max()
        assert call('reduce_min_epu32', a).view('uint32')[0] == a.min()


@pytest.mark.parametrize('n', range(LANES + 1))
def test_masked_lanes_are_not_touched(call, n):
    lanes = numpy.arange(1, LANES + 1, dtype='uint32')
    got = call('first_loaded', lanes[:n].copy(), n).view('uint32')
    numpy.testing.assert_array_equal(got, numpy.where(lanes <= n, lanes, 0))
    held = numpy.full(LANES, 7, 'uint32')
    call('first_stored', lanes, n, out=held)
    numpy.testing.assert_array_equal(held,
                                     numpy.where(lanes <= n, lanes, 7))


def test_parts_of_vectors(call):
    a, b = integers(1, 'uint8'), integers(2, 'uint8')
    equal = numpy.testing.assert_array_equal
    equal(call('load_and_store', a), a)
    equal(call('castps512_ps256', a)[:32], a[:32])
    equal(call('castsi128_si512', a)[:16], a[:16])
    equal(call('extractf64x4_pd', a)[:32], a[32:])
    equal(call('inserti32x4', a, b),
          numpy.concatenate([a[:16], b[:16], a[32:48], b[:16]]))
    equal(call('set_epi16').view('uint16'), range(32))
    one = numpy.float32([-1.5])
    equal(call('set1_ps', one).view('float32'), [-1.5] * LANES)
    equal(call('set1_epi32', one).view('float32'), [-1.5] * LANES)


# Halves, of numbers that lie between two bfloat16 as well

def between(seed):
    """Numbers, some of them half way between two bfloat16."""
    word = bits(numbers(seed))
    half = word & 0xffff0000 | 0x8000
    return floats(numpy.where(numpy.arange(LANES) % 3, word, half))


def test_numbers_become_the_nearest_bfloat16(call):
    for seed in SEEDS:
        upper, lower = between(seed), between(seed + 100)
        numpy.testing.assert_array_equal(
            call('cvtne2ps_pbh', upper, lower).view('uint16'),
            numpy.concatenate([np_bfloat16(lower), np_bfloat16(upper)]))


def test_pairs_of_bfloat16_are_multiplied_and_summed(call):
    for seed in SEEDS:
        halves = [np_bfloat16(numbers(seed + i, 0.1)) for i in range(4)]
        a, b = (numpy.stack(pair, 1).view('uint32').reshape(-1)
                for pair in (halves[:2], halves[2:]))
        c = numbers(seed + 500, 0.1)
        got = call('dpbf16_ps', c, a, b).view('float32')
        numpy.testing.assert_array_equal(got, np_dpbf16(c, a, b))


@pytest.mark.slow
@pytest.mark.parametrize('bf16', [True, False])
def test_the_operators_pass_their_tests_on_avx512(compiler, bf16):
    emulation.check_operators(emulation.variables(bf16=bf16))
