"""The loop of chapter 13 against the book's own package, and on devices."""
import re
import threading

import numpy as onp
import pytest

import d2lbert as d2l
from d2lbert import multi_device
from d2lbert.machine.backend import gluon, init, mx, nn, np, npx

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
ONE, TWO, THREE = ([npx.cpu(k) for k in range(n)] for n in (1, 2, 3))
B = 4


class Drawn:
    """An `Animator` that stores its arguments."""

    all = []

    def __init__(self, **settings):
        self.settings, self.points = settings, []
        self.has_begun, self.moves = False, []
        Drawn.all.append(self)

    def begin(self, line):
        self.has_begun, self.line = True, line

    def move(self, x):
        self.moves.append(x)

    def add(self, x, y):
        self.points.append((x, *y))

    def close(self):
        self.closed = True


@pytest.fixture
def drawn(monkeypatch):
    """Both packages draw with `Drawn`; the list of what was made."""
    monkeypatch.setattr(Drawn, 'all', [])
    monkeypatch.setattr(multi_device, 'Animator', Drawn)
    return Drawn.all


def examples(count, seed=0):
    """X (N, 6) and labels (N,) of three classes that depend on it."""
    rng = onp.random.RandomState(seed)
    X = rng.normal(size=(count, 6)).astype('float32')
    return X, (X[:, :3] + 0.3 * X[:, 3:]).argmax(1).astype('float32')


def batches(count=22, inputs=1, seed=0):
    """A list of batches, the last one of two; several inputs are halves."""
    X, y = examples(count, seed)
    made = []
    for k in range(0, count, B):
        parts = np.split(np.array(X[k:k + B]), inputs, axis=1)
        made.append((parts[0] if inputs == 1 else parts,
                     np.array(y[k:k + B])))
    return made


class Net(nn.Block):
    """A dense net on one array or on several; `spare` takes no part."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(8, activation='tanh', in_units=6)
        self.output = nn.Dense(3, in_units=8)
        self.spare = nn.Dense(2, in_units=8)

    def forward(self, X):
        if isinstance(X, (list, tuple)):
            X = np.concatenate(X, axis=1)
        return self.output(self.hidden(X))


def net(devices=ONE):
    made = Net()
    made.initialize(ctx=devices)
    rng = onp.random.RandomState(3)
    for _, param in sorted(made._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.4, param.shape)))
    return made


def trainer_of(made, optimizer='adam', **settings):
    return gluon.Trainer(made.collect_params(), optimizer,
                         settings or {'learning_rate': 0.05})


def weights(made, device=None):
    return {name: param.data(device or param.list_ctx()[0]).asnumpy()
            for name, param in made._collect_params_with_prefix().items()}


def close(ours, theirs, atol=2e-5):
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        onp.testing.assert_allclose(ours[name], array, atol=atol,
                                    err_msg=name)


SPLITS = {1: 'split_batch', 3: 'split_batch_multi_inputs'}


@pytest.mark.parametrize('inputs', SPLITS)
def test_training_is_that_of_the_books_package(book, drawn, monkeypatch,
                                               capsys, inputs):
    monkeypatch.setattr(book, 'Animator', Drawn)
    printed, trained = [], []
    for module in (d2l, book):
        made = net()
        module.train_ch13(made, batches(40, inputs), batches(9, inputs, 1),
                          LOSS, trainer_of(made), 3, ONE,
                          getattr(module, SPLITS[inputs]))
        printed.append(capsys.readouterr().out)
        trained.append(weights(made))
    ours, theirs = drawn
    assert ours.settings == theirs.settings and ours.closed
    assert len(ours.points) == 3 * 5 + 3
    onp.testing.assert_allclose(
        onp.array(ours.points, dtype=float),
        onp.array(theirs.points, dtype=float), rtol=1e-5)
    close(*trained)
    lines = [text.splitlines() for text in printed]
    assert lines[0][0] == lines[1][0] and 'test acc' in lines[0][0]
    assert [re.sub(r'[\d.]+ ', 'N ', text[1], 1) for text in lines] == [
        'N examples/sec on [cpu(0)]'] * 2
    assert [len(text) for text in lines] == [2, 2]


@pytest.mark.parametrize('inputs', SPLITS)
def test_a_step_is_that_of_the_books_package(book, inputs):
    results = []
    for module in (d2l, book):
        made = net()
        features, labels = batches(inputs=inputs)[0]
        sums = module.train_batch_ch13(
            made, features, labels, LOSS, trainer_of(made), ONE,
            getattr(module, SPLITS[inputs]))
        results.append(([float(number) for number in sums], weights(made)))
    onp.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    close(results[0][1], results[1][1])


def test_accuracy_is_the_books(book):
    rng = onp.random.RandomState(0)
    y = rng.randint(0, 3, 20)
    for y_hat, labels in ((rng.normal(size=(20, 3)), y),
                          (rng.randint(0, 3, 20), y),
                          (rng.normal(size=(4, 3, 5)), y.reshape(4, 5))):
        for dtype in ('float32', 'int32'):
            pair = (np.array(y_hat), np.array(labels, dtype=dtype))
            assert d2l.accuracy(*pair) == book.accuracy(*pair)
    guesses = np.array([[0.1, 0.9, 0], [0.5, 0.2, 0.3]])
    assert d2l.accuracy(guesses, np.array([1, 2])) == 1.0


@pytest.mark.parametrize('shapes', [((2, 1), (2,)), ((2,), (2, 1))], ids=str)
def test_a_column_is_compared_with_a_vector_one_to_one(shapes):
    guesses, labels = map(np.zeros, shapes)
    assert d2l.accuracy(guesses, labels) == 2.0


@pytest.mark.parametrize('inputs', SPLITS)
def test_shards_are_those_of_the_books_package(book, inputs):
    X, y = batches(inputs=inputs)[0]
    name = SPLITS[inputs]
    ours, theirs = (getattr(module, name)(X, y, TWO)
                    for module in (d2l, book))
    for our, their in zip(ours, theirs):
        assert len(our) == len(their) == 2
        for a, b, device in zip(our, their, TWO):
            for part, other in zip(*((a, b) if inputs > 1 and our is ours[0]
                                     else ([a], [b]))):
                assert part.ctx == other.ctx == device
                onp.testing.assert_array_equal(part.asnumpy(),
                                               other.asnumpy())


@pytest.mark.parametrize('inputs', SPLITS)
def test_a_batch_is_spread_unevenly_and_over_no_more_than_it_has(inputs):
    split = getattr(d2l, SPLITS[inputs])
    X, y = batches(inputs=inputs)[0]
    for devices, lens in ((THREE, [2, 1, 1]), (TWO, [2, 2])):
        X_shards, y_shards = split(X, y, devices)
        assert [len(shard) for shard in y_shards] == lens
        assert [len(shard[0] if inputs > 1 else shard)
                for shard in X_shards] == lens
    X, y = batches(inputs=inputs)[-1]
    X_shards, y_shards = split(X, y, THREE)
    assert [shard.ctx for shard in y_shards] == THREE[:2]
    assert len(X_shards) == 2


def test_features_and_labels_must_be_as_many():
    with pytest.raises(ValueError, match='4 examples have 3 labels'):
        d2l.split_batch(np.ones((4, 2)), np.ones(3), ONE)
    with pytest.raises(ValueError, match='4 examples have 3 labels'):
        d2l.split_batch_multi_inputs([np.ones((3, 2)), np.ones((4, 2))],
                                     np.ones(3), ONE)


@pytest.mark.parametrize('devices', [TWO, THREE], ids=len)
def test_the_number_of_devices_does_not_matter(drawn, capsys, devices):
    """Also where the last batch leaves a device without an example."""
    results = []
    for used in (ONE, devices):
        made = net(used)
        before = weights(made)
        d2l.train_ch13(made, batches(), batches(9, seed=1), LOSS,
                       trainer_of(made, 'sgd', learning_rate=0.1,
                                  momentum=0.9), 2, used)
        results.append(weights(made))
        for device in used:
            close(weights(made, device), results[-1], 0)
        for name in ('spare.weight', 'spare.bias'):
            onp.testing.assert_array_equal(results[-1][name], before[name])
        assert (results[-1]['hidden.weight']
                != before['hidden.weight']).all()
    close(*results)
    onp.testing.assert_allclose(*(onp.array(animator.points, dtype=float)
                                  for animator in drawn), rtol=1e-5)
    assert f'examples/sec on {devices}\n' in capsys.readouterr().out


def test_weight_decay_skips_parameters_without_a_gradient():
    made = net()
    before = weights(made)
    trainer = trainer_of(made, 'adam', learning_rate=0.1, wd=0.5)
    d2l.train_batch_ch13(made, *batches()[0], LOSS, trainer, ONE)
    after = weights(made)
    onp.testing.assert_array_equal(after['spare.weight'],
                                   before['spare.weight'])
    assert (after['output.weight'] != before['output.weight']).any()


def test_a_device_without_examples_changes_nothing():
    made = net(THREE)
    before = weights(made)
    trainer = gluon.Trainer(made.collect_params(), 'sgd', {
        'learning_rate': 0.1, 'wd': 0.5}, update_on_kvstore=False)
    for features, labels in (batches()[0], batches()[-1]):
        d2l.train_batch_ch13(made, features, labels, LOSS, trainer, THREE)
    for device in THREE:
        close(weights(made, device), weights(made), 0)
    onp.testing.assert_array_equal(weights(made)['spare.weight'],
                                   before['spare.weight'])


def test_accuracy_on_all_devices_is_that_of_numpy():
    X, y = examples(22)
    made = net(THREE)
    named = weights(made)
    hidden = onp.tanh(X @ named['hidden.weight'].T + named['hidden.bias'])
    guesses = (hidden @ named['output.weight'].T
               + named['output.bias']).argmax(1)
    assert d2l.evaluate_accuracy_gpus(made, batches()) == pytest.approx(
        (guesses == y).mean())


def test_evaluation_leaves_dropout_off_also_while_recording():
    made = nn.Sequential()
    made.add(nn.Dropout(0.9), nn.Dense(3, in_units=6))
    made.initialize(init.Normal(1))
    once = d2l.evaluate_accuracy_gpus(made, batches())
    with mx.autograd.record():
        assert d2l.evaluate_accuracy_gpus(made, batches()) == once


def test_few_batches_are_drawn_each(drawn, capsys):
    made = net()
    d2l.train_ch13(made, batches(7), batches(5), LOSS, trainer_of(made), 1)
    assert [point[0] for point in drawn[0].points] == [0.5, 1.0, 1]
    assert drawn[0].moves == [0.5, 1.0]
    assert drawn[0].line == ('training 101 parameters: 1 epochs of 2 '
                             'batches on [cpu(0)]')


def test_a_loop_over_nothing_is_an_error(drawn):
    made = net()
    with pytest.raises(ValueError, match='2 epochs of 0 batches'):
        d2l.train_ch13(made, [], batches(), LOSS, trainer_of(made), 2)
    with pytest.raises(ValueError, match='0 epochs of 6 batches'):
        d2l.train_ch13(made, batches(), batches(), LOSS, trainer_of(made), 0)
    with pytest.raises(ValueError, match='at least one device'):
        d2l.train_ch13(made, batches(), batches(), LOSS, trainer_of(made), 1,
                       [])
    for split in d2l.split_batch, d2l.split_batch_multi_inputs:
        with pytest.raises(TypeError, match=f"^{split.__name__} needs a list "
                                            "of .* device, .*, not 'gpu'$"):
            split([np.ones(3)], np.ones(1), 'gpu')
    with pytest.raises(TypeError, match=r'^train_ch13 needs .* not cpu\(0\)'):
        d2l.train_ch13(made, batches(), batches(), LOSS, trainer_of(made), 1,
                       npx.cpu())
    with pytest.raises(ValueError, match='evaluate on has no batch'):
        d2l.evaluate_accuracy_gpus(made, [])
    with pytest.raises(ValueError, match='^a batch has no example: it must'):
        d2l.evaluate_accuracy_gpus(made, [(np.ones((0, 2)), np.ones(0))])


def test_losses_are_read_during_the_next_step(monkeypatch):
    """So that the devices never wait for this process."""
    order, step, added = ([], multi_device._train_step,
                          multi_device._sum_over_devices)

    def stepped(*args):
        order.append('step')
        return step(*args)

    def read(sums):
        order.append('read')
        return added(sums)
    monkeypatch.setattr(multi_device, '_train_step', stepped)
    monkeypatch.setattr(multi_device, '_sum_over_devices', read)
    monkeypatch.setattr(multi_device, 'Animator', Drawn)
    made = net()
    d2l.train_ch13(made, batches(60), batches(4), LOSS, trainer_of(made), 1,
                   ONE)
    assert order[:6] == ['step', 'step', 'read', 'step', 'read', 'read']


def test_another_thread_trains_to_the_same_weights(drawn, capsys):
    trained = []

    def train():
        made = net()
        d2l.train_ch13(made, batches(inputs=3), batches(9, 3), LOSS,
                       trainer_of(made), 2, ONE, d2l.split_batch_multi_inputs)
        trained.append(weights(made))
    train()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    close(*trained, 0)


def test_a_script_says_what_is_trained(capsys):
    made = net()
    d2l.train_ch13(made, batches(28), batches(4), LOSS, trainer_of(made), 1,
                   ONE)
    printed = capsys.readouterr()
    assert printed.out.startswith('loss ')
    assert printed.err == ('training 101 parameters: 1 epochs of 7 batches '
                           'on [cpu(0)]\n')


def test_examples_a_second_are_those_of_all_epochs(drawn, capsys,
                                                   monkeypatch):
    monkeypatch.setattr(d2l.Timer, 'sum', lambda self: 2.0)
    train, counts = batches(), []
    for X, _ in train:
        counts.append(len(X))
    made = net(ONE)
    d2l.train_ch13(made, train, batches(9, seed=1), LOSS,
                   trainer_of(made, 'sgd', learning_rate=0.1), 3, ONE)
    assert f'{sum(counts) * 3 / 2:.1f} examples/sec' in capsys.readouterr().out
