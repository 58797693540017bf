"""What a teacher is worth: a student with one and without, as many minutes.

    python tests/bench/bench_teacher.py [--minutes 10] [--teacher RUN]
                                  [--teacher-layers 4] [--teacher-minutes 30]
                                  [--seeds 1] [--data FOLDER]

teacher  `d2lbert pretrain --recipe learn --num-layers 4`, or RUN
alone    `d2lbert pretrain --recipe learn`, half as deep, for each seed
taught   the same with --teacher, which takes time of its own

How many steps fit into the minutes is measured for each before it begins, so
that the rate of each has come down to zero when they are over. All train on
WikiText-2's training file and are measured on the same examples of its
validation file.
"""
import argparse
import sys
import tempfile
import time
from pathlib import Path

import benchmark
from bench_recipes import Ours

#: Steps to warm up, and steps that are timed, before a run begins.
WARM, TIMED = 20, 60


def steps_within(minutes, settings):
    """How many steps of a run take so long."""
    run = Ours('', '', **settings, num_steps=sys.maxsize).run
    steps = run.steps()
    for k in range(WARM + TIMED):
        if k == WARM:
            began = time.perf_counter()
        run.history.add(*next(steps))
        run.history.read_losses()
    return max(1, int(60 * minutes * TIMED / (time.perf_counter() - began)))


def contest(name, minutes, settings):
    """A row of the table: a run of as many steps as fit into the minutes."""
    ours = Ours(name, name, **settings,
                num_steps=steps_within(minutes, settings))
    seconds, steps = ours.train(float('inf'))
    return row(name, f'{seconds / 60:.1f}', steps, ours.figures(),
               ours.run.net)


def make_teacher(minutes, settings, out):
    """Train a teacher as long; returns how long and how many steps it took.
    """
    import d2lbert as d2l
    steps, began = steps_within(minutes, settings), time.perf_counter()
    # Looked at once, so that something is held out of any text
    d2l.pretrain(**settings, num_steps=steps, eval_every=steps, out=out)
    return (time.perf_counter() - began) / 60, steps


def row(name, minutes, steps, figures, net):
    """What the table says of a contestant."""
    from d2lbert.nn.steps import num_parameters
    cells = [name, f'{num_parameters(net) / 1e6:.2f}', minutes, f'{steps}',
             *(f'{value:.3f}' for value in (
                 figures.mlm_loss, figures.mlm_accuracy, figures.nsp_loss,
                 figures.nsp_accuracy))]
    print(' '.join(cells), flush=True)
    return cells


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--minutes', type=float, default=10, metavar='N',
        help='of training, for each student (10)')
    add('--teacher', metavar='RUN', help='one that is there already, of '
        'twice as many layers, of the students\' width')
    add('--teacher-layers', type=int, default=4, metavar='N',
        help='of one that is trained first (4)')
    add('--teacher-minutes', type=float, default=30, metavar='N',
        help='of its training (30)')
    add('--seeds', default='1', metavar='A,B', help='of the students (1)')
    add('--data', metavar='FOLDER', help='the folder that holds '
        'wiki.train.tokens or wikitext-2/ (default: where load_data_wiki '
        'finds it)')
    add('--json', metavar='FILE', help='write the rows there')
    args = benchmark.parse(parser)
    from d2lbert.training.evaluation import evaluate_run
    from d2lbert.training.load import load_run
    print(benchmark.machine())
    common = dict(recipe='learn', data_dir=args.data)
    with tempfile.TemporaryDirectory() as folder:
        taken, teacher = ('', ''), args.teacher
        if teacher is None:
            teacher = Path(folder, 'teacher')
            minutes, steps = make_teacher(args.teacher_minutes, dict(
                common, seed=1, num_layers=args.teacher_layers), teacher)
            taken = f'{minutes:.1f}', steps
        net, _ = load_run(teacher)
        rows = [row('teacher', *taken, evaluate_run(teacher), net)]
        half = dict(common, num_layers=-(-net.config['num_layers'] // 2),
                    **{name: net.config[name] for name in (
                        'num_hiddens', 'ffn_num_hiddens', 'num_heads')})
        for seed in args.seeds.split(','):
            for name, more in (('alone', {}),
                               ('taught', dict(teacher=str(teacher)))):
                rows.append(contest(f'{name} {seed}', args.minutes, dict(
                    half, seed=int(seed), **more)))
    header = ('', 'million numbers', 'minutes', 'steps', 'MLM loss',
              'MLM accuracy', 'NSP loss', 'NSP accuracy')
    benchmark.table(f'Students after {args.minutes:g} minutes of training',
                    header, rows)
    benchmark.write_json(args.json, [dict(zip(header, cells))
                                     for cells in rows])


if __name__ == '__main__':
    benchmark.run(main)
