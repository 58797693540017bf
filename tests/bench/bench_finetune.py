"""Fine-tuning beside transformers on PyTorch: quality, and examples a second.

    python tests/bench/bench_finetune.py --model FOLDER --data DIR
        --torch-python PATH [--tasks cola,stsb,rte,sst2] [--seeds 3]
        [--who ours,bf16,torch]
    python tests/bench/bench_finetune.py --steps 20 --rounds 5 --model ...
    python tests/bench/bench_finetune.py --story LEARNT --model FOLDER ...

FOLDER is a released checkpoint, DIR holds GLUE's folders. Batches of 32, a
rate of 5e-5, 128 tokens, AdamW with a weight decay of 0.01, warm-up in a tenth
of the steps, linear decay, gradients clipped at 1; three epochs, of SST-2 one
of the first 10,000 lines. For each task and seed both are trained in turn,
each in a process of its own. The seconds are those of the steps alone; both
have their predictions of the development part scored by the same function.
--who: train some of them; bf16 is ours with --precision bf16. All of it takes
hours: --json FILE keeps the outcome of each seed, and the same command again
takes from there what it has.

--steps: speed alone. Both take so many steps of each task in turn, as often as
--rounds says, each going on where it was; what the first ones cost is left
out. The ratio is the median of the rounds'.

--story: SST-2 by ours alone, from a new net of the chapter's size, from the
chapter's 50 steps, from LEARNT, a run of `pretrain --recipe learn`, and from
FOLDER. The first three, whose nets are small, at a rate of 1e-3: at 5e-5 they
have not begun to learn when the epoch ends.

Nothing here passes or fails: it prints figures of this machine.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import benchmark

#: Of each task: epochs, and how many lines it is trained on, if not on all.
TASKS = {'cola': (3, None), 'stsb': (3, None), 'rte': (3, None),
         'sst2': (1, 10_000)}
SETTINGS = dict(batch_size=32, lr=5e-5, max_len=128, weight_decay=0.01,
                warmup=0.1, clip=1.0)
#: Ours under two names, by precision.
OURS = {'ours': 'fp32', 'bf16': 'bf16'}
#: The rate for nets of the chapter's width.
SMALL_LR = 1e-3


class Job:
    """One task: its examples, and how often they are trained on."""

    def __init__(self, name, data):
        from d2lbert.finetuning.objective import first_examples
        from d2lbert.finetuning.tasks import catalog
        self.task, self.data = catalog.TASKS[name], data
        self.num_epochs, self.num_examples = TASKS[name]
        self.train = catalog.read_task(self.task, data, 'train')
        if self.num_examples:
            self.train = first_examples(self.train, self.num_examples)
        self.dev = catalog.read_task(self.task, data, 'dev')

    def ours(self, model, seed, folder, **other):
        """Train; the metrics of the best epoch, and examples a second.

        other: settings in place of `SETTINGS`.
        """
        out = folder / 'run'
        command = ['finetune', '--task', self.task.name, '--data', self.data,
                   '--model', model, '--out', out, '--force', '--num-epochs',
                   self.num_epochs, '--seed', seed]
        if self.num_examples:
            command += ['--num-examples', self.num_examples]
        for name, value in dict(SETTINGS, **other).items():
            command += [f'--{name.replace("_", "-")}', value]
        done = subprocess.run(
            [sys.executable, '-m', 'd2lbert', *map(str, command)], check=True,
            stdout=subprocess.PIPE, universal_newlines=True, env=dict(
                os.environ, PYTHONPATH=str(benchmark.ROOT)))
        figures = json.loads((out / 'config.json').read_text('utf-8'))
        speed = re.search(r'^([\d.]+) examples/sec', done.stdout, re.M)
        return figures['figures'], float(speed.group(1))

    def theirs(self, python, model, seed, folder):
        """The same by transformers."""
        from d2lbert.finetuning.metrics import score
        answer = folder / 'answer.json'
        subprocess.run([*self.worker(python, model, seed, folder), answer],
                       check=True)
        found = json.loads(answer.read_text('utf-8'))
        figures = [score(self.task, self.dev.labels, predictions)
                   for predictions in found['predictions']]
        best = max(figures, key=lambda each: each[self.task.metrics[0]])
        return best, found['examples'] / found['seconds']

    def worker(self, python, model, seed, folder):
        """The command of transformers' process, without its answer."""
        regression = self.task.kind == 'regress'

        def part(examples):
            kind = float if regression else int
            return dict(texts_a=examples.texts_a, texts_b=examples.texts_b,
                        labels=list(map(kind, examples.labels)))
        job = folder / 'job.json'
        job.write_text(json.dumps(dict(
            model=str(model), train=part(self.train), dev=part(self.dev),
            num_labels=1 if regression else len(self.task.labels),
            settings=dict(SETTINGS, seed=seed, num_epochs=self.num_epochs))),
            'utf-8')
        return [python, Path(__file__).with_name('finetune_worker.py'), job]

    def steps(self, model, precision):
        """A function that takes so many steps; their seconds, examples."""
        from d2lbert.finetuning.finetuning import FINETUNING
        from d2lbert.machine.backend import npx
        from d2lbert.training.loop import Run
        run = Run(FINETUNING.make_objective, FINETUNING.complete(dict(
            SETTINGS, task=self.task.name, data=str(self.data),
            model=str(model), num_epochs=self.num_epochs, seed=1,
            num_examples=self.num_examples, precision=precision)), 'cpu')
        run.prepare()
        steps = run.steps()

        def take(count):
            before, began = run.history.sums[-2], time.perf_counter()
            for _ in range(count):
                run.history.add(*next(steps))
            run.history.read_losses()
            npx.waitall()       # losses are there before the weights are
            return time.perf_counter() - began, run.history.sums[-2] - before
        return take

    @contextlib.contextmanager
    def their_steps(self, python, model, folder):
        """The same of transformers', in its process."""
        with subprocess.Popen(
                self.worker(python, model, 1, folder), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, universal_newlines=True) as process:
            def take(count):
                process.stdin.write(f'{count}\n')
                process.stdin.flush()
                return json.loads(process.stdout.readline())
            yield take
            process.stdin.close()


def race(args, folder):
    """Steps of both in turn, for each task; prints and gives a table."""
    rows, numbers = [], {}
    for name in args.tasks:
        job, found = Job(name, args.data), {}
        with contextlib.ExitStack() as stack:
            takes = {}
            for who, precision in OURS.items():
                if who in args.who:
                    takes[who] = job.steps(args.model, precision)
            if 'torch' in args.who:
                takes['torch'] = stack.enter_context(job.their_steps(
                    args.torch_python, args.model, folder))
            for take in takes.values():
                take(2)
            for _ in range(args.rounds):
                for who, take in takes.items():
                    seconds, examples = take(args.steps)
                    found.setdefault(who, []).append(examples / seconds)
        numbers[name] = found
        for who, speeds in found.items():
            row = [f'{name} {who}', f'{statistics.median(speeds):.1f}',
                   f'{min(speeds):.1f} to {max(speeds):.1f}']
            if who != 'ours' and 'ours' in found:
                ratios = [ours / theirs for ours, theirs
                          in zip(found['ours'], speeds)]
                row += [f'{statistics.median(ratios):.2f}',
                        f'{min(ratios):.2f} to {max(ratios):.2f}']
            rows.append(row)
    benchmark.table(
        f'Fine-tuning, {args.rounds} rounds of {args.steps} steps of '
        f'{SETTINGS["batch_size"]}: examples a second',
        ('', 'median', 'min to max', 'ratio', 'min to max'), rows)
    return numbers


def kept(path):
    """What a comparison left in a file: {task: {who: [figures, speed]s}}."""
    try:
        numbers = json.loads(Path(path).read_text('utf-8'))
        for found in numbers.values():
            for _, _ in [*found['ours'], *found['torch'],
                         *found.get('bf16', [])]:
                pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        sys.exit(f'--json {path} does not hold what a comparison left there '
                 f'({type(error).__name__}): name another file')
    return numbers


def compare(args, folder):
    """Train both on each task with each seed; prints and gives a table."""
    rows, numbers = [], {}
    if args.json and os.path.exists(args.json):
        numbers = kept(args.json)
    for name in args.tasks:
        job = Job(name, args.data)
        metric = job.task.metrics[0]
        found = numbers.setdefault(name, {'ours': [], 'torch': []})
        for who in args.who:
            found.setdefault(who, [])
        for seed in range(1, args.seeds + 1):
            for who in args.who:
                if len(found[who]) >= seed:
                    continue
                found[who].append(
                    job.ours(args.model, seed, folder, precision=OURS[who])
                    if who in OURS else job.theirs(
                        args.torch_python, args.model, seed, folder))
                benchmark.write_json(args.json, numbers)
                figures, speed = found[who][-1]
                print(f'{name}, seed {seed}, {who}: {metric} '
                      f'{figures[metric]:.4f}, {speed:.1f} examples/s',
                      flush=True)
        found = {who: found[who][:args.seeds] for who in args.who}
        for who, results in found.items():
            values = [figures[metric] for figures, _ in results]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            speed = statistics.median(speed for _, speed in results)
            row = [f'{name} {who}', metric, f'{statistics.mean(values):.4f}',
                   f'{spread:.4f}', f'{speed:.1f}']
            if who != 'ours' and 'ours' in found:
                ours = statistics.median(speed for _, speed in found['ours'])
                row.append(f'{ours / speed:.2f}')
            rows.append(row)
    benchmark.table(
        f'Fine-tuning, {args.seeds} seeds: the best epoch, and examples a '
        'second', ('', 'metric', 'mean', 'sd', 'examples/s', 'ratio'), rows)
    return numbers


def tell(args, folder):
    """SST-2 from ever better beginnings, ours alone."""
    sizes = ['--recipe', 'book', '--seed', '1']
    begun = {'from scratch': [*sizes, '--num-steps', '1', '--lr', '0'],
             "from the chapter's 50 steps": sizes}
    rows, numbers, job = [], {}, Job('sst2', args.data)
    beginnings = {}
    for name, flags in begun.items():
        beginnings[name] = folder / name.replace(' ', '-').replace("'", '')
        subprocess.run(
            [sys.executable, '-m', 'd2lbert', 'pretrain', '--corpus',
             'wikitext-2', '--out', str(beginnings[name]), *flags],
            check=True, env=dict(os.environ,
                                 PYTHONPATH=str(benchmark.ROOT)))
    beginnings['from --recipe learn'] = args.story
    beginnings['from the released checkpoint'] = args.model
    for name, model in beginnings.items():
        other = {} if model == args.model else dict(lr=SMALL_LR)
        results = [job.ours(model, seed, folder, **other)
                   for seed in range(1, args.seeds + 1)]
        values = [figures['accuracy'] for figures, _ in results]
        numbers[name] = results
        rows.append([
            name, f'{statistics.mean(values):.4f}',
            f'{statistics.stdev(values) if len(values) > 1 else 0.0:.4f}',
            f'{statistics.median(speed for _, speed in results):.1f}'])
    benchmark.table(f'SST-2, 10,000 lines, one epoch, {args.seeds} seeds',
                    ('', 'accuracy', 'sd', 'examples/s'), rows)
    return numbers


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', required=True, metavar='FOLDER')
    parser.add_argument('--data', required=True, metavar='DIR')
    parser.add_argument('--torch-python', metavar='PATH')
    parser.add_argument('--tasks', default=list(TASKS), metavar='A,B',
                        type=lambda text: text.split(','))
    parser.add_argument('--seeds', type=int, default=3, metavar='N')
    parser.add_argument('--who', default=None, metavar='A,B',
                        type=lambda text: text.split(','))
    parser.add_argument('--steps', type=benchmark.count, metavar='N')
    parser.add_argument('--rounds', type=benchmark.count, default=3,
                        metavar='N')
    parser.add_argument('--story', metavar='LEARNT')
    parser.add_argument('--json', metavar='FILE')
    args = benchmark.parse(parser)
    if args.who is None:
        args.who = ['ours'] + ['torch'] * bool(args.torch_python)
    for who in args.who:
        if who not in (*OURS, 'torch'):
            parser.error(f'--who is some of ours, bf16 and torch, not {who}')
    if 'torch' in args.who and not args.torch_python:
        parser.error('torch needs --torch-python')
    if args.story and args.steps:
        parser.error('--story trains to the end: leave out --steps')
    print(f'machine  {benchmark.machine()}')
    with tempfile.TemporaryDirectory() as folder:
        run = tell if args.story else race if args.steps else compare
        benchmark.write_json(args.json, run(args, Path(folder)))


if __name__ == '__main__':
    benchmark.run(main)
