"""Gluon's own layers on the package's CPU operators: same names, parameters.

Each falls back to Gluon's forward where the operators cannot serve (a GPU, no
compiler, hybridized), and on the first call, when Gluon still has to infer
shapes and draw the initial weights.
"""
from d2lbert import kernels
from d2lbert.kernels import ops
from d2lbert.machine.backend import nn, np


def ready(block, X):
    """Whether this block can run on the operators for input X."""
    return (kernels.enabled(X) and not block._active and as_defined(block)
            and all(p._data is not None for p in block._reg_params.values()))


def as_defined(block):
    """Whether a block and all within it compute what this package says.

    Not where one is of a class with a `forward` of its own, has been given
    another `forward`, or has a hook. Only then may the operators do the work
    of blocks without calling them.
    """
    for cls in type(block).__mro__:
        if cls.__module__.startswith('d2lbert.') or cls in _GLUON:
            break
        if not _CALLED.isdisjoint(vars(cls)):
            return False
    return (_CALLED.isdisjoint(vars(block)) and not block._forward_hooks
            and not block._forward_pre_hooks
            and all(map(as_defined, block._children.values())))


# The kinds of Gluon's own blocks that this package's are made of
_GLUON = nn.Activation, nn.Dense, nn.Dropout, nn.Embedding, nn.Sequential
_CALLED = {'__call__', 'forward', 'hybrid_forward'}


def grad_reqs(*parameters):
    """What each parameter (None: there is none) wants of its gradient."""
    return tuple(p.grad_req for p in parameters if p is not None)


class Dense(nn.Dense):
    """`nn.Dense` over the last axis: (..., K) to (..., units).

    flatten=True, which is Gluon's default, makes it (B, ...) to (B, units)
    and leaves the product to MXNet. Either way the bias learns while the
    weights are frozen.
    """

    def __init__(self, units, activation=None, use_bias=True,
                 precision='fp32', flatten=False, **kwargs):
        super().__init__(units, activation=activation, use_bias=use_bias,
                         flatten=flatten, **kwargs)
        self._kind, self._precision = activation or 'none', precision
        self._bias_alone = False

    def forward(self, X):
        """Apply the layer to X (..., K); returns (..., units)."""
        if self._flatten or not ready(self, X):
            return self._forward(X)
        bias = None if self.bias is None else self.bias.data(X.ctx)
        return ops.dense(X, self.weight.data(X.ctx), bias, act=self._kind,
                         precision=self._precision,
                         grad_req=grad_reqs(self.weight, self.bias))

    def _forward(self, X):
        alone = (grad_reqs(self.weight) == ('null',)
                 and 'null' not in grad_reqs(self.bias))
        if alone != self._bias_alone:
            self._bias_alone = alone
            self._clear_cached_op()     # a graph traced the other way
        return super().forward(X)

    def hybrid_forward(self, F, x, weight, bias=None):
        """Gluon's own, but for a bias that learns alone."""
        if bias is None or not self._bias_alone:
            return super().hybrid_forward(F, x, weight, bias)
        # MXNet's operator gives the bias a gradient of zero when nobody
        # asks it for that of the weights
        Y = F.npx.fully_connected(x, weight, no_bias=True,
                                  flatten=self._flatten,
                                  num_hidden=self._units) + bias
        return Y if self.act is None else self.act(Y)


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last axis."""

    def forward(self, X):
        """Normalize X (..., H); returns an array like X."""
        if not ready(self, X):
            return super().forward(X)
        return self.add(np.zeros_like(X), X, 0.0)

    def add(self, X, Y, dropout):
        """LayerNorm(X + dropout(Y)) in one pass; all (..., H)."""
        return ops.add_norm(X, Y, self.gamma.data(X.ctx),
                            self.beta.data(X.ctx), p=dropout,
                            eps=self._epsilon,
                            grad_req=grad_reqs(self.gamma, self.beta))
