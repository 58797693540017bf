"""The parser: nearest words, groups of help, completion, early checks."""
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys

import numpy as onp
import pytest
import sentences
from commands import refusal, status_of

import d2lbert as d2l
from d2lbert import hub
from d2lbert.command import cli, pretrain
from d2lbert.command.flags import print_json
from d2lbert.machine.arguments import did_you_mean, listed
from d2lbert.training.saved_runs import complete_saved
from d2lbert.training.settings import SETTINGS, complete


@pytest.mark.parametrize('argv, said', [
    ('pretrian', 'd2lbert: there is no command pretrian: did you mean '
     'pretrain? See d2lbert --help'),
    ('qqqqq', 'd2lbert: there is no command qqqqq; see d2lbert --help'),
    ('--verison', 'there is no flag --verison: did you mean --version? '
     'See d2lbert --help'),
    ('pretrain --num-step 3', 'd2lbert pretrain: there is no flag --num-step:'
     ' did you mean --num-steps? See d2lbert pretrain --help'),
    ('pretrain --num-stepz=3', 'did you mean --num-steps? See'),
    ('similar run --fil x', 'there is no flag --fil: did you mean --file?'),
    ('encode run a crane', 'crane is one argument too many: put a text of '
     'several words in quotes; see d2lbert encode --help'),
    ('encode run a -z', '-z is one argument too many; see d2lbert encode'),
    ('encode run a --pool men', "d2lbert encode: --pool: 'men' is not own, "
     'cls, mean or none: did you mean mean? See d2lbert encode --help'),
    ('pretrain --objective mlm-nsp', "--objective: 'mlm-nsp' is not "
     'mlm+nsp, mlm+sop, mlm, span, denoise or clm: did you mean mlm+nsp?'),
    ('finetune --task sst', 'did you mean sst2? See d2lbert finetune --help'),
    ('pretrain --batch-size 0', 'batch_size must be a whole number of at '
     'least 1, not 0; see d2lbert pretrain --help'),
    ('launch --workers 2 --hots a -- pretrain',
     'd2lbert launch: there is no flag --hots: did you mean --hosts?'),
    ('launch -- pretrain --lrr 1', 'd2lbert pretrain: there is no flag --lrr:'
     ' did you mean --lr? See d2lbert pretrain --help'),
    ('completion bas', 'SHELL: \'bas\' is not bash, zsh or fish: did you '
     'mean bash?'),
    ('evaluate', 'the following arguments are required: RUN; see d2lbert '
     'evaluate --help')])
def test_a_wrong_command_line_names_what_was_meant(argv, said, capsys):
    assert status_of(argv.split()) == 2
    out, err = capsys.readouterr()
    assert out == '' and err.count('\n') == 1 and said in err


def test_earlier_names_work_with_a_notice(folder, tmp_path, capsys):
    argv = ['encode', str(folder), 'a crane ' * 9, '--max-len', '6']
    assert cli.main([*argv, '--overlap', '2']) == 0
    expected = capsys.readouterr()
    assert cli.main([*argv, '--windows', '2']) == 0
    assert capsys.readouterr() == (
        expected.out, '--windows is now called --overlap\n' + expected.err)
    assert cli.main([*argv, '--windows', '2', '-q']) == 0
    assert capsys.readouterr() == (expected.out, '')
    args = cli.parser().parse_args(['pretrain', '--fill'])
    assert pretrain.given_settings(args) == dict(fill_sequences=True)
    assert args.notices == ['--fill is now called --fill-sequences']
    shown = choices()['pretrain'].format_help()
    assert '--fill-sequences' in shown and '--fill ' not in shown


def test_earlier_keywords_work_with_a_warning(folder, caplog):
    assert complete(dict(fill=True, seed=1)) == complete(
        dict(fill_sequences=True, seed=1))
    assert caplog.messages == ['fill is now called fill_sequences']
    caplog.clear()
    # A run that stored the earlier name gives no warning
    assert complete_saved(dict(fill=True))['fill_sequences'] is True
    assert caplog.messages == []
    with pytest.raises(TypeError, match='fill is the earlier name of fill_'):
        complete(dict(fill=True, fill_sequences=True))
    model = d2l.load_pretrained(folder)
    onp.testing.assert_array_equal(
        d2l.encode(*model, ['a crane ' * 9], max_len=6, windows=2),
        d2l.encode(*model, ['a crane ' * 9], max_len=6, overlap=2))
    assert caplog.messages[0] == 'windows is now called overlap'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    pytest.importorskip('tokenizers')
    pytest.importorskip('safetensors')
    return sentences.write_folder(tmp_path_factory.mktemp('x') / 'model')


@pytest.mark.parametrize('argv, name, value', [
    ('encode run --pool cls crane', 'text', 'crane'),
    ('encode --pool cls run crane', 'text', 'crane'),
    ('fill run --top 2 <mask>', 'text', '<mask>'),
    ('generate bart --num-beams 2 a b', 'texts', ['a', 'b']),
    ('generate bart a b --num-beams 2', 'texts', ['a', 'b']),
    ('predict run --top 1 text', 'text', 'text')])
def test_flags_may_come_before_the_text(argv, name, value):
    assert getattr(cli.parser().parse_args(argv.split()), name) == value


def test_the_nearest_choice_is_found_without_regard_to_case():
    assert did_you_mean('SST-2', ['sst2', 'cola']) == ': did you mean sst2?'
    assert did_you_mean('word', ['words', 'wordpiece']) == (
        ': did you mean words?')
    assert did_you_mean('xyz', ['sst2', 'cola']) == ''
    assert (listed(['a']), listed('ab'), listed('abc')) == (
        'a', 'a or b', 'a, b or c')


@pytest.mark.parametrize('flags, said', [
    ('--objective some', "'some' is not"), ('--tokenizer some', 'is not'),
    ('--recipe some', 'is not'), ('--precision some', 'is not'),
    ('--devices some', "devices are 'some'"),
    ('--num-heads 3', '3 heads do not divide'),
    ('--valid none', 'no file or folder none: name an existing one for valid'),
    ('--vocab none', 'for vocab (--vocab)'), ('--teacher none', 'for teacher'),
    ('--out there', 'there exists already'),
    ('--corpus wikitext2', 'did you mean wikitext-2?')])
def test_what_is_wrong_is_refused_before_anything_is_fetched_or_read(
        flags, said, capsys, monkeypatch, tmp_path):
    def used(*_):
        pytest.fail('a text was looked for')
    monkeypatch.setattr(hub, 'wikitext2_dir', used)
    monkeypatch.setattr('d2lbert.objectives.text_objective.read_corpus', used)
    (tmp_path / 'there').mkdir()
    assert said in refusal(capsys, 'pretrain', *flags.split())[1]
    assert os.listdir(tmp_path) == ['there']


def test_a_wrong_setting_loads_no_library():
    code = '''
import sys
sys.argv[:] = ['/usr/bin/d2lbert']      # the package loads nothing then
from d2lbert.__main__ import main
for argv in (['pretrain', '--num-heads', '3'], ['pretrain', '--corpus', 'no'],
             ['finetune', '--task', 'sst2', '--data', 'no', '--model', 'no'],
             ['finetune', '--resume', 'no', '--seeds', '2']):
    assert main(argv), argv
assert not {'mxnet', 'numpy'} & set(sys.modules)
'''
    done = subprocess.run([sys.executable, '-c', code],
                          stderr=subprocess.PIPE)
    assert done.returncode == 0 and done.stderr.count(b'\n') == 4, done.stderr


def choices():
    return cli.parser()._subparsers._group_actions[0].choices


@pytest.mark.parametrize('name', ['pretrain', 'finetune'])
def test_the_settings_that_matter_come_first(name, capsys):
    shown = choices()[name].format_help()
    groups = [line for line in shown.splitlines()
              if line.endswith(':') and not line.startswith(' ')]
    assert groups[0] == 'most used:' and groups[-1].startswith('option')
    assert len(shown.splitlines()[0]) < 80
    if name == 'pretrain':
        for flag in SETTINGS:
            assert shown.count(f'\n  --{flag.replace("_", "-")} ') == 1 or (
                shown.count(f'\n  --{flag.replace("_", "-")}\n') == 1), flag
        assert shown.index('  --num-steps') < shown.index('\nthe text:')
        assert 10 < len(pretrain.MOST_USED) < 17


@pytest.mark.parametrize('columns', [60, 80, 200])
def test_help_fits_the_terminal_and_tells_the_exit_statuses(columns,
                                                            monkeypatch):
    monkeypatch.setenv('COLUMNS', str(columns))
    for name, command in choices().items():
        shown = command.format_help()
        assert 'exit status: 0, done; 1, not possible' in ' '.join(
            shown.split()), name
        for line in shown.splitlines():
            assert len(line) <= min(columns, 91) or line.startswith('usage')


def test_json_is_one_line_and_never_nan(capsys):
    print_json({'a': [1.5, float('nan')], 'b': 'é'})
    assert capsys.readouterr().out == '{"a": [1.5, null], "b": "é"}\n'


def test_pretrain_prints_one_object(tmp_path, capsys):
    argv = ['pretrain', '--corpus', 'sample', '--batch-size', '8',
            '--max-len', '24', '--num-hiddens', '8', '--ffn-num-hiddens', '8',
            '--num-layers', '1', '--num-steps', '2', '--seed', '1', '--out',
            'run', '--json']
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert 'sentence pairs/sec' in err and out.count('\n') == 1
    found, last = json.loads(out), (
        tmp_path / 'run' / 'losses.csv').read_text().split()[-1].split(',')
    assert found['run'] == 'run' and found['step'] == 2
    assert [found[name] for name in ('mlm_loss', 'nsp_loss')] == [
        float(number) for number in last[1:3]]


# Outputs that cannot be written

def ended(line, redirection, unbuffered=''):
    """(status, standard error) of a command line for bash."""
    done = subprocess.run(
        ['bash', '-c', f'set -o pipefail; {sys.executable} -m d2lbert {line} '
         f'{redirection}'], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        encoding='utf-8', env={
            **os.environ, 'PYTHONUNBUFFERED': unbuffered})
    return done.returncode, done.stderr


PRINTING = ['', '--help', 'cache', 'cache --json', 'cache --help',
            'help start']


needs_full_device = pytest.mark.skipif(
    not os.path.exists('/dev/full'), reason='no /dev/full on this system')


@needs_full_device
@pytest.mark.parametrize('line, unbuffered', [
    *((line, '') for line in PRINTING), ('cache', '1'), ('--help', '1')])
def test_a_full_disk_after_standard_output_is_one_line(line, unbuffered):
    assert ended(line, '> /dev/full', unbuffered) == (
        1, 'd2lbert: standard output cannot be written: No space left on '
        'device\n')


@pytest.mark.parametrize('line', PRINTING)
def test_a_reader_that_is_gone_is_no_error(line):
    assert ended(line, '| sleep 0') == (1, '')


@pytest.mark.parametrize('line', PRINTING)
def test_a_closed_standard_output_is_no_error(line):
    assert ended(line, '>&-') == (0, '')


# Completion

def script(shell, capsys):
    assert cli.main(['completion', shell]) == 0
    return capsys.readouterr().out


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None,
                              reason=f'needs {shell}')


COMPLETED = [
    ('pretr', ['pretrain']), ('', list(choices())),
    ('encode --po', ['--pool']),
    ('encode --pool ', ['own', 'cls', 'mean', 'none']),
    ('pretrain --objective mlm+', ['mlm+nsp', 'mlm+sop']),
    ('pretrain --corpus tex', ['texts.txt']), ('encode tex', ['texts.txt']),
    ('help encode --po', []), ('pretrain --num-steps ', []),
    ('completion ', ['bash', 'zsh', 'fish'])]


def completed_by_bash(line, capsys):
    """The words with which bash completes the last word of a line, a set."""
    words = ['d2lbert', *line.split(' ')]
    code = script('bash', capsys) + f'''
compopt() {{ :; }}
COMP_WORDS=({' '.join(f"'{word}'" for word in words)})
COMP_CWORD={len(words) - 1}
_d2lbert
printf '%s\\n' "${{COMPREPLY[@]}}"
'''
    done = subprocess.run(['bash', '--norc', '-c', code],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding='utf-8')
    assert done.returncode == 0 and done.stderr == ''
    return {*done.stdout.splitlines()} - {''}


@needs('bash')
@pytest.mark.parametrize('line, expected', COMPLETED)
def test_bash_completes(line, expected, capsys, tmp_path):
    (tmp_path / 'texts.txt').touch()
    found = completed_by_bash(line, capsys)
    assert found == {*expected, *(['--help', '--version'] * (line == ''))}


@needs('bash')
@pytest.mark.parametrize('line', ['encode my', 'pretrain --corpus my'])
def test_bash_completes_names_with_blanks(line, capsys, tmp_path):
    names = {'my texts.txt', 'my *', 'my_texts.txt'}
    for name in names:
        (tmp_path / name).touch()
    assert completed_by_bash(line, capsys) == names


@needs('bash')
@pytest.mark.parametrize('word', ['my', r'my\ t', '"my t'])
def test_a_name_with_blanks_is_one_word_on_a_terminal(word, capsys, tmp_path):
    (tmp_path / 'my texts.txt').touch()
    (tmp_path / 'd2lbert.bash').write_text(script('bash', capsys))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe('bash', ['bash', '--norc', '--noprofile', '-i'], dict(
            os.environ, TERM='dumb', PS1='> ', INPUTRC='/dev/null'))
    try:
        for command in ('d2lbert() { printf "<%s>" "$@"; }',
                        '. ./d2lbert.bash; echo re""ady'):
            os.write(terminal, command.encode() + b'\n')
        read_until(terminal, ['ready'])
        os.write(terminal, f'd2lbert encode {word}\t\n'.encode())
        assert '<my texts.txt>' in read_until(terminal, ['<encode>'])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


@needs('fish')
@pytest.mark.parametrize('line, expected', COMPLETED)
def test_fish_completes(line, expected, capsys, tmp_path):
    (tmp_path / 'texts.txt').touch()
    (tmp_path / 'd2lbert.fish').write_text(script('fish', capsys))
    done = subprocess.run(
        ['fish', '--no-config', '-c', 'source d2lbert.fish; complete -C '
         f"'d2lbert {line}'"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding='utf-8')
    assert done.returncode == 0 and done.stderr == ''
    found = {row.split('\t')[0] for row in done.stdout.splitlines()}
    assert found - {'d2lbert.fish', 'texts.txt'} | (
        found & set(expected)) == set(expected)
    # Files only where a file is expected
    assert ('texts.txt' in found) == ('texts.txt' in expected)


@needs('zsh')
@pytest.mark.parametrize('line, expected', COMPLETED)
def test_zsh_completes(line, expected, capsys, tmp_path):
    (tmp_path / 'texts.txt').touch()
    (tmp_path / 'd2lbert.zsh').write_text(script('zsh', capsys))
    # ^D lists all matches, on a terminal only
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe('zsh', ['zsh', '-f', '-i'], dict(
            os.environ, TERM='dumb', PS1='> ', LINES='200', COLUMNS='100'))
    try:
        for command in ('autoload compinit; compinit -D -u', 'LISTMAX=999',
                        'stty rows 200 columns 100',
                        'source ./d2lbert.zsh',
                        'unsetopt beep; print re""ady'):
            os.write(terminal, command.encode() + b'\n')
        read_until(terminal, ['ready'])
        os.write(terminal, f'd2lbert {line}\x04'.encode())
        shown = read_until(terminal, expected or [line])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    listed = re.split(r'\r?\n', shown, maxsplit=1)[-1]
    found = set(re.findall(r'[-\w.+]+', listed))
    assert set(expected) <= found, shown
    assert ('texts.txt' in found) == ('texts.txt' in expected), shown


def read_until(terminal, words):
    """What a terminal shows, until it has some words and is quiet."""
    shown = ''
    while select.select([terminal], [], [], 0.5 if all(
            word in shown for word in words) else 20)[0]:
        shown += os.read(terminal, 65536).decode('utf-8', 'replace')
    return shown
