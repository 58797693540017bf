"""Figures for notebooks: of attention, of senses and of a history."""
import pickle

import numpy as onp
import pytest
import sentences

import d2lbert as d2l
from d2lbert.nn.steps import History
from d2lbert.pictures import sample_texts
from d2lbert.pictures.activations import attention_of

WORDS = 'a grey crane flies over the old river'.split()


@pytest.fixture(scope='module')
def small():
    tokenizer = sentences.whole_words()
    net = sentences.build_net(len(tokenizer), max_len=300)
    net.vocab = tokenizer.vocab
    return net, tokenizer


def drawn(fig):
    """Lay the figure out; return the renderer that measures its texts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    return canvas.get_renderer()


def check_labels(fig):
    renderer = drawn(fig)
    whole = fig.get_window_extent(renderer)
    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            boxes = [tick.label1.get_window_extent(renderer) for tick
                     in axis.get_major_ticks()
                     if tick.label1.get_visible() and tick.label1.get_text()
                     and low <= tick.get_loc() <= high]
            for one, other in zip(boxes, boxes[1:]):
                assert not one.overlaps(other)
            for box in boxes:
                assert whole.x0 - 1 <= box.x0 and box.x1 <= whole.x1 + 1
                assert whole.y0 - 1 <= box.y0 and box.y1 <= whole.y1 + 1


def check_legends(fig):
    """Each legend is in the figure and covers no panel."""
    renderer = drawn(fig)
    whole = fig.get_window_extent(renderer)
    for ax in fig.axes:
        box = ax.get_legend().get_window_extent(renderer)
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 + 1
        assert whole.y0 <= box.y0 + 1
        assert not any(box.overlaps(other.get_window_extent(renderer))
                       for other in fig.axes)


@pytest.mark.parametrize('words, choices', [
    (WORDS, {}), (WORDS * 30, dict(layers=2, heads=1)),
    (WORDS, dict(figsize=(3, 3)))])
def test_names_of_tokens_do_not_overlap(words, choices, small):
    check_labels(d2l.plot_attention(small[0], words, **choices))


def test_panels_show_the_weights_of_their_head(small):
    net, tokenizer = small
    one = tokenizer.encode('a crane flies', 'it is old')
    weights = attention_of(net, one.ids, one.segments)
    for fig in (d2l.plot_attention(net, ['a', 'crane', 'flies'],
                                   ['it', 'is', 'old'], layers=[2],
                                   heads=[2, 1]),
                d2l.plot_attention(net, 'a crane flies', 'it is old',
                                   tokenizer=tokenizer,
                                   layers=onp.int64(2),
                                   heads=[2.0, 1])):
        shown = [ax.get_images()[0] for ax in fig.axes[:2]]
        for image, head in zip(shown, (1, 0)):
            onp.testing.assert_allclose(image.get_array(), weights[1, head],
                                        atol=1e-6)
            # One scale: white for nothing, black for the largest shown
            assert image.get_clim() == pytest.approx(
                (0, weights[1, :2].max()), rel=1e-5)
        # Grey already, and darker for more
        greys = onp.array([image.to_rgba(x)[:3] for x in
                           onp.linspace(0, image.get_clim()[1], 9)])
        assert (greys.std(axis=1) < 0.01).all()
        assert (onp.diff(greys.mean(axis=1)) < 0).all()
    hidden = d2l.plot_attention(net, ['a', 'crane'], hide_special=True)
    assert hidden.axes[0].get_images()[0].get_array().shape == (2, 2)


@pytest.mark.parametrize('arguments, choices, said', [
    (['a crane'], {}, 'must be a list of tokens'),
    ([['a'], 'a crane'], {}, "tokens_b must .* give 'a crane'.split.., or"),
    ([['a']], dict(layers=[]), 'layers is empty: give some from 1 to 2'),
    ([['a']], dict(layers=3), 'layers must be 1 to 2, not 3'),
    ([['a']], dict(layers=1.5), 'layers must be 1 to 2, not 1.5'),
    ([['a']], dict(heads=0), 'heads must be 1 to 2, not 0'),
    ([[]], dict(hide_special=True), 'only special tokens')])
def test_invalid_arguments_of_attention_are_refused(arguments, choices, said,
                                                    small):
    with pytest.raises((ValueError, TypeError), match=said):
        d2l.plot_attention(small[0], *arguments, **choices)


@pytest.mark.parametrize('layer, wanted', [
    (-1, [2]), ([0, 2], [0, 2]), (onp.int64(1), [1]), ([1.0], [1])])
def test_points_of_senses_are_the_components_of_their_layer(layer, wanted,
                                                            small):
    net, tokenizer = small
    fig = d2l.plot_senses(net, 'Crane', layer=layer)
    uses = sample_texts.labelled_uses('crane')
    names = [use.sense for use in uses]
    assert [text.get_text() for text in fig.axes[0].get_legend().get_texts()
            ] == sorted(set(names))
    for ax, number in zip(fig.axes, wanted):
        shown = {line.get_label(): line.get_xydata() for line in
                 ax.get_lines()}
        found = onp.empty((len(uses), 2))
        for name, points in shown.items():
            found[[sense == name for sense in names]] = points
        rows = d2l.encode(net, tokenizer, [use.sentence for use in uses],
                          None, number)
        X = onp.array([row[1 + use.sentence[:use.begin].count(' ')]
                       for row, use in zip(rows, uses)], 'float64')
        X -= X.mean(axis=0)
        # Rotated or mirrored at most: all dot products are equal
        best = X @ onp.linalg.eigh(X.T @ X)[1][:, -2:]
        onp.testing.assert_allclose(found @ found.T, best @ best.T,
                                    atol=1e-4 * onp.abs(X @ X.T).max())


def test_labels_of_senses_do_not_overlap_and_senses_differ_in_shape(small):
    those = [f'{a} crane {b}' for a in WORDS for b in WORDS]
    fig = d2l.plot_senses(small[0], 'crane', those,
                          senses=['bird', 'machine', '$x$', 'y'] * 16)
    renderer = drawn(fig)
    ax, = fig.axes
    boxes = [text.get_window_extent(renderer) for text in ax.texts]
    assert 3 < len(boxes) < len(those)
    for k, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:k])
        corners = one.get_points()
        for line in ax.get_lines():
            at = ax.transData.transform(line.get_xydata())
            assert not ((corners[0] < at) & (at < corners[1])).all(1).any()
    looks = [(line.get_marker(), line.get_markerfacecolor() == 'none')
             for line in ax.get_lines()]
    assert len({marker for marker, _ in looks}) == len(looks) == 4
    assert [hollow for _, hollow in looks] == [False, True] * 2
    assert not d2l.plot_senses(small[0], 'crane', those,
                               label=False).axes[0].texts


@pytest.mark.parametrize('arguments, choices, said', [
    (['xyz'], {}, 'no labelled senses of'), ([' '], {}, 'must be a word'),
    (['crane', 'a crane'], {}, 'must be a list of strings'),
    (['crane', ['a crane']], dict(senses=[]), '0 senses for 1 sentences'),
    (['crane', iter(['a crane'])], dict(senses=iter('ab')), '2 senses for 1'),
    (['crane', ['a crane', 'an old crane']], {}, "2 uses of 'crane' are"),
    (['crane'], dict(layer=3), r'must be -3 to 2 \(0: .* last\), not'),
    (['crane'], dict(layer=0.5), 'layer must be -3 to 2 .*, not 0.5'),
    (['crane'], dict(layer=[]), 'layer is empty')])
def test_invalid_arguments_of_senses_are_refused(arguments, choices, said,
                                                 small):
    with pytest.raises((ValueError, TypeError), match=said):
        d2l.plot_senses(small[0], *arguments, **choices)
    with pytest.raises(ValueError, match='no vocabulary'):
        d2l.plot_senses(sentences.build_net(30), 'crane')


def test_the_history_of_a_folder_and_of_a_result_is_drawn(run):
    fig = d2l.plot_history(run)
    check_labels(fig)
    mlm, nsp, rates = fig.axes
    lines = {line.get_label(): line for line in mlm.get_lines()}
    assert set(lines) == {'each step', 'mean since step 1', 'held out'}
    rows = [line.split(',') for line in (run / 'losses.csv').read_text()
            .splitlines()]
    mean = [float(row[rows[0].index('mlm')]) for row in rows[1:]]
    assert list(lines['mean since step 1'].get_ydata()) == mean
    assert list(lines['held out'].get_xdata()) == [3, 6]
    assert {line.get_label() for line in rates.get_lines()} == {
        'mlm accuracy', 'known accuracy', 'nsp accuracy'}
    both = d2l.plot_history(run, run)
    check_legends(fig)
    check_legends(both)
    styles = {line.get_linestyle() for line in both.axes[0].get_lines()
              if 'mean' in line.get_label()}
    assert len(styles) == 2     # they differ without colours
    check_labels(both)

    history = History()
    history.step, history.mlm_loss, history.nsp_loss = [1, 2], [3, 2], [1, 1]
    history.mlm, history.nsp = [3, 2.5], [1, 1]
    found = d2l.plot_history(history).axes[0].get_lines()
    assert [list(line.get_ydata()) for line in found] == [[3, 2], [3, 2.5]]


def test_the_history_of_fine_tuning_has_its_held_out_loss(tuned):
    fig = d2l.plot_history(tuned)
    check_labels(fig)
    check_legends(fig)
    task, rates = fig.axes
    assert task.get_title() == 'task loss'
    lines = {line.get_label(): line for line in task.get_lines()}
    assert set(lines) == {'each step', 'mean since step 1', 'held out'}
    history = d2l.read_history(tuned)
    is_held_out = history['held_out_loss'] > 0
    for axis, name in (('x', 'step'), ('y', 'held_out_loss')):
        found = getattr(lines['held out'], f'get_{axis}data')()
        assert list(found) == list(history[name][is_held_out])
    assert list(lines['held out'].get_xdata()) == [4, 8]
    assert [line.get_label() for line in rates.get_lines()] == ['accuracy']


def test_a_run_without_steps_is_refused_and_one_step_is_visible(run, tmp_path):
    begun = tmp_path / 'begun'
    begun.mkdir()
    (begun / 'losses.csv').write_text('step,mlm_loss,nsp_loss,mlm,nsp\n')
    (begun / 'config.json').write_text('{}')
    for runs in ((run, begun), (begun, run), (begun,)):
        with pytest.raises(ValueError, match='begun has no finite loss'):
            d2l.plot_history(*runs)
    with open(begun / 'losses.csv', 'a') as file:
        file.write('60,3.5,0.7,4.5,0.75\n')
    for fig, shown in ((d2l.plot_history(begun), [3.5, 4.5]),
                       (d2l.plot_history(run, begun), [4.5])):
        one = [line for line in fig.axes[0].get_lines()
               if list(line.get_xdata()) == [60]]
        assert [line.get_ydata()[0] for line in one] == shown
        assert all(line.get_marker() == 'o' for line in one)


def test_a_folder_without_a_history_is_refused(tmp_path):
    with pytest.raises(ValueError, match='is not a run folder'):
        d2l.plot_history(tmp_path)


def test_a_notebook_shows_figures_without_matplotlib_inline(small, tmp_path):
    formatters = pytest.importorskip('IPython.core.formatters')
    net = small[0]
    for fig in (d2l.plot_attention(net, ['a', 'crane']),
                d2l.plot_senses(net, 'crane', ['a crane', 'the crane flies',
                                               'old crane is'])):
        shown, _ = formatters.DisplayFormatter().format(fig)
        assert shown['image/png'].startswith(b'\x89PNG')
        again = pickle.loads(pickle.dumps(fig))
        assert len(again.axes) == len(fig.axes)


def test_histories_without_a_finite_mean_have_no_curve():
    history = History(('mlm',))
    history.step, history.mlm_loss, history.mlm = [1], [1.0], [float('nan')]
    ax, = d2l.plot_history(history, history).axes
    assert not ax.get_lines() and ax.get_legend() is None
