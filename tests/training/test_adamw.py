"""The optimizer of runs: against NumPy, MXNet's Adam, and itself."""
import multiprocessing

import loops
import numpy as onp
import pytest
from loops import step
from processes import in_a_process

from d2lbert import kernels
from d2lbert.machine.backend import gluon, mx, np, npx
from d2lbert.training import checkpoints, pretraining
from d2lbert.training.settings import complete
from d2lbert.training.updater import AdamW

#: A matrix of several blocks and a part of one, vectors shorter than a
#: register and not.
SHAPES = [(130, 70), (7,), (3, 5), (1, 9001), (33,), (1,), (2, 3, 4)]
TINY = dict(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=6, seed=1, dropout=0)


def normal(seed, scale=1.0):
    rng = onp.random.RandomState(seed)
    return [onp.asarray(scale * rng.normal(size=shape), 'float32')
            for shape in SHAPES]


class Trained:
    """Parameters and a trainer of them, on devices that share gradients."""

    def __init__(self, optimizer='adamw', num_devices=1, **settings):
        self.devices = [npx.cpu(k) for k in range(num_devices)]
        self.params = [
            gluon.Parameter(f'p{i}', shape=shape, init=mx.init.Zero())
            for i, shape in enumerate(SHAPES)]
        for param, value in zip(self.params, normal(0)):
            param.initialize(ctx=self.devices)
            param.set_data(np.array(value))
        self.trainer = gluon.Trainer(
            {param.name: param for param in self.params}, optimizer,
            settings, update_on_kvstore=False)

    def step(self, grads, batch_size=1):
        for param, grad in zip(self.params, grads):
            for device in self.devices:
                if param.grad_req != 'null':
                    param.grad(device)[...] = np.array(
                        grad / len(self.devices))
                    param.data(device)._fresh_grad = True
        self.trainer.step(batch_size)

    def values(self, device=0):
        return [param.data(self.devices[device]).asnumpy()
                for param in self.params]


class Reference:
    """The same in float64."""

    def __init__(self, values, wd=0.0, clip=0.0):
        self.w = [onp.asarray(value, 'float64') for value in values]
        self.m = [0 * value for value in self.w]
        self.v = [0 * value for value in self.w]
        self.wd, self.clip, self.t = wd, clip, 0
        # The numbers that are nearest to 0.9 and 0.999
        self.beta1, self.beta2 = map(float, onp.float32([0.9, 0.999]))

    def step(self, grads, rate):
        self.t += 1
        grads = [onp.asarray(grad, 'float64') for grad in grads]
        norm = onp.sqrt(sum((grad ** 2).sum() for grad in grads))
        if self.clip and norm > self.clip:
            grads = [grad * self.clip / norm for grad in grads]
        for i, grad in enumerate(grads):
            self.m[i] = self.beta1 * self.m[i] + (1 - self.beta1) * grad
            self.v[i] = self.beta2 * self.v[i] + (1 - self.beta2) * grad ** 2
            # The order of the paper's section 2: epsilon beside a v that is
            # not yet corrected
            corrected = rate * (onp.sqrt(1 - 0.999 ** self.t)
                                / (1 - 0.9 ** self.t))
            if self.w[i].ndim > 1:
                self.w[i] = self.w[i] * (1 - rate * self.wd)
            self.w[i] = self.w[i] - corrected * self.m[i] / (
                onp.sqrt(self.v[i]) + 1e-8)


def close(found, expected, tolerance=2e-6):
    for one, other in zip(found, expected):
        onp.testing.assert_allclose(one, other, rtol=tolerance,
                                    atol=tolerance)


@pytest.mark.parametrize('wd, clip', [(0.0, 0.0), (0.3, 0.0), (0.0, 1.0),
                                      (0.3, 1.0), (0.3, 1e4)])
@pytest.mark.parametrize('num_devices', [1, 2])
def test_steps_are_those_of_numpy(path, num_devices, wd, clip):
    ours = Trained(num_devices=num_devices, wd=wd, clip_norm=clip)
    theirs = Reference(normal(0), wd, clip)
    for k in range(5):
        grads = normal(k + 1, 10.0 ** (2 - k))
        ours.trainer.set_learning_rate(0.1 / (k + 1))
        ours.step([4 * grad for grad in grads], 4)
        theirs.step(grads, 0.1 / (k + 1))
        for device in range(num_devices):
            close(ours.values(device), theirs.w)


def test_steps_without_decay_and_clipping_are_those_of_mxnets_adam(path):
    ours, theirs = Trained(), Trained('adam')
    for k in range(20):
        grads = normal(k + 1, 0.1 * k)
        ours.step(grads)
        theirs.step(grads)
    close(ours.values(), theirs.values(), 1e-6)
    for number, (mean, variance) in theirs.trainer._updaters[0].states.items():
        found = ours.trainer._updaters[0].states[number]
        close([one.asnumpy() for one in found],
              [mean.asnumpy(), variance.asnumpy()], 1e-6)


@pytest.mark.parametrize('clip', [0.0, 1.0])
@pytest.mark.parametrize('odd', [onp.nan, onp.inf, -onp.inf])
def test_what_is_no_number_does_what_it_does_in_the_plain_twin(
        odd, clip, monkeypatch):
    grads = normal(1)
    grads[0][100, 3], grads[1][2] = odd, odd
    found = []
    for enabled in (kernels.enabled, lambda *arrays: False):
        monkeypatch.setattr(kernels, 'enabled', enabled)
        trained = Trained(wd=0.1, clip_norm=clip)
        for _ in range(2):
            trained.step(grads)
        found.append(trained.values())
    for one, other in zip(*found):
        onp.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    places = [onp.argwhere(onp.isnan(value)).tolist() for value in found[0]]
    assert places == [[[100, 3]], [[2]]] + [[]] * 5


def test_gradients_of_zero_leave_no_numbers_too_small_to_be_normal():
    if not kernels.load():
        pytest.skip('the plain twin keeps them')
    trained = Trained(wd=0.1)
    trained.step([1e-33 * grad for grad in normal(1)])
    for _ in range(200):
        trained.step([0 * grad for grad in normal(1)])
    for means in trained.trainer._updaters[0].states.values():
        for mean in means:
            size = onp.abs(mean.asnumpy())
            assert ((size == 0) | (size >= onp.finfo('float32').tiny)).all()


THREADS = '''
import hashlib, test_adamw
trained = test_adamw.Trained(wd=0.1, clip_norm=1.0)
for k in range(3):
    trained.step(test_adamw.normal(k))
print(hashlib.sha256(b''.join(
    value.tobytes() for value in trained.values())).hexdigest())
'''


def test_any_number_of_threads_gives_the_same_bits():
    if not kernels.load():
        pytest.skip('MXNet has threads of its own')
    # MXNet's engine calls from threads of its own: asked for from outside
    found = {in_a_process(THREADS, OMP_NUM_THREADS=str(number))
             for number in (1, 2, 5)}
    assert len(found) == 1


def test_a_forked_process_steps_as_the_one_it_comes_from():
    trained = Trained(wd=0.1, clip_norm=1.0)
    trained.step(normal(1))
    context = multiprocessing.get_context('fork')
    said, says = context.Pipe(False)

    def step_and_say():
        trained.step(normal(2))
        says.send(trained.values())
    # What was at work with this thread is not there in the child
    process = context.Process(target=step_and_say)
    process.start()
    found = said.recv() if said.poll(60) else None
    process.kill()
    trained.step(normal(2))
    assert found is not None, 'it hangs'
    for one, other in zip(found, trained.values()):
        onp.testing.assert_array_equal(one, other)


def test_steps_come_in_their_order_though_nobody_waits_for_them(path):
    """Each is begun while what came before it is still to be done."""
    ours = Trained(wd=0.3, clip_norm=1.0, ahead=True)
    theirs = Reference(normal(0), 0.3, 1.0)
    big, halves = np.ones((600, 600)), np.full((600, 600), 1 / 600)
    for k in range(5):
        for _ in range(20):
            big = np.dot(big, halves)   # ones, which take their time
        for param, grad in zip(ours.params, normal(k + 1)):
            param.grad()[...] = np.array(grad) * big[0, 0]
            param.data()._fresh_grad = True
        ours.trainer.step(1)
        theirs.step(normal(k + 1), 0.001)
    weights = [param.data() for param in ours.params]
    del ours    # with gradients and means that a step still needs
    close([weight.asnumpy() for weight in weights], theirs.w)


TWICE = '''
import numpy as onp
from d2lbert import kernels
from d2lbert.machine.backend import autograd, gluon, mx, np

X = np.random.normal(size=(32, 16, 12, 12))

def conv_net():
    nn, net = gluon.nn, gluon.nn.HybridSequential()
    net.add(nn.Conv2D(32, 3, in_channels=16), nn.Conv2D(48, 3, in_channels=32),
            nn.Flatten(), nn.Dense(64, in_units=48 * 8 * 8),
            nn.Dense(32, in_units=64))
    net.initialize(mx.init.Normal(0.05))
    return net

def trainer_of(params, **settings):
    return gluon.Trainer(params, 'adamw', dict(learning_rate=1e-3, **settings),
                         update_on_kvstore=False)

def compare(train, **tolerance):
    """Train by the fused operator, and by plain ones."""
    found = []
    for enabled in (kernels.enabled, lambda *arrays: False):
        kernels.enabled = enabled
        mx.random.seed(1)
        net = conv_net()
        train(net)
        found.append([param.data().asnumpy()
                      for param in net.collect_params().values()])
    for one, other in zip(*found):
        onp.testing.assert_allclose(one, other, **tolerance)
    print('same')
'''

OTHERS = TWICE + '''
def train(net):
    trainer = trainer_of(net.collect_params(), wd=0.1, clip_norm=1.0)
    for _ in range(3):
        with autograd.record():
            loss = (net(X) ** 2).mean()
        loss.backward()
        trainer.step(1)
        net(X)          # may turn the weights to an order of its own

compare(train, rtol=1e-4, atol=1e-5)
'''


def test_weights_in_an_order_of_onednns_are_found():
    """Those of other blocks, which hang or go astray where they are not."""
    assert in_a_process(OTHERS) == 'same\n'


READ = TWICE + '''
def train(net):
    # Behind the weights, so that the step takes long to be asked for
    many = [gluon.Parameter(f'shift{k}', shape=(1,)) for k in range(300)]
    for param in many:
        param.initialize(mx.init.Zero())
    trainer = trainer_of([*net.collect_params().values(), *many])
    for k in range(15):
        with autograd.record():
            loss = (net(X) ** 2).mean() + sum(param.data() for param in many)
        loss.backward()
        net(np.repeat(X, 1 + 3 * k, axis=0))    # is under way at the step
        trainer.step(1)

compare(train, rtol=1e-3, atol=1e-4)
'''


def test_a_prediction_that_is_under_way_is_waited_for():
    """It turns weights to another order while the step is asked for."""
    assert in_a_process(READ) == 'same\n'


def test_what_is_frozen_stays_and_counts_for_nothing(path):
    ours, theirs = Trained(wd=0.1, clip_norm=1.0), Reference(
        normal(0)[1:], 0.1, 1.0)
    ours.params[0].grad_req = 'null'
    ours.step(normal(1))
    theirs.step(normal(1)[1:], 0.001)
    close(ours.values()[1:], theirs.w)
    onp.testing.assert_array_equal(ours.values()[0], normal(0)[0])


def test_rates_and_decay_of_single_parameters_are_heeded():
    ours = Trained(wd=0.3)
    ours.params[0].lr_mult, ours.params[3].wd_mult = 0.5, 0.0
    first, third = (Reference(normal(0), wd) for wd in (0.3, 0.0))
    ours.step(normal(1))
    first.step(normal(1), 0.0005)
    third.step(normal(1), 0.001)
    close([ours.values()[0], ours.values()[3]], [first.w[0], third.w[3]])


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match='give clip_norm in place of'):
        AdamW(clip_gradient=1.0)
    with pytest.raises(ValueError, match='dense weights, not row_sparse'):
        AdamW().create_state(0, mx.nd.sparse.zeros('row_sparse', (2, 3)))
    # As a store that updates would call it
    trained = Trained(clip_norm=1.0)
    update, param = trained.trainer._updaters[0], trained.params[0]
    with pytest.raises(ValueError, match='update_on_kvstore=False'):
        update(0, param.grad(), param.data())


def test_an_array_that_comes_twice_is_refused():
    if not kernels.load():
        pytest.skip('MXNet itself takes it twice')
    arrays = [mx.nd.zeros((4,)) for _ in range(4)]
    with pytest.raises(ValueError, match='must be different arrays'):
        kernels.ops.adam(*[[array] * 2 for array in arrays], [0.1] * 2,
                         [0.0] * 2, 0.9, 0.999, 1e-8)


def test_memory_of_other_sizes_or_types_is_never_touched():
    if not kernels.load():
        pytest.skip('MXNet itself sees to that')
    arrays = [mx.nd.zeros((4,)) for _ in range(4)]
    for odd in (mx.nd.zeros((5,)), mx.nd.zeros((4,), dtype='float64')):
        with pytest.raises(ValueError, match='float32 arrays of one size'):
            kernels.ops.adam(*([array] for array in (*arrays[:3], odd)),
                             [0.1], [0.0], 0.9, 0.999, 1e-8)


# In a run

def values_of(run):
    return [value.asnumpy() for _, value in sorted(
        (name, param.data(run.devices[0])) for name, param
        in run.net._collect_params_with_prefix().items())]


def gradients_of(run):
    """The gradients of all devices together, as they are before a step."""
    return [sum(grad.asnumpy().astype('float64') for grad in grads)
            for _, grads in sorted(
                (name, param.list_grad()) for name, param
                in run.net._collect_params_with_prefix().items())]


@pytest.mark.parametrize('devices, accumulate', [('cpu', 1), ('cpu:2', 2)])
def test_a_run_decays_and_clips_as_its_settings_say(devices, accumulate):
    run = loops.prepared(pretraining._make_objective, complete(dict(
        TINY, lr=0.01, warmup=0.5, decay='linear', weight_decay=2.0,
        clip=0.05, accumulate=accumulate)), devices)
    theirs = Reference(values_of(run), 2.0, 0.05)
    update, norms = run.updater.update, []

    def note(k):
        grads = gradients_of(run)
        norms.append(onp.sqrt(sum((grad ** 2).sum() for grad in grads)))
        update(k)
        theirs.step(grads, 0.01 * onp.interp(k, [0, 3, 7], [0, 1, 0]))
    run.updater.update = note
    for _ in range(5):
        step(run)
    assert min(norms) > 0.05
    close(values_of(run), theirs.w, 1e-5)


def test_a_checkpoint_with_the_moments_of_mxnets_adam_goes_on(tmp_path):
    before, after = (
        loops.prepared(pretraining._make_objective, complete(TINY))
        for _ in range(2))
    before.updater.trainer = gluon.Trainer(
        before.net.collect_params(), 'adam',
        {'learning_rate': TINY.get('lr', 0.01)})
    for _ in range(2):
        step(before)
    saved = checkpoints.save(
        tmp_path, 2, dict(settings={}, history={}, epoch=0, position=[0, 0],
                          fingerprint='', num_devices=1, num_workers=1,
                          **before.updater.state()),
        before.updater.arrays())
    after.updater.restore(checkpoints.Checkpoint.read(saved))
    batch = next(before.batches())
    for run in (before, after):
        run.updater.gradients(batch)
        run.updater.update(3)
    close(values_of(after), values_of(before), 1e-6)
