"""The eight-bit encoder: exact sums, one result everywhere."""
import faulthandler
import os
import platform
import shutil
import subprocess

import emulation
import int8_oracle as oracle
import numpy
import pytest
from test_isa import runs_here

from d2lbert import kernels
from d2lbert.kernels import build, int8
from d2lbert.machine.processor import find_processor

HERE = kernels.FOLDER
#: Nets that together have all that an encoder can have, with lengths of
#: sequences around those of vectors and of tiles, and the digest of their
#: vectors: on every instruction set, with any compiler.
NETS = {
    'odd': (dict(), (1, 2, 15, 16, 17, 33, 70), 'ed456da1b9041328'),
    'wide': (dict(H=128, F_=256, num_heads=4, act='relu', epsilon=1e-5,
                  bias=False, S=0), (5, 40, 64), 'a29bc0310e0168fb'),
    'shared': (dict(H=64, E=24, num_heads=2, act='gelu_new',
                    order=[0, 0, 1, 1], norm=False, factor=1.7), (9, 30),
               'b52464892725fa09'),
    # Heads of fewer numbers than a vector has, in rows without padding
    'narrow': (dict(H=64, F_=128, num_heads=8), (3, 20, 41),
               '316e52857eabd8ea'),
}


@pytest.fixture(params=['', 'no tiles', 'emulated tiles', 'avx512', 'avx2',
                        'avx', 'sse'])
def lower(request, monkeypatch, compiler):
    """kernels.int8 compiled for a set of instructions, '' this CPU's own."""
    if kernels.mode() == 'off':
        pytest.skip('D2LBERT_KERNELS is off')
    if request.param == 'no tiles':
        monkeypatch.setenv('D2LBERT_AMX', 'off')
    elif request.param == 'emulated tiles':
        if 'avx512_vnni' not in find_processor().features:
            pytest.skip('tiles of bytes need a CPU with AVX-512 VNNI')
        for name, value in emulation.variables(tiles=True).items():
            monkeypatch.setenv(name, value)
    else:
        if request.param:
            runs_here(request.param)
        monkeypatch.setenv('D2LBERT_ISA', request.param)
    one = kernels.Library('int8', int8.INT8.sources, int8._open_library,
                          options=int8.INT8.options)
    monkeypatch.setattr(int8, 'INT8', one)
    assert one.get(), one.reason
    return int8


@pytest.fixture
def here(compiler):
    if int8.library() is None:
        pytest.skip(int8.INT8.reason or 'D2LBERT_KERNELS is off')
    return int8


def test_weights_are_rounded_to_nearest_even(here):
    W = oracle.numbers(40 * 70, 1, 4).reshape(40, 70)
    W[0], W[1] = 0, numpy.linspace(-127, 127, 70).round() / 2
    W[1, 0], W[2] = 127, 1e-35
    q, scale = here.quantize(W)
    wanted, factors = oracle.quantize(W)
    numpy.testing.assert_array_equal(q, wanted)
    numpy.testing.assert_array_equal(scale, factors)
    assert (q[1, 1:] % 2 == 0)[W[1, 1:] % 1 != 0].all()  # halves, to even
    assert not q[0].any() and not scale[0] and not scale[2]
    assert abs(q).max() == 127


@pytest.mark.parametrize('K', [1, 3, 4, 64, 130, 771])
def test_sums_of_products_are_exact(lower, K):
    """Whole numbers up to 127 in, their very sums out."""
    rng = numpy.random.RandomState(K)
    X, W = (rng.randint(-127, 128, (n, K)).astype('float32')
            for n in (13, 75))
    X[:, 0] = W[:, 0] = 127     # so that all scales are 1
    X[0], W[0] = 127, 127       # where the instruction for bytes saturates
    X[1], W[1] = 127, -127
    W[1, 0] = -127
    Y = lower.dense(X, *lower.quantize(W))
    numpy.testing.assert_array_equal(Y, X.astype('int64') @ W.T.astype(
        'int64'))


@pytest.mark.parametrize('act', int8.ACTS)
def test_a_dense_layer_is_the_definitions_to_the_last_bit(lower, act):
    X = oracle.numbers(20 * 100, 3, 8).reshape(20, 100)
    X[3], X[4, :50] = 0, 0
    W, bias = oracle.numbers(70 * 100, 4, .5).reshape(70, 100), (
        oracle.numbers(70, 5, 2))
    Y = lower.dense(X, *lower.quantize(W), bias, act)
    numpy.testing.assert_array_equal(Y, oracle.dense(X, W, bias, act))
    exact = oracle.dense(X.astype('float64'), W, bias, act)
    assert abs(Y - exact).max() < 0.02 * abs(exact).max()


@pytest.mark.parametrize('act', ['gelu', 'gelu_new'])
def test_gelu_is_off_by_less_than_its_rounding(act):
    z = numpy.linspace(-12, 12, 20001)
    off = oracle.activate(act, z.astype('float32')) - oracle.activate(
        act, z.astype('float32').astype('float64'))
    assert abs(off).max() < 1.6e-5


@pytest.mark.parametrize('name', NETS)
def test_an_encoder_is_the_definitions_to_the_last_bit(lower, name):
    arguments, lens, digest = NETS[name]
    net = oracle.Net(**arguments)
    encoder, texts = net.encoder(lower), net.texts(*lens)
    X = encoder.encode(*texts, numpy.int32(net.order))
    numpy.testing.assert_array_equal(X, oracle.encode(net, *texts))
    assert oracle.digest(X) == digest


@pytest.mark.parametrize('name', NETS)
def test_an_encoder_is_near_the_net_in_double_precision(here, name):
    arguments, lens, _ = NETS[name]
    net = oracle.Net(**arguments)
    texts = net.texts(*lens)
    for layers in range(len(net.order) + 1):
        X = net.encoder(here).encode(*texts, numpy.int32(net.order[:layers]))
        exact = oracle.encode(net, *texts, layers, dtype=numpy.float64)
        cosines = (X * exact).sum(axis=1) / numpy.sqrt(
            (X ** 2).sum(axis=1) * (exact ** 2).sum(axis=1))
        assert cosines.min() > (0.997 if layers else 0.9999)


@pytest.fixture(scope='module')
def large():
    """A net and texts that are worth several threads, and their vectors."""
    net = oracle.Net(H=192, F_=768, num_heads=6)
    texts = net.texts(*range(1, 60))
    return net, texts, numpy.int32(net.order)


def test_a_text_has_one_vector_in_any_batch(here, large):
    net, (offsets, ids, segments), order = large
    encoder = net.encoder(here)
    together = encoder.encode(offsets, ids, segments, order)
    for begin, end in zip(offsets, offsets[1:]):
        alone = encoder.encode(
            numpy.int64([0, end - begin]), ids[begin:end],
            segments[begin:end], order)
        numpy.testing.assert_array_equal(alone, together[begin:end])


def test_an_encoder_pools_as_numpy_does(lower, large):
    net, texts, order = large
    encoder = net.encoder(lower)
    X = encoder.encode(*texts, order)
    numpy.testing.assert_array_equal(
        encoder.encode(*texts, order, 'first'), X[texts[0][:-1]])
    numpy.testing.assert_array_equal(
        encoder.encode(*texts, order, 'mean'),
        [X[begin:end].sum(axis=0) / numpy.float32(end - begin)
         for begin, end in zip(texts[0], texts[0][1:])])


@pytest.mark.parametrize('texts', [1, 3, 59])
def test_a_text_has_one_vector_with_any_number_of_threads(here, large,
                                                          texts):
    net, (offsets, ids, segments), order = large
    offsets = offsets[-texts - 1:]
    begin = offsets[0]
    encoder, found = net.encoder(here), []
    encoder._block_products = 1e9   # so that even one text gets all threads
    openmp = here.library()
    before = openmp.omp_get_max_threads()
    try:
        for threads in (1, 2, 3, 7):
            openmp.omp_set_num_threads(threads)
            for _ in range(3):
                found.append(encoder.encode(
                    offsets - begin, ids[begin:], segments[begin:], order))
    finally:
        openmp.omp_set_num_threads(before)
    for one in found[1:]:
        numpy.testing.assert_array_equal(one, found[0])


def test_numbers_that_are_none_stay_in_their_text(lower):
    net = oracle.Net(S=0)
    net.words[1][5], net.words[1][6] = numpy.nan, numpy.inf
    texts = numpy.int64([0, 3, 6, 9]), numpy.int32(
        [1, 5, 2, 1, 2, 3, 4, 6, 6]), numpy.zeros(9, 'int32')
    X = net.encoder(lower).encode(*texts, numpy.int32(net.order))
    assert numpy.isnan(X[:3]).all() and numpy.isnan(X[6:]).all()
    assert numpy.isfinite(X[3:6]).all()
    # Of the many bits that mean no number always the same
    assert set(X[numpy.isnan(X)].view('uint32')) == {0x7fc00000}


@pytest.mark.parametrize('change', [
    dict(ids=[0, 97, 1]), dict(ids=[-1, 0, 1]), dict(segments=[0, 2, 1]),
    dict(order=[2]), dict(offsets=[0, 0, 3]), dict(offsets=[1, 3]),
    dict(ids=[0] * 91, segments=[0] * 91, offsets=[0, 91])])
def test_what_lies_outside_of_its_tables_is_refused(here, change):
    given = {**dict(ids=[0, 1, 2], segments=[0, 1, 1], order=[0, 1],
                    offsets=[0, 3]), **change}
    encoder = oracle.Net().encoder(here)
    with pytest.raises(ValueError, match='the encoder lacks a token'):
        encoder.encode(numpy.int64(given['offsets']), numpy.int32(
            given['ids']), numpy.int32(given['segments']),
            numpy.int32(given['order']))


@pytest.mark.parametrize('ids, segments', [(3, 2), (2, 3), (2, 2), (4, 4)])
def test_as_many_ids_and_segments_as_rows_are_needed(here, ids, segments):
    encoder = oracle.Net().encoder(here)
    with pytest.raises(ValueError, match=f'{ids} ids and {segments} segments, '
                       'but 3 rows'):
        encoder.encode(numpy.int64([0, 3]), numpy.zeros(ids, 'int32'),
                       numpy.zeros(segments, 'int32'), numpy.int32([0, 1]))


@pytest.mark.slow
def test_an_emulated_arm_gives_the_same_bits(tmp_path):
    cross = 'aarch64-linux-gnu-g++'
    native = platform.machine() == 'aarch64'
    emulator = next(filter(shutil.which, ('qemu-aarch64-static',
                                          'qemu-aarch64')), None)
    if not native and not (shutil.which(cross) and emulator):
        pytest.skip(f'needs {cross} and qemu-aarch64: apt-get install '
                    'g++-aarch64-linux-gnu qemu-user-static')
    arguments, lens, digest = NETS['odd']
    net = oracle.Net(**arguments)
    for march in ('armv8-a', 'armv8.2-a+dotprod'):
        program = tmp_path / march
        made = subprocess.run(
            ['g++' if native else cross, f'-march={march}', *build.FLAGS,
             *int8.INT8.options, '-static', f'-I{HERE}',
             os.path.join(os.path.dirname(__file__), 'arm_int8.cc'),
             *map(str, int8.INT8.sources), '-o', str(program)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert made.returncode == 0, made.stdout.decode()
        inputs = tmp_path / 'net'
        write_net(inputs, net, net.texts(*lens))
        done = subprocess.run(
            [*[emulator] * (not native), str(program), str(inputs)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == 0, done.stderr.decode()
        X = numpy.frombuffer(done.stdout, '<f4')
        assert oracle.digest(X) == digest, march


def write_net(path, net, texts):
    """A net and texts as numbers that arm_int8.cc reads, in its order."""
    (offsets, ids, segments), (words, kinds, places) = texts, net.tables
    H = net.blocks[0][0][1][0].shape[0]
    sizes = [len(words), len(kinds), len(places), words.shape[1], H,
             len(net.blocks[0][0][2][0]), net.num_heads, len(net.blocks),
             int8.ACTS.index(net.act)]
    with open(path, 'wb') as file:
        def put(*arrays):
            for array in arrays:
                file.write(numpy.ascontiguousarray(array).tobytes())
        put(numpy.int64(sizes + [len(offsets) - 1]), offsets, ids, segments,
            numpy.float64([net.epsilon]), *net.words, kinds, places, *net.norm)
        for layers, norms in net.blocks:
            for W, bias in layers:
                put(W, bias)
            for gamma, beta in norms:
                put(gamma, beta)


def test_the_set_that_multiplies_is_the_one_that_was_chosen(lower, request):
    """So that the digests above are of several ways to multiply."""
    features, chosen = find_processor().features, request.node.callspec.id
    if os.environ.get('D2LBERT_ISA'):
        assert lower.product() == 'pairs of 16 bits'
    elif chosen == 'emulated tiles' or (not chosen
                                        and 'amx_int8' in features):
        assert lower.product() == 'AMX'
    elif 'avx512_vnni' in features:
        assert lower.product() == 'VNNI'


def test_a_forked_process_asks_for_its_own_tiles(lower):
    X, W = oracle.numbers(20 * 64, 3, 8).reshape(20, 64), (
        oracle.numbers(32 * 64, 4, .5).reshape(32, 64))
    weights = lower.quantize(W)
    Y = lower.dense(X, *weights)
    child = os.fork()
    if not child:
        faulthandler.disable()
        os._exit(not numpy.array_equal(lower.dense(X, *weights), Y))
    assert os.waitpid(child, 0)[1] == 0


def test_tiles_that_are_required_and_absent_are_an_error(monkeypatch, here):
    monkeypatch.setattr(here.library(), 'int8_use_tiles', lambda use: 0)
    monkeypatch.setenv('D2LBERT_AMX', 'require')
    with pytest.raises(ValueError, match='D2LBERT_AMX is require, but'):
        here._choose_tiles(here.library())
