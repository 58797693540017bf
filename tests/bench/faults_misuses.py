"""Commands as people mistake them, for faults.py."""
import shutil
from typing import Any, NamedTuple

from faults_processes import TINY, TRAINED, complaints, fork, is_clear, listing

PRETRAIN = ['pretrain', *TINY, '--num-steps', '1', '--out', 'new']
FINETUNE = ['finetune', '--task', 'classify', '--data', 'data', '--model',
            'run', '--columns', 'text=sentence,label=label', '--num-epochs',
            '1', '--out', 'new']
PROSE = ('The crane flew over the marsh. It sang of steel and rain. '
         'Nobody answered.\n\n') * 40


class Misuse(NamedTuple):
    """A command, the files that it finds, and what is expected.

    refused: words of its one line of error. said: words of what it prints
    where it is to succeed. One of both is given.
    """

    what: str
    argv: list
    files: Any = ()         # {name: text}
    refused: str = ''
    said: str = ''


def corpus(name, *more):
    """PRETRAIN on a file."""
    argv = list(PRETRAIN)
    argv[argv.index('--corpus') + 1] = name
    return [*argv, *more]


def rows(*lines):
    return {'data/train.tsv': '\n'.join(('sentence\tlabel', *lines)) + '\n',
            'data/dev.tsv': 'sentence\tlabel\na bird\tgood\na tree\tbad\n'}


TWO = {'two.txt': 'a bird\nan old tree\n'}
MISUSES = [
    Misuse('vectors over the text', ['encode', 'run', '--file', 'two.txt',
                                     '--pool', 'mean', '--out', 'two.txt'],
           TWO, refused='two.txt'),
    Misuse('vectors over a file', ['encode', 'run', 'a bird', '--out',
                                   'x.npy'], {'x.npy': 'mine'},
           refused='x.npy'),
    Misuse('force over notes', [*TRAINED, '--force'],
           {'run/my_notes.txt': 'mine'}, said='run'),
    Misuse('prose', corpus('x.txt'), {'x.txt': PROSE}, said='paragraphs'),
    Misuse('prose as the book', corpus('x.txt', '--split', 'book'),
           {'x.txt': PROSE}, refused='x.txt'),
    Misuse('prose and no pair for pieces',
           corpus('x.txt', '--tokenizer', 'wordpiece', '--split', 'book'),
           {'x.txt': PROSE}, refused='two sentences'),
    Misuse('one sentence', corpus('x.txt'), {'x.txt': 'A crane flew.\n'},
           refused='x.txt'),
    Misuse('HTML', corpus('x.html'), {'x.html': '<html><p>a . b\n\nc . d'},
           refused='HTML'),
    Misuse('JSON lines', corpus('x.jsonl'),
           {'x.jsonl': '{"text": "a . b"}\n{"text": "c . d"}\n'},
           refused='--text-field'),
    Misuse('a word of 3 MB', corpus('x.txt', '--tokenizer', 'wordpiece'),
           {'x.txt': PROSE + 'x' * 3000000 + '. And so on.\n'},
           said='paragraphs'),
    Misuse('a paragraph of 17 MB', corpus('x.txt'),
           {'x.txt': 'The crane flew over a marsh. ' * 600000},
           said='is cut'),
    Misuse('a missing label', FINETUNE, rows('a bird\tgood', 'a tree\t',
                                             'an owl\tbad'),
           refused='line 3'),
    Misuse('one class', FINETUNE, rows(*['a bird\tgood'] * 9),
           refused='good'),
    Misuse('no table', FINETUNE, {'data/train.csv': 'a bird;good\n' * 9,
                                  'data/dev.csv': 'a bird;good\n' * 9},
           refused='data'),
    Misuse('an empty line', ['encode', 'run', '--file', 'x.txt'],
           {'x.txt': 'a bird\n\na tree\n'}, refused='line 2'),
    Misuse('an empty line, skipped',
           ['encode', 'run', '--file', 'x.txt', '--skip-empty'],
           {'x.txt': 'a bird\n\na tree\n'}, said='1 '),
    Misuse('unknown words', ['encode', 'run', 'qwzx vlkj'],
           said='unknown words'),
    Misuse('predictions without a head', ['predict', 'run', 'a bird'],
           refused='run'),
    Misuse('no run', ['evaluate', 'empty'], {'empty/x': ''},
           refused='empty'),
    Misuse('no folder', ['encode', 'none', 'a bird'], refused='none'),
    Misuse('an unknown text to compare', ['evaluate', 'run', '--corpus',
                                          'none.txt'], refused='none.txt'),
    Misuse('a run over a run', [*TRAINED], refused='run'),
    Misuse('a format that is unknown', ['encode', 'run', 'a bird', '--pool',
                                        'mean', '--out', 'x.xlsx'],
           refused='x.xlsx'),
    Misuse('a format by its name', ['encode', 'run', 'a qwzx', '--pool',
                                    'mean', '--out', 'x.csv'], said='qwzx'),
    Misuse('vectors that are none',
           ['similar', 'run', 'a bird', '--file', 'two.txt', '--vectors',
            'x.npy'], {**TWO, 'x.npy': 'mine'}, refused='x.npy'),
    Misuse('plain text under the name of a packed one',
           ['encode', 'run', '--file', 'x.txt.gz'],
           {'x.txt.gz': 'a qwzx\n'}, said='qwzx'),
    Misuse('an empty folder of texts', corpus('texts'), {'texts/.x': ''},
           refused='texts'),
    Misuse('no mask', ['fill', 'run', 'a bird'], refused='<mask>'),
    Misuse('a misspelt command', ['encoed', 'run', 'a bird'],
           refused='encode'),
    Misuse('a misspelt flag', [*PRETRAIN, '--num-stepz', '3'],
           refused='--num-steps'),
    Misuse('an abbreviated flag', [*PRETRAIN, '--num-step', '3'],
           refused='--num-steps'),
    Misuse('a misspelt value', [*PRETRAIN, '--objective', 'mlm+nps'],
           refused='mlm+nsp'),
    Misuse('no precision', ['encode', 'run', 'a bird', '--precision',
                            'int4'], refused='int8'),
    Misuse('no device', ['encode', 'run', 'a bird', '--devices', 'tpu'],
           refused='tpu'),
    Misuse('a negative layer', ['encode', 'run', 'a bird', '--layer', '-9'],
           refused='layer'),
]


def misuse(number, place, tally):
    """Mistake so many commands."""
    for case in place.some(MISUSES, number):
        folder = place.folder()
        shutil.copytree(place.done(TRAINED)[0] / 'run', folder / 'run')
        for name, text in dict(case.files).items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, 'utf-8')
        before = listing(folder)
        end = fork(folder, case.argv).wait()
        tally.note(case.what, judge(case, before, listing(folder), end), end)
        shutil.rmtree(folder)


def judge(case, before, after, end):
    """Verdicts on a mistaken command."""
    verdicts = complaints(end)
    # A file that was there is there, if under another name
    if not set(before.values()) <= set(after.values()):
        verdicts.append('lost')
    if case.refused:
        if end.status == 0:
            return [*verdicts, 'wrong result']
        if after != before:
            verdicts.append('half-written')
        clear = is_clear(end.err, [case.refused])
        return [*verdicts, 'clear error' if clear else 'unclear']
    if end.status or case.said not in end.out + end.err:
        return [*verdicts, 'unclear']
    return [*verdicts, 'harmless']
