"""Exit statuses: 1, it could not be done; 2, the command line is wrong."""
import pytest
import sentences
from commands import refusal

pytest.importorskip('tokenizers')
pytest.importorskip('safetensors')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return sentences.write_folder(tmp_path_factory.mktemp('x') / 'model')


WRONG = [
    'encode MODEL', 'encode MODEL a --file x', 'encode MODEL --unknown',
    'encode MODEL --file x --pair b', 'encode MODEL a --out x.foo',
    'encode MODEL a --max-len 0', 'encode MODEL a --overlap -1',
    'encode MODEL a --layer 1.5', 'encode MODEL a --pool some',
    ['encode', 'MODEL', ' '], ['similar', 'MODEL', '', '--file', 'x'],
    'similar MODEL a', 'similar MODEL a --file x --top 0',
    'similar MODEL a --file x --vectors x.csv', 'fill MODEL [MASK] --top 0',
    'generate MODEL', 'generate MODEL a --file x',
    'generate MODEL a --num-beams 0', 'predict MODEL',
    'predict MODEL a --out x', 'predict MODEL --file x --pair b',
    'senses MODEL --out x.foo', ['show', 'MODEL', '--out', 'y', '--text', ''],
    'cache --older-than -1', 'cache --kind some', 'launch -- encode',
    'launch --workers 0 -- pretrain', 'launch -- pretrain --batch-size 0',
    'launch --workers 2 -- pretrain --minutes 1',
    'pretrain --batch-size 0', 'pretrain --batch-size many',
    'pretrain --objective some', 'pretrain --vocab x --vocab-size 9',
    'pretrain --resume run --out other', 'pretrain --recipe other',
    'finetune', 'finetune --task sst2 --data x --model y --batch-size 0',
    'finetune --task sst2 --data x --model MODEL --seeds 0',
    'finetune --resume run --seeds 2', 'finetune --resume run --seeds 0']
UNABLE = [
    'encode none a', 'encode MODEL --file none', 'encode MODEL a --layer 9',
    'encode MODEL a --max-len 99', 'encode MODEL a --out none/x.npy',
    'encode MODEL a --out there.npy', 'similar MODEL a --file none',
    'fill none [MASK]', 'fill MODEL text', 'generate MODEL a',
    'predict none a', 'evaluate none', 'senses none', 'show none --out x',
    'export none x', 'import none x', 'pretrain --corpus none',
    'pretrain --resume none',
    'finetune --task sst2 --data none --model MODEL']


@pytest.mark.parametrize('status, line', [
    *((2, line) for line in WRONG), *((1, line) for line in UNABLE)])
def test_a_mistake_ends_with_the_status_of_its_kind(status, line, folder,
                                                    tmp_path, capsys):
    (tmp_path / 'there.npy').write_text('')
    (tmp_path / 'x').write_text('a\n')
    argv = line.split() if isinstance(line, str) else line
    before = sorted(tmp_path.iterdir())
    found, said = refusal(capsys, *(folder if part == 'MODEL' else part
                                    for part in argv))
    assert found == status, said
    assert sorted(tmp_path.iterdir()) == before
