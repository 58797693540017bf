"""Compute Gluon's layers by this package's operators; load parameters.

`Model` is the base class of models that can be saved as a folder.
"""
import functools
import re
import threading

import numpy as onp

from d2lbert.devices import devices_of_net
from d2lbert.kernels import ops
from d2lbert.machine import array_files
from d2lbert.machine.array_files import count_not_finite, warn_not_finite
from d2lbert.machine.backend import gluon, init, mx, nn, np, npx


class Model(nn.Block):
    """A net with an `encoder`, a `config` and the attributes below.

    config: the keyword arguments of the `BERTModel` or `BARTModel`; of a
    fine-tuned net, those of the model below its head.
    """

    #: The decoder of a BART, and the masked language model head
    decoder = mlm = None

    #: Set, for example, by `train_bert` and `load_run`
    vocab = None

    #: The folder of weights that the net was loaded from, a
    #: `pretrained.contents.Pretrained`; None for other nets
    pretrained = None

    #: Of a fine-tuned net: the kind of head, such as 'classify', and the task,
    #: a `pretrained.heads.About`
    kind = about = None

    #: The largest number of tokens of a text in training, None if unknown
    trained_len = None

    #: Of an imported run: the folder's settings for text generation, a dict
    generation_fields = None

    #: The heads of an imported run that the imported folder lacked
    random_heads = ()

    def has_random(self, part):
        """True if a part has random weights, since the loaded folder lacks it.

        part: one of `pretrained.families.tensor_names.PARTS`.
        """
        return part in self.random_heads or (
            self.pretrained is not None and self.pretrained.lacks(part))

    @property
    def parts(self):
        """{stem of a .params file of a run: the block that it stores}."""
        return dict(model=self)


def is_unmodified(block):
    """True if a block and its children compute what this package defines.

    Only then may its twin in `packed.py` replace it. The twin needs float32
    parameters, and does not call all children.
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
    """True if a twin in `packed.py` computes what a call of the block does.

    Children are not checked. packable: an attribute of some blocks, False if
    they keep attention weights, for example. _axes: of an `nn.Dropout`, the
    axes of a padded array that share a mask.
    """
    return (_has_known_forward(type(block))
            and _CALL_METHODS.isdisjoint(vars(block))
            and not block._forward_hooks and not block._forward_pre_hooks
            and getattr(block, 'packable', True)
            and not getattr(block, '_axes', ()))


def _has_known_forward(cls):
    """True if this package or _GLUON_BLOCKS define how `cls` is called."""
    for base in cls.__mro__:
        if base in _GLUON_BLOCKS or base.__module__.startswith('d2lbert.'):
            return True
        if not _CALL_METHODS.isdisjoint(vars(base)):
            return False
    return True


# Gluon's own blocks that this package's blocks are made of
_GLUON_BLOCKS = nn.Activation, nn.Dropout, nn.Embedding, nn.Sequential
# The methods that a call of a block runs
_CALL_METHODS = {'__call__', 'forward', 'hybrid_forward'}


def grad_reqs(*parameters):
    """The grad_req of each parameter; None, a missing bias, is left out."""
    return tuple(p.grad_req for p in parameters if p is not None)


def parameter_values(layer, X):
    """{name: array} of a layer's parameters, on the device of its input X.

    Shapes that are still unknown are inferred from X.
    """
    params = layer._reg_params
    try:
        return {name: param.data(X.ctx) for name, param in params.items()}
    except mx.gluon.parameter.DeferredInitializationError:
        layer._deferred_infer_shape(X)
        for param in params.values():
            param._finish_deferred_init()
        return {name: param.data(X.ctx) for name, param in params.items()}


class _FromFunction(init.Initializer):
    def __init__(self, make_array):
        super().__init__()
        self._make_array = make_array

    def _init_weight(self, name, array):
        array[:] = np.array(self._make_array())


# A thread must not read a parameter while another thread sets the values
_fill_lock = threading.Lock()


def fill_on_first_read(param, make_array, ctx):
    """Set a parameter to make_array() when it is first read.

    make_array: returns a float32 host array. ctx: a device or a list of them.
    """
    # Gluon's tuple (initializer, devices, default initializer, values) for a
    # parameter whose shape is not known yet
    param._deferred_init = (
        _FromFunction(make_array), ctx if isinstance(ctx, list) else [ctx],
        init.Zero(), None)

    def fill_and_read(read, *arguments, **keywords):
        with _fill_lock:
            param._finish_deferred_init()   # does nothing in later calls
        return read(*arguments, **keywords)
    for name in ('data', 'list_data'):
        setattr(param, name,
                functools.partial(fill_and_read, getattr(param, name)))


class GELU(nn.HybridBlock):
    """Exact for act_type 'gelu', approximated by tanh for 'gelu_new'."""

    def __init__(self, act_type, **kwargs):
        super().__init__(**kwargs)
        self._act_type = act_type

    def hybrid_forward(self, F, X):
        return ops.activation(X, self._act_type)


# Activations that `ops.dense` can apply to its output
_FUSED_ACTIVATIONS = {'relu', 'tanh', 'gelu', 'gelu_new'}


class Dense(nn.Dense):
    """`nn.Dense` over the last axis, from (..., K) to (..., units).

    flatten=True (Gluon's default, but not here) maps (B, ...) to (B, units).
    activation: 'gelu', 'gelu_new' or one of Gluon's. precision: 'fp32' or
    'bf16', see `kernels.ops`. Unlike in Gluon, the bias has a gradient even if
    the weight is frozen by grad_req='null'.
    """

    def __init__(self, units, activation=None, use_bias=True,
                 precision='fp32', flatten=False, **kwargs):
        is_gelu = activation in ('gelu', 'gelu_new')
        super().__init__(units, activation=None if is_gelu else activation,
                         use_bias=use_bias, flatten=flatten, **kwargs)
        if is_gelu:
            self.act = GELU(activation)
        self.precision, self._last_grad_reqs = precision, None

    def forward(self, X):
        new_grad_reqs = grad_reqs(self.weight, self.bias)
        if new_grad_reqs != self._last_grad_reqs:
            self._last_grad_reqs = new_grad_reqs
            self._clear_cached_op()     # its graph has the old grad_reqs
        return super().forward(X)

    def hybrid_forward(self, F, X, weight, bias=None):
        if self._flatten and (isinstance(X, mx.symbol.Symbol) or X.ndim != 2):
            X = F.npx.reshape(X, (-2, -1))  # -2 keeps the first axis
        fused_act = self.fused_activation()
        Y = ops.dense(X, weight, bias, self._units, fused_act, self.precision,
                      grad_reqs(self.weight, self.bias))
        needs_act = self.act is not None and fused_act == 'none'
        return self.act(Y) if needs_act else Y

    def fused_activation(self):
        """The activation that `ops.dense` applies for this layer.

        'none': there is no activation, or it must be called.
        """
        act = self.act
        # `act` may be any block of a user, without `_act_type`
        act_type = getattr(act, '_act_type', None)
        can_fuse = (act is not None and is_unmodified(act)
                    and act_type in _FUSED_ACTIVATIONS)
        return act_type if can_fuse else 'none'


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last axis."""

    def hybrid_forward(self, F, X, gamma, beta):
        return ops.layer_norm(X, gamma, beta, self._epsilon,
                              grad_reqs(self.gamma, self.beta))


def cross_entropy(scores, labels):
    """The losses (M,) of scores (M, K) for labels (M,) int32."""
    return -npx.pick(npx.log_softmax(scores), labels)


def is_plain_cross_entropy(loss):
    """True if a loss is `SoftmaxCELoss()` with its default arguments."""
    defaults = dict(_axis=-1, _sparse_label=True, _from_logits=False,
                    _weight=None, _batch_axis=0)
    return (type(loss) is gluon.loss.SoftmaxCrossEntropyLoss
            and all(getattr(loss, name) == default
                    for name, default in defaults.items()))


def load_parameters(net, path, ctx=None):
    """Load a .params file into a net, like Gluon's `load_parameters`.

    Unlike in Gluon, a file that does not fit the net changes no parameter, and
    a warning names tensors with NaN or infinite numbers. ctx: a device or a
    list of devices, the CPU if None. Raises OSError if the file cannot be
    read, and ValueError if the file is damaged or does not fit.
    """
    ctx, arrays = devices_of_net(ctx), array_files.read_params(path)
    params = net._collect_params_with_prefix()
    if not any('.' in name for name in arrays):
        # Old Gluon files: the names of `collect_params` without the prefix
        arrays = {f'{net.prefix}{re.sub("^(arg|aux):", "", name)}': array
                  for name, array in arrays.items()}
        params = dict(net.collect_params().items())
    _check_fit(arrays, params)
    warn_not_finite(path, {name: count_not_finite(array)
                           for name, array in arrays.items()})
    for name, array in arrays.items():
        params[name]._load_init(np.array(array), ctx)


def _check_fit(arrays, params):
    """Raise ValueError unless {name: array} fits {name: parameter}."""
    # A shared parameter has several names; one of them is enough in a file
    present = {id(param) for name, param in params.items() if name in arrays}
    for name, param in params.items():
        if id(param) not in present:
            raise ValueError(f'{name} is missing')
    for name, array in arrays.items():
        if name not in params:
            raise ValueError(f'the model has no {name}')
        # A shape that is not inferred yet is None, or has sizes of -1
        shape = params[name].shape
        fits = shape is None or (
            len(shape) == array.ndim
            and all(expected in (-1, size)
                    for expected, size in zip(shape, array.shape)))
        if not fits or array.dtype != params[name].dtype:
            raise ValueError(
                f'{name} is {array.shape} {array.dtype} in the file and '
                f'{shape} {onp.dtype(params[name].dtype)} in the model')


def log_softmax(scores):
    """The log-softmax of scores (..., V), a float64 host array."""
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - onp.log(onp.exp(scores).sum(axis=-1, keepdims=True))
