"""Files damaged at random are read, or refused in one sentence."""
import random

import pytest
from prose import conll, glue, tagged, write, write_rows, write_squad

from d2lbert.finetuning.tasks.catalog import read_task

GARBAGE = ['\t', '\n', '"', ',', '\r\n', '\ufeff', 'é', '{', ']', 'null',
           '-DOCSTART-', ' ', '\x00', '\ud7ff', '1e999']


def damaged(content, rng):
    """Bytes with some gone, doubled, strewn in or broken."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        i, j = sorted(rng.randrange(len(content) + 1) for _ in 'ij')
        j = min(j, i + rng.choice([1, 30, len(content)]))
        kind = rng.randrange(5)
        if kind == 0:
            del content[i:j]
        elif kind == 1:
            content[i:i] = content[i:j]
        elif kind == 2:
            content[i:i] = rng.choice(GARBAGE).encode()
        elif kind == 3 and i < len(content):
            content[i] = rng.randrange(256)
        else:
            content = content[:j] or content
    return bytes(content)


@pytest.mark.parametrize('task', ['sst2', 'stsb', 'csv', 'tag', 'span'])
def test_a_damaged_file_is_read_or_refused_in_a_sentence(tmp_path, task,
                                                         capsys):
    columns = None
    if task in ('sst2', 'stsb'):
        path = glue(tmp_path, task, 12, ['train']) / 'train.tsv'
    elif task == 'csv':
        path = write_rows(tmp_path / 'x.csv', [['"a, ""b"""', '1']] * 9)
        task, columns = 'classify', 'text=0,label=1'
        write(path, path.read_text().replace('\t', ','))
    elif task == 'tag':
        path = conll(tmp_path / 'x.conll', tagged(6))
    else:
        path = write_squad(tmp_path / 'x.json', num=3, impossible=.5)
    rng, whole = random.Random(task), path.read_bytes()
    refused = 0
    for _ in range(300):
        write(path, damaged(whole, rng))
        try:
            found = read_task(task, path, 'train', columns)
        except ValueError as error:
            assert str(path) in str(error) and '\n' not in str(error)
            refused += 1
        else:
            assert found.path == str(path)
            assert len(found[0]) > 0
        assert len(capsys.readouterr().err.splitlines()) <= 1
    assert 0 < refused < 300
