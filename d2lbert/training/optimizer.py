"""AdamW that updates all parameters at once."""
import math

from d2lbert.kernels import ops
from d2lbert.machine.backend import mx


@mx.optimizer.register
class AdamW(mx.optimizer.Optimizer):
    """Adam with decoupled weight decay and clipping by the common norm.

    For `gluon.Trainer(params, 'adamw', {...}, update_on_kvstore=False)`.
    Without decay and clipping its steps equal those of MXNet's Adam up to
    rounding (Kingma and Ba 2015, with bias correction in the rate). Decay is
    decoupled (Loshchilov and Hutter 2019): a step multiplies matrices by
    1 - learning_rate * wd. Biases and the parameters of LayerNorm do not
    decay. clip_norm: limit of the norm of all gradients together, after
    `rescale_grad`; 0 for none. ahead: prepare a step while its gradients are
    still computed, for loops that wait for every prediction.
    """

    def __init__(self, learning_rate=0.001, beta1=0.9, beta2=0.999,
                 epsilon=1e-8, clip_norm=0.0, ahead=False, **keywords):
        super().__init__(learning_rate=learning_rate, **keywords)
        if self.clip_gradient is not None:
            raise ValueError('AdamW clips by the norm of all gradients: give '
                             'clip_norm in place of clip_gradient')
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.clip_norm, self.ahead = clip_norm, ahead
        self.aggregate_num = 1 << 30    # give `update` all there are

    def create_state(self, index, weight):
        """Moving averages of gradients and their squares, zeros."""
        if weight.stype != 'default':
            raise ValueError(f'AdamW updates dense weights, not '
                             f'{weight.stype} ones')
        return tuple(mx.nd.zeros(weight.shape, weight.ctx, weight.dtype)
                     for _ in range(2))

    def update(self, index, weight, grad, state):
        """Update the parameters with the numbers `index`.

        The arguments are lists, or belong to one parameter.
        """
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        if self.clip_norm and len(index) == 1 < self._num_trained():
            raise ValueError('clip_norm needs all gradients at once: give '
                             'gluon.Trainer update_on_kvstore=False')
        self._update_count(index)
        rates = self._get_lrs(index)
        decays = [rate * wd if len(one.shape) > 1 else 0.0 for rate, wd, one
                  in zip(rates, self._get_wds(index), weight)]
        for k, number in enumerate(index):
            rates[k] *= self._correction(self._index_update_count[number])
        means, variances = zip(*state)
        ops.adam(weight, grad, means, variances, rates, decays, self.beta1,
                 self.beta2, self.epsilon, self.rescale_grad, self.clip_norm,
                 self.ahead)

    def _num_trained(self):
        return sum(param.grad_req != 'null'
                   for param in self.param_dict.values())

    def _correction(self, count):
        """Adam's correction of moving averages that start at zero."""
        return math.sqrt(1 - self.beta2 ** count) / (1 - self.beta1 ** count)
