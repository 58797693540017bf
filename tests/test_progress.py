"""Timer, Accumulator and Animator, in notebooks, terminals and scripts."""
import io
import os
import re
import select
import struct
import sys
import types
import warnings
import xml.etree.ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tqdm import tqdm

from d2lbert import Accumulator, Animator, Timer, progress


def test_a_timer_adds_up_what_it_has_measured(monkeypatch):
    clock = iter([0, 10, 11.5, 20, 22])
    monkeypatch.setattr(progress.time, 'perf_counter', lambda: next(clock))
    timer = Timer()
    timer.start()
    assert timer.stop() == 1.5
    timer.start()
    assert timer.stop() == 2
    assert timer.times == [1.5, 2]
    assert (timer.sum(), timer.avg(), timer.cumsum()) == (3.5, 1.75, [1.5,
                                                                      3.5])


def test_an_accumulator_sums_each_variable():
    metric = Accumulator(2)
    metric.add(1, 2.5)
    metric.add(3, 4)
    assert (metric[0], metric[1]) == (4, 6.5)
    metric.reset()
    assert metric.data == [0, 0]


def animate(num_steps=5, end=5):
    animator = Animator(xlabel='step', ylabel='loss', xlim=[1, end],
                        legend=['mlm', 'nsp'])
    for step in range(1, num_steps + 1):
        animator.add(step, (8 - step, 0.7))
    animator.close()
    return animator


class Notebook:
    """A fake IPython for the Animator: displays, and the end of a cell."""

    def __init__(self):
        self.shown, self.updates, self.callbacks = [], [], []
        self.kernel = self.events = self

    def display(self, picture, display_id=None):
        assert display_id is True
        self.shown.append(picture.data)
        return types.SimpleNamespace(
            update=lambda picture: self.updates.append(picture.data))

    def register(self, event, callback):
        assert event == 'post_run_cell'
        self.callbacks.append(callback)

    def unregister(self, event, callback):
        self.callbacks.remove(callback)

    def end_cell(self):
        for callback in list(self.callbacks):
            callback('the result of the cell')


@pytest.fixture
def notebook(monkeypatch):
    pytest.importorskip('IPython')
    import IPython.display
    notebook = Notebook()
    monkeypatch.setattr('IPython.get_ipython', lambda: notebook)
    monkeypatch.setattr(IPython.display, 'display', notebook.display)
    return notebook


def test_a_notebook_shows_one_figure_and_redraws_it(notebook, capfd):
    animate()
    assert len(notebook.shown) == 1 and notebook.updates
    for svg in (*notebook.shown, *notebook.updates):
        root = xml.etree.ElementTree.fromstring(svg)
        assert root.tag == '{http://www.w3.org/2000/svg}svg'
    assert capfd.readouterr() == ('', '')


def test_the_end_of_a_cell_draws_what_is_not_drawn_yet(notebook, monkeypatch):
    # Time does not pass, so only the first picture is due
    monkeypatch.setattr(progress.time, 'perf_counter', lambda: 0)
    animate(num_steps=4, end=99)
    assert (len(notebook.shown), len(notebook.updates)) == (1, 0)
    notebook.end_cell()
    assert len(notebook.updates) == 1 and not notebook.callbacks
    notebook.end_cell()
    assert len(notebook.updates) == 1


def test_drawing_takes_a_small_part_of_the_time(notebook, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, 'perf_counter', lambda: clock[0])

    def svg(animator):
        clock[0] += 0.05
        return '<svg xmlns="http://www.w3.org/2000/svg"/>'
    monkeypatch.setattr(Animator, 'svg', svg)
    animator = Animator(xlim=[1, 1000])
    for step in range(1, 1000):
        clock[0] += 0.01
        animator.add(step, 1)
    pictures = 1 + len(notebook.updates)
    assert 10 < pictures and pictures * 0.05 < 0.1 * clock[0]
    animator.add(1000, 1)       # the end is always shown
    assert len(notebook.updates) == pictures


def test_an_ipython_terminal_is_no_notebook(notebook):
    assert progress.in_notebook()
    del notebook.kernel
    assert not progress.in_notebook()


def test_a_script_whose_output_goes_to_a_file_shows_nothing(capfd):
    animate()
    assert capfd.readouterr() == ('', '')


@pytest.fixture
def clock(monkeypatch):
    """A clock that shows its first element, which a test raises."""
    now = [0.0]
    monkeypatch.setattr(progress.time, 'perf_counter', lambda: now[0])
    return now


def test_a_log_file_gets_a_line_every_few_seconds(clock, capfd):
    animator = Animator(xlabel='step', xlim=[1, 100], legend=['mlm', 'nsp'])
    animator.begin('training 7 parameters')
    for step in range(1, 8):
        clock[0] += 2
        animator.add(step, (8 - step, 0.7))
    animator.close()
    assert capfd.readouterr() == ('', (
        'training 7 parameters\n'
        'step 3/100: mlm 5.000, nsp 0.700, 3 min left\n'
        'step 6/100: mlm 2.000, nsp 0.700, 3 min left\n'))


@pytest.mark.parametrize('parts', [3, 7, 50, 1073])
def test_parts_of_an_epoch_are_shown_with_two_digits(clock, capfd, parts):
    animator = Animator(xlabel='epoch', xlim=[1, 2])
    for part in range(1, 2 * parts + 1):
        clock[0] += 10 ** 4
        animator.move(part / parts)
    lines = capfd.readouterr().err.splitlines()
    seen = [re.fullmatch(r'epoch (\d\.\d\d?)/2(: .* left)?', line).group(1)
            for line in lines]
    assert animator.X is None and len(seen) > parts / 4
    assert set(map(float, seen)) <= {round(part / parts, 2)
                                     for part in range(1, 2 * parts + 1)}


def test_each_line_is_flushed(clock, monkeypatch):
    read, write = os.pipe()
    with os.fdopen(write, 'w') as stderr:       # which Python would buffer
        monkeypatch.setattr(sys, 'stderr', stderr)
        animator = Animator(xlim=[1, 9])
        animator.begin('a loop')
        assert os.read(read, 100) == b'a loop\n'
        clock[0] += 6
        animator.add(1, 3)
        assert os.read(read, 100) == b'it 1/9: 48 s left\n'
    os.close(read)


def test_lines_grow_rare_in_long_loops(clock, capfd):
    animator = Animator(xlabel='step', xlim=[1, 10 ** 6])
    for step in range(1, 40000):
        clock[0] += 1
        animator.add(step, 1)
    seen = [int(line.split()[1].split('/')[0].replace(',', ''))
            for line in capfd.readouterr().err.splitlines()]
    gaps = [b - a for a, b in zip(seen, seen[1:])]
    assert gaps[:90] == [5] * 90 and gaps == sorted(gaps)
    assert 380 <= gaps[-1] <= 400


def test_a_resumed_loop_estimates_from_its_own_steps(clock, capfd):
    animator = Animator(xlabel='step', xlim=[1, 100])
    for step in range(1, 81):
        animator.add(step, 1)
    animator.begin('going on')
    clock[0] += 10
    animator.add(81, 1)
    assert capfd.readouterr().err == ('going on\n'
                                      'step 81/100: 3 min left\n')


def test_quiet_shows_nothing(clock, capfd, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True
    for stderr in (sys.stderr, Terminal()):
        monkeypatch.setattr(sys, 'stderr', stderr)
        animator = Animator(xlim=[1, 9], quiet=True)
        animator.begin('a loop')
        clock[0] += 10
        animator.add(1, 3)
        animator.close()
    assert stderr.getvalue() == '' and capfd.readouterr() == ('', '')
    assert animator.Y == [[3]]


def test_a_bar_serves_any_long_work(clock, capfd):
    with progress.bar(2_500_000, 'reading', 'B', unit_scale=True) as bar:
        bar.update(500_000)
        clock[0] += 5
        bar.update(500_000)
        assert bar.n == 1_000_000
    with progress.bar(what='encoding', unit='texts') as bar:
        clock[0] += 4
        bar.update(3)
        clock[0] += 4
        bar.update(1200)
    assert capfd.readouterr().err == ('reading 1.00M/2.50M B: 8 s left\n'
                                      'encoding 1,203 texts\n')


def test_the_speed_of_a_resumed_loop_is_of_its_new_steps(monkeypatch):
    now = [100.0]
    tqdm_bar = tqdm(total=100, file=io.StringIO(), mininterval=0)
    tqdm_bar._time = lambda: now[0]
    monkeypatch.setattr(progress, 'bar', lambda *_, **__: tqdm_bar)
    animator = Animator(xlabel='step', xlim=[1, 100], legend=['loss'])
    animator.add(90, [2.0])     # before the loop was resumed
    animator.begin('training')
    for step in range(91, 96):
        now[0] += 2
        animator.add(step, [1.0])
    assert tqdm_bar.n == 95
    assert tqdm_bar.format_dict['rate'] == pytest.approx(0.5)
    assert tqdm_bar.format_dict['elapsed'] == 10


def test_an_iterable_can_be_watched(clock, capfd):
    def batches():
        for i in range(3):
            clock[0] += 4
            yield i
    assert list(progress.with_progress(
        batches(), 'evaluating', 'batches')) == [0, 1, 2]
    assert capfd.readouterr().err == 'evaluating 2 batches\n'


def test_nothing_fails_without_a_standard_error(clock, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', None)
    with progress.bar(3, 'reading') as bar:
        clock[0] += 9
        bar.update()


@pytest.mark.parametrize('seconds, words', [
    (0.4, '0 s'), (59, '59 s'), (59.7, '1 min'), (61, '1 min'),
    (3599, '1 h 0 min'), (11100, '3 h 5 min')])
def test_times_are_given_in_words(seconds, words):
    assert progress._duration(seconds) == words


def test_a_terminal_shows_a_bar_with_both_losses(monkeypatch, capfd):
    fcntl = pytest.importorskip('fcntl', reason='no terminals here')
    import termios
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('4H', 24, 80, 0, 0))
    with os.fdopen(slave, 'w') as terminal:
        monkeypatch.setattr(sys, 'stderr', terminal)
        animate()
        shown = b''
        while (not shown.endswith(b'\n')
               and select.select([master], [], [], 10)[0]):
            shown += os.read(master, 1 << 16)
    os.close(master)
    last = shown.decode().rstrip().split('\r')[-1]
    assert '5/5' in last and 'mlm 3.000, nsp 0.700' in last
    assert capfd.readouterr() == ('', '')


def test_a_line_is_printed_above_the_bar(monkeypatch):
    fcntl = pytest.importorskip('fcntl', reason='no terminals here')
    import termios
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('4H', 24, 80, 0, 0))
    with os.fdopen(slave, 'w') as terminal:
        monkeypatch.setattr(sys, 'stderr', terminal)
        monkeypatch.setattr(sys, 'stdout', terminal)
        animator = Animator(xlim=[1, 5], legend=['mlm'])
        animator.add(1, 3)
        animator.print_line('hello')
        terminal.flush()
        shown = ''
        while '\n' not in shown and select.select([master], [], [], 10)[0]:
            shown += os.read(master, 1 << 16).decode()
        animator.close()
    os.close(master)
    assert re.search(r'\r *\rhello\r\n', shown)


def test_points_may_come_as_numbers_or_lists_and_with_gaps():
    animator = Animator()
    animator.add(1, 5)
    assert (animator.X, animator.Y) == ([[1]], [[5]])
    animator = Animator()
    animator.add([1, 1.5], (5, 6))
    animator.add(2, (None, 7))
    assert (animator.X, animator.Y) == ([[1], [1.5, 2]], [[5], [6, 7]])


@pytest.mark.parametrize('shown', ['bar', 'figure'])
def test_a_gap_may_be_in_x(shown, request):
    if shown == 'figure':
        request.getfixturevalue('notebook')
    animator = Animator(xlim=[1, 4], legend=['a', 'b'])
    animator.begin('')
    animator.add([1, None], [2, 3])
    animator.add([None, None], [2, 3])
    animator.add([None, 2], [4, 5])
    animator.close()
    assert (animator.X, animator.Y) == ([[1], [2]], [[2], [5]])


def test_a_line_may_begin_after_the_others():
    animator = Animator(legend=['mlm', 'nsp', 'held-out mlm'])
    animator.add(1, (8, 0.7))
    animator.add(1, (None, None, 9))
    animator.add(2, (7, 0.6))
    axes, = animator.draw().axes
    assert [line.get_xydata().tolist() for line in axes.get_lines()] == [
        [[1, 8], [2, 7]], [[1, 0.7], [2, 0.6]], [[1, 9]]]


def test_the_legend_names_the_curves_that_have_a_point():
    animator = Animator(legend=['mlm', 'nsp', 'held-out mlm'])
    animator.add(1, (8, None, 9))
    axes, = animator.draw().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        'mlm', 'held-out mlm']
    assert Animator(legend=['mlm']).draw().axes[0].get_legend() is None


def test_a_legend_of_more_than_two_curves_is_below_the_axes():
    animator = Animator(legend=['a', 'b', 'c'], xlim=[1, 2])
    animator.add(1, (1, 2, 3))
    animator.add(2, (3, 1, 2))
    fig = animator.draw()
    FigureCanvasAgg(fig).draw()
    axes, = fig.axes
    legend = axes.get_legend().get_window_extent()
    assert legend.y1 < axes.get_window_extent().y0
    assert legend.y0 >= 0


def test_a_line_of_one_point_is_seen():
    animator = Animator(legend=['mlm', 'nsp'], xlim=[1, 60])
    animator.add(30, (8, 0.7))
    animator.add(60, (7, None))
    both, one = animator.draw().axes[0].get_lines()
    assert one.get_xydata().tolist() == [[30, 0.7]]
    # A line of one point is invisible without a marker
    assert (both.get_marker(), one.get_marker()) == ('None', 'o')
    assert one.get_markersize() > 2


def test_the_figure_holds_every_line_and_setting():
    animator = Animator(xlabel='step', ylabel='loss', xlim=[1, 5],
                        ylim=[0.5, 9], yscale='log', legend=['mlm', 'nsp'])
    animator.add(1, (8, 0.7))
    animator.add(2, (7, 0.6))
    axes, = animator.draw().axes
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [
        [8, 7], [0.7, 0.6]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        'mlm', 'nsp']
    assert (axes.get_xlabel(), axes.get_ylabel()) == ('step', 'loss')
    assert (axes.get_xlim(), axes.get_ylim()) == ((1, 5), (0.5, 9))
    assert axes.get_yscale() == 'log'


@pytest.mark.parametrize('num_steps, end', [(0, 5), (1, 1)])
def test_no_point_and_one_point_can_be_drawn(num_steps, end, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        animate(num_steps, end).save(tmp_path / 'losses.png')


@pytest.mark.parametrize('name, start', [
    ('losses.png', b'\x89PNG'), ('losses.svg', b'<?xml'),
    ('losses.pdf', b'%PDF')])
def test_the_picture_is_saved_in_the_format_of_its_name(name, start,
                                                        tmp_path):
    animate().save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert os.listdir(tmp_path) == [name]


def test_a_picture_that_cannot_be_saved_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match='xyz'):
        animate().save(tmp_path / 'losses.xyz')
    assert os.listdir(tmp_path) == []


def test_an_interrupted_save_keeps_the_old_picture(tmp_path,
                                                         monkeypatch):
    def full(figure, path, **_):
        path.write_bytes(b'half')
        raise OSError(28, 'No space left on device')
    animator, path = animate(), tmp_path / 'losses.png'
    animator.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(type(animator.fig), 'savefig', full)
    with pytest.raises(OSError):
        animator.save(path)
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_bytes() == before


def test_a_bar_in_a_notebook_is_below_the_cell(notebook, monkeypatch, capfd):
    clock = iter(range(100))
    monkeypatch.setattr(progress.time, 'perf_counter', lambda: next(clock))
    with progress.bar(20, 'a < b', 'texts', quiet=False) as bar:
        bar.update(1)       # after a second
        assert not notebook.shown
        for _ in range(5):
            bar.update(3)
    (shown,), updates = notebook.shown, notebook.updates
    assert 'value="4" max="20"' in shown and 'a &lt; b 4/20' in shown
    assert 'value="16"' in updates[-2] and updates[-1] == ''
    assert capfd.readouterr() == ('', '')
