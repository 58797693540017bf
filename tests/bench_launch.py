"""What a step of `d2lbert launch` exchanges, and how long that takes.

python tests/bench_launch.py [STEPS]: the gradients of the chapter's model
(vocabulary 20,256) are pushed and pulled on this machine, beside nothing
else. Prints, for some numbers of workers and servers, milliseconds a step
(the median of worker 0's) and what all workers moved, in and out, a second.
"""
import statistics
import sys
import time

from d2lbert import launch
from d2lbert._mxnet import mx, np
from d2lbert.bert import BERTModel


def exchange(steps):
    """Push and pull what the chapter's model has, `steps` times."""
    net = BERTModel(20256, 128, 256, 2, 2, 0.2)
    net.initialize()
    net(np.zeros((1, 4)), np.zeros((1, 4)), np.array([4]), np.zeros((1, 1)))
    params = net.collect_params().values()
    store = launch.kvstore()
    grads = [np.ones(param.shape) for param in params]
    for key, grad in enumerate(grads):
        store.broadcast(key, grad, [grad])
    seconds = []
    for _ in range(steps):
        begun = time.perf_counter()
        for key, grad in enumerate(grads):
            store.pushpull(key, [grad], priority=-key)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begun)
    count = sum(grad.size for grad in grads)
    step = statistics.median(seconds[steps // 5:])
    moved = 2 * 4 * count * launch.num_workers()
    if launch.rank() == 0:
        print(f'{count / 1e6:8.2f} {8 * count / 1e6:11.1f} {step * 1e3:8.1f} '
              f'{moved / step / 1e6:8.0f}', flush=True)


if __name__ == '__main__':
    if launch.num_workers() > 1 or len(sys.argv) > 2:
        exchange(int(sys.argv[1]))
    else:
        steps = sys.argv[1] if len(sys.argv) > 1 else '20'
        print('workers servers  million  MB/worker  ms/step     MB/s')
        for workers, servers in ((1, 1), (2, 1), (2, 2)):
            print(f'{workers:7} {servers:7}', end=' ', flush=True)
            launch.launch([__file__, steps, 'worker'], workers, servers)
