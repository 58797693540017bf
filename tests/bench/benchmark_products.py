"""The peers of bench_products: a dense layer and its gradients.

X (R, K), W (N, K), b (N,). What is timed has its operands before it and has
written its results when it ends; `dX` and `dW` leave the other gradients out.
"""
import os
import time

import numpy as onp

#: What can be asked for, and which gradients: of X, of W and b.
GRADIENTS = {'forward': (), 'dX': ('X',), 'dW': ('W', 'b'),
             'both': ('X', 'W', 'b')}


class Products:
    """Arrays of one shape, and functions that multiply them."""

    def threads(self):
        return int(os.environ.get('OMP_NUM_THREADS', os.cpu_count()))

    def wait(self):
        pass

    def prepare(self, R, K, N):
        rng = onp.random.RandomState(0)
        self.operands = {
            name: rng.uniform(-1, 1, shape).astype('float32')
            for name, shape in (('X', (R, K)), ('W', (N, K)), ('b', (N,)),
                                ('up', (R, N)))}

    def best(self, what, seconds):
        """The shortest time of a call within so many seconds, in seconds."""
        began, times = time.perf_counter(), []
        while not times or time.perf_counter() - began < seconds:
            run = self.ready(GRADIENTS[what])
            start = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - start)
        return min(times)


class Gluon(Products):
    """An operator of MXNet: ours, or its own, which is oneDNN's."""

    def __init__(self, own):
        from benchmark_worker import ours

        from d2lbert.kernels import ops
        self.gluon = ours()
        self.mx = self.gluon.mx
        self.dense = ops.dense.__wrapped__ if own else ops.dense
        self.about = (f'fully_connected of MXNet {self.mx.__version__}'
                      if own else self.gluon.about)

    def threads(self):
        return self.gluon.threads()

    def wait(self):
        self.gluon.wait()

    def ready(self, wanted):
        A = {name: self.mx.np.array(value)
             for name, value in self.operands.items()}
        for name in wanted:
            A[name].attach_grad()

        def product():
            # X comes out of another operator, as it does within a net
            X = A['X'].reshape(A['X'].shape)
            return self.dense(X, A['W'], A['b'], grad_req=tuple(
                'write' if name in wanted else 'null' for name in 'Wb'))
        if not wanted:
            self.wait()
            return product
        with self.mx.autograd.record():
            Y = product()
        self.wait()
        return lambda: Y.backward(A['up'])


class Linear(Products):
    """torch.nn.functional.linear."""

    def __init__(self):
        import torch
        torch.set_num_threads(self.threads())
        self.torch = torch
        self.about = f'PyTorch {torch.__version__}'

    def ready(self, wanted):
        A = {name: self.torch.tensor(value).requires_grad_(name in wanted)
             for name, value in self.operands.items()}

        def product():
            return self.torch.nn.functional.linear(A['X'], A['W'], A['b'])
        if not wanted:
            return product
        Y, inputs = product(), [A[name] for name in wanted]
        return lambda: self.torch.autograd.grad(Y, inputs, A['up'])
