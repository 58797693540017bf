"""Jobs of several processes: equal results, and all processes end."""
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
from pathlib import Path

import launch_worker
import numpy as onp
import pytest

from d2lbert.__main__ import main, parser
from d2lbert.command import launch
from d2lbert.launch import guard, launcher
from d2lbert.launch.launcher import GUARD
from d2lbert.machine import hardware, workers
from d2lbert.training.run_folder import RunFolder

needs_proc = pytest.mark.skipif(not Path('/proc/self/environ').exists(),
                                reason='looks for processes in /proc')
WORKER = str(Path(launch_worker.__file__))
SLEEP = 'import time; time.sleep(600)'

# A launcher does not need MXNet, whose import takes seconds
LAUNCHER = '''
import sys
sys.argv[0] = 'd2lbert'
from d2lbert.launch import launcher
'''
# The command; its workers run the first argument, its scheduler and servers
# sleep
COMMAND = LAUNCHER + f'''
from d2lbert.command import launch
from d2lbert.command.cli import main
launch.WORKER = ['-c', sys.argv.pop(1)]
launch.SERVER = ['-c', {SLEEP!r}]
sys.argv.insert(1, 'launch')
status = main()
assert 'mxnet' not in sys.modules
sys.exit(status)
'''
STUBBORN = '''
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(['sleep', '600'])
print('ready', os.environ['D2LBERT_RANK'], flush=True)
time.sleep(600)
'''


@pytest.fixture
def mark(monkeypatch):
    """The value of a variable in the environment of all processes of a job.
    """
    mark = uuid.uuid4().hex
    monkeypatch.setenv('D2LBERT_TEST_JOB', mark)
    yield mark
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)


#: Seconds that `limit` allows; on a busy machine a job takes up to 20.
LIMIT = 180


@pytest.fixture
def limit():
    """Raise an error in a test that waits for a job for LIMIT seconds.

    The launcher, in this process, then ends the job.
    """
    def expire(*_):
        raise TimeoutError(f'no end of the job after {LIMIT} seconds')
    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def command(mark, tmp_path):
    """A function that starts the command with a program for its workers."""
    started = []

    def start(worker, *args):
        started.append(subprocess.Popen(
            [sys.executable, '-c', COMMAND, worker, *args], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]
    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ssh(tmp_path):
    """A fake ssh: hosts are this machine with another environment.

    The host `far` cannot be reached.
    """
    path = tmp_path / 'ssh'
    path.write_text('''#!/bin/sh
echo "$1" >> hosts
if [ "$1" = far ]; then echo "ssh: no route to host far" >&2; exit 255; fi
exec env -i PATH="$PATH" HOST_NAME="$1" sh -c "$2"
''')
    path.chmod(0o755)
    return str(path)


def processes(mark, *more):
    """The processes whose environments hold the mark and these settings."""
    wanted = {f'D2LBERT_TEST_JOB={mark}', *more}
    found = []
    for path in Path('/proc').glob('[0-9]*/environ'):
        try:
            settings = path.read_bytes().decode(errors='replace').split('\0')
            if wanted <= set(settings):
                found.append(int(path.parts[2]))
        except OSError:
            pass
    return found


def wait_for(condition, seconds=30):
    """Wait until the condition holds; returns the seconds of waiting."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds
        time.sleep(0.05)
    return time.monotonic() - begun


def check_two_workers(folder):
    """Compare the weights of two workers with the weights of one."""
    alone = launch_worker.train(0, 1, 5)
    for rank in (0, 1):
        with onp.load(folder / f'{rank}.npz') as together:
            assert together['lost'] == 0
            for i, expected in enumerate(alone):
                onp.testing.assert_allclose(together[f'arr_{i}'], expected,
                                            rtol=1e-5, atol=1e-6)


def test_two_workers_with_half_batches_equal_one_worker(tmp_path):
    launcher.launch([WORKER, str(tmp_path / '{rank}.npz'), '5', '40'])
    check_two_workers(tmp_path)


@needs_proc
def test_a_killed_worker_ends_the_training_of_all(tmp_path, mark, capfd):
    killed = []

    def kill():
        seen = ''
        while 'has made a step' not in seen:
            time.sleep(0.1)
            seen += capfd.readouterr().out
        for pid in processes(mark, 'D2LBERT_RANK=1'):
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(launcher.LaunchError,
                       match='^worker 1 was killed by SIGKILL after'):
        launcher.launch([WORKER, str(tmp_path / '{rank}.npz'), '1000000', '0'])
    assert time.monotonic() - killed[0] < 15
    assert processes(mark) == []


@needs_proc
@pytest.mark.parametrize('role', ['scheduler', 'server'])
def test_a_killed_scheduler_or_server_ends_the_job(command, mark, role):
    job = command(STUBBORN, '--', 'pretrain')
    wait_for(lambda: len(processes(mark, 'D2LBERT_RANK=1')) == 2
             and processes(mark, f'DMLC_ROLE={role}'))
    for pid in processes(mark, f'DMLC_ROLE={role}'):
        os.kill(pid, signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    assert f'd2lbert launch: {role}' in errors
    assert 'was killed by SIGKILL' in errors
    assert processes(mark) == []


@needs_proc
def test_a_failed_worker_is_named_with_its_last_lines_and_a_remedy(
        command, mark, tmp_path):
    (tmp_path / 'my run/checkpoints').mkdir(parents=True)
    (tmp_path / 'my run/checkpoints/step-00000004.npz').touch()
    job = command('''
import os, sys, time
if os.environ['D2LBERT_RANK'] == '1':
    sys.exit('no room left')
time.sleep(600)
''', '--workers', '3', '--', 'pretrain', '--out', 'my run')
    out, errors = job.communicate(timeout=30)
    assert job.returncode == 1 and out == ''
    lines = errors.splitlines()
    assert lines[0] == '[worker 1] no room left'
    assert lines[1].startswith('d2lbert launch: worker 1 ended with exit '
                               'status 1 after ')
    assert lines[2:] == [
        '  no room left',
        'Go on with: d2lbert launch --workers 3 --servers 1 -- pretrain '
        "--resume 'my run'"]
    assert processes(mark) == []


@needs_proc
def test_a_killed_launcher_leaves_no_process(command, mark):
    job = command(STUBBORN, '--', 'pretrain')
    assert job.stdout.readline() == 'ready 0\n'
    # Guards, roles, workers, what these have started, and the launcher
    wait_for(lambda: len(processes(mark)) == 4 + 2 + 2 + 2 + 1)
    sockets = {Path('/tmp', setting[5:]) for pid in processes(mark)
               for setting in Path(f'/proc/{pid}/environ').read_bytes(
               ).decode().split('\0') if setting.startswith('PORT=')}
    assert len(sockets) == 4 and all(path.exists() for path in sockets)
    job.kill()
    assert wait_for(lambda: not processes(mark)) < 15
    assert not any(path.exists() for path in sockets)


@needs_proc
def test_a_killed_guard_kills_its_worker(command, mark):
    job = command(SLEEP, '--', 'pretrain')
    wait_for(lambda: processes(mark, 'D2LBERT_RANK=1'))
    worker, = processes(mark, 'D2LBERT_RANK=1')
    status = Path(f'/proc/{worker}/stat').read_text().rpartition(')')[2]
    os.kill(int(status.split()[1]), signal.SIGKILL)
    _, errors = job.communicate(timeout=30)
    assert 'worker 1 was killed by SIGKILL' in errors
    assert processes(mark) == []


@needs_proc
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_lets_worker_0_save_and_ends_all_with_one_line(
        command, mark, number):
    job = command('''
import os, time
try:
    print('ready', flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.5)
    os.makedirs('run/checkpoints')
    open('run/checkpoints/step-00000001.npz', 'w').close()
    os._exit(130)
''', '--servers', '2', '--', 'pretrain', '--out', 'run')
    assert job.stdout.readline() == 'ready\n'
    assert job.stderr.readline() == '[worker 1] ready\n'
    job.send_signal(number)
    # A second signal within CLEANUP_SECONDS is ignored
    time.sleep(0.2)
    job.send_signal(number)
    out, errors = job.communicate(timeout=30)
    assert job.returncode == 128 + number and out == ''
    assert errors == (
        'd2lbert launch: stopped every process; go on with: d2lbert launch '
        '--workers 2 --servers 2 -- pretrain --resume run\n')
    assert processes(mark) == []


@needs_proc
def test_ctrl_c_lets_worker_0_save_after_its_step(
        mark, tmp_path):
    job = subprocess.Popen(
        [sys.executable, '-c', 'import sys; from d2lbert.__main__ import '
         'main; sys.exit(main())', 'launch', '--', 'pretrain', '--corpus',
         'sample', '--num-steps', '1000000', '--batch-size', '8', '--max-len',
         '32', '--num-hiddens', '8', '--ffn-num-hiddens', '8',
         '--num-layers', '1', '--log-interval', '100000', '--eval-every',
         '2',
         '--out', 'a run'], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)
    assert 'step 2: held-out' in job.stdout.readline()
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 130
    saved, = (tmp_path / 'a run/checkpoints').iterdir()
    assert int(saved.stem[5:]) < 100000     # no losses were logged yet
    assert errors.rstrip().endswith(
        "go on with: d2lbert launch --workers 2 --servers 1 -- pretrain "
        "--resume 'a run' --num-steps 1000000 --eval-every 2")
    assert errors.count('stopped at step') == 1
    assert f'stopped at step {int(saved.stem[5:])}\n' in errors
    # Worker 1 got no signal, and ends without a word
    assert '[worker 1]' not in errors
    assert processes(mark) == []


@needs_proc
def test_an_ignored_hangup_stays_ignored(command, mark):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job = command("print('ready', flush=True); import time; "
                      "time.sleep(2); print('done', flush=True)",
                      '--workers', '1', '--', 'pretrain')
        assert job.stdout.readline() == 'ready\n'
        job.send_signal(signal.SIGHUP)
        assert job.communicate(timeout=30)[0] == 'done\n'
    finally:
        signal.signal(signal.SIGHUP, before)
    assert job.returncode == 0


def test_workers_share_a_seed_and_a_folder():
    def worker_command(arguments):
        return launch._worker_command(
            arguments, parser().parse_args(['launch']).pretrain_parser)
    command, run, again = worker_command(['--', 'pretrain'])
    assert command[1] == '--seed' and int(command[2]) >= 0
    assert command[3:] == ['--out', run]
    assert again == ['pretrain', '--resume', run]
    given = ['pretrain', '--seed', '3', '--out', 'x', '--devices', 'cpu:2',
             '--corpus', 'sample']
    assert worker_command(given) == (given, 'x', [
        'pretrain', '--resume', 'x', '--devices', 'cpu:2'])
    assert worker_command(
        ['pretrain', '--resume', 'x/checkpoints/step-00000020.npz'])[1] == 'x'


def test_the_hint_of_a_resumed_job_repeats_moved_inputs():
    moved = ['--devices', 'cpu', '--corpus', 'a.txt', 'my b.txt',
             '--text-field', 'text', '--vocab', 'v.txt', '--valid', 'c.txt',
             '--teacher', 't']
    pretrain_parser = parser().parse_args(['launch']).pretrain_parser
    # Checkpoints from before this job have the earlier paths
    resumed = ['pretrain', '--resume', 'x', *moved]
    assert launch._worker_command(resumed, pretrain_parser)[2] == resumed


def test_a_worker_with_another_text_is_refused(tmp_path, capfd):
    for rank in range(2):
        (tmp_path / f'{rank}.txt').write_text(
            f'bird {rank} sings . it flies {rank} . it sings . \n\n' * 40,
            encoding='utf-8')
    with pytest.raises(launcher.LaunchError, match='another text than the '
                                                 'first: name a --corpus'):
        launcher.launch(['-c', f'''
import sys
sys.argv[0] = 'd2lbert'
from d2lbert.command.worker import worker
from d2lbert.machine import workers
sys.argv[1:] = ['pretrain', '--corpus',
                '{tmp_path}/%d.txt' % workers.rank(), '--seed', '1',
                '--num-steps', '2', '--batch-size', '8', '--num-hiddens',
                '8', '--ffn-num-hiddens', '8', '--num-layers', '1', '--out',
                '{tmp_path}/run']
worker()
'''], workers=2)
    # Worker 0 was ended, and its folder can be written again
    assert not (tmp_path / 'run' / 'model.params').exists()
    RunFolder.create(tmp_path / 'run').close(keep=False)
    assert not (tmp_path / 'run').exists()


def printed(*arguments, **settings):
    """What a job prints, and what it says on standard error.

    Its launcher is a process of its own: on Python 3.8 a launcher forks, and
    other libraries of this process may warn in a fork.
    """
    done = subprocess.run(
        [sys.executable, '-c', LAUNCHER
         + f'launcher.launch(*{arguments!r}, **{settings!r})'],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8',
        check=True)
    return done.stdout, done.stderr


def test_only_worker_0_prints_without_its_name():
    out, errors = printed(['-c', '''
import os, sys
rank, count = os.environ['D2LBERT_RANK'], os.environ['D2LBERT_NUM_WORKERS']
print(f'worker {rank} of {count}: \\u2713', end='', flush=True)
print(f'{rank} warns', file=sys.stderr)
'''], workers=2, server=['-c', ''])
    assert out == 'worker 0 of 2: ✓'
    assert sorted(errors.splitlines()) == [
        '0 warns', '[worker 1] 1 warns', '[worker 1] worker 1 of 2: ✓']


@pytest.mark.skipif(sys.version_info < (3, 11),
                    reason='Python imports from the current folder')
def test_no_process_imports_from_the_current_folder(tmp_path):
    (tmp_path / 'shlex.py').write_text('raise SystemExit("imported")')
    script = tmp_path / 'bin' / 'd2lbert'
    script.parent.mkdir()
    script.write_text(LAUNCHER + 'launcher.launch(["-c", "import shlex"], '
                      'server=["-c", "import shlex"])')
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True,
                   env=dict(os.environ, PYTHONPATH=os.pathsep.join(
                       path for path in sys.path if path)))


def printers(monkeypatch, stdout, stderr):
    """The functions that print standard output of two workers, and stderr.

    stdout, stderr: streams that take the place of the launcher's.
    """
    monkeypatch.setattr(sys, 'stdout', stdout)
    monkeypatch.setattr(sys, 'stderr', stderr)
    job = launcher.Job(None, None, None)
    first, other = (launcher.Process(f'worker {k}', None,
                                     types.SimpleNamespace(stdout=0, stderr=1))
                    for k in range(2))
    return (job._printer(first, 0), job._printer(other, 0),
            job._printer(first, 1))


def stream(is_terminal):
    text = io.StringIO()
    text.isatty = lambda: is_terminal
    return text


def test_a_line_of_another_worker_begins_below_an_unfinished_one(
        monkeypatch):
    screen = stream(True)
    first, other, _ = printers(monkeypatch, screen, screen)
    first(b'step 1')
    other(b'warns\n')
    other(b'again\n')
    assert screen.getvalue() == (
        'step 1\n[worker 1] warns\n[worker 1] again\n')


def test_output_to_a_file_leaves_the_line_of_the_terminal(monkeypatch):
    file, screen = stream(False), stream(True)
    first, other, first_error = printers(monkeypatch, file, screen)
    first(b'step 1')        # unfinished, but not on the terminal
    other(b'warns\n')
    first_error(b'50%')     # unfinished, on the terminal
    first(b' ends\n')
    other(b'again\n')
    assert file.getvalue() == 'step 1 ends\n'
    assert screen.getvalue() == (
        '[worker 1] warns\n50%\n[worker 1] again\n')
    # A file of standard error gets no empty line
    first, other, _ = printers(monkeypatch, screen, file)
    first(b'step 2')
    other(b'warns\n')
    assert file.getvalue() == 'step 1 ends\n[worker 1] warns\n'


@needs_proc
def test_hosts_take_workers_and_servers_in_turn(ssh, mark, monkeypatch):
    monkeypatch.setenv('MXNET_OF_THE_USER', '7')
    out, errors = printed(['-c', '''
import os
env = os.environ
print(*(env.get(name) for name in (
    'HOST_NAME', 'D2LBERT_RANK', 'MXNET_OF_THE_USER', 'DMLC_NODE_HOST',
    'DMLC_ROLE', 'DMLC_NUM_WORKER', 'DMLC_NUM_SERVER')), os.getcwd())
'''], workers=3, servers=2, hosts=['b', 'localhost'], ssh=ssh,
        root_uri='127.0.0.1', server=['-c', ''])
    rest = f'7 127.0.0.1 worker 3 2 {os.getcwd()}'
    assert out == f'b 0 {rest}\n'
    assert sorted(errors.splitlines()) == [
        f'[worker 1] None 1 {rest}',
        f'[worker 2] b 2 {rest}']
    assert Path('hosts').read_text().split() == ['b'] * 3
    assert processes(mark) == []


@needs_proc
def test_an_unreachable_host_is_named(ssh, mark, command):
    job = command(SLEEP, '--hosts', '127.0.0.1,far', '--ssh', ssh, '--',
                  'pretrain')
    _, errors = job.communicate(timeout=30)
    assert ('d2lbert launch: worker 1 on far: the host cannot be reached, or '
            'was lost, and all others have been ended; last lines of '
            'worker 1:\n  ssh: no route to host far\n') in errors
    assert processes(mark) == []


@needs_proc
def test_a_killed_launcher_leaves_no_process_on_other_hosts(
        ssh, mark, command):
    job = command(STUBBORN, '--hosts', '127.0.0.1,127.0.0.2', '--ssh', ssh,
                  '--', 'pretrain')
    assert job.stdout.readline() == 'ready 0\n'
    wait_for(lambda: len(processes(mark, 'D2LBERT_RANK=1')) == 2)
    job.kill()
    wait_for(lambda: not processes(mark), 15)


def test_a_missing_python_on_a_host_is_named(ssh):
    with pytest.raises(launcher.LaunchError, match='(?s)/no/python'):
        launcher.launch(['-c', SLEEP], hosts=['127.0.0.1'], ssh=ssh,
                      remote_python='/no/python', server=['-c', SLEEP])


def run_guard(received, **spec):
    """Run a guard alone; it receives the bytes. Returns its result."""
    spec = dict(dict(
        guard_source=Path(guard.__file__).read_text(),
        hardware_source=Path(hardware.__file__).read_text(),
        env={}, root=None, join_seconds=1, socket_path=None,
        grace_seconds=1, silence_seconds=None, workers_on_host=1,
        cwd=os.getcwd(), argv=[sys.executable, '-c', SLEEP]), **spec)
    process = subprocess.Popen(
        [sys.executable, *GUARD], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(json.dumps(spec) + '\n' + received)
    process.stdin.flush()
    process.wait(30)
    process.stdin.close()
    return process.returncode, process.stdout.read(), process.stderr.read()


def test_a_guard_of_a_silent_launcher_ends_its_process():
    status, _, errors = run_guard('.', silence_seconds=1)
    assert status == 1
    assert 'no sign of life from the launcher for 1 s' in errors


def test_a_guard_reports_an_unreachable_scheduler():
    port = launcher.free_port('127.0.0.1', 0)
    status, _, errors = run_guard('', root=['127.0.0.1', port])
    assert status == 1
    assert f'cannot reach the scheduler at 127.0.0.1:{port} (' in errors


def test_a_guard_reports_a_missing_folder():
    status, _, errors = run_guard('', cwd='/no/such/folder')
    assert status == 127
    assert errors.startswith('/no/such/folder: No such file or directory on ')


def test_a_guard_that_cannot_fork_names_the_program():
    status, _, errors = run_guard('', argv=['python3'], guard_source=Path(
        guard.__file__).read_text() + '''
def _fail(*_, **__):
    raise BlockingIOError(11, 'Resource temporarily unavailable')
subprocess.Popen = _fail
''')
    assert status == 127
    assert errors.startswith('python3: Resource temporarily unavailable on ')


def test_workers_that_share_a_machine_share_its_cores(monkeypatch):
    for name in ('MXNET_OMP_MAX_THREADS', 'OMP_NUM_THREADS'):
        monkeypatch.delenv(name, raising=False)
    show = [sys.executable, '-c',
            'import os; print(os.environ.get("OMP_NUM_THREADS"))']
    assert run_guard('', argv=show)[1] == 'None\n'
    half = max(1, hardware.physical_cores() // 2)
    assert run_guard('', argv=show, workers_on_host=2)[1] == f'{half}\n'
    monkeypatch.setenv('OMP_NUM_THREADS', '3')
    assert run_guard('', argv=show, workers_on_host=2)[1] == '3\n'


def test_a_cpu_quota_counts_among_the_cores_to_share(monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '')
    monkeypatch.setenv('MXNET_OMP_MAX_THREADS', '')
    quota = Path(hardware.__file__).read_text() + '''
_cpu_quota = lambda root: 6.0
available_cpus = lambda: range(1000, 1064)
'''
    assert run_guard('', hardware_source=quota, workers_on_host=2, argv=[
        sys.executable, '-c', 'import os; print(os.environ["OMP_NUM_THREADS"'
        '], os.environ["MXNET_OMP_MAX_THREADS"])'])[1] == '3 3\n'


#: A worker that prints where all processes of its job listen.
LISTENING = '''
import os, socket, stat, sys
from pathlib import Path
from d2lbert.machine import workers
from d2lbert.machine.backend import np
store, ones = workers.kvstore(), np.ones(3)
store.broadcast(0, ones, [ones])
if workers.rank() == 0:
    mark, inodes = 'D2LBERT_TEST_JOB=' + sys.argv[1], set()
    for fd in Path('/proc').glob('[0-9]*/fd/*'):
        try:
            environ = fd.parent.with_name('environ').read_bytes()
            if mark in environ.decode().split('\\0'):
                inodes.add(os.readlink(fd)[8:-1])
        except OSError:
            pass
    for line in Path('/proc/net/tcp').read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == '0A' and fields[9] in inodes:
            print('tcp', socket.inet_ntoa(
                bytes.fromhex(fields[1][:8])[::-1]))
    for path in map(Path, Path('sockets').read_text().split()):
        mode = path.stat().st_mode
        print('unix' if stat.S_ISSOCK(mode) else 'file', oct(mode & 0o22))
'''


@needs_proc
@pytest.mark.parametrize('root_uri', [None, '127.0.0.1'])
def test_other_users_cannot_reach_a_job_of_one_machine(
        mark, limit, capfd, monkeypatch, root_uri):
    sockets = []

    reserve_socket = launcher.reserve_socket

    def reserve():
        sockets.append(reserve_socket())
        Path('sockets').write_text(' '.join(map(str, sockets)))
        return sockets[-1]
    monkeypatch.setattr(launcher, 'reserve_socket', reserve)
    Path('sockets').touch()
    before = os.umask(0o022)
    try:
        launcher.launch(['-c', LISTENING, mark], root_uri=root_uri)
    finally:
        os.umask(before)
    # The scheduler, a server and two workers; who may write may connect
    assert capfd.readouterr().out.splitlines() == 4 * [
        'unix 0o0' if root_uri is None else 'tcp 127.0.0.1']
    assert not any(path.exists() for path in sockets)


def test_sockets_have_unused_names(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, 'SOCKET_FOLDER', str(tmp_path))
    drawn = iter([1, 1, 2])
    monkeypatch.setattr(launcher.secrets, 'randbelow', lambda _: next(drawn))
    paths = [launcher.reserve_socket() for _ in range(2)]
    assert [path.name for path in paths] == ['100001', '100002']
    assert all(path.exists() for path in paths)


def test_a_server_never_executes_received_code(tmp_path, capfd):
    with pytest.raises(launcher.LaunchError, match='(?s)server 0 ended with '
                       '.*an optimizer was sent to this server'):
        launcher.launch(['-c', f'''
import pickle, sys, time
from d2lbert.machine import workers
from d2lbert.machine.backend import mx, np
class Command:
    def __reduce__(self):
        return open, ({str(tmp_path / 'executed')!r}, 'w')
store = workers.kvstore()
try:
    store.set_optimizer(mx.optimizer.Adam())
except ValueError as error:
    print(error, flush=True)
store._send_command_to_servers(0, pickle.dumps(Command(), 0).decode())
time.sleep(60)
'''], workers=1)
    assert capfd.readouterr().out.endswith(
        'pass update_on_kvstore=False to gluon.Trainer\n')
    assert not (tmp_path / 'executed').exists()


def test_rank_and_count_come_from_the_environment(monkeypatch):
    assert (workers.rank(), workers.num_workers()) == (0, 1)
    monkeypatch.setenv('D2LBERT_RANK', '2')
    monkeypatch.setenv('D2LBERT_NUM_WORKERS', '4')
    assert (workers.rank(), workers.num_workers()) == (2, 4)
    monkeypatch.setenv('D2LBERT_RANK', '')
    monkeypatch.setenv('D2LBERT_NUM_WORKERS', ' ')
    assert (workers.rank(), workers.num_workers()) == (0, 1)


@pytest.mark.parametrize('name, read, value', [
    ('D2LBERT_RANK', workers.rank, '-1'),
    ('D2LBERT_RANK', workers.rank, 'first'),
    ('D2LBERT_NUM_WORKERS', workers.num_workers, '0'),
    ('D2LBERT_NUM_WORKERS', workers.num_workers, '1.5'),
])
def test_an_invalid_rank_or_count_is_refused(monkeypatch, name, read, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name} is '{value}' and must be"):
        read()


def test_hosts_come_from_a_list_or_a_file(tmp_path):
    assert launcher.read_hosts(None) == ['localhost']
    assert launcher.read_hosts('a, b') == ['a', 'b']
    (tmp_path / 'hosts.txt').write_text('# two\nme@a\n\nb  # fast\n')
    assert launcher.read_hosts(str(tmp_path / 'hosts.txt')) == ['me@a', 'b']


@pytest.mark.parametrize('status, args, sentence', [
    (2, '--workers 0 -- pretrain', '--workers: 0 must be at least 1'),
    (2, '--servers -1 -- pretrain', '--servers: -1 must be at least 1'),
    (2, '--port 70000 -- pretrain', '--port must be 0 to 65535, not 70000'),
    (2, '--hosts , -- pretrain', "--hosts ',' names no host: give a,b or a "),
    (1, '--hosts no/file -- pretrain',
     '--hosts no/file: there is no such file'),
    (2, '--hosts=-oX -- pretrain', 'is not the name of a host'),
    (1, '--hosts no.such.host.invalid -- pretrain', 'give --root-uri'),
    (1, '--root-uri no.such.host.invalid -- pretrain', 'is not an address'),
    (1, '--root-uri 192.0.2.1 -- pretrain', 'cannot listen at 192.0.2.1:0'),
    (2, """--ssh "ssh 'x" -- pretrain""", "--ssh ssh 'x has no closing"),
    (2, "--hosts a --ssh '' --root-uri 127.0.0.1 -- pretrain",
     '--ssh is empty: give'),
    (2, '--workers 2', 'the command of the workers is missing'),
    (2, '-- train', "the workers cannot run 'train': give pretrain"),
    (2, '-- pretrain --minutes 3', 'minutes=3 is for one worker, since'),
])
def test_invalid_jobs_are_refused_in_one_sentence(
        command, status, args, sentence):
    job = command('', *shlex.split(args))
    _, errors = job.communicate(timeout=30)
    assert job.returncode == status
    assert errors.startswith('d2lbert launch: ')
    assert sentence in errors and errors.count('\n') == 1


def test_a_port_in_use_is_refused(command):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        _, errors = command('', '--port', str(port), '--',
                            'pretrain').communicate(timeout=30)
    assert (f'the scheduler cannot listen at 127.0.0.1:{port} (Address '
            'already in use)') in errors


@pytest.fixture
def two_hosts(tmp_path):
    """Two network namespaces joined by a cable; gives their names.

    The first has the address 10.97.0.1, the second 10.97.0.2.
    """
    names = [f'd2l{uuid.uuid4().hex[:6]}' for _ in range(2)]

    def ip(*args, check=True):
        try:
            subprocess.run(['ip', *args], check=check, capture_output=True)
        except FileNotFoundError:
            pytest.skip('network namespaces need the command ip (iproute2)')
        except subprocess.CalledProcessError as error:
            pytest.skip('network namespaces cannot be made here: '
                        + error.stderr.decode().strip())
    try:
        for name in names:
            ip('netns', 'add', name)
        ip('link', 'add', 'eth0', 'netns', names[0], 'type', 'veth', 'peer',
           'name', 'eth0', 'netns', names[1])
        for i, name in enumerate(names):
            ip('-n', name, 'link', 'set', 'lo', 'up')
            ip('-n', name, 'link', 'set', 'eth0', 'up')
            ip('-n', name, 'addr', 'add', f'10.97.0.{i + 1}/24', 'dev',
               'eth0')
        yield names
    finally:
        for name in names:
            ip('netns', 'del', name, check=False)


@needs_proc
def test_two_hosts_on_a_network_equal_one_process(two_hosts, tmp_path, mark):
    ssh = tmp_path / 'ssh'
    ssh.write_text('#!/bin/sh\n'
                   f'exec ip netns exec {two_hosts[1]} sh -c "$2"\n')
    ssh.chmod(0o755)
    code = LAUNCHER + f'''
launcher.launch([{WORKER!r}, '{{rank}}.npz', '5', '10'], servers=2,
              hosts=['localhost', '10.97.0.2'], ssh={str(ssh)!r})
'''
    run = subprocess.run(
        ['ip', 'netns', 'exec', two_hosts[0], sys.executable, '-c', code],
        capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    check_two_workers(tmp_path)
    assert processes(mark) == []


def test_pretraining_with_two_workers_equals_one_process(tmp_path):
    flags = ['pretrain', '--corpus', 'sample', '--num-steps', '3',
             '--batch-size', '9', '--max-len', '32', '--num-hiddens', '16',
             '--ffn-num-hiddens', '16', '--num-layers', '1', '--dropout',
             '0', '--seed', '1', '--save-every', '2']
    runs = [tmp_path / 'one', tmp_path / 'two']
    assert main(flags + ['--out', str(runs[0])]) == 0
    assert main(['launch', '--workers', '2', '--', *flags, '--out',
                 str(runs[1])]) == 0
    tables = [onp.genfromtxt(run / 'losses.csv', delimiter=',', names=True)
              for run in runs]
    assert len(tables[0]) == 3
    for name in tables[0].dtype.names:
        onp.testing.assert_allclose(tables[1][name], tables[0][name],
                                    rtol=1e-5)


def test_an_error_of_every_process_is_printed_once(command, monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', 'abc')
    out, errors = command('', '--', 'pretrain').communicate(timeout=30)
    assert out == '' and errors.count('OMP_NUM_THREADS is') == 1
    assert errors.startswith("d2lbert launch: OMP_NUM_THREADS is 'abc' and ")
    assert errors.count('\n') == 1
