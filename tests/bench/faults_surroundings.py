"""Folders, disks, locales and clocks around a command, for faults.py."""
import contextlib
import os
import resource
import shutil
import subprocess
import threading
import time
from pathlib import Path

from faults_cache import own_cache
from faults_processes import (
    SECONDS,
    close_losses,
    complaints,
    is_clear,
    left_behind,
    listing,
    obey_modes,
    result,
    start,
)
from faults_runs import way_on
from faults_threads import WIDE


class Case:
    """A run in a folder, whose surroundings a scene changes.

    env: variables; prepare: called before each new Python begins; program:
    instead of `-m d2lbert`; names: one of them is in the message, where it
    cannot work; make_room: called before it is tried again.
    """

    def __init__(self, place):
        self.place, self.rng = place, place.rng
        self.folder = place.folder()
        self.work = self.folder / 'work'
        self.work.mkdir()
        self.env = own_cache(place, self.folder)
        self.prepare = self.program = self.make_room = None
        self.names = ()

    def start(self, argv):
        return start(self.work, argv, self.env, self.prepare,
                     self.program).wait()


def change_surroundings(number, place, tally):
    """Train, evaluate and list the cache in odd surroundings."""
    for scene in place.some(SCENES, number):
        case = Case(place)
        with contextlib.ExitStack() as stack:
            try:
                undo = scene(case)
            except OSError as error:
                print(f'{scene.__name__}: not tried, {error}')
                continue
            if undo is not None:
                stack.callback(undo)
            end = case.start(WIDE)
            verdicts, end = judge(case, scene, end)
        tally.note(scene.__name__.replace('_', ' '), verdicts, end)
        shutil.rmtree(case.folder)


def judge(case, scene, end):
    """Verdicts on a run in a case, and on what reads it afterwards."""
    expected = case.place.done(WIDE, run=start)[0] / 'run'
    verdicts = complaints(end, [0, 1])
    if end.status != 0:
        verdicts.append('clear error' if is_clear(end.err, case.names)
                        else 'unclear')
        if scene.__name__.startswith('full'):
            return verdicts + judge_full(case, expected), end
        return verdicts + ['half-written'] * bool(os.listdir(case.work)), end
    verdicts.append('equal' if result(case.work / 'run') == result(expected)
                    or 'slower without' in end.err and close_losses(
                        case.work / 'run', expected) else 'wrong result')
    # To matplotlib a relative XDG_CACHE_HOME is a folder like any other
    verdicts += left_behind(case.work, 'cache', 'here', 'filler')
    for argv in (['evaluate', 'run', '--devices', 'cpu'], ['cache']):
        more = case.start(argv)
        verdicts += complaints(more, [0])
        if more.status or not more.out:
            return verdicts, more
    return verdicts, end


def judge_full(case, expected):
    """Verdicts on a run that found too little room, once there is more."""
    part = any('.part' in name for name in listing(case.work))
    verdicts = ['half-written'] * part
    case.make_room()
    on = way_on(case.work)
    end = case.start(on or WIDE)
    if end.status and '--force' in end.err:     # what was learnt is kept
        end = case.start([*WIDE, '--force'])
    if end.status:
        print(end.err)
        return [*verdicts, 'blocked name']
    if result(case.work / 'run') != result(expected):
        verdicts.append('wrong result')
    return verdicts + left_behind(case.work)


# Scenes

def no_home(case):
    case.env.update(HOME=None, XDG_CACHE_HOME=None, D2LBERT_CACHE=None,
                    TMPDIR=str(_temporary(case)))


def home_that_cannot_be_written(case):
    home = case.folder / 'home'
    home.mkdir()
    case.env.update(HOME=str(home), XDG_CACHE_HOME=None, D2LBERT_CACHE=None,
                    TMPDIR=str(_temporary(case)))
    case.prepare = obey_modes
    home.chmod(0o555)


def home_in_chinese(case):
    home = case.folder / '家'
    (home / '.cache' / 'd2lbert').mkdir(parents=True)
    shutil.move(case.folder / 'cache' / 'kernels',
                home / '.cache' / 'd2lbert')
    case.env.update(HOME=str(home), XDG_CACHE_HOME=None, D2LBERT_CACHE=None,
                    LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')


def work_in_chinese(case):
    case.work = case.folder / '跑'
    case.work.mkdir()
    case.env.update(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')


def _temporary(case):
    path = case.folder / 'temporary'
    path.mkdir()
    path.chmod(0o1777)
    return path


def cache_relative(case):
    case.env['D2LBERT_CACHE'] = 'cache'


def cache_below_home(case):
    case.env.update(HOME=str(case.folder), D2LBERT_CACHE='~/cache')


def cache_of_nobody(case):
    case.env['D2LBERT_CACHE'] = '~no-such-user/cache'
    case.names = ('D2LBERT_CACHE',)


def cache_off(case):
    case.env.update(D2LBERT_CACHE='off', XDG_CACHE_HOME=str(case.folder))
    case.env['TMPDIR'] = str(_temporary(case))


def cache_is_a_file(case):
    (case.folder / 'file').write_text('precious')
    case.env['D2LBERT_CACHE'] = str(case.folder / 'file')
    case.names = ('D2LBERT_CACHE',)


def cache_below_a_file(case):
    cache_is_a_file(case)
    case.env['D2LBERT_CACHE'] += '/cache'


def cache_that_cannot_be_written(case):
    case.prepare = obey_modes
    (case.folder / 'cache').chmod(0o555)
    case.names = ('D2LBERT_CACHE',)


def cache_is_empty_text(case):
    case.env.update(D2LBERT_CACHE='', XDG_CACHE_HOME=str(case.folder))


def xdg_relative(case):
    case.env.update(D2LBERT_CACHE=None, XDG_CACHE_HOME='here',
                    HOME=str(case.folder))


def temporary_folder_missing(case):
    case.env['TMPDIR'] = '/no/such/folder'


def temporary_folder_missing_and_cache_off(case):
    case.env.update(TMPDIR='/no/such/folder', D2LBERT_CACHE='off',
                    XDG_CACHE_HOME=str(case.folder))


def decimal_comma(case):
    made = subprocess.run(
        ['localedef', '-i', 'de_DE', '-f', 'UTF-8',
         str(case.folder / 'de_DE.UTF-8')], capture_output=True)
    if made.returncode:
        raise OSError('no locale with a decimal comma can be made')
    case.env.update(LOCPATH=str(case.folder), LC_ALL='de_DE.UTF-8')
    case.program = (
        'import locale, sys; locale.setlocale(locale.LC_ALL, "")\n'
        'assert locale.localeconv()["decimal_point"] == ","\n'
        'from d2lbert.__main__ import main; sys.exit(main())')


def ascii_only(case):
    case.env.update(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0',
                    PYTHONIOENCODING='ascii')


def no_utf8_mode(case):
    case.env['PYTHONUTF8'] = '0'


def unknown_locale(case):
    case.env.update(LC_ALL='xx_XX.UTF-8', LANG='xx')


def without_docstrings(case):
    case.env['PYTHONOPTIMIZE'] = '2'
    case.names = ('PYTHONOPTIMIZE',)


def warnings_are_errors(case):
    case.env['PYTHONWARNINGS'] = 'error'


def no_path(case):
    case.env['PATH'] = None


def odd_terminal(case):
    case.env.update(COLUMNS='abc', LINES='-1', TERM='')


def input_closed(case):
    case.prepare = _closing_input


def _closing_input():
    os.close(0)


def private_umask(case):
    case.prepare = lambda: os.umask(0o077)


def generous_umask(case):
    case.prepare = lambda: os.umask(0)


def few_open_files(case):
    case.prepare = lambda: resource.setrlimit(
        resource.RLIMIT_NOFILE, (48, 48))


def clock_set_back(case):
    """Everything that is there was written in ten years."""
    later = time.time() + 10 * 365 * 86400
    end = case.start(WIDE)
    assert end.status == 0, end.err
    shutil.rmtree(case.work / 'run')
    for path in case.folder.rglob('*'):
        os.utime(path, (later, later))


def clock_long_ago(case):
    """Everything that is there is from 1970."""
    end = case.start(WIDE)
    assert end.status == 0, end.err
    shutil.rmtree(case.work / 'run')
    for path in case.folder.rglob('*'):
        os.utime(path, (0, 0))


def full_disk(case):
    """A disk with room for a part of what a run writes, or a limit."""
    room = case.rng.choice([0, case.rng.randrange(4000),
                            case.rng.randrange(4_000_000)])
    return _limited(case, case.work, room)


def full_while_it_trains(case):
    """Somebody else takes all the room behind the first step."""
    undo = _limited(case, case.work, 30_000_000)
    if case.prepare:
        undo()
        raise OSError('only root may mount a disk of its own')
    table, filler = case.work / 'run' / 'losses.csv', case.work / 'filler'
    make_room, steps = case.make_room, case.rng.randrange(4)

    def fill():
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if len(table.read_text().splitlines()) > steps:
                    break
            time.sleep(0.001)
        with contextlib.suppress(OSError), open(filler, 'wb',
                                                buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    thread = threading.Thread(target=fill, daemon=True)
    thread.start()

    def make_room_again():
        thread.join()
        filler.unlink()
        make_room()
    case.make_room = make_room_again
    return undo


def full_cache(case):
    case.env.update(own_cache(case.place, case.place.folder()))
    place = Path(case.env['D2LBERT_CACHE'])
    return _limited(case, place, case.rng.randrange(300_000))


def full_temporary_folder(case):
    case.env.update(TMPDIR=str(_temporary(case)), D2LBERT_CACHE='off',
                    XDG_CACHE_HOME=str(case.folder))
    return _limited(case, Path(case.env['TMPDIR']),
                    case.rng.randrange(300_000))


def _limited(case, where, room):
    """Leave so many bytes of room in a folder; returns what undoes it."""
    case.names = str(where), 'run', 'room', 'D2LBERT_CACHE'
    held = where.with_name(where.name + '-held')
    if where.is_dir():
        shutil.copytree(where, held)
    size = room + sum(path.stat().st_size + 4096
                      for path in where.rglob('*'))
    mounted = os.geteuid() == 0 and not subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', f'size={size + 4096}', 'tmpfs',
         str(where)], capture_output=True).returncode
    if mounted:
        shutil.copytree(held, where, dirs_exist_ok=True)

        def make_room():
            subprocess.run(['mount', '-o', 'remount,size=100m', str(where)],
                           check=True)
    else:       # of any file, and everywhere
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

        def make_room():
            case.prepare = None
        case.prepare = limit
    case.make_room = make_room

    def undo():
        if mounted:
            subprocess.run(['umount', '-l', str(where)], check=True)
        shutil.rmtree(held)
    return undo


SCENES = [
    no_home, home_that_cannot_be_written, home_in_chinese, work_in_chinese,
    cache_relative, cache_below_home, cache_of_nobody, cache_off,
    cache_is_a_file, cache_below_a_file, cache_that_cannot_be_written,
    cache_is_empty_text, xdg_relative, temporary_folder_missing,
    temporary_folder_missing_and_cache_off, decimal_comma, ascii_only,
    no_utf8_mode, unknown_locale, without_docstrings, warnings_are_errors,
    no_path, odd_terminal, input_closed, private_umask, generous_umask,
    few_open_files, clock_set_back, clock_long_ago, full_disk, full_disk,
    full_while_it_trains, full_while_it_trains, full_cache,
    full_temporary_folder]
