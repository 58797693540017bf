"""What a step of `d2lbert launch` exchanges, how long it takes, when it pays.

    python tests/bench/bench_launch.py [--steps 20] [--training-steps 5]

Measured: the gradients of the chapter's model (vocabulary 20,256) are pushed
and pulled on this machine, beside nothing else; a training step of it is timed
on batches of 512 rows of 64 tokens. On paper: what two machines like this one
would gain with larger models at the same rate of arithmetic, each with a
worker and a server. Of the gradients, half goes out to the other machine's
server and half of the sums back to its worker, which is 4 bytes a parameter
out and as many in; to their time on the wire comes what the exchange was
measured to cost here without one.
"""
import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import benchmark
import numpy as onp
from bench_train import necessary_flops
from benchmark import CHAPTER, machine, table

VOCAB_SIZE, BATCH_SIZE, LENGTH = 20256, 512, 64

LARGER = ((256, 512, 4, 4, 0.2), (512, 2048, 8, 4, 0.2),
          (768, 3072, 12, 12, 0.1))
GBITS = (1, 10)


def build(sizes):
    """The model with every weight in place, and its number of parameters."""
    from d2lbert.bert import BERTModel
    from d2lbert.machine.backend import np
    net = BERTModel(VOCAB_SIZE, *sizes)
    net.initialize()
    ones = np.zeros((1, 2), dtype='int32')
    net(ones, ones, None, ones)
    params = net.collect_params().values()
    return net, sum(int(onp.prod(param.shape)) for param in params)


def exchange(steps, path):
    """Push and pull what the chapter's model has; worker 0 writes seconds."""
    from d2lbert.machine import workers
    from d2lbert.machine.backend import mx, np
    net, _ = build(CHAPTER)
    store = workers.kvstore()
    grads = [np.ones(param.shape) for param in net.collect_params().values()]
    for key, grad in enumerate(grads):
        store.broadcast(key, grad, [grad])
    seconds = []
    for _ in range(steps):
        begun = time.perf_counter()
        for key, grad in enumerate(grads):
            store.pushpull(key, [grad], priority=-key)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begun)
    if workers.rank() == 0:
        Path(path).write_text(json.dumps(seconds[steps // 5:]))


def training_step(steps):
    """(seconds, necessary operations) of a step on rows without padding."""
    from d2lbert.bert_pretraining import train_step
    from d2lbert.machine.backend import gluon, npx
    from d2lbert.texts.examples import Batch
    net, _ = build(CHAPTER)
    rng = onp.random.RandomState(0)
    B, T, P = BATCH_SIZE, LENGTH, round(0.15 * LENGTH)
    batch = Batch(
        rng.randint(VOCAB_SIZE, size=(B, T)).astype('int32'),
        rng.randint(2, size=(B, T)).astype('int32'),
        onp.full(B, T, 'float32'), rng.randint(T, size=(B, P)).astype('int32'),
        onp.ones((B, P), 'float32'),
        rng.randint(VOCAB_SIZE, size=(B, P)).astype('int32'),
        rng.randint(2, size=B).astype('float32'))
    trainer = gluon.Trainer(net.collect_params(), 'adam')
    loss, seconds = gluon.loss.SoftmaxCELoss(), []
    for _ in range(steps + 1):
        begun = time.perf_counter()
        for part in train_step(batch, net, loss, VOCAB_SIZE, [npx.cpu()],
                               trainer):
            float(part[0])
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:]), necessary_flops(
        counts(), CHAPTER, VOCAB_SIZE)


def counts():
    return dict(real_tokens=BATCH_SIZE * LENGTH, sequences=BATCH_SIZE,
                real_predictions=BATCH_SIZE * round(0.15 * LENGTH),
                squares=BATCH_SIZE * LENGTH ** 2)


def measure_exchange(steps):
    """Print the table of exchanges; seconds with two workers, two servers."""
    from d2lbert.launch import launcher
    rows, million = [], build(CHAPTER)[1] / 1e6
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'seconds.json')
        for workers, servers in ((1, 1), (2, 1), (2, 2)):
            launcher.launch([__file__, '--steps', str(steps), '--worker',
                           str(path)], workers, servers)
            seconds = json.loads(path.read_text())
            rows.append((f'{workers} and {servers}', f'{million:.2f}',
                         f'{4 * million:.1f}',
                         f'{statistics.median(seconds) * 1e3:.0f}',
                         f'{min(seconds) * 1e3:.0f} to '
                         f'{max(seconds) * 1e3:.0f}'))
    table(f'Exchange on this machine, medians of {len(seconds)} steps',
          ('workers and servers', 'million', 'MB each way', 'ms',
           'min to max'), rows)
    return statistics.median(seconds), million


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--steps', type=int, default=20,
                        help='exchanges to time (20)')
    parser.add_argument('--training-steps', type=int, default=5,
                        help='training steps to time (5)')
    parser.add_argument('--worker', metavar='FILE', help=argparse.SUPPRESS)
    args = benchmark.parse(parser)
    if args.worker:
        exchange(args.steps, args.worker)
        return
    print(machine())
    cost, million = measure_exchange(args.steps)
    step, flops = training_step(args.training_steps)
    rate = flops / step
    print(f'\nTraining step of {BATCH_SIZE} rows of {LENGTH}: {step:.3f} s, '
          f'{rate / 1e9:.0f} GFLOP/s')
    rows = []
    for sizes in (CHAPTER, *LARGER):
        count = build(sizes)[1]
        alone = necessary_flops(counts(), sizes, VOCAB_SIZE) / rate
        row = [f'{sizes[3]} layers of {sizes[0]}', f'{count / 1e6:.1f}',
               f'{4 * count / 1e6:.0f}', f'{alone:.2f}']
        for gbit in GBITS:
            both = (4 * count * 8 / (gbit * 1e9)
                    + cost * count / (million * 1e6))
            row.append(f'{both:.2f}')
            row.append(f'{alone / (alone / 2 + both):.2f}')
        rows.append(row)
    table('On paper: two such machines, against one',
          ('', 'million', 'MB each way', 's/step alone', *(
              title for gbit in GBITS for title in (
                  f'exchange at {gbit} Gbit/s', 'times as fast'))), rows)


if __name__ == '__main__':
    benchmark.run(main)
