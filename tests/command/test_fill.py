"""`d2lbert fill`, `export` and `import`."""
import published
import pytest
from commands import refusal

import d2lbert as d2l
from d2lbert.__main__ import main


@pytest.fixture
def folder(tmp_path):
    return published.write(tmp_path / 'folder')


def test_fill_prints_tokens_and_probabilities(folder, capsys):
    net, tokenizer = d2l.load_pretrained(folder)
    text = 'the [MASK] is [MASK]'
    first, second = d2l.fill_mask(net, tokenizer, text, 2)
    assert main(['fill', str(folder), text, '--top', '2']) == 0
    out, err = capsys.readouterr()
    assert err == '' and out == ''.join(
        line + '\n' for line in [
            *(f'{token} {share:.4f}' for token, share in first), '',
            *(f'{token} {share:.4f}' for token, share in second)])
    assert main(['fill', str(folder), 'the [MASK]']) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_fill_refuses_a_head_that_is_random(tmp_path, capsys):
    tensors = {name: tensor for name, tensor
               in published.draw(published.CONFIG).items()
               if not name.startswith('cls.')}
    folder = published.write(tmp_path / 'x', None, tensors)
    said = 'this model has no trained head for masked words'
    status, err = refusal(capsys, 'fill', folder, '[MASK]')
    assert status == 1 and said in err
    # It is as random in the run that it becomes
    assert main(['import', str(folder), str(tmp_path / 'run')]) == 0
    assert said in refusal(capsys, 'fill', tmp_path / 'run', '[MASK]')[1]
    with pytest.raises(TypeError, match='net and tokenizer are swapped'):
        d2l.fill_mask(*reversed(d2l.load_pretrained(folder)), '[MASK]')


def test_a_folder_goes_through_a_run(folder, tmp_path, capsys):
    run, again = str(tmp_path / 'run'), str(tmp_path / 'again')
    assert main(['import', str(folder), run]) == 0
    assert main(['export', run, again]) == 0
    said = []
    for path in (str(folder), run, again):
        assert main(['fill', path, 'the crane is [MASK]']) == 0
        said.append(capsys.readouterr())
    assert said[0] == said[1] == said[2] and said[0].out


@pytest.mark.parametrize('arguments, said', [
    (['fill', 'FOLDER', 'no mask'], 'the text has no [MASK]'),
    (['fill', 'FOLDER', '[MASK]', '--file', ''], 'not both'),
    (['fill', 'FOLDER', '[MASK]', '--skip-empty'], 'are for the lines of'),
    (['fill', 'none', '[MASK]'], 'there is no folder none'),
    (['fill', 'FOLDER', '[MASK]', '--top', '0'], '--top: 0 must be at'),
    (['export', 'FOLDER', 'x'], 'is no folder of a run'),
    (['import', 'none', 'x'], 'there is no folder none'),
    (['import', 'FOLDER', 'FOLDER'], 'exists already: choose another')])
def test_a_mistake_gets_one_sentence(arguments, said, folder, tmp_path,
                                     capsys):
    assert said in refusal(capsys, *(
        folder if part == 'FOLDER' else part for part in arguments))[1]
    assert [path.name for path in tmp_path.iterdir()] == ['folder']
