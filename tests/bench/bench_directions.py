"""Masked words against left to right: the losses of two runs, step by step.

    python tests/bench/bench_directions.py [--data FOLDER] [--num-steps 1000]
                                  [--eval-every 200] [--seed 1]
                                  [--vocab-size 4000]
                                  [--out FOLDER] [--plot FILE.png]
                                  [--redraw FOLDER]

mlm  `d2lbert pretrain --recipe learn --objective mlm`
clm  the same with --objective clm

Corpus, sequences, model, rate and number of steps are the same. Both are
scored on WikiText-2's validation file, and count rare words as <unk>. --out
keeps what the runs wrote into their losses.csv; --redraw draws the figure
from there and trains nothing.
"""
import argparse
import tempfile
from pathlib import Path

import benchmark

OBJECTIVES = 'mlm', 'clm'
LOG_EVERY = 20      # steps between two rows of losses.csv


def train(folder, args):
    """Train both; returns the losses.csv of each, as text."""
    import d2lbert as d2l
    found = {}
    for objective in OBJECTIVES:
        run = d2l.pretrain(
            objective=objective, recipe='learn', data_dir=args.data,
            vocab_size=args.vocab_size, num_steps=args.num_steps,
            eval_every=args.eval_every, log_interval=LOG_EVERY,
            seed=args.seed,
            out=Path(folder, objective))
        found[objective] = Path(run, 'losses.csv').read_text('utf-8')
    return found


def read(folder):
    """The losses that --out kept, {objective: text}."""
    return {objective: Path(folder, f'{objective}.csv').read_text('utf-8')
            for objective in OBJECTIVES}


def records(losses, folder):
    """Write the losses into folders that `plot_history` reads."""
    for objective, text in losses.items():
        run = Path(folder, objective)
        run.mkdir()
        (run / 'losses.csv').write_text(text, 'utf-8')
        (run / 'config.json').write_text('{}', 'utf-8')
        yield run


def report(losses):
    """Print the held-out loss of both at the steps that both were scored."""
    from d2lbert.pictures.run_records import read_record
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        for run in records(losses, folder):
            steps, values = read_record(run).held_out[f'{run.name}_loss']
            columns[run.name] = dict(zip(steps, values))
    benchmark.table('Held-out loss, nats a token', ('step', *OBJECTIVES), [
        [f'{step}', *(f'{columns[name][step]:.3f}' for name in OBJECTIVES)]
        for step in columns['mlm'] if step in columns['clm']])


def draw(losses, path):
    """The figure of `plot_history` for both, as PNG."""
    from d2lbert.machine.files import replacing
    from d2lbert.pictures.run_records import plot_history
    with tempfile.TemporaryDirectory() as folder, replacing(path) as part:
        plot_history(*records(losses, folder)).savefig(
            part, format='png', dpi=120)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--num-steps', type=benchmark.count, default=1000, metavar='N',
        help='of training, for each (1000)')
    add('--eval-every', type=benchmark.count, default=200, metavar='N',
        help='steps between two looks at held-out text (200)')
    add('--seed', type=int, default=1, metavar='N', help='of both runs (1)')
    add('--vocab-size', type=benchmark.count, default=4000, metavar='N',
        help='words in the vocabulary: the scores of all words are most of '
        'the work (4000)')
    add('--data', metavar='FOLDER', help='the folder that holds '
        'wiki.train.tokens or wikitext-2/ (default: where load_data_wiki '
        'finds it)')
    add('--out', metavar='FOLDER', help='keep the losses of both runs there, '
        'as mlm.csv and clm.csv')
    add('--plot', metavar='FILE.png', help='draw both losses over steps')
    add('--redraw', metavar='FOLDER', help='train nothing: take the losses '
        'that --out kept')
    args = benchmark.parse(parser)
    if args.redraw:
        losses = read(args.redraw)
    else:
        with tempfile.TemporaryDirectory() as folder:
            losses = train(folder, args)
    if args.out:
        from d2lbert.machine.files import write_text
        Path(args.out).mkdir(parents=True, exist_ok=True)
        for objective, text in losses.items():
            write_text(Path(args.out, f'{objective}.csv'), text)
    report(losses)
    if args.plot:
        draw(losses, args.plot)


if __name__ == '__main__':
    benchmark.run(main)
