"""`d2lbert show`: its page, and what it refuses."""
import json
import re

import pytest
import sentences
from commands import refusal

import d2lbert as d2l
from d2lbert.__main__ import main
from d2lbert.machine.processor import describe_machine


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    tokenizer = sentences.whole_words()
    folder = tmp_path_factory.mktemp('model') / 'small'
    d2l.save_pretrained(sentences.build_net(len(tokenizer)), tokenizer,
                        folder)
    return folder


def page_data(path):
    page = path.read_text('utf-8')
    return json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))


def test_show_writes_one_file_that_has_each_text(folder, tmp_path, capsys):
    (tmp_path / 'lines.txt').write_text('the old crane\na grey bird\n')
    assert main(['show', str(folder), '--text', 'the crane flies', '--pair',
                 'it is old', '--text', 'a tree', '--word', 'Crane', '--file',
                 'lines.txt', '--out', 'x.html']) == 0
    out, err = capsys.readouterr()
    assert out == '' and 'random' not in err
    data = page_data(tmp_path / 'x.html')
    assert [(one['text'], one['pair']) for one in data['texts']] == [
        ('the crane flies', 'it is old'), ('a tree', None)]
    assert data['sample']['name'] == 'lines.txt'
    assert [word['word'] for word in data['senses']] == ['crane']
    # Again, and then over it
    before = (tmp_path / 'x.html').stat().st_ino
    arguments = ['show', str(folder), '--text', 'a bird', '--out', 'x.html']
    assert main(arguments) == 1
    assert 'x.html exists already' in capsys.readouterr().err
    assert (tmp_path / 'x.html').stat().st_ino == before
    assert main([*arguments, '--force']) == 0
    assert len(page_data(tmp_path / 'x.html')['texts']) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        'lines.txt', 'x.html']


def test_a_run_is_shown_with_its_own_text_and_machine(tmp_path, capsys):
    (tmp_path / 'text.txt').write_text(
        'the crane is old . the crane flies over it .\n\n' * 30)
    d2l.pretrain(corpus=['text.txt'], batch_size=8, max_len=16, num_hiddens=8,
                 ffn_num_hiddens=8, num_heads=2, num_layers=1, num_steps=2,
                 out='run')
    assert main(['show', 'run', '--out', 'x.html']) == 0
    data = page_data(tmp_path / 'x.html')
    assert [one['text'] for one in data['texts']] == [
        'a crane is flying', 'a crane driver came']
    assert data['sample']['name'] == 'text.txt'
    training = data['training']
    assert training['machine'] == describe_machine()
    assert 'pairs/sec' in training['log'][1]
    assert training['log'][2].startswith('last 1 step: MLM loss ')
    assert training['settings']['num_steps'] == '2'
    # Without its text, that of the package
    (tmp_path / 'text.txt').unlink()
    capsys.readouterr()
    assert main(['show', 'run', '--out', 'y.html']) == 0
    assert capsys.readouterr().err.startswith(
        'the text of run (text.txt) is no longer on this machine')
    assert page_data(tmp_path / 'y.html')['sample']['name'] == (
        'the sample corpus')


def test_the_text_of_a_run_may_have_no_blanks(tmp_path, capsys):
    (tmp_path / 'text.txt').write_text('鹤在天空飞翔。它很老。\n\n' * 30,
                                       'utf-8')
    d2l.pretrain(corpus=['text.txt'], batch_size=8, max_len=16, num_hiddens=8,
                 ffn_num_hiddens=8, num_heads=2, num_layers=1, num_steps=2,
                 out='run')
    capsys.readouterr()
    assert main(['show', 'run', '--out', 'x.html']) == 0
    assert capsys.readouterr().err.startswith(
        'the text of run (text.txt) has no sentence of 3 to 48 words between '
        'blanks: the page searches the sample corpus, give --file')
    assert page_data(tmp_path / 'x.html')['sample']['name'] == (
        'the sample corpus')


def test_the_page_has_the_prediction_of_a_fine_tuned_run(tmp_path, folder):
    for part in 'train', 'dev':
        (tmp_path / f'{part}.tsv').write_text(''.join(
            f'{text}\t{label}\n' for text, label in
            [('the crane flies', 'bird'), ('the old tree', 'plant')] * 4))
    d2l.finetune(task='classify', data='.', model=folder, out='tuned',
                 columns='text=0,label=1', num_epochs=1, batch_size=4,
                 max_len=16)
    assert main(['show', 'tuned', '--text', 'a crane', '--out',
                 'x.html']) == 0
    data = page_data(tmp_path / 'x.html')
    wanted, = d2l.predict(*d2l.load_run('tuned'), ['a crane'])
    assert dict(data['texts'][0]['prediction']) == wanted.shares
    assert data['kind'] == 'fine-tuned' and data['task'] == 'classify'
    assert data['texts'][0]['guesses'] is None


@pytest.mark.parametrize('arguments, said', [
    (['none'], 'there is no folder none'),
    (['MODEL', '--text', ' '], 'a text is empty'),
    (['MODEL', '--text', 'a ' * 40], 'only 30 positions: shorten it'),
    (['MODEL', '--word', 'xyz'], "the word 'xyz' is in 0 sentences of the"),
    (['MODEL', '--file', 'none'], 'there is no file or folder none'),
    (['MODEL', '--out', '.'], '--out . is a folder'),
    (['MODEL', '--out', 'no/x.html'], 'there is no folder no')])
def test_a_mistake_gets_one_sentence(arguments, said, folder, tmp_path,
                                     capsys):
    assert said in refusal(capsys, 'show', *(
        folder if part == 'MODEL' else part for part in arguments),
        *['--out', 'x.html'] * ('--out' not in arguments))[1]
    assert not list(tmp_path.iterdir())


def test_a_pair_belongs_to_the_text_before_it(capsys):
    for flags in ['--pair', 'b'], ['--text', 'a', '--pair', 'b', '--pair',
                                   'c']:
        with pytest.raises(SystemExit):
            main(['show', 'x', *flags, '--out', 'x.html'])
        assert 'give it after the --text' in capsys.readouterr().err
