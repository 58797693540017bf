"""What some minutes of training teach: the recipe and the book's settings.

    python tests/bench/bench_recipes.py [--data FOLDER] [--torch-python PATH]
                                  [--minutes 10] [--seeds 1,2,3]
                                  [--try 'num_layers=3 lr=0.0015']... [...]
                                  [--redraw FILE --plot FILE.png]

learn  `d2lbert pretrain --recipe learn`, once for each seed
book   `d2lbert pretrain`, the book's settings, for as long
torch  the book's package for PyTorch at the book's settings, for as long

and for each --try the recipe with other settings, once for each seed, too.
All train on WikiText-2's training file and are measured on the same examples
of its validation file (losses of two vocabularies cannot be compared). Only
training counts as time, and they take turns: a contestant is looked at each
--every minutes and then makes way for the next. --redraw takes what an
earlier run printed, as tests/bench/results keeps it, and only draws.
"""
import argparse
import functools
import math
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import benchmark
import numpy as onp
from benchmark import CHAPTER, Peer, PeerError

BATCH_SIZE, LENGTH = 512, 64


class Ours:
    """Training by `d2lbert pretrain`, in this process, a stretch at a time.

    kind: 'learn', 'book', or what --try says; name: the same with the seed.
    """

    def __init__(self, kind, name, **settings):
        from d2lbert.objectives.mlm import MLMAndNSP
        from d2lbert.training.loop import Run
        from d2lbert.training.pretraining import PRETRAINING
        from d2lbert.training.settings import complete
        self.kind, self.name = kind, name
        # It keeps no folder; held-out text is looked at from here
        self.run = Run(PRETRAINING.make_objective,
                       complete(dict(settings, eval_every=1)), 'auto')
        self.run.prepare()
        self.steps = self.run.steps()
        self.examples = list(MLMAndNSP.held_out_batches(
            self.run.objective.corpus.valid, BATCH_SIZE, LENGTH))

    def train(self, seconds):
        """(seconds, steps) of training; fewer where the recipe ends."""
        from d2lbert.machine.backend import npx
        history, schedule, spent = self.run.history, self.run.schedule, 0.0
        began, before = time.perf_counter(), history.num_steps
        while spent < seconds and not schedule.is_over():
            history.add(*next(self.steps))
            history.read_losses()
            now = time.perf_counter() - began
            history.seconds, spent = history.seconds + now - spent, now
        npx.waitall()       # losses are there before the weights are
        return time.perf_counter() - began, history.num_steps - before

    def figures(self):
        from d2lbert.objectives.text_objective import evaluate
        with self.run.average.applied():
            return evaluate(self.run.net, self.examples, self.run.devices)

    def close(self):
        pass


class Theirs:
    """Training by the book's package for PyTorch, in its own process."""

    def __init__(self, name, python, path, vocab_size):
        self.kind = self.name = name
        self.peer = Peer(name, 'torch', python, path)
        print(f'{name}: {self.peer.about}; {self.peer.threads} threads')
        self.peer.ask('build', vocab_size=vocab_size, sizes=CHAPTER,
                      precision='fp32')

    def train(self, seconds):
        answer = self.peer.ask('train_on', text='train',
                               batch_size=BATCH_SIZE, seconds=seconds)
        return answer['seconds'], answer['steps']

    def figures(self):
        from d2lbert.objectives.text_objective import Figures
        mlm, hits, words, nsp, told, pairs = self.peer.ask(
            'held_out', text='valid', batch_size=BATCH_SIZE)['sums']
        return Figures(mlm / words, math.exp(min(mlm / words, 700)),
                       hits / words, nsp / pairs, told / pairs)

    def close(self):
        self.peer.close()


class Contest:
    """One contestant and its curve: (minutes, steps, figures) of each look."""

    def __init__(self, contestant):
        self.contestant, self.ended = contestant, False
        self.curve = [(0.0, 0, contestant.figures())]

    def go_on(self, until):
        """Train until `until` minutes are spent, and look."""
        spent, steps, _ = self.curve[-1]
        seconds, taken = self.contestant.train(60 * (until - spent))
        self.ended = not taken
        if taken:
            self.curve.append((spent + seconds / 60, steps + taken,
                               self.contestant.figures()))
            spent, steps, figures = self.curve[-1]
            print(f'{self.contestant.name}: {spent:5.2f} min, step {steps}: '
                  + ', '.join(f'{name} {value:.4f}' for name, value
                              in figures._asdict().items()), flush=True)


def measure(contestants, minutes, every):
    """{(kind, name): curve} of functions that make a contestant each."""
    contests = []
    for make in contestants:
        try:
            contests.append(Contest(make()))
        except PeerError as error:
            print(f'torch: not measured: {error}')
    until = 0
    while until < minutes:
        until = min(until + every, minutes)
        for contest in contests:
            if not contest.ended and contest.curve[-1][0] < until:
                contest.go_on(until)
    for contest in contests:
        contest.contestant.close()
    return {(contest.contestant.kind, contest.contestant.name): contest.curve
            for contest in contests}


def report(curves, minutes):
    """Print where each contestant stood at the end, and means over seeds."""
    rows, ends = [], {}
    for (kind, name), curve in curves.items():
        ends.setdefault(kind, []).append(curve[-1][2])
        spent, steps, figures = curve[-1]
        rows.append([name, f'{spent:.1f}', f'{steps}',
                     f'{figures.mlm_loss:.3f}', f'{figures.perplexity:.0f}',
                     f'{figures.mlm_accuracy:.3f}', f'{figures.nsp_loss:.4f}',
                     f'{figures.nsp_accuracy:.3f}'])
    benchmark.table(
        f'Held-out figures after {minutes:g} minutes of training',
        ('', 'minutes', 'steps', 'MLM loss', 'perplexity', 'MLM accuracy',
         'NSP loss', 'NSP accuracy'), rows)
    for kind, figures in ends.items():
        if len(figures) < 2:
            continue
        print(f'\n{kind}, over {len(figures)} seeds:')
        for title, field, worst in (('MLM loss', 'mlm_loss', max),
                                    ('NSP accuracy', 'nsp_accuracy', min)):
            found = [getattr(one, field) for one in figures]
            print(f'  {title} {statistics.mean(found):.3f}, standard '
                  f'deviation {statistics.stdev(found):.3f}, worst '
                  f'{worst(found):.3f}')


#: A line that `Contest.go_on` printed.
LOOK = re.compile(r'^(.+): +([\d.]+) min, step (\d+): (\w+ .*)$',
                  re.MULTILINE)


def kept_curves(text):
    """The curves that a run printed, as `measure` returns them.

    The look before training is not printed.
    """
    from d2lbert.objectives.text_objective import Figures
    curves = {}
    for name, minutes, step, figures in LOOK.findall(text):
        kind = re.sub(r' \d+$', '', name)
        values = dict(word.split(' ') for word in figures.split(', '))
        curves.setdefault((kind, name), []).append((
            float(minutes), int(step), Figures(**{
                field: float(value) for field, value in values.items()})))
    return curves


def kept_text(path):
    """The part of a file of results that this benchmark left with --plot."""
    parts = re.split('^## ', Path(path).read_text('utf-8'),
                     flags=re.MULTILINE)
    found = [part for part in parts if part.startswith(Path(__file__).name)
             and '--plot' in part.split('\n', 1)[0]]
    if len(found) != 1:
        sys.exit(f'{path} has {len(found)} runs of {Path(__file__).name} '
                 'with --plot; expected one')
    return found[0]


#: (colour, line, marker, label) of the contestants that are always there
LOOKS = {'learn': ('#c1620a', '-', 's', 'd2lbert, --recipe learn'),
         'book': ('#1f3a5f', '--', 'o', "d2lbert, the book's settings"),
         'torch': ('#8a8a8a', ':', '^',
                   "d2l 1.0.3 (PyTorch), the book's settings")}

#: The same of what --try adds, in turn
TRIES = (('#5c8a3a', '-.', 'D'), ('#8a4f9e', '--', 'v'), ('#2a9d9d', '-', 'P'))


def draw(curves, path):
    """MLM loss and NSP accuracy over minutes of training, as PNG."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    from d2lbert.machine.files import replacing
    looks = dict(LOOKS)
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.3))
    for axes, field in zip(panels, ('mlm_loss', 'nsp_accuracy')):
        seen = set()
        for (kind, _), curve in curves.items():
            colour, line, marker, label = looks.setdefault(
                kind, (*TRIES[(len(looks) - len(LOOKS)) % len(TRIES)], kind))
            axes.plot([row[0] for row in curve],
                      [getattr(row[2], field) for row in curve],
                      color=colour, linestyle=line, marker=marker,
                      markersize=4, label=None if label in seen else label)
            seen.add(label)
        axes.set(xlabel='minutes of training', ylabel={
            'mlm_loss': 'held-out MLM loss',
            'nsp_accuracy': 'held-out NSP accuracy'}[field])
        axes.grid(alpha=0.3)
    # Before training the loss is that of a guess, which would flatten the rest
    panels[0].set_ylim(top=min(8, panels[0].get_ylim()[1]))
    panels[1].axhline(0.5, color='black', linestyle=':', linewidth=1)
    # Below the panels, where it covers no curve
    handles, labels = panels[0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0.05 + 0.05 * (len(labels) > 3), 1, 1))
    figure.legend(handles, labels, loc='lower center', ncol=3, frameon=False)
    with replacing(path) as part:
        figure.savefig(part, format='png', dpi=120)


def overrides(text):
    """The settings in a text as 'num_layers=3 lr=0.0015', checked."""
    from d2lbert.training.settings import PATHS, SETTINGS, complete
    found = {}
    try:
        for word in text.split():
            name, _, value = word.partition('=')
            if name not in SETTINGS or not value:
                raise ValueError(f'{word!r} is no setting=value')
            kind = SETTINGS[name].kind
            if kind is bool and value in ('True', 'False'):
                found[name] = value == 'True'
            else:
                found[name] = value if kind in (bool, PATHS) else kind(value)
        complete(dict(found, recipe='learn'))
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text, found


def recipes(args):
    """(kind, settings) of what is trained once for each seed."""
    found = [] if args.tries_alone else [('learn', {})]
    for kind, settings in found + args.tries:
        if args.by_clock and not {'num_steps', 'minutes'} & set(settings):
            settings = dict(settings, minutes=args.minutes)
        yield kind, dict(settings, recipe='learn', data_dir=args.data)


def save_texts(data_dir, path):
    """One epoch of examples and the held-out ones, as `Theirs` takes them.

    Returns the size of the vocabulary.
    """
    from d2lbert.objectives.mlm import MLMAndNSP
    from d2lbert.objectives.text_objective import read_corpus
    from d2lbert.training.settings import complete
    text = read_corpus(complete(dict(data_dir=data_dir, eval_every=1)))
    texts = benchmark.Texts(data_dir)
    texts.columns = {
        'train': _whole(batch for _, batch in text.train.batches(
            BATCH_SIZE, LENGTH, seed=1)),
        'valid': _whole(MLMAndNSP.held_out_batches(text.valid, BATCH_SIZE,
                                                   LENGTH))}
    texts.save(path)
    return len(text.vocab)


def _whole(batches):
    """All batches as one, column by column."""
    return [onp.concatenate(column) for column in zip(*batches)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--minutes', type=float, default=10, metavar='N',
                        help='of training, for each (10)')
    parser.add_argument('--every', type=float, default=1, metavar='N',
                        help='minutes between two looks (1)')
    parser.add_argument('--seeds', default='1,2,3', metavar='A,B',
                        help='seeds of the recipe learn (1,2,3)')
    parser.add_argument('--try', type=overrides, action='append', default=[],
                        dest='tries', metavar="'A=1 B=2'", help='the recipe '
                        'with these settings, too; several times')
    parser.add_argument('--tries-alone', action='store_true', help='neither '
                        "the recipe as it is nor the book's settings")
    parser.add_argument('--by-clock', action='store_true', help='let the '
                        'recipe take what steps fit into --minutes, with its '
                        'rate by the clock')
    parser.add_argument('--data', metavar='FOLDER', help='the folder that '
                        'holds wiki.train.tokens or wikitext-2/ (default: '
                        'where load_data_wiki finds it)')
    parser.add_argument('--torch-python', metavar='PATH',
                        help='an interpreter with d2l 1.0.3 and PyTorch')
    parser.add_argument('--plot', metavar='FILE.png',
                        help='draw held-out loss and accuracy over time')
    parser.add_argument('--json', metavar='FILE',
                        help='write the curves there')
    parser.add_argument('--redraw', metavar='FILE', help='train nothing: '
                        'draw --plot from what this file of results keeps')
    args = benchmark.parse(parser)
    if args.redraw:
        if not args.plot:
            parser.error('--redraw needs --plot FILE.png')
        draw(kept_curves(kept_text(args.redraw)), args.plot)
        return
    machine = benchmark.machine()
    print(machine)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, 'columns.npz'))
        vocab_size = save_texts(args.data, path)
        contestants = [
            functools.partial(Ours, kind, f'{kind} {seed}', seed=int(seed),
                              **settings)
            for kind, settings in recipes(args)
            for seed in args.seeds.split(',') if seed]
        if not args.tries_alone:
            contestants.append(functools.partial(
                Ours, 'book', 'book', num_steps=sys.maxsize, seed=1,
                data_dir=args.data))
            if args.torch_python:
                contestants.append(functools.partial(
                    Theirs, 'torch', args.torch_python, path, vocab_size))
            else:
                print('torch: not measured: give --torch-python')
        curves = measure(contestants, args.minutes, args.every)
    report(curves, args.minutes)
    if args.plot:
        draw(curves, args.plot)
    benchmark.write_json(args.json, {
        'machine': machine, 'curves': {
            name: [(spent, steps, figures._asdict())
                   for spent, steps, figures in curve]
            for (_, name), curve in curves.items()}})


if __name__ == '__main__':
    benchmark.run(main)
