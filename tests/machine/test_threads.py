"""Public functions work in every thread, with equal results."""
import io
import itertools
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as onp
import pytest
from legacy import legacy_mode
from mxnet import gluon, init, np

import d2lbert as d2l
from d2lbert import hub
from d2lbert.machine.terminal import FailsafeStream, failsafe_output

AT_ONCE = 4
TINY = dict(corpus='sample', batch_size=8, max_len=24, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=2, seed=1)


def in_threads(work, number=AT_ONCE):
    """Results of `work()` in several threads that start at the same time."""
    ready = threading.Barrier(number)

    def run(_):
        ready.wait(30)
        return work()
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def in_a_thread(work):
    return in_threads(work, 1)[0]


def small_net(vocab, dropout=0.1):
    net = d2l.BERTModel(len(vocab), num_hiddens=16, ffn_num_hiddens=32,
                        num_heads=2, num_layers=2, dropout=dropout, max_len=64)
    mx.random.seed(1)
    net.initialize(init.Xavier())
    net.vocab = vocab
    # The first call, which learns the shapes, goes through MXNet's layers
    net(*[np.zeros((1, 4), 'int32')] * 2, np.array([4.0]),
        np.ones((1, 1), 'int32'))
    return net


@pytest.fixture(scope='module')
def vocab():
    words = [f'w{i}' for i in range(50)]
    return d2l.Vocab([words], reserved_tokens=['<pad>', '<mask>', '<cls>',
                                               '<sep>'])


@pytest.fixture(scope='module')
def net(vocab):
    return small_net(vocab)


def test_a_new_thread_is_in_numpys_mode():
    x = np.ones((2, 3))
    # Each is the first thing that its thread asks of MXNet
    for work, shape in ((lambda: np.zeros((2, 0)), (2, 0)),
                        (lambda: np.array(3.0), ()), (x.sum, ()),
                        (lambda: x[0, 1], ()), (x.mean, ())):
        assert in_a_thread(work).shape == shape
    assert in_a_thread(mx.util.is_np_array)
    assert in_a_thread(mx.util.is_np_shape)


def test_a_net_has_equal_outputs_in_every_thread(net, path):
    rng = onp.random.RandomState(0)
    inputs = (np.array(rng.randint(0, 50, (3, 12)), dtype='int32'),
              np.zeros((3, 12), 'int32'), np.array([12.0, 5.0, 9.0]),
              np.array(rng.randint(1, 5, (3, 2)), dtype='int32'))

    def forward():
        return [output.asnumpy() for output in net(*inputs)]
    expected = forward()
    for found in in_threads(forward):
        for ours, theirs in zip(expected, found):
            onp.testing.assert_array_equal(ours, theirs)


def test_encodings_and_metrics_are_equal_in_every_thread(net):
    corpus = d2l.open_corpus([hub.sample_dir() / hub.TRAIN_FILE],
                             valid_share=0.2, progress=False)
    scored = small_net(corpus.vocab)

    def encode():
        return d2l.get_bert_encoding(net, ['w1', 'w2'], ['w3']).asnumpy()

    def score():
        return d2l.evaluate(scored, (batch for _, batch in
                                     corpus.valid.batches(8, 64, seed=1)),
                            [mx.cpu()])
    expected = encode()
    for found in in_threads(encode):
        onp.testing.assert_array_equal(found, expected)
    assert len({score(), *in_threads(score)}) == 1


def test_training_in_several_threads_gives_equal_weights(path):
    train_iter, vocab = d2l.load_data_wiki(8, 24, hub.sample_dir())
    batches = list(itertools.islice(train_iter, 2))
    nets = [small_net(vocab, dropout=0) for _ in range(1 + AT_ONCE)]

    def train():
        history = d2l.train_bert(batches, nets.pop(),
                                 gluon.loss.SoftmaxCELoss(), len(vocab),
                                 [mx.cpu()], 2)
        return history.mlm, history.nsp
    alone = train()
    assert in_threads(train) == AT_ONCE * [alone]


def test_the_books_way_to_a_loss_can_be_gone_in_a_thread():
    def train():
        random.seed(1)
        onp.random.seed(1)
        train_iter, vocab = d2l.load_data_wiki(8, 24, hub.sample_dir())
        batch = [array.asnumpy() for array in next(iter(train_iter))]
        history = d2l.train_bert(train_iter, small_net(vocab),
                                 gluon.loss.SoftmaxCELoss(), len(vocab),
                                 [mx.cpu()], 2)
        return [*batch, history.mlm, history.nsp]
    for ours, theirs in zip(train(), in_a_thread(train)):
        onp.testing.assert_array_equal(ours, theirs)


def test_a_run_in_a_thread_leaves_the_same_parameters(tmp_path):
    expected = d2l.pretrain(tmp_path / 'here', **TINY)
    found = in_a_thread(lambda: d2l.pretrain(tmp_path / 'there', **TINY))
    assert ((found / 'model.params').read_bytes()
            == (expected / 'model.params').read_bytes())
    net = in_a_thread(lambda: d2l.load_run(found)[0])
    assert d2l.get_bert_encoding(net, ['a']).shape == (1, 3, 8)


def test_a_legacy_scope_holds_in_its_own_thread_alone():
    inside, done = threading.Event(), threading.Event()

    def legacy():
        with legacy_mode():
            inside.set()
            assert done.wait(30)
            kinds = mx.util.is_np_array(), mx.util.is_np_shape()
            layer = gluon.nn.Dense(2, in_units=3)
            layer.initialize()
            kinds += (type(layer(mx.nd.ones((1, 3)))),)
        return kinds, (mx.util.is_np_array(), mx.util.is_np_shape())
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(legacy)
        assert inside.wait(30)
        assert mx.util.is_np_array() and mx.util.is_np_shape()
        assert type(np.ones(3).sum()) is np.ndarray
        assert pool.submit(mx.util.is_np_array).result(30)
        done.set()
        kinds, after = other.result(30)
    assert kinds == (False, False, mx.nd.NDArray)
    assert after == (True, True)


def test_a_user_who_leaves_numpys_mode_has_left_it():
    def leave():
        mx.npx.reset_np()
        return mx.util.is_np_array()
    assert not in_a_thread(leave)
    assert mx.util.is_np_array() and in_a_thread(mx.util.is_np_array)


def test_threads_that_share_standard_output_put_it_back(monkeypatch):
    monkeypatch.setattr(sys, 'stdout', io.StringIO())
    before = sys.stdout, sys.stderr
    barrier = threading.Barrier(2)

    def first():
        with failsafe_output():
            barrier.wait(30)        # both are in
        barrier.wait(30)            # the other is still

    def second():
        with failsafe_output():
            barrier.wait(30)
            barrier.wait(30)
            print('said')
    with ThreadPoolExecutor(2) as pool:
        for work in [pool.submit(first), pool.submit(second)]:
            work.result(60)
    assert (sys.stdout, sys.stderr) == before
    assert not isinstance(sys.stdout, FailsafeStream)
    assert before[0].getvalue() == 'said\n'
