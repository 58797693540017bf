"""The program of workers in test_launch.py: some steps of Adam.

Its arguments are the file to write, with {rank} in its name, how many steps
to make, and how many times to see first whether weights arrive.
"""
import sys

import numpy as onp

from d2lbert.machine import workers
from d2lbert.machine.backend import autograd, gluon, nn, np


def train(rank, workers, steps, kvstore=None):
    """The weights after `steps` steps on part `rank` of every batch."""
    rng = onp.random.RandomState(0)
    net = nn.Sequential()
    net.add(nn.Dense(16, in_units=8, activation='tanh'),
            nn.Dense(3, in_units=16))
    net.initialize()
    for param in net.collect_params().values():
        param.set_data(np.array(rng.normal(size=param.shape), 'float32'))
    trainer = gluon.Trainer(net.collect_params(), 'adam',
                            {'learning_rate': 0.05}, kvstore=kvstore,
                            update_on_kvstore=False if kvstore else None)
    loss = gluon.loss.SoftmaxCELoss()
    for step in range(steps):
        rng = onp.random.RandomState(step)
        X = rng.normal(size=(12, 8)).astype('float32')
        Y = rng.randint(0, 3, size=12).astype('float32')
        part = slice(rank * 12 // workers, (rank + 1) * 12 // workers)
        with autograd.record():
            total = loss(net(np.array(X[part])), np.array(Y[part])).sum()
        total.backward()
        trainer.step(12)
        if step == 0:
            print(f'worker {rank} has made a step', flush=True)
    return [param.data().asnumpy() for param in net.collect_params().values()]


def count_lost_weights(store, trials):
    """The number of pulls that returned a gradient in place of a weight."""
    lost = 0
    for key in range(1000, 1000 + 4 * trials, 4):
        weights = [np.full(3, 7.0) for _ in range(4)]
        for i, weight in enumerate(weights):
            store.broadcast(key + i, weight, [weight])
        for i in range(4):
            store.pushpull(key + i, [np.ones(3)], priority=-i)
        lost += sum((weight != 7).any().item() for weight in weights)
    return lost


if __name__ == '__main__':
    store = workers.kvstore()
    lost = count_lost_weights(store, int(sys.argv[3]))
    onp.savez(sys.argv[1].format(rank=workers.rank()), lost=lost,
              *train(workers.rank(), workers.num_workers(), int(sys.argv[2]),
                     store))
