"""A folder in which the commands of README.md and of the manual run.

It has a small text, a small checkpoint, tasks and pages under the names that
the documents use, and the commands are shortened to a few steps.
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from commands import status_of

import d2lbert as d2l
from d2lbert import hub

ROOT = Path(__file__).resolve().parents[1]

#: Lines that are about the environment, and those that measure for hours;
#: other tests read them.
NOT_RUN = re.compile(
    r'pip |pytest|python3 -m venv|\. \.venv|(PYTHONPATH=\. )?python tests/')

#: Flags of long runs, and the values with which they are tried
SHORT = {
    'pretrain': {'--num-steps': '4', '--minutes': '0.02',
                 '--save-every': '2', '--eval-every': '2',
                 '--vocab-size': '400'},
    'finetune': {'--num-epochs': '1', '--num-examples': '16',
                 '--max-len': '16', '--seeds': '2'},
}
PAGE = '''\
# A page of the book

```{.python .input}
#@tab mxnet
from d2l import mxnet as d2l
from mxnet import np, npx
npx.set_np()
d2l.MaskLM(4, 8)
```
'''


def blocks(text, language):
    """The code blocks of a language in Markdown."""
    return re.findall(rf'```{language}\n(.*?)```', text, re.DOTALL)


def commands(text):
    """The commands of all bash blocks in Markdown, one by one."""
    return [command.strip() for block in blocks(text, 'bash')
            for line in block.replace('\\\n', ' ').splitlines()
            if line.strip() and not line.startswith('#')
            for command in line.split('   #')[0].split(' && ')]


def make(folder):
    """Write what the documents name: `bert`, `glue`, texts, pages."""
    sample = hub.sample_dir() / 'wiki.train.tokens'
    data = folder / 'data' / 'wikitext-2'
    data.mkdir(parents=True)
    shutil.copyfile(sample, data / 'wiki.train.tokens')
    text = sample.read_text('utf-8').splitlines(True)
    for part, lines in ('valid', text[:60]), ('test', text[60:120]):
        (data / f'wiki.{part}.tokens').write_text(''.join(lines), 'utf-8')
    (folder / 'corpus.txt').write_text('\n'.join(text[:400]), 'utf-8')
    for page in 'bert', 'bert-dataset':
        (folder / f'{page}.md').write_text(PAGE)
    (folder / 'notebooks').mkdir()
    (folder / 'notebooks' / 'bert.ipynb').write_text(json.dumps(dict(
        nbformat=4, nbformat_minor=5, metadata={}, cells=[dict(
            id='0', cell_type='code', execution_count=None, metadata={},
            outputs=[], source='from d2l import mxnet as d2l\n'
            'print(d2l.try_gpu())')])))
    lines = ['a crane is flying .', 'a crane lifts the beam .',
             'the river bank is steep .', 'birds fly in the sky .'] * 4
    (folder / 'texts.txt').write_text('\n'.join(lines) + '\n')
    for name, header in (('glue/SST-2', 'sentence\tlabel'),
                         ('reviews', 'sentence\tlabel')):
        (folder / name).mkdir(parents=True)
        for part in 'train', 'dev':
            (folder / name / f'{part}.tsv').write_text(header + '\n' + ''.join(
                f'{line}\t{i % 2}\n' for i, line in enumerate(lines)))
    (folder / 'glue' / 'RTE').mkdir()
    for part in 'train', 'dev':
        (folder / 'glue' / 'RTE' / f'{part}.tsv').write_text(
            'index\tsentence1\tsentence2\tlabel\n' + ''.join(
                f'{i}\t{line}\t{lines[i - 1]}\t'
                f'{"entailment" if i % 2 else "not_entailment"}\n'
                for i, line in enumerate(lines)))
    small = dict(corpus='sample', tokenizer='wordpiece', vocab_size=400,
                 num_steps=2, batch_size=16, num_hiddens=16,
                 ffn_num_hiddens=32, max_len=128)
    run = d2l.pretrain(**small, architecture='published',
                       out=folder / 'made' / 'bert')
    d2l.save_pretrained(*d2l.load_model(run), folder / 'bert')


def make_bart(folder):
    """Write `bart`, a small BART."""
    run = d2l.pretrain(
        corpus='sample', tokenizer='wordpiece', vocab_size=400, num_steps=2,
        batch_size=16, num_hiddens=16, ffn_num_hiddens=32, max_len=64,
        objective='denoise', out=folder / 'made' / 'bart')
    d2l.save_pretrained(*d2l.load_model(run), folder / 'bart')


def make_run(out):
    """A run of two steps, where a page has none of its own."""
    d2l.pretrain(corpus='sample', num_steps=2, batch_size=16, out=out)


def shortened(argv):
    """The words of a command with few steps, and small ones."""
    argv = list(argv)
    name = next((word for word in argv if word in SHORT), None)
    if name is None:
        return argv
    given = set()
    for i, word in enumerate(argv):
        if word in SHORT[name]:
            argv[i + 1] = SHORT[name][word]
            given.add(word)
    if name == 'finetune':
        for flag in SHORT[name].keys() - given - {'--seeds'}:
            argv += [flag, SHORT[name][flag]]
    elif not given & {'--num-steps', '--minutes'}:
        argv += ['--num-steps', SHORT[name]['--num-steps']]
    if name == 'pretrain' and '--resume' not in argv:
        argv += ['--batch-size', '16', '--num-hiddens', '16',
                 '--ffn-num-hiddens', '32']
    return argv


def run(line, folder):
    """Run a line that a document shows; returns its exit status.

    The process is in `folder` already. Lines for a shell, and several
    processes, get processes of their own.
    """
    words = shlex.split(line)
    assert words[0] == 'd2lbert', f'no rule how to try: {line}'
    if '<' in words or words[1] == 'launch':
        quoted = ' '.join(word if word in '<' else shlex.quote(word)
                          for word in shortened(words[1:]))
        return subprocess.run(
            ['bash', '-c', f'{shlex.quote(sys.executable)} -m d2lbert '
             + quoted], cwd=folder, timeout=600, stdin=subprocess.DEVNULL,
            env=dict(os.environ, PYTHONPATH=str(ROOT))).returncode
    return status_of(shortened(words[1:]))
