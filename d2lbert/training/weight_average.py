"""The running average of a run's weights, which is scored and kept."""
import contextlib

import numpy as onp

from d2lbert.machine.backend import mx, np
from d2lbert.training import checkpoints

PREFIX = 'average/'


class Average:
    """Each weight's average over the steps, the latest counting most.

    A step takes decay times the average and 1 - decay times the weight of
    now (Polyak and Juditsky 1992, with weights that fade); as long as there
    are few steps, decay is (1 + step) / (10 + step), so that what the net
    began with is soon forgotten, as TensorFlow has it. decay=0: the average
    is not kept, and the weights are those of the step.
    """

    def __init__(self, net, decay):
        self.decay, self._averages = decay, {}
        if decay:
            for name, param in net._collect_params_with_prefix().items():
                if param.grad_req != 'null' and all(
                        param is not one for one, _ in
                        self._averages.values()):
                    self._averages[name] = param, self._now(param).copy()

    @staticmethod
    def _now(param):
        # The update is an operator of MXNet's older array type
        return param.data(param.list_ctx()[0]).as_nd_ndarray()

    def update(self, step):
        """Take in the weights behind `step`."""
        new = 1 - min(self.decay, (1 + step) / (10 + step))
        for param, average in self._averages.values():
            # SGD that is drawn to the weight: all in one pass
            mx.nd.sgd_update(average, self._now(param), lr=new, wd=1.0,
                             rescale_grad=-1.0, out=average)

    @contextlib.contextmanager
    def in_place(self):
        """Let the net have its averages, and then its own weights again."""
        own = [self._now(param).copy()
               for param, _ in self._averages.values()]
        self.put()
        try:
            yield
        finally:
            for (param, _), weight in zip(self._averages.values(), own):
                param.set_data(weight.as_np_ndarray())

    def put(self):
        """Give the net its averages for good."""
        for param, average in self._averages.values():
            param.set_data(average.as_np_ndarray())

    def arrays(self):
        """What a checkpoint needs besides its weights, {name: array}."""
        return {f'{PREFIX}{name}': average.asnumpy()
                for name, (_, average) in self._averages.items()}

    def restore(self, path, arrays):
        """Put back what `arrays` gave the checkpoint in `path`."""
        for name, (param, average) in self._averages.items():
            found = arrays.get(f'{PREFIX}{name}')
            if onp.shape(found) != param.shape:
                raise checkpoints.CheckpointError(
                    f'{path} is damaged: it lacks the average of {name}')
            average[:] = np.array(found).as_nd_ndarray()
