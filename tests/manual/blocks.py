"""The parts of README.md and of the manual that are written by programs.

A part lies between `<!-- begin NAME -->` and `<!-- end -->`. `python
tests/manual/blocks.py` writes all of them again: from the descriptions of
the settings, from the docstrings of the public names, and from the files in
`tests/bench/results`. It also writes the stub of the package, see stub.py.
A test fails where a file has another text.
"""
import csv
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import stub  # noqa: E402
from measured import (  # noqa: E402
    AMX,
    RESULTS,
    ROOT,
    XEON,
    ZEN3,
    ZEN4,
    ZEN5,
    finetuned,
    ratio,
    seconds,
    section,
    significant,
)

PAGES = [ROOT / 'README.md', *sorted((ROOT / 'd2lbert/manual').glob('*.md'))]
BLOCK = re.compile(r'(<!-- begin ([\w-]+) -->\n)(.*?)(<!-- end -->)',
                   re.DOTALL)

#: The chapter's training step, in the files of results
STEP = "Training step, the chapter's model, fp32"
BFLOAT = "Training step, the chapter's model, bf16"
LONG = 'Training step, 4 layers of 256, 4 heads, fp32: batch 64, length 256 '
ENCODED = 'Forward only, 512 sequences of length 64, without pred_positions'
SCORED = 'Forward only, 512 sequences of length 64, with pred_positions'
MEMORY = 'Peak memory of these processes, MiB'
HELD_OUT = 'Held-out figures after 10 minutes of training'
PEERS = ('book', 'book*', 'torch')


def table(header, *rows):
    lines = [header, ['---'] * len(header), *rows]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines).replace(
        '|  |', '| |').replace('|  |', '| |')


def chapter(file, *words, without=()):
    return section(file, 'bench_train.py', '--torch-python', *words,
                   without=without)


def settings():
    from d2lbert.training.settings import table
    return table(default_heading='default')


def finetune_settings():
    from d2lbert.finetuning.settings import GROUPS
    from d2lbert.training.settings import table
    return table(GROUPS, 'default')


def printed():
    """The last two lines of the chapter's run, as its notebook has them."""
    cells = json.loads((ROOT / 'notebooks' / 'bert-pretraining.ipynb')
                       .read_text('utf-8'))['cells']
    texts = [''.join(output.get('text', '')) for cell in cells
             for output in cell.get('outputs', [])]
    *_, last = [text for text in texts if re.fullmatch(
        r'MLM loss [\d.]+, NSP loss [\d.]+\n[\d.]+ sentence pairs/sec on '
        r'\[cpu\(0\)\]\n', text)]
    return f'```text\n{last}```\n'


def numbers():
    """The three figures of the README."""
    step = chapter(ZEN5, 'chapter,bf16').table(STEP)
    embedded = section(ZEN5, 'bench_embed.py')
    texts = embedded.table('2,000 texts to vectors')
    times = {peer: row['ours int8 is'].split()[0] for peer, row in
             embedded.table(SPEARMAN).items()}
    learnt = section(ZEN5, 'bench_recipes.py').table(HELD_OUT)
    accuracies = [float(learnt[f'learn {seed}']['NSP accuracy'])
                  for seed in (1, 2, 3)]
    book = float(learnt['book']['NSP accuracy'])
    return table(
        ['measured on 2 cores of an AMD EPYC', 'd2lbert', 'beside it',
         'command'],
        ['training step of the chapter',
         f'{float(step["ours"]["pairs/s"]):.0f} pairs/s',
         f'{significant(step["book*"]["ratio"])} times the '
         "book's MXNet package with as many threads, "
         f'{significant(step["torch"]["ratio"])} times its PyTorch package',
         '`python tests/bench/bench_train.py --torch-python PATH --rows '
         'chapter`'],
        ['sentences to vectors, MiniLM',
         f'{float(texts["ours int8"]["texts/s"]):.0f} texts/s at eight '
         f'bits, {float(texts["ours"]["texts/s"]):.0f} in fp32',
         f'{significant(times["sentence-transformers"])} and '
         f'{significant(texts["sentence-transformers"]["ratio"])} times '
         'sentence-transformers on PyTorch; '
         f"{significant(times['openvino int8'])} times OpenVINO's eight bits",
         '`python tests/bench/bench_embed.py --peer-python PATH --model '
         'FOLDER`'],
        ['next sentences right after ten minutes, three seeds',
         f'{min(accuracies):.0%} to {max(accuracies):.0%}',
         f"{book:.0%} with the book's settings",
         '`python tests/bench/bench_recipes.py --by-clock`'])


def speed_chapter():
    main, long = chapter(ZEN5, 'chapter,bf16'), chapter(ZEN5, 'long')
    encode = section(ZEN5, 'bench_encode.py')

    def row(name, found, digits=None):
        ours = found['ours']
        speed = (f', {float(ours["pairs/s"]):.0f} pairs/s' if digits else '')
        return [name, seconds(ours['s/step']) + speed, *(
            f'{seconds(found[peer]["s/step"])}: {ratio(found[peer])}'
            if peer in found else '' for peer in PEERS)]
    memory = main.table(MEMORY)
    return table(
        ['', 'd2lbert', 'book on MXNet', 'with 2 threads',
         'book on PyTorch'],
        row('training step, fp32', main.table(STEP), 1),
        row('training step, bf16', main.table(BFLOAT), 1),
        row('4 layers of 256, length 256, rows mostly padding',
            long.table(LONG + '(58')),
        row('the same, rows full', long.table(LONG + '(256')),
        row('512 sequences to vectors', encode.table(ENCODED)),
        row('512 sequences, with scores of words', encode.table(SCORED)),
        ['peak memory of training', *(f'{memory[name]["peak"]} MiB'
                                      for name in ('ours', *PEERS))])


def speed_processors():
    def row(name, found):
        return [name, seconds(found['ours']['s/step']),
                f'{float(found["ours"]["pairs/s"]):.0f}',
                *(ratio(found[peer]) for peer in PEERS)]
    step = STEP + ':'
    return table(
        ['2 cores of', 'a step', 'pairs/s', 'book on MXNet',
         'with 2 threads', 'book on PyTorch'],
        row('AMD EPYC, Zen 5, AVX-512 with bf16',
            chapter(ZEN5, 'chapter,bf16').table(step)),
        row('AMD EPYC, Zen 3, AVX2', chapter(ZEN3, 'chapter').table(step)),
        row('Intel Xeon, family 6 model 85, AVX-512',
            chapter(XEON, 'chapter', without=['--isa']).table(step)),
        row('the same Xeon, all held to AVX2',
            chapter(XEON, 'chapter', '--isa').table(step)),
        row('Intel Xeon, family 6 model 207, AVX-512 with bf16 and AMX',
            chapter(AMX, 'chapter,bf16').table(step)))


def speed_small():
    def cost(file, *words):
        found = section(file, 'bench_train.py', 'small', *words).table(
            'Small batches')
        return [[f'{batch} {name}', found[f'{batch} {name}']['cost'],
                 found[f'{batch} {name}']['ratio min to max']]
                for batch in (128, 64) for name in ('adamw', 'adam')]
    return table(['pairs in a batch, optimizer', 'cost of a pair',
                  'range of the rounds'], *cost(ZEN5))


def speed_sizes():
    rows = []
    for file, name, models, precision in (
            (ZEN5, 'Zen 5', ('base', 'minilm'), 'fp32'),
            (ZEN5, 'Zen 5, bf16', ('base',), 'bf16'),
            (ZEN3, 'Zen 3', ('base', 'minilm'), 'fp32')):
        asked = {'--precision'}
        found = section(file, 'bench_sizes.py', '--torch-python',
                        *(asked if precision == 'bf16' else ()),
                        without=asked if precision == 'fp32' else ())
        for model in models:
            for work in 'forward', 'training step':
                title = f'{model}, {work}, {precision}'
                part = found.table(title)
                start = [i for i, line in enumerate(found.lines)
                         if line.startswith(title)][0]
                ours, torch = next(
                    hit.groups() for hit in (
                        re.search(r'ours (\d+), torch (\d+)', line)
                        for line in found.lines[start:]) if hit)
                rows.append([
                    f'{name}, {dict(base="BERT base", minilm="MiniLM")[model]}'
                    f', {work}', f'{seconds(part["ours"]["s/step"])}, {ours} '
                    'MiB', f'{seconds(part["torch"]["s/step"])}, {torch} MiB',
                    ratio(part['torch'])])
    return table(['', 'd2lbert', 'transformers on PyTorch',
                  'times as fast'], *rows)


def speed_embed():
    rows = []
    for file, name in ((ZEN5, 'AMD EPYC, Zen 5'), (ZEN3, 'AMD EPYC, Zen 3'),
                       (AMX, 'Intel Xeon, family 6 model 207')):
        found = section(file, 'bench_embed.py')
        texts = found.table('2,000 texts to vectors')
        share = found.table('Share of the rate')
        rows.append([
            name, f'{float(texts["ours"]["texts/s"]):.0f}',
            ratio(texts['onnxruntime']),
            ratio(texts['sentence-transformers']),
            share['ours']['share'], share['onnxruntime']['share']])
    return table(['2 cores of', 'texts/s', 'to ONNX Runtime',
                  'to sentence-transformers', 'share of the best rate',
                  'share of ONNX Runtime'], *rows)


#: The table of bench_embed with rates and quality
SPEARMAN = "Spearman's correlation on STS-B beside the rate"

#: The names of the peers of bench_embed
EMBEDDERS = {'ours int8': '**d2lbert, int8**', 'ours': 'd2lbert, fp32',
             'openvino int8': 'OpenVINO, int8 by NNCF',
             'openvino bf16': 'OpenVINO, bf16',
             'onnxruntime int8': 'ONNX Runtime, dynamic int8',
             'onnxruntime': 'ONNX Runtime, fp32',
             'sentence-transformers': 'sentence-transformers, fp32'}


def speed_int8():
    zen5, zen4, amx = (section(file, 'bench_embed.py').table(SPEARMAN)
                       for file in (ZEN5, ZEN4, AMX))

    def speed(row):
        times = row['ours int8 is'].split()[0]
        return [f'{float(row["texts/s"]):.0f}', f'{times}×']
    return table(
        ['', 'Zen 5, texts/s', 'd2lbert int8 is', 'Zen 4, texts/s',
         'd2lbert int8 is', 'AMX, texts/s', 'd2lbert int8 is',
         "Spearman's correlation", 'of fp32'],
        *([words, *speed(zen5[name]), *speed(zen4[name]), *speed(amx[name]),
           zen5[name]['Spearman'], zen5[name]['of fp32']]
          for name, words in EMBEDDERS.items()))


#: Products of bench_amx, and how hardware.md names them
PRODUCTS = {
    'Dense, 4096 rows, 768 to 3072, forward':
        'feed-forward layer of BERT base',
    'Dense, 4096 rows, 768 to 3072, and its gradients':
        'the same, and its gradients',
    'Dense, 23500 rows, 128 to 384, and its gradients':
        "queries, keys and values of the chapter's model, and gradients",
    'Cross-entropy of 3529 rows of 128 over 20256 words, and its gradients':
        'scores of masked words, and gradients',
    'Attention, 32 sequences of 128, 12 heads of 64, and its gradients':
        'attention of BERT base, and its gradients'}

#: The ways to multiply, in the order of the columns
WAYS = 'fp32, three', 'bf16, bfloat16 pairs', 'bf16, bfloat16 tiles'


def hardware_amx():
    found = section(AMX, 'bench_amx.py')
    rows = []
    for title, words in PRODUCTS.items():
        ways = found.table(title)
        rows.append([words, *(
            f'{significant(ways[name]["to the first"])}×'
            for start in WAYS for name in ways if name.startswith(start))])
    return table(['times as fast as fp32 by vectors', 'fp32 by tiles',
                  'bf16 by vectors', 'bf16 by tiles'], *rows)


def speed_latency():
    found = section(ZEN5, 'bench_embed.py')
    one, two = (found.table(f'One text of ten words, {threads}')
                for threads in ('1 thread', '2 threads'))
    return table(
        ['milliseconds', '1 thread, 50th', '99th', '2 threads, 50th', '99th'],
        *([words, *(each[name][column] for each in (one, two)
                    for column in ('50th', '99th'))]
          for name, words in EMBEDDERS.items()))


def speed_finetune():
    found = section(ZEN3, 'bench_finetune.py', is_last=True).table(
        'Fine-tuning, 3 rounds')
    return table(
        ['examples/s', 'd2lbert', 'transformers', 'times as fast'],
        *([task, found[f'{name} ours']['median'],
           found[f'{name} torch']['median'], ratio(found[f'{name} torch'])]
          for task, name in (('CoLA', 'cola'), ('STS-B', 'stsb'),
                             ('RTE', 'rte'), ('SST-2', 'sst2'))))


def speed_finetune_bf16():
    found = section(ZEN5, 'bench_finetune.py', 'ours,bf16').table(
        'Fine-tuning, 5 rounds')

    def row(task, name):
        exact, short = (float(found[f'{name} {peer}']['median'])
                        for peer in ('ours', 'bf16'))
        return [task, f'{exact:.0f}', f'{short:.0f}', f'{short / exact:.2f}×']
    return table(['examples/s', 'fp32', 'bf16', 'bf16 is'],
                 row('RTE', 'rte'), row('STS-B', 'stsb'),
                 row('CoLA', 'cola'), row('SST-2', 'sst2'))


def speed_start():
    found = section(ZEN5, 'bench_start.py').table("From the disk's cache")
    return table(['from the cache of the disk', 'median'], *(
        [words, seconds(found[name]['median'])] for name, words in (
            ('load int8 folder', 'load a folder at eight bits'),
            ('load fp32 folder', 'load a folder in fp32'),
            ('d2lbert encode, int8 folder',
             '`d2lbert encode` of one text, a folder at eight bits'),
            ('d2lbert encode, fp32 folder',
             '`d2lbert encode` of one text, a folder in fp32'),
            ('python, mxnet', 'of it, `import mxnet`'))))


def quality_finetune():
    rows = []
    for task, name, metric, words in (
            ('cola', 'CoLA', 'matthews', "Matthews' correlation"),
            ('stsb', 'STS-B', 'pearson', "Pearson's correlation"),
            ('rte', 'RTE', 'accuracy', 'accuracy'),
            ('sst2', 'SST-2', 'accuracy', 'accuracy')):
        ours, seeds = finetuned(task, 'ours', metric)
        bf16, bf16_seeds = finetuned(task, 'bf16', metric)
        torch, torch_seeds = finetuned(task, 'torch', metric)
        rows.append([f'{name}, {words}', ours, bf16, torch,
                     f'{seeds}, {bf16_seeds}, {torch_seeds}'])
    return table(['', 'd2lbert', 'd2lbert, bf16', 'transformers', 'seeds'],
                 *rows)


def quality_precision():
    found = section(ZEN5, 'bench_quality.py').table(
        'The same nets in other precisions')
    return table(['', 'fp32', 'bf16', 'int8', 'int8 of fp32'],
                 *([title, *(row[name] for name in (
                     'fp32', 'bf16', 'int8', 'int8 of fp32'))]
                   for title, row in found.items()))


def corpus():
    rows = []
    for name, words in (
            ('as it comes', ()), ('sorted by paragraphs', ('--sorted',)),
            ('in 8,000 word pieces', ('--pieces', '8000'))):
        found = section(ZEN3, 'bench_corpus.py', *words, without={
            '--sorted', '--pieces'} - set(words))
        opened, peak, trained = found.match(
            r'^threads +([\d.]+) s .*peak memory (\d+) MiB .* (\d+) after '
            'the batches')
        rows.append([name, f'{opened} s', f'{peak} MiB', f'{trained} MiB'])
    return table(['a text of 1 GB', 'time to open it', 'peak memory',
                  'with training batches'], *rows)


def learnt():
    rows = []
    for name, found in (
            ('Zen 5', section(ZEN5, 'bench_recipes.py').table(HELD_OUT)),
            ('Zen 3', section(ZEN3, 'bench_recipes.py',
                              'initializer=topical').table(HELD_OUT))):
        for run, row in found.items():
            if run.startswith('torch:'):
                continue
            words = re.sub(r'^(?:learn|.*=\w+) (\d)$',
                           r'`--recipe learn`, seed \1', run)
            words = {'book': "the book's settings, d2lbert",
                     'torch': "the book's settings, PyTorch"}.get(
                         words, words)
            rows.append([f'{name}: {words}', row['steps'], row['MLM loss'],
                         row['perplexity'], row['MLM accuracy'],
                         row['NSP loss'], row['NSP accuracy']])
    return table(['ten minutes on 2 cores', 'steps', 'MLM loss',
                  'perplexity', 'MLM accuracy', 'NSP loss', 'NSP accuracy'],
                 *rows)


def taught():
    found = section(ZEN3, 'bench_teacher.py').table('Students after 8')
    columns = list(found['alone 1'])
    return table(['8 minutes on 1 core of a Zen 3', 'million parameters',
                  *columns[1:]],
                 *([name, *(row.get(column, '') for column in columns)]
                   for name, row in found.items()))


def directions():
    """Held-out figures of masked words and of next tokens, by step."""
    found = {}
    for name in 'mlm', 'clm':
        path = RESULTS / 'directions' / f'{name}.csv'
        with open(path, encoding='utf-8', newline='') as file:
            found[name] = {row['step']: row for row in csv.DictReader(file)
                           if row[f'held_out_{name}_loss']}
    return table(
        ['step', 'masked words: loss', 'accuracy', 'left to right: loss',
         'accuracy'],
        *([step, *(f'{float(found[name][step][column]):.3f}'
                   for name in found
                   for column in (f'held_out_{name}_loss',
                                  'held_out_known_accuracy'))]
          for step in found['mlm']))


def python():
    """The reference of the public names."""
    import d2lbert.names as names
    text = (ROOT / 'd2lbert' / 'names.py').read_text('utf-8')
    lines = []
    for module, listed in re.findall(
            r'^from (d2lbert\S*) import (\([^)]*\)|[^\n]*)', text,
            re.MULTILINE):
        lines.append(f'\n## {module}\n')
        for name in re.findall(r'\w+', listed):
            lines.append(_entry(name, getattr(names, name)))
    return '\n'.join(lines) + '\n'


#: Classes of which the reference lists the methods
WITH_METHODS = 'TextModel',


def _entry(name, value, level='###'):
    if not callable(value):
        kind = type(value).__name__
        shown = repr(value) if isinstance(value, str) else f'a {kind}'
        return f'### {name}\n\n`{name}` is {shown}.\n'
    try:
        signature = str(_without_types(inspect.signature(value)))
    except (TypeError, ValueError):
        signature = '(...)'
    document = inspect.getdoc(value) or ''
    # A module is named without its address and its place on this machine
    signature = re.sub(r"<module '([\w.]+)'[^>]*>", r'\1', signature)
    call = re.sub(r' at 0x[0-9a-f]+', '', f'{name}{signature}')
    call = re.sub(r"<module '([\w.]+)' from '[^']*'>", r'\1', call)
    call = textwrap.fill(call, 79, subsequent_indent='    ',
                         break_long_words=False, break_on_hyphens=False)
    call = re.sub(r"<module '([\w.]+)' from '[^']*'>", r'\1', call)
    entry = f'{level} {name}\n\n```text\n{call}\n\n{document}\n```\n'
    if name in WITH_METHODS:
        entry += ''.join('\n' + _entry(f'{name}.{method}', function, '####')
                         for method, function in vars(value).items()
                         if callable(function) and method[0] != '_')
    return entry


def _without_types(signature):
    """A signature without annotations, whose text differs by version."""
    empty = inspect.Signature.empty
    return signature.replace(return_annotation=empty, parameters=[
        parameter.replace(annotation=empty)
        for parameter in signature.parameters.values()])


WRITERS = {
    'settings': settings,
    'finetune-settings': finetune_settings,
    'numbers': numbers,
    'printed': printed,
    'speed-chapter': speed_chapter,
    'speed-processors': speed_processors,
    'speed-small': speed_small,
    'speed-sizes': speed_sizes,
    'speed-embed': speed_embed,
    'speed-int8': speed_int8,
    'speed-latency': speed_latency,
    'hardware-amx': hardware_amx,
    'speed-start': speed_start,
    'speed-finetune': speed_finetune,
    'speed-finetune-bf16': speed_finetune_bf16,
    'quality-finetune': quality_finetune,
    'quality-precision': quality_precision,
    'corpus': corpus,
    'learnt': learnt,
    'taught': taught,
    'directions': directions,
    'python': python,
}


def written(text):
    """The text of a page with all its parts written again."""
    return BLOCK.sub(lambda block: block[1] + WRITERS[block[2]]() + block[4],
                     text)


if __name__ == '__main__':
    stub.STUB.write_text(stub.text(), 'utf-8')
    for page in PAGES:
        page.write_text(written(page.read_text('utf-8')), 'utf-8')
