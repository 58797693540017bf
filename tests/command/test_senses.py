"""`d2lbert senses`: its table, its figure, and what it refuses."""
import re

import pytest
import sentences
from commands import refusal

import d2lbert as d2l
from d2lbert.__main__ import main


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    tokenizer = sentences.whole_words()
    folder = tmp_path_factory.mktemp('model') / 'small'
    d2l.save_pretrained(sentences.build_net(len(tokenizer), max_len=80),
                        tokenizer, folder)
    return folder


def test_the_table_has_what_python_gives(folder, tmp_path, capsys):
    assert main(['senses', str(folder), '--word', 'crane', '--word', 'bark',
                 '--out', 'x.svg']) == 0
    out, err = capsys.readouterr()
    assert 'random' not in err
    found = d2l.sense_accuracy(*d2l.load_model(folder)[:1],
                               ['crane', 'bark'],
                               tokenizer=d2l.load_model(folder)[1])
    rows = [re.split(r' +', line) for line in out.splitlines()]
    assert rows[0] == ['word', 'uses', 'chance', 'layer', '0', '1', '2']
    assert rows[1] == ['crane', str(found.counts[0]), *(
        f'{rate:.3f}' for rate in [found.chances[0], *found.rates[:, 0]])]
    assert rows[3] == ['all', str(found.counts.sum()), *(
        f'{rate:.3f}' for rate in [found.chance, *found.mean_rates])]
    assert len(rows) == 4
    assert (tmp_path / 'x.svg').read_text().startswith('<?xml')
    # Again, and then over it; several models one after another
    again = ['senses', str(folder), str(folder), '--word', 'crane', '--out',
             'x.svg']
    assert main(again) == 1
    out, err = capsys.readouterr()
    assert out == '' and 'x.svg exists already' in err
    assert main([*again, '--force']) == 0
    assert capsys.readouterr().out.split('\n\n')[1].startswith('small\nword')
    assert [path.name for path in tmp_path.iterdir()] == ['x.svg']


def test_checkpoints_have_lines_of_their_own(tmp_path, capsys):
    d2l.pretrain(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
                 ffn_num_hiddens=8, num_layers=1, num_steps=2, save_every=1,
                 seed=1, out='run')
    capsys.readouterr()
    assert main(['senses', 'run']) == 0
    words, steps = capsys.readouterr().out.split('\n\n')
    assert len(words.splitlines()) == 34
    header, *rows = steps.splitlines()
    assert header.split() == ['step', 'uses', 'chance', 'layer', '0', '1']
    assert [row.split()[0] for row in rows] == ['1', '2']
    assert rows[-1].split()[1:] == words.splitlines()[-1].split()[1:]


@pytest.mark.parametrize('arguments, said', [
    (['none'], 'there is no folder none'),
    (['MODEL', '--word', 'heron'], "no labelled senses of 'heron', "
     'or lists them under its base form: choose from bank'),
    (['MODEL', '--out', '.'], '--out . is a folder'),
    (['MODEL', '--out', 'no/x.png'], 'there is no folder no'),
    (['MODEL', '--out', 'x.foo'], 'does not end in the name of a format')])
def test_a_mistake_gets_one_sentence(arguments, said, folder, tmp_path,
                                     capsys):
    assert said in refusal(capsys, 'senses', *(
        folder if part == 'MODEL' else part for part in arguments))[1]
    assert not list(tmp_path.iterdir())
