"""Run folders: whole or not there at all, read back as they were written."""
import csv
import errno
import json
import os
import re
import shutil
import signal

import numpy as onp
import pytest
import reference

import d2lbert as d2l
from d2lbert.machine import array_files
from d2lbert.machine.backend import mx, npx
from d2lbert.machine.files import UNFINISHED, write_text
from d2lbert.objectives import text_objective
from d2lbert.training import loop, run_folder
from d2lbert.training.interrupts import Stopped
from d2lbert.training.saved_runs import RunError

FILES = ['config.json', 'log.txt', 'losses.csv', 'losses.png',
         'model.params', 'vocab.txt']
TINY = dict(corpus='sample', batch_size=16, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=2)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    return d2l.pretrain(**TINY, seed=1,
                         out=tmp_path_factory.mktemp('runs') / 'run')


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run folder that a test may damage."""
    return shutil.copytree(run, tmp_path / 'copy')


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob('*') if path.is_file()}


def test_a_run_folder_holds_exactly_six_files(run):
    assert sorted(contents(run)) == FILES
    assert (run / 'losses.png').read_bytes().startswith(b'\x89PNG')
    assert re.fullmatch(
        r'MLM loss \d+\.\d{3}, NSP loss \d+\.\d{3}\n'
        r'\d+\.\d sentence pairs/sec on \[cpu\(0\)\]\n'
        r'last 1 step: MLM loss \d+\.\d{3}, NSP loss \d+\.\d{3}\n',
        (run / 'log.txt').read_text('utf-8'))
    with open(run / 'losses.csv', newline='') as file:
        assert [row['step'] for row in csv.DictReader(file)] == ['1', '2']


def test_everybody_may_read_a_run_folder_as_the_umask_says(run):
    umask = os.umask(0)
    os.umask(umask)
    assert run.stat().st_mode & 0o777 == 0o777 & ~umask


def test_the_configuration_tells_how_to_repeat_the_run(run):
    config = json.loads((run / 'config.json').read_text('utf-8'))
    assert config['d2lbert'] == d2l.__version__
    vocab = d2l.Vocab.load(run / 'vocab.txt')
    assert config['model'] == dict(
        vocab_size=len(vocab), num_hiddens=8, ffn_num_hiddens=8, num_heads=2,
        num_layers=1, dropout=0.2, max_len=1000, positional='learnable',
        precision='fp32', activation='relu', layer_norm_eps=1e-5,
        embedding_norm=False, num_segments=2, tie_embeddings=False,
        attention_dropout=None)
    training = config['training']
    assert training['devices'] == ['cpu(0)'] and training['seed'] == 1
    assert {name: training[name] for name in TINY} == TINY


def test_one_seed_gives_one_run(run, tmp_path):
    again = contents(d2l.pretrain(**TINY, seed=1, out=tmp_path / 'again'))
    for name in ('model.params', 'losses.csv', 'vocab.txt', 'config.json'):
        assert again[name] == (run / name).read_bytes(), name


def test_a_run_without_a_seed_notes_the_one_it_drew(tmp_path):
    first = d2l.pretrain(**TINY, out=tmp_path / 'first')
    config = json.loads((first / 'config.json').read_text('utf-8'))
    second = d2l.pretrain(**TINY, seed=config['training']['seed'],
                           out=tmp_path / 'second')
    assert contents(first)['model.params'] == contents(second)['model.params']


def test_load_run_gives_back_net_and_vocabulary(run):
    net, vocab = d2l.load_run(run)
    assert net.vocab is vocab
    lines = (run / 'vocab.txt').read_text('utf-8').splitlines()
    assert vocab.idx_to_token == lines
    encoded = d2l.get_bert_encoding(net, ['a', 'crane'])
    tokens = vocab[['<cls>', 'a', 'crane', '<sep>']]
    expected, _, _ = reference.bert(
        reference.parameters(net), 2, [tokens], [[0] * 4], [4], [[0]])
    onp.testing.assert_allclose(encoded.asnumpy(), expected, atol=1e-5)


def test_load_run_loads_onto_the_device_it_is_given(run):
    net, _ = d2l.load_run(run, ctx=npx.cpu(1))
    assert d2l.get_bert_encoding(net, ['a']).ctx == npx.cpu(1)


def test_the_default_folder_is_named_after_the_time(tmp_path):
    folders = {d2l.pretrain(**TINY) for _ in range(2)}
    assert len(folders) == 2
    for folder in folders:
        assert re.match(r'runs/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d',
                        folder.as_posix())
        assert (tmp_path / folder).is_dir()


# What is there already

@pytest.fixture
def untrained(monkeypatch):
    """Let a test fail that gets as far as training."""
    monkeypatch.setattr(text_objective, 'read_corpus',
                        lambda *args: pytest.fail('training began'))


def test_a_run_is_not_overwritten_unasked(copy, untrained):
    before = contents(copy)
    with pytest.raises(RunError, match='exists already: .*--out.*--force'):
        d2l.pretrain(**TINY, out=copy)
    assert contents(copy) == before


def test_force_moves_a_run_aside_with_all_its_files(copy, capsys):
    (copy / 'notes.txt').write_text('mine')
    for name in 'copy.old', 'copy.old-2':
        before = contents(copy)
        d2l.pretrain(**TINY, seed=2, out=copy, force=True)
        assert contents(copy.with_name(name)) == before
        assert sorted(contents(copy)) == FILES
        assert contents(copy)['model.params'] != before['model.params'] or (
            name != 'copy.old')
        assert (f'the run that was in {copy} is now in '
                f'{copy.with_name(name)}\n') in capsys.readouterr().err
    assert sorted(os.listdir(copy.parent)) == ['copy', 'copy.old',
                                               'copy.old-2']


def test_force_takes_an_empty_folder(tmp_path):
    (tmp_path / 'empty').mkdir()
    d2l.pretrain(**TINY, out=tmp_path / 'empty', force=True)
    assert sorted(contents(tmp_path / 'empty')) == FILES
    assert os.listdir(tmp_path) == ['empty']


@pytest.mark.parametrize('kind', ['folder', 'file', 'model', 'link'])
def test_force_moves_only_runs(kind, tmp_path, untrained):
    out = tmp_path / 'thesis'
    text = '{"precious": 1}'
    if kind != 'file':
        out.mkdir()
    if kind == 'link':
        (out / 'config.json').write_text('{"d2lbert": 1}')
        (tmp_path / 'link').symlink_to(out)
    (out if kind == 'file' else out / (
        'config.json' if kind == 'model' else 'chapter1')).write_text(text)
    before = contents(tmp_path)
    with pytest.raises(RunError, match='not a run folder'):
        d2l.pretrain(**TINY, force=True, out=(
            tmp_path / 'link' if kind == 'link' else out))
    assert contents(tmp_path) == before and text.encode() in before.values()


@pytest.mark.parametrize('out', ['.', '..', '/'])
def test_force_does_not_move_the_current_folder(out, copy, untrained,
                                                 monkeypatch):
    (copy / 'inner').mkdir()
    monkeypatch.chdir(copy / 'inner')
    before = contents(copy)
    with pytest.raises(RunError, match='the folder that you are in|cannot be '
                                       'made'):
        d2l.pretrain(**TINY, out=out, force=True)
    assert contents(copy) == before


def test_a_folder_that_cannot_be_moved_stays(copy, untrained, monkeypatch):
    before = contents(copy)

    def fail(*_):
        raise PermissionError(13, 'Permission denied')
    monkeypatch.setattr(run_folder.os, 'rename', fail)
    with pytest.raises(RunError, match=r'cannot be moved \(Permission denied'):
        d2l.pretrain(**TINY, out=copy, force=True)
    assert contents(copy) == before
    assert os.listdir(copy.parent) == ['copy']


def test_numbers_of_numpy_are_written_as_any_others(tmp_path):
    run = d2l.pretrain(**dict(
        TINY, seed=onp.int64(1), lr=onp.float32(0.5), num_steps=2.0,
        dynamic=onp.bool_(True)), out=tmp_path / 'run')
    training = json.loads((run / 'config.json').read_text('utf-8'))[
        'training']
    assert {name: training[name] for name in (
        'seed', 'lr', 'num_steps', 'dynamic')} == dict(
        seed=1, lr=0.5, num_steps=2, dynamic=True)
    assert type(training['num_steps']) is int


@pytest.mark.parametrize('error', [KeyboardInterrupt, MemoryError])
def test_what_breaks_off_leaves_nothing_behind(error, copy, monkeypatch):
    def run_steps(*args):
        raise error
    monkeypatch.setattr(loop, 'run_steps', run_steps)
    before = contents(copy.parent)
    for out, force in ((copy, True), (copy.parent / 'new', False)):
        with pytest.raises(error):
            d2l.pretrain(**TINY, out=out, force=force)
    assert contents(copy.parent) == before
    assert os.listdir(copy.parent) == ['copy']


@pytest.fixture
def meanwhile(monkeypatch):
    """Have a function called when the next run begins to train."""
    run_steps = loop.run_steps

    def during(function):
        def first(*args):
            monkeypatch.setattr(loop, 'run_steps', run_steps)
            function()
            return run_steps(*args)
        monkeypatch.setattr(loop, 'run_steps', first)
    return during


@pytest.mark.parametrize('force', [False, True])
def test_of_two_runs_with_one_name_the_second_is_told_of_the_first(
        tmp_path, meanwhile, force):
    @meanwhile
    def second():
        with pytest.raises(RunError, match=(
                f'run .*is being written by process {os.getpid()} on ')):
            d2l.pretrain(**TINY, out='run', force=force)
    d2l.pretrain(**TINY, out='run')
    assert sorted(contents(tmp_path)) == [f'run/{name}' for name in FILES]


def test_two_runs_without_a_name_in_one_second_have_two_folders(
        tmp_path, meanwhile, monkeypatch):
    monkeypatch.setattr('time.strftime', lambda *args: 'now')
    meanwhile(lambda: d2l.pretrain(**TINY))
    assert d2l.pretrain(**TINY).as_posix() == 'runs/now'
    assert set(contents(tmp_path)) == {
        f'runs/{run}/{name}' for run in ('now', 'now-2') for name in FILES}


def test_the_folder_grows_from_the_first_step_and_is_marked(
        tmp_path, monkeypatch):
    after, seen = loop.Run._after, []

    def look(self, step):
        after(self, step)
        seen.append({name: data.decode('utf-8', 'replace')
                     for name, data in contents(tmp_path / 'run').items()})
    monkeypatch.setattr(loop.Run, '_after', look)
    run = d2l.pretrain(**TINY, eval_every=1, out='run')
    final = (run / 'losses.csv').read_text(), (run / 'log.txt').read_text()
    for step, files in enumerate(seen, 1):
        assert files['losses.csv'].splitlines() == (
            final[0].splitlines()[:step + 1])
        assert files['log.txt'].splitlines() == final[1].splitlines()[:step]
        assert {'config.json', 'vocab.txt', 'unfinished'} <= set(files)
        assert str(os.getpid()) in files['unfinished']
        assert 'model.params' not in files
    assert not (run / 'unfinished').exists()


def test_what_a_failed_run_learnt_is_kept_and_marked(tmp_path, monkeypatch):
    after = loop.Run._after

    def fail(self, step):
        after(self, step)
        raise MemoryError
    monkeypatch.setattr(loop.Run, '_after', fail)
    with pytest.raises(MemoryError):
        d2l.pretrain(**TINY, out='run')
    assert sorted(contents(tmp_path / 'run')) == [
        'config.json', 'log.txt', 'losses.csv', 'unfinished', 'vocab.txt']
    assert len((tmp_path / 'run' / 'losses.csv').read_text()
               .splitlines()) == 2
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match='was not finished and has no checkpo'):
        d2l.load_run('run')
    with pytest.raises(RunError, match='exists already, as a run that was '
                                       'not finished and has no checkpoint'):
        d2l.pretrain(**TINY, out='run')
    d2l.pretrain(**TINY, out='run', force=True)
    assert sorted(contents(tmp_path / 'run')) == FILES


def test_a_run_that_was_killed_before_it_learnt_stands_in_nobodys_way(
        tmp_path):
    def killed_at(step):
        pid = os.fork()
        if not pid:     # a process that ends as if killed, locks and all
            after = loop.Run._after
            loop.Run._after = lambda self, k: (
                os._exit(9) if k == step else after(self, k))
            d2l.pretrain(**TINY, out='run')
        os.waitpid(pid, 0)
    killed_at(1)
    assert (tmp_path / 'run' / 'unfinished').exists()
    killed_at(2)
    assert len((tmp_path / 'run' / 'losses.csv').read_text()
               .splitlines()) == 2
    with pytest.raises(RunError, match='exists already, as a run that was '):
        d2l.pretrain(**TINY, out='run')


def test_a_run_that_moved_another_aside_can_be_stopped_and_resumed(
        copy, monkeypatch):
    after, before = loop.Run._after, contents(copy)

    def stopped(self, step):
        signal.raise_signal(signal.SIGTERM)
        after(self, step)
    monkeypatch.setattr(loop.Run, '_after', stopped)
    with pytest.raises(Stopped, match=f'--resume {copy}') as caught:
        d2l.pretrain(**TINY, out=copy, force=True)
    assert caught.value.signal == signal.SIGTERM
    monkeypatch.setattr(loop.Run, '_after', after)
    assert d2l.pretrain(resume=copy) == copy
    assert sorted(set(contents(copy)) - set(FILES)) == [
        'checkpoints/step-00000001.npz']
    assert contents(copy.with_name('copy.old')) == before


@pytest.mark.parametrize('inside', [
    ['unfinished'], ['unfinished', '.config.json.0123.part'],
    ['unfinished', 'config.json', 'vocab.txt', 'losses.csv']])
def test_a_run_killed_before_its_first_step_is_in_nobodys_way(inside,
                                                              tmp_path):
    for force in False, True:
        (tmp_path / 'run').mkdir()
        for inner in inside:
            (tmp_path / 'run' / inner).touch()
        d2l.pretrain(**TINY, out=tmp_path / 'run', force=force)
        assert sorted(os.listdir(tmp_path / 'run')) == FILES
        assert os.listdir(tmp_path) == ['run']
        shutil.rmtree(tmp_path / 'run')


def test_room_is_looked_for_before_training(tmp_path, monkeypatch,
                                            meanwhile):
    usage = shutil.disk_usage('.')
    monkeypatch.setattr(shutil, 'disk_usage',
                        lambda path: usage._replace(free=100_000))
    with pytest.raises(RunError, match=r'^run has 0.1 MB of room, and the '
                                       r'run will write 1.\d MB: free some'):
        d2l.pretrain(**TINY, out='run')
    assert not os.listdir(tmp_path)


def test_a_disk_too_full_for_the_mark_leaves_nothing_either(tmp_path,
                                                            monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(os, 'pwrite', refuse)
    usage = shutil.disk_usage('.')
    monkeypatch.setattr(shutil, 'disk_usage',
                        lambda path: usage._replace(free=0))
    with pytest.raises(RunError, match='^run has 0.0 MB of room'):
        d2l.pretrain(**TINY, out='run')
    assert not os.listdir(tmp_path)


def test_room_for_the_last_files_is_set_aside_while_it_trains(tmp_path,
                                                              meanwhile):
    sizes = []

    @meanwhile
    def look():
        room, = (tmp_path / 'run').glob('.*.part')
        sizes.append(room.stat().st_size)
    run = d2l.pretrain(**TINY, out='run')
    # A full disk may hold no more than this room when they are written
    written = sum(path.stat().st_size for path in run.iterdir())
    assert sizes and written < sizes[0] < written + (1 << 20)


def test_settings_that_do_not_exist_are_named():
    with pytest.raises(TypeError, match='unknown setting colour: there are '
                                        'corpus, data_dir'):
        d2l.pretrain(colour=16)


def test_a_place_where_no_folder_can_be_is_refused_at_once(
        tmp_path, untrained):
    (tmp_path / 'file').write_text('precious')
    for out in (tmp_path / 'file' / 'run', tmp_path / 'file' / 'a' / 'run'):
        with pytest.raises(RunError, match='cannot be made: .*file is no '
                                           'folder'):
            d2l.pretrain(**TINY, out=out)
    assert contents(tmp_path) == {'file': b'precious'}


# Folders that are no runs, or not any more

def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match='no run folder .*nowhere'):
        d2l.load_run(tmp_path / 'nowhere')


@pytest.mark.parametrize('name', ['config.json', 'vocab.txt'])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(RunError, match=f'not a run folder: it has no {name}'):
        d2l.load_run(copy)


def test_a_run_that_was_not_finished_is_known(copy):
    (copy / 'model.params').unlink()
    with pytest.raises(RunError, match='was not finished and has no checkp'):
        d2l.load_run(copy)
    (copy / 'checkpoints').mkdir()
    (copy / 'checkpoints' / 'step-00000001.npz').touch()
    with pytest.raises(RunError, match='was not finished: .*--resume'):
        d2l.load_run(copy)


@pytest.mark.parametrize('text', [
    '', '{', '[]', '{}', '{"model": {}}', '{"model": 1}', '\xff',
    '{"model": {"vocab_size": 9, "num_hiddens": 8, "ffn_num_hiddens": 8, '
    '"num_heads": 3, "num_layers": 1, "dropout": 0.1}}'])
def test_a_configuration_of_something_else_is_refused(copy, text):
    (copy / 'config.json').write_bytes(text.encode('latin-1'))
    with pytest.raises(RunError,
                       match='config.json.* (does not describe|is damaged)'):
        d2l.load_run(copy)


def test_a_vocabulary_of_another_size_is_refused(copy):
    with open(copy / 'vocab.txt', 'a', encoding='utf-8') as file:
        file.write('albatross-of-another-run\n')
    size = len(d2l.Vocab.load(copy / 'vocab.txt'))
    with pytest.raises(RunError,
                       match=f'{size} tokens, but the model {size - 1}'):
        d2l.load_run(copy)


@pytest.mark.parametrize('share', [0, 0.001, 0.5, 0.999])
def test_a_truncated_parameter_file_is_refused(copy, share):
    path = copy / 'model.params'
    path.write_bytes(path.read_bytes()[:int(share * path.stat().st_size)])
    with pytest.raises(RunError, match='model.params does not hold .*damaged'
                       ) as caught:
        d2l.load_run(copy)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('text', [b'no parameters' * 100, b'PK\3\4' * 9])
def test_a_file_of_another_kind_is_refused(copy, text):
    (copy / 'model.params').write_bytes(text)
    with pytest.raises(RunError, match='does not hold the parameters'):
        d2l.load_run(copy)


def test_a_file_without_permission_is_not_called_damaged(copy, monkeypatch):
    def denied(path):
        raise PermissionError(13, 'Permission denied', str(path))
    monkeypatch.setattr(array_files, 'stored_params', denied)
    with pytest.raises(RunError, match='model.params cannot be read: Permis'):
        d2l.load_run(copy)


def test_parameters_of_another_model_are_refused(copy):
    config = json.loads((copy / 'config.json').read_text('utf-8'))
    for change in (dict(num_hiddens=16), dict(num_layers=2)):
        model = dict(config['model'], **change)
        (copy / 'config.json').write_text(json.dumps({'model': model}))
        with pytest.raises(RunError, match='does not hold the parameters of '
                                           'this model'):
            d2l.load_run(copy)


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)
    try:
        write_text(pipe, 'hello')
        assert os.read(end, 10) == b'hello'
    finally:
        os.close(end)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def described(run, **sizes):
    """Let config.json of a run describe another model."""
    config = json.loads((run / 'config.json').read_text('utf-8'))
    config['model'].update(sizes)
    (run / 'config.json').write_text(json.dumps(config))


@pytest.mark.parametrize('sizes, reason', [
    (dict(num_layers=10 ** 9), 'are too few for 1000000000 layers'),
    (dict(num_groups=10 ** 9, num_layers=10 ** 9), 'may share'),
    (dict(num_groups=1, num_layers=10 ** 9), 'may share their tensors'),
    (dict(num_groups=1, inner_group_num=10 ** 9),
     'too few for 1000000000 blocks'),
    (dict(num_hiddens=10 ** 9, num_heads=10 ** 9), 'num_hiddens is 10{9},'),
    (dict(ffn_num_hiddens=10 ** 12), 'ffn_num_hiddens is 10{12}, but no'),
    (dict(vocab_size=10 ** 10), 'vocab_size is 10{10}, but no tensor'),
    (dict(positional='sinusoidal', max_len=10 ** 9), 'max_len is 10{9}, ')])
def test_sizes_that_no_tensor_has_are_refused_before_a_net_is_made(
        copy, monkeypatch, sizes, reason):
    described(copy, **sizes)
    monkeypatch.setattr('d2lbert.training.load.net_of', None)
    with pytest.raises(RunError, match=reason):
        d2l.load_run(copy)


def test_mxnet_parses_no_file_of_parameters(copy, monkeypatch):
    def parse(*args):
        raise AssertionError
    for module in mx.nd, npx, mx.nd.utils, mx.numpy_extension.utils:
        monkeypatch.setattr(module, 'load', parse)
    d2l.load_run(copy)


def test_a_finished_run_that_loses_its_model_is_unfinished(copy):
    folder = run_folder.RunFolder.reopen(copy)
    folder.reserve_space(1)
    (copy / UNFINISHED).touch()
    # `write_run` frees the reserved space, removes the model, and fails
    folder.free_space()
    (copy / 'model.params').unlink()
    folder.close()
    assert (copy / UNFINISHED).exists()


def test_a_count_beyond_the_file_is_refused(copy):
    data = (copy / 'model.params').read_bytes()
    (copy / 'model.params').write_bytes(
        data[:16] + (20_000_000).to_bytes(8, 'little') + data[24:])
    with pytest.raises(RunError, match='contain 20000000 arrays'):
        d2l.load_run(copy)


def test_the_book_reads_what_is_written_here_and_the_other_way(run, copy,
                                                               book):
    net, vocab = d2l.load_run(run)
    sizes = dict(num_hiddens=8, ffn_num_hiddens=8, num_heads=2, num_layers=1,
                 dropout=0.2, max_len=1000)
    other = book.BERTModel(len(vocab), *sizes.values())
    other.load_parameters(str(run / 'model.params'))
    ours, theirs = (
        {name: param.data().asnumpy() for name, param
         in model._collect_params_with_prefix().items()}
        for model in (net, other))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert onp.array_equal(ours[name], theirs[name]), name
    other.save_parameters(str(copy / 'model.params'))
    back = d2l.load_run(copy)[0]._collect_params_with_prefix()
    for name in ours:
        assert onp.array_equal(back[name].data().asnumpy(), ours[name]), name


def test_a_description_that_is_nested_too_deeply_is_named(copy):
    (copy / 'config.json').write_text('[' * 200_000)
    with pytest.raises(RunError, match='config.json is damaged: its brackets'):
        d2l.load_run(copy)


def test_weights_that_are_not_finite_are_named_once(copy, capsys):
    arrays = npx.load(str(copy / 'model.params'))
    name = 'encoder.token_embedding.weight'
    arrays[name][0] = onp.nan
    arrays[name][1, 0] = onp.inf
    npx.save(str(copy / 'model.params'), arrays)
    d2l.load_run(copy)
    (line,) = capsys.readouterr().err.splitlines()
    assert f'infinite: {name} (9); what' in line


def test_large_weights_are_numbers(copy, capsys):
    """Their sum is infinite."""
    arrays = npx.load(str(copy / 'model.params'))
    arrays['encoder.token_embedding.weight'][:] = 3e38
    npx.save(str(copy / 'model.params'), arrays)
    d2l.load_run(copy)
    assert capsys.readouterr().err == ''
