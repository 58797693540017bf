"""What lower precision costs: the same nets in fp32, bf16 and int8.

    python tests/bench/bench_quality.py --model FOLDER --data DIR
        [--rows stsb-vectors,stsb,sst2,rte,cola,mlm] [--runs FOLDER]

FOLDER is a released checkpoint in fp32 with the pooling of
sentence-transformers ($D2LBERT_WEIGHTS/minilm), DIR holds GLUE's folders
($D2LBERT_DATA/glue).

stsb-vectors     Spearman's correlation of the cosines of FOLDER with the
                 scores of STS-B's dev.tsv
stsb, sst2, rte, cola    FOLDER after `d2lbert finetune`, with the settings
                 of bench_finetune.py and seed 0, on the development part
mlm              a run of `pretrain --recipe learn --num-steps 400` on
                 WikiText-2, below $D2LBERT_DATA, on its held-out text

Nets are trained in fp32, once; then each is evaluated in all precisions.
bf16 needs a processor that has it. --runs keeps the runs, and the same
command again takes from there what it has. Nothing here passes or fails.
"""
import os
import tempfile
from pathlib import Path

import bench_embed
import bench_finetune
import benchmark

PRECISIONS = 'fp32', 'bf16', 'int8'
METRICS = {'stsb': 'pearson', 'sst2': 'accuracy', 'rte': 'accuracy',
           'cola': 'matthews'}
TITLES = {'stsb': 'STS-B', 'sst2': 'SST-2', 'rte': 'RTE', 'cola': 'CoLA'}
ROWS = ('stsb-vectors', *METRICS, 'mlm')

#: Of the run whose masked words are predicted.
STEPS = 400


def of_vectors(args):
    """Spearman's correlation of the model's cosines, by precision."""
    import d2lbert as d2l
    texts = bench_embed.Sentences(args.data, 0)
    pairs = [row[side] for side in ('sentence1', 'sentence2')
             for row in texts.pairs]
    return {name: float(texts.correlation(d2l.encode(*d2l.load_pretrained(
        args.model, heads=(), trainable=False, precision=name), pairs)))
        for name in args.precisions}


def of_task(name, args, runs):
    """The first metric of a fine-tuned net, by precision."""
    from d2lbert.finetuning.finetuning import finetune
    from d2lbert.finetuning.prediction import evaluate_finetuned
    epochs, lines = bench_finetune.TASKS[name]
    run = runs / name
    if not (run / 'model.params').is_file():
        finetune(task=name, data=args.data, model=args.model, out=run,
                 force=True, num_epochs=epochs, seed=0,
                 **({'num_examples': lines} if lines else {}),
                 **bench_finetune.SETTINGS)
    return {precision: getattr(evaluate_finetuned(run, precision=precision),
                               METRICS[name])
            for precision in args.precisions}


def of_words(args, runs):
    """The held-out `Figures` of a run, by precision."""
    from d2lbert.training.evaluation import evaluate_run
    from d2lbert.training.pretraining import pretrain
    run = runs / 'mlm'
    if not (run / 'model.params').is_file():
        pretrain(out=run, force=True, recipe='learn', num_steps=STEPS,
                 eval_every=STEPS, seed=0)
    return {precision: evaluate_run(run, precision=precision)
            for precision in args.precisions}


def measured(args, runs):
    """Yield (title, {precision: number}) for each row of the table."""
    for row in args.rows:
        if row == 'stsb-vectors':
            yield "STS-B, Spearman's of the vectors", of_vectors(args)
        elif row == 'mlm':
            figures = of_words(args, runs)
            for title, field in (('masked words, loss', 'mlm_loss'),
                                 ('masked words, accuracy', 'mlm_accuracy')):
                yield title, {name: getattr(each, field)
                              for name, each in figures.items()}
        else:
            yield f'{TITLES[row]}, {METRICS[row]}', of_task(row, args, runs)


def main():
    parser = benchmark.parser(__doc__)
    parser.add_argument('--rows', type=benchmark.rows_of(ROWS),
                        default=list(ROWS), metavar='A,B',
                        help='some of ' + ', '.join(ROWS))
    parser.add_argument('--model', metavar='FOLDER', default=str(Path(
        os.environ.get('D2LBERT_WEIGHTS', ''), 'minilm')))
    parser.add_argument('--runs', metavar='FOLDER', type=Path)
    args = benchmark.parse(parser)
    args.data = args.data or str(Path(os.environ.get('D2LBERT_DATA', ''),
                                      'glue'))
    from d2lbert import kernels
    args.precisions = [name for name in PRECISIONS
                       if name != 'bf16' or kernels.bf16_supported()]
    print(f'machine  {benchmark.machine()}')
    with tempfile.TemporaryDirectory() as scratch:
        found = dict(measured(args, args.runs or Path(scratch)))
    benchmark.table('The same nets in other precisions', (
        '', *args.precisions, 'int8 of fp32'), [
            [title, *(f'{numbers[name]:.4f}' for name in args.precisions),
             f'{numbers["int8"] / numbers["fp32"]:.2%}']
            for title, numbers in found.items()])
    benchmark.write_json(args.json, found)


if __name__ == '__main__':
    benchmark.run(main)
