"""Next tokens from left to right: losses, gradients, runs, figures."""
import csv
import math

import numpy as onp
import pytest
import reference
import whole_texts
from loops import prepared as prepared_run

import d2lbert as d2l
from d2lbert.corpus.masking import UnmaskedRows
from d2lbert.machine.backend import autograd, np, npx
from d2lbert.objectives.generative import CLM
from d2lbert.pretrained.generation import config_of, continued_ids
from d2lbert.pretrained.heads import FineTuned
from d2lbert.training import pretraining
from d2lbert.training.load import export_run
from d2lbert.training.settings import complete

V, H, N, T = 25, 6, 2, 9
TINY = whole_texts.TINY['clm']


def make_net(num_layers=2, **keywords):
    """A net with the same random weights each time."""
    net = CLM.net_to_train(d2l.BERTModel(
        V, H, 8, N, num_layers, 0.0, max_len=T, causal=True, **keywords))
    net.initialize()
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.4, param.shape)))
    return net


def make_batch(B=5):
    rng = onp.random.RandomState(1)
    return UnmaskedRows(rng.randint(0, V, (B, T)).astype('int32'),
                        rng.randint(2, T + 1, B).astype('float32'))


def expected_losses(params, batch):
    """(losses, hits) of each predicted token, in float64."""
    tokens, lens = batch
    # A query at t attends to the keys 0 to t: `seen` of them
    seen = onp.minimum(onp.arange(1, T + 1), lens[:, None])
    places = onp.tile(onp.arange(T), (len(lens), 1))
    _, scores, _ = reference.bert(params, N, tokens, onp.zeros_like(tokens),
                                  seen, places)
    return list(zip(*[
        (reference.cross_entropy(scores[b, t], tokens[b, t + 1]),
         scores[b, t].argmax() == tokens[b, t + 1])
        for b, n in enumerate(lens) for t in range(int(n) - 1)]))


def loss_of(net, batch):
    ((loss, count),), = CLM.shard_losses(net, batch, [npx.cpu()])
    return loss, count


def test_the_loss_is_the_equations(path):
    net, batch = make_net(), make_batch()
    loss, count = loss_of(net, batch)
    assert (count,) == CLM.counts(batch) == (
        (batch.valid_lens_x - 1).sum(),)
    losses, _ = expected_losses(reference.parameters(net), batch)
    assert float(loss) == pytest.approx(onp.mean(losses), rel=1e-5)


def test_gradients_are_finite_differences(path):
    net, batch = make_net(1), make_batch(3)
    with autograd.record():
        loss, _ = loss_of(net, batch)
    loss.backward()
    params, rng = reference.parameters(net), onp.random.RandomState(2)
    for name, param in net._collect_params_with_prefix().items():
        if param.grad_req == 'null':
            continue
        direction = rng.normal(size=param.shape)
        ends = [onp.mean(expected_losses({**params, name: params[name]
                         + sign * 1e-5 * direction}, batch)[0])
                for sign in (1, -1)]
        found = (param.grad().asnumpy() * direction).sum()
        assert found == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=2e-5,
                                      rel=1e-3), name


@pytest.mark.parametrize('keywords', [
    {}, dict(pre_norm=True), dict(positional='sinusoidal'),
    dict(embedding_size=4, num_groups=1)], ids=str)
def test_a_token_never_sees_what_follows(path, keywords):
    net, tokens = make_net(**keywords), make_batch(2).tokens_X
    for lens in None, onp.array([T, T - 2], 'float32'):
        lens = lens if lens is None else np.array(lens)
        one = net.encoder(tokens, 0 * tokens, lens).asnumpy()
        with d2l.keep_attention(net):   # by Gluon's operators, block by block
            kept = net.encoder(tokens, 0 * tokens, lens).asnumpy()
        onp.testing.assert_allclose(kept[:, :T - 2], one[:, :T - 2],
                                    atol=1e-5)
        for t in range(1, T - 2):
            changed = tokens.copy()
            changed[:, t:] = (changed[:, t:] + 3) % V
            other = net.encoder(changed, 0 * tokens, lens).asnumpy()
            assert (one[:, :t] == other[:, :t]).all()
            assert (one[:, t] != other[:, t]).any()


def test_figures_are_those_of_float64(path):
    net, batches = make_net(), [make_batch(), make_batch(3)]
    params = reference.parameters(net)
    losses, hits = zip(*(expected_losses(params, batch)
                         for batch in batches))
    losses, hits = sum(losses, ()), sum(hits, ())
    found = CLM.figures(net, batches, [npx.cpu(0)])
    assert found.clm_loss == pytest.approx(onp.mean(losses), rel=1e-5)
    assert found.accuracy == pytest.approx(onp.mean(hits))
    assert found.perplexity == pytest.approx(math.exp(onp.mean(losses)),
                                             rel=1e-4)


def test_rows_are_the_text_itself(clm_run):
    one = prepared_run(pretraining._make_objective, complete(TINY), 'cpu')
    _, batch = next(one.objective.batches(0, (0, 0)))
    vocab = one.objective.vocab
    cls, mask, sep = (vocab[name] for name in (
        vocab.special.cls, vocab.special.mask, vocab.special.sep))
    assert (batch.tokens_X[:, 0] == cls).all()
    assert not (batch.tokens_X == mask).any()
    for row, n in zip(batch.tokens_X, batch.valid_lens_x.astype(int)):
        assert row[n - 1] == sep and n <= TINY['max_len']


@pytest.mark.parametrize('given, said', [
    (dict(mask_share=0.2), 'leave mask_share'),
    (dict(whole_word_masking=True, tokenizer='wordpiece'),
     'leave whole_word_masking'),
    (dict(fill_sequences=False), 'fill_sequences=False'),
    (dict(teacher='x'), 'leave teacher'),
    (dict(nsp_weight=2.0), 'no next sentences'),
    (dict(noise='masking'), 'is for objective=denoise')])
def test_settings_that_it_cannot_have_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        complete({'objective': 'clm', **given})


def test_a_net_that_reads_from_left_to_right_guesses_no_masks(clm_run,
                                                              tmp_path):
    net, tokenizer = d2l.load_model(clm_run)
    with pytest.raises(ValueError, match='no trained head for masked words, '
                       'since it predicts next words: choose'):
        d2l.fill_mask(net, tokenizer, 'a [MASK] crane')
    with pytest.raises(ValueError, match='predicts next tokens'):
        d2l.pretrain(tmp_path / 'run', teacher=clm_run, corpus='sample')
    book = d2l.pretrain(tmp_path / 'published', devices='cpu', **dict(
        TINY, architecture='published', tokenizer='wordpiece',
        vocab_size=600, num_steps=1, eval_every=None))
    with pytest.raises(ValueError, match='causal=True'):
        export_run(book, tmp_path / 'folder')
    assert not (tmp_path / 'folder').exists()


@pytest.mark.parametrize('beams', [1, 3])
def test_a_run_continues_a_text(clm_run, beams):
    net, tokenizer = d2l.load_model(clm_run)
    said, = d2l.generate(net, tokenizer, ['a crane'], beams, max_len=12)
    assert said.startswith('a crane') and len(said) > len('a crane')
    assert d2l.generate(net, tokenizer, ['the sea', 'a crane'], beams,
                        max_len=12)[1] == said
    # The search finds what trying all continuations of two tokens finds
    net, how = make_net(), config_of(make_net(), tokenizer)._replace(
        num_beams=V // 2, max_len=4, end_id=3, start_id=2)
    found, = continued_ids(net, [[2, 7, 3]], how)

    def shares(ids):
        _, scores, _ = reference.bert(
            reference.parameters(net), N, [ids], [[0] * len(ids)],
            onp.arange(1, len(ids) + 1)[None], [[len(ids) - 1]])
        scores = scores[0, 0] - scores[0, 0].max()
        return scores - onp.log(onp.exp(scores).sum())
    first = shares([2, 7])
    whole = {(2, 7, 3): first[3] / 2}
    for k in range(V):
        if k != 3:
            for j, share in enumerate(shares([2, 7, k])):
                whole[2, 7, k, j] = (first[k] + share) / 3
    assert tuple(found) == max(whole, key=whole.get)
    how = how._replace(num_beams=1)
    k = int(first.argmax())
    assert continued_ids(net, [[2, 7, 3]], how) == [[2, 7, k] if k == 3 else [
        2, 7, k, int(shares([2, 7, k]).argmax())]]


def test_a_run_continues_no_further_than_it_was_trained(clm_run):
    net, tokenizer = d2l.load_model(clm_run)
    net.mlm.mlp[-1].bias.data()[tokenizer.sep_id] = -1e4
    with pytest.warns(UserWarning, match='1 of 1 texts end at 24 tokens, the '
                                         'length that the model was trained '
                                         'at'):
        said = d2l.generate(net, tokenizer, ['a crane'])
    assert len(tokenizer.encode(said[0]).ids) <= 25


@pytest.mark.parametrize('kind', ['classify', 'tag'])
def test_a_fine_tuned_net_scores_a_text_by_its_last_token(path, kind):
    net = FineTuned(make_net(), kind, 3)
    net.output.initialize()
    tokens, lens = make_batch(3)
    scores = net(tokens, 0 * tokens, lens).asnumpy()
    X = net.encoder(tokens, 0 * tokens, np.array(lens))
    if kind == 'classify':
        X = net.hidden(np.stack([X[b, int(n) - 1]
                                 for b, n in enumerate(lens)]))
    expected = net.output(X).asnumpy()
    for b, n in enumerate(lens.astype(int)):
        end = n if kind == 'tag' else None
        onp.testing.assert_allclose(scores[b][:end], expected[b][:end],
                                    atol=1e-5)


def test_one_picture_compares_it_with_masked_words(clm_run, tmp_path):
    masked = d2l.pretrain(tmp_path / 'masked', devices='cpu', **dict(
        TINY, objective='mlm'))
    fig = d2l.plot_history(masked, clm_run)
    losses, _ = fig.axes
    assert losses.get_title() == 'MLM and CLM loss'
    assert {line.get_label() for line in losses.get_lines()} == {
        f'{name}: {loss}, {what}' for name, loss in (
            ('masked', 'MLM'), ('run', 'CLM'))
        for what in ('mean since step 1', 'held out')}
    for folder, column in (masked, 'mlm'), (clm_run, 'clm'):
        rows = list(csv.DictReader((folder / 'losses.csv').open()))
        line = next(line for line in losses.get_lines() if line.get_label()
                    == f'{folder.name}: {column.upper()}, mean since step 1')
        assert list(line.get_ydata()) == [float(row[column]) for row in rows]
    assert len(d2l.plot_history(clm_run).axes) == 2
    assert d2l.plot_history(clm_run).axes[0].get_title() == 'CLM loss'
