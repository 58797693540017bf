"""Sense accuracy against loops, over checkpoints, and as a figure."""
import numpy as onp
import pytest
import sentences

import d2lbert as d2l
from d2lbert.kernels import int8
from d2lbert.nn.precision import set_precision
from d2lbert.pictures import sample_texts
from d2lbert.pictures import senses as pictures
from d2lbert.training import checkpoints

TINY = dict(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, seed=1, devices='cpu')


@pytest.fixture(scope='module')
def small():
    tokenizer = sentences.whole_words()
    net = sentences.build_net(len(tokenizer), max_len=80)
    net.vocab = tokenizer.vocab
    return net


def test_each_labelled_word_has_its_forms_and_two_senses():
    labelled = sample_texts.labelled_words()
    assert len(labelled) == 32
    for word, uses in labelled.items():
        assert len({use.sense for use in uses}) == 2
        forms = {use.sentence[use.begin:use.end].lower() for use in uses}
        assert forms <= {word, f'{word}s', f'{word}es', 'mice'}
        assert len(uses) >= 30
    assert {'mouse', 'mice'} == {use.sentence[use.begin:use.end].lower()
                                 for use in labelled['mouse']}


def test_accuracy_equals_loops_over_encode(small):
    found = d2l.sense_accuracy(small, ['crane', 'Bank'])
    assert found.words == ['crane', 'bank'] and found.rates.shape == (3, 2)
    tokenizer = sentences.whole_words()
    for k, word in enumerate(found.words):
        uses = sample_texts.labelled_words()[word]
        senses = [use.sense for use in uses]
        assert found.counts[k] == len(uses)
        assert found.chances[k] == max(map(senses.count, senses)) / len(uses)
        for layer in range(3):
            rows = d2l.encode(small, tokenizer, [use.sentence for use
                                                 in uses], None, layer)
            X = [row[1 + use.sentence[:use.begin].count(' ')].astype(float)
                 for row, use in zip(rows, uses)]
            hits = 0
            for i, use in enumerate(uses):
                cosines = {j: X[i] @ X[j] / onp.linalg.norm(X[i])
                           / onp.linalg.norm(X[j])
                           for j, other in enumerate(uses)
                           if other.sentence != use.sentence}
                best = [j for j in cosines
                        if cosines[j] > max(cosines.values()) - 1e-9]
                hits += sum(senses[j] == use.sense for j in best) / len(best)
            assert found.rates[layer, k] == pytest.approx(hits / len(uses))
    assert found.mean_rates == pytest.approx(
        found.rates @ found.counts / found.counts.sum())


def test_planted_senses_separate_and_equal_vectors_do_not():
    rng = onp.random.RandomState(0)
    senses = onp.array(['x', 'y', 'y', 'x', 'y'])
    apart = ~onp.eye(5, dtype=bool)
    planted = onp.where(senses == 'x', 1, -1)[:, None] + rng.normal(
        0, 0.1, (5, 6))
    assert pictures._nearest_accuracy(planted, senses, apart) == 1
    # Four others, of which one (of an x) or two (of a y) have its sense
    equal = onp.tile(rng.normal(size=6).astype('float32'), (5, 1))
    agreeing = pictures._nearest_accuracy(equal, senses, apart)
    assert agreeing == pytest.approx((2 * 1 / 4 + 3 * 2 / 4) / 5)
    # Uses in one sentence are not compared; the two x share one
    apart[0, 3] = apart[3, 0] = False
    assert pictures._nearest_accuracy(planted, senses, apart) == 3 / 5


@pytest.mark.parametrize('settings', [
    {}, dict(objective='span'), dict(average=0.9, architecture='published')])
def test_a_report_has_each_checkpoint_and_the_last_is_the_model(settings,
                                                           tmp_path):
    run = d2l.pretrain(**TINY, **settings, num_steps=3, save_every=1, keep=0,
                       out=tmp_path / 'run')
    report = pictures.sense_report(run, ['crane', 'bark'])
    assert list(report.steps) == [1, 2, 3] and report.name == 'run'
    onp.testing.assert_array_equal(report.steps[3].rates,
                                   report.accuracy.rates)
    net, _ = d2l.load_run(run)
    before = {name: param.data().asnumpy() for name, param
              in net._collect_params_with_prefix().items()}
    assert checkpoints.load_weights(checkpoints.all_of(run)[0], net) == 1
    assert any((before[name] != param.data().asnumpy()).any() for name, param
               in net._collect_params_with_prefix().items())
    other = sentences.build_net(30)
    with pytest.raises(checkpoints.CheckpointError, match='another model'):
        checkpoints.load_weights(checkpoints.all_of(run)[0], other)


def test_each_checkpoint_is_quantized_for_itself(tmp_path):
    if int8.library() is None:
        pytest.skip(int8.INT8.reason or 'D2LBERT_KERNELS is off')
    run = d2l.pretrain(**TINY, num_steps=3, save_every=1, keep=0, lr=0.1,
                       architecture='published', out=tmp_path / 'run')
    report = pictures.sense_report(run, ['crane', 'bark'], 'int8')
    for path, found in zip(checkpoints.all_of(run), report.steps.values()):
        net, _ = d2l.load_run(run)
        checkpoints.load_weights(path, net)
        wanted = d2l.sense_accuracy(set_precision(net, 'int8'),
                                    ['crane', 'bark'])
        onp.testing.assert_array_equal(found.rates, wanted.rates)
    assert (report.steps[1].rates != report.steps[3].rates).any()


def test_lines_differ_without_colours_and_chance_has_a_line(small):
    one = pictures.SenseReport(
        'one', d2l.sense_accuracy(small, 'crane'), {})
    other = one._replace(name='other', steps={5: one.accuracy,
                                              10: one.accuracy})
    assert len(pictures.plot_reports([one]).axes) == 1
    assert len(pictures.plot_reports([one] * 7).axes) == 1   # markers repeat
    layers, steps = pictures.plot_reports([one, other]).axes
    for axes in layers, steps:
        assert all(line.get_visible() for line in axes.get_xgridlines())
    lines = layers.get_lines()
    assert [line.get_label() for line in lines] == ['one', 'other', 'chance']
    assert len({(line.get_marker(), line.get_linestyle())
                for line in lines[:2]}) == 2
    onp.testing.assert_array_equal(lines[0].get_ydata(),
                                   one.accuracy.rates[:, 0])
    line, chance = steps.get_lines()
    assert list(line.get_xdata()) == [5, 10]
    assert set(line.get_ydata()) == {one.accuracy.rates[-1, 0]}
    assert chance.get_ydata()[0] == one.accuracy.chances[0]
    assert steps.get_xscale() == 'linear'


def test_a_short_run_is_visible_beside_a_long_one(small):
    found = d2l.sense_accuracy(small, 'crane')
    runs = [pictures.SenseReport(
        name, found, {step: found for step in steps})
            for name, steps in (('short', (10, 50)), ('long', (500, 4000)))]
    figure = pictures.plot_reports(runs)
    layers, steps = figure.axes
    assert (layers.get_xscale(), steps.get_xscale()) == ('linear', 'log')
    # Below both panels, where it covers no curve
    legend = layers.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        'short', 'long', 'chance']
    figure.draw_without_rendering()
    below = min(label.get_window_extent().y0 for ax in figure.axes
                for label in (ax.xaxis.label, *ax.get_xticklabels()))
    assert 0 <= legend.get_window_extent().y0
    assert legend.get_window_extent().y1 <= below


def test_a_word_without_labelled_senses_is_refused(small):
    with pytest.raises(ValueError, match="no labelled senses of 'heron', "
                       '.*: choose from bank'):
        d2l.sense_accuracy(small, ['crane', 'heron'])
    with pytest.raises(ValueError, match='words is empty'):
        d2l.sense_accuracy(small, [])


@pytest.mark.parametrize('max_len', [2, 3])
def test_a_model_of_few_positions_is_refused(max_len):
    # <cls> and <sep> take two positions. One sentence begins with a seal
    tokenizer = sentences.whole_words()
    net = sentences.build_net(len(tokenizer), max_len=max_len)
    with pytest.raises(ValueError, match="'seal' is in fewer than two "
                       f'sentences of .* cut at {max_len} tokens'):
        d2l.sense_accuracy(net, 'seal', tokenizer=tokenizer)
