"""Gluon's layers on the package's operators, with Gluon's parameters.

`Model` has the attributes of all models of this package.
"""
import functools
import re
import threading

import numpy as onp

from d2lbert.kernels import ops
from d2lbert.machine import array_files
from d2lbert.machine.array_files import count_not_finite, warn_not_finite
from d2lbert.machine.backend import gluon, init, mx, nn, np


class Model(nn.Block):
    """A network around an encoder; attributes that it may lack are None.

    `config` holds the keyword arguments that construct the network again.
    """

    #: The decoder, as of a BART, and the masked language model head
    decoder = mlm = None

    #: The vocabulary that `train_bert` or `load_run` bound to the model
    vocab = None

    #: The `pretrained.contents.Pretrained` of the folder it was loaded from
    pretrained = None

    #: The kind of a fine-tuned model's head, and the `About` of its task
    kind = about = None

    #: Tokens of the longest text of its training, None if it is unknown
    trained_len = None

    #: Names of heads that the loaded folder lacked: their weights are random
    random_heads = ()

    @property
    def parts(self):
        """The blocks by the names of their files in a run folder."""
        return dict(model=self)


def is_unmodified(block):
    """True if a block and its children compute what this package defines.

    False if one of them has a `forward` that is neither this package's nor
    of a block in _GLUON, a hook, `packable` = False, or parameters that are
    not float32. Only an unmodified block may be replaced by a twin that does
    not call its children, or works on rows without padding.
    """
    blocks = [block]
    for block in blocks:        # the loop adds the children to this list
        if not has_plain_call(block):
            return False
        for param in block._reg_params.values():
            if onp.dtype(param.dtype) != onp.float32:
                return False
        blocks += block._children.values()
    return True


def has_plain_call(block):
    """True if a call of the block runs this package's `forward` alone.

    Gluon's own blocks count, too. Children and parameters are not checked,
    see `is_unmodified`.
    """
    return (_is_ours(type(block)) and _CALLED.isdisjoint(vars(block))
            and not block._forward_hooks and not block._forward_pre_hooks
            and getattr(block, 'packable', True))


def _is_ours(cls):
    """True if the methods _CALLED of a class are this package's or Gluon's."""
    for base in cls.__mro__:
        if base in _GLUON or base.__module__.startswith('d2lbert.'):
            return True
        if not _CALLED.isdisjoint(vars(base)):
            return False
    return True


# Gluon's own blocks that this package's blocks are made of
_GLUON = nn.Activation, nn.Dropout, nn.Embedding, nn.Sequential
# The methods that a call of a block runs
_CALLED = {'__call__', 'forward', 'hybrid_forward'}


def grad_reqs(*parameters):
    """The grad_req of each parameter; None, a missing bias, is skipped."""
    return tuple(p.grad_req for p in parameters if p is not None)


def values(layer, X):
    """The layer's parameters on X's device, {name: array}.

    Sizes that are still unknown follow from X.
    """
    params = layer._reg_params
    try:
        return {name: param.data(X.ctx) for name, param in params.items()}
    except mx.gluon.parameter.DeferredInitializationError:
        layer._deferred_infer_shape(X)
        for param in params.values():
            param._finish_deferred_init()
        return {name: param.data(X.ctx) for name, param in params.items()}


class _Values(init.Initializer):
    """Set a parameter to the values that a function returns."""

    def __init__(self, values):
        super().__init__()
        self._values = values

    def _init_weight(self, name, array):
        array[:] = np.array(self._values())


_filling = threading.Lock()


def fill_later(param, values, ctx):
    """Set a parameter on ctx when it is first read.

    values: a function that returns its values, float32 on the host.
    """
    # Gluon does so for a parameter whose shape the first forward pass gives
    param._deferred_init = (
        _Values(values), ctx if isinstance(ctx, list) else [ctx],
        init.Zero(), None)

    def filled(get, *arguments, **keywords):
        with _filling:
            param._finish_deferred_init()
        return get(*arguments, **keywords)
    for name in ('data', 'list_data'):
        setattr(param, name, functools.partial(filled, getattr(param, name)))


class GELU(nn.HybridBlock):
    """Gaussian error linear unit: 'gelu', or 'gelu_new' with tanh."""

    def __init__(self, act_type, **kwargs):
        super().__init__(**kwargs)
        self._act_type = act_type

    def hybrid_forward(self, F, X):
        """Apply it to each number of X (...)."""
        return ops.activation(X, self._act_type)


# Activations that the dense operators apply themselves, without a second one
_FOLDED = {'relu', 'tanh', 'gelu', 'gelu_new'}


class Dense(nn.Dense):
    """`nn.Dense` over the last axis: (..., K) to (..., units).

    flatten=True, which is Gluon's default, makes it (B, ...) to (B, units).
    activation: Gluon's, 'gelu' or 'gelu_new'. The bias has a gradient also
    if the weight is frozen (grad_req 'null').
    """

    def __init__(self, units, activation=None, use_bias=True,
                 precision='fp32', flatten=False, **kwargs):
        gelu = activation in ('gelu', 'gelu_new')
        super().__init__(units, activation=None if gelu else activation,
                         use_bias=use_bias, flatten=flatten, **kwargs)
        if gelu:
            self.act = GELU(activation)
        self.precision, self._requests = precision, None

    def forward(self, X):
        """Apply the layer to X (..., K); returns (..., units)."""
        requests = grad_reqs(self.weight, self.bias)
        if requests != self._requests:
            self._requests = requests
            self._clear_cached_op()     # it was traced for other requests
        return super().forward(X)

    def hybrid_forward(self, F, X, weight, bias=None):
        """Apply the operator to arrays, or to symbols of a graph."""
        if self._flatten and (isinstance(X, mx.symbol.Symbol) or X.ndim != 2):
            X = F.npx.reshape(X, (-2, -1))
        act = self.folded()
        Y = ops.dense(X, weight, bias, self._units, act, self.precision,
                      grad_reqs(self.weight, self.bias))
        return Y if self.act is None or act != 'none' else self.act(Y)

    def folded(self):
        """The activation that the operator applies itself, or 'none'."""
        act = self.act
        return (act._act_type if act is not None and is_unmodified(act)
                and act._act_type in _FOLDED else 'none')


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last axis."""

    def hybrid_forward(self, F, X, gamma, beta):
        """Normalize X (..., H); returns an array like X."""
        return ops.layer_norm(X, gamma, beta, self._epsilon,
                              grad_reqs(self.gamma, self.beta))


def is_plain_cross_entropy(loss):
    """True if a loss is `SoftmaxCELoss()` with its default arguments."""
    return (type(loss) is gluon.loss.SoftmaxCrossEntropyLoss
            and (loss._axis, loss._sparse_label, loss._from_logits,
                 loss._weight, loss._batch_axis) == (-1, True, False, None,
                                                     0))


def load_parameters(net, path, ctx=None):
    """Load a .params file into a net.

    As Gluon's `load_parameters`, but `array_files.read_params` reads the
    file, and a file that does not fit changes no parameter. ctx: a device or
    a list of them, the CPU if None. A warning names tensors with NaN or
    infinite numbers. Raises OSError, and ValueError where the file is
    damaged or does not fit.
    """
    found = array_files.read_params(path)
    wanted = net._collect_params_with_prefix()
    if not any('.' in name for name in found):
        # A file of an old version: full names, without the prefix of the net
        found = {f'{net.prefix}{re.sub("^(arg|aux):", "", name)}': array
                 for name, array in found.items()}
        wanted = dict(net.collect_params().items())
    _check_fit(found, wanted)
    warn_not_finite(path, {name: count_not_finite(array)
                           for name, array in found.items()})
    for name, array in found.items():
        wanted[name]._load_init(np.array(array), ctx or mx.cpu())


def _check_fit(found, wanted):
    """Raise ValueError unless arrays and parameters fit, both by name."""
    # A shared parameter has several names; a file may hold one of them
    known = {id(param) for name, param in wanted.items() if name in found}
    for name, param in wanted.items():
        if id(param) not in known:
            raise ValueError(f'{name} is missing')
    for name, array in found.items():
        if name not in wanted:
            raise ValueError(f'the model has no {name}')
        shape = wanted[name].shape
        if array.dtype != wanted[name].dtype or shape is not None and (
                len(shape) != array.ndim or any(
                    expected not in (-1, size)      # -1 is not known yet
                    for expected, size in zip(shape, array.shape))):
            raise ValueError(
                f'the shape of {name} is {array.shape} ({array.dtype}) there '
                f'and {shape} ({onp.dtype(wanted[name].dtype)}) in the model')


def log_softmax(scores):
    """The log-softmax of scores (..., V) float64 over the last axis."""
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - onp.log(onp.exp(scores).sum(axis=-1, keepdims=True))
