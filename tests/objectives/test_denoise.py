"""Noisy texts restored: losses, gradients, runs, figures, folders."""

import numpy as onp
import pytest
import reference
import whole_texts

import d2lbert as d2l
from d2lbert.corpus.masking import NoisyRows
from d2lbert.machine.backend import autograd, np, npx
from d2lbert.machine.terminal import TextWarning
from d2lbert.objectives.generative import NOISE_SHARE, Denoise
from d2lbert.pretrained.families.bart import teacher_forced_states
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.load import export_run, import_run
from d2lbert.training.settings import complete

V, H, T = 25, 6, 9
TINY = whole_texts.TINY['denoise']


def make_net(**keywords):
    """A net whose weights are drawn anew, the same each time."""
    net = d2l.BARTModel(**{**dict(
        vocab_size=V, num_hiddens=H, ffn_num_hiddens=8, num_heads=2,
        num_layers=2, dropout=0.0, max_len=T, decoder_layers=1,
        decoder_heads=3, decoder_ffn=7, scale_embedding=True), **keywords})
    net.initialize()
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.4, param.shape)))
    return net


def make_batch(B=5):
    rng = onp.random.RandomState(1)
    return NoisyRows(rng.randint(0, V, (B, T)).astype('int32'),
                  rng.randint(1, T + 1, B).astype('float32'),
                  rng.randint(0, V, (B, T)).astype('int32'),
                  rng.randint(1, T + 1, B).astype('float32'))


def embedded(params, part, tokens):
    """Tokens (B, T) as the part of a BART sees them, in float64."""
    own = reference.under(params, part)
    words = params['encoder.token_embedding.weight'][tokens] * H ** 0.5
    return reference.layer_norm(
        reference.under(own, 'embedding_norm'),
        words + own['pos_embedding'][:, :tokens.shape[1]])


def expected_scores(params, batch):
    """Scores (B, T, V) of what was there, in float64."""
    lens = batch.valid_lens_x
    X = embedded(params, 'encoder', batch.tokens_X)
    for i in range(2):
        X = reference.encoder_block(
            reference.under(params, f'encoder.blks.{i}'), 2, X, lens,
            reference.gelu)
    before = onp.concatenate([onp.full((len(lens), 1), 2),
                              batch.targets_Y[:, :-1]], axis=1)
    Y = embedded(params, 'decoder', before)
    seen = onp.tile(onp.arange(1, T + 1), (len(lens), 1))
    blk = reference.under(params, 'decoder.blks.0')

    def added(k, Y, Z):
        return reference.layer_norm(reference.under(blk, f'addnorm{k}.ln'),
                                    Y + Z)
    for k, keys, counts in (1, Y, seen), (2, X, lens):
        Y = added(k, Y, reference.multi_head(
            reference.under(blk, f'attention{k}'), 3, Y, keys, keys,
            counts))
    Y = added(3, Y, reference.ffn(reference.under(blk, 'ffn'), Y,
                                  reference.gelu))
    return (Y @ params['encoder.token_embedding.weight'].T
            + params['mlm.mlp.0.bias'])


def expected_loss(params, batch):
    scores = expected_scores(params, batch)
    return onp.mean([
        reference.cross_entropy(scores[b, t], batch.targets_Y[b, t])
        for b, n in enumerate(batch.target_lens_y) for t in range(int(n))])


def loss_of(net, batch):
    ((loss, count),), = Denoise.shard_losses(net, batch, [npx.cpu()])
    return loss, count


def test_the_loss_is_the_equations(path):
    net, batch = make_net(), make_batch()
    loss, count = loss_of(net, batch)
    assert (count,) == Denoise.counts(batch) == (
        batch.target_lens_y.sum(),)
    assert float(loss) == pytest.approx(
        expected_loss(reference.parameters(net), batch), rel=1e-5)


def test_gradients_are_finite_differences(path):
    net, batch = make_net(), make_batch()
    with autograd.record():
        loss, _ = loss_of(net, batch)
    loss.backward()
    params, rng = reference.parameters(net), onp.random.RandomState(2)
    shared = 'encoder.token_embedding.weight'
    for name, param in net._collect_params_with_prefix().items():
        if param.grad_req == 'null' or (
                name != shared and param is net.encoder.token_embedding.weight
        ):
            continue
        direction = rng.normal(size=param.shape)
        ends = [expected_loss({**params, name: params[name]
                               + sign * 1e-5 * direction}, batch)
                for sign in (1, -1)]
        found = (param.grad().asnumpy() * direction).sum()
        assert found == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=2e-5,
                                      rel=1e-3), name


def test_a_word_never_sees_itself_nor_what_follows():
    net, batch = make_net(), make_batch(1)
    text = np.array(batch.tokens_X, dtype='int32')
    for t in range(T):
        targets = batch.targets_Y.copy()
        one = teacher_forced_states(net, text, None, targets).asnumpy()
        targets[0, t:] = (targets[0, t:] + 3) % V
        other = teacher_forced_states(net, text, None, targets).asnumpy()
        assert (one[0, :t + 1] == other[0, :t + 1]).all()
        assert t + 1 == T or (one[0, t + 1:] != other[0, t + 1:]).any()


def test_figures_are_those_of_float64(path):
    net, batches = make_net(), [make_batch(), make_batch(3)]
    params, losses, hits = reference.parameters(net), [], 0
    for batch in batches:
        scores = expected_scores(params, batch)
        for b, n in enumerate(batch.target_lens_y):
            for t in range(int(n)):
                label = batch.targets_Y[b, t]
                losses.append(reference.cross_entropy(scores[b, t], label))
                hits += scores[b, t].argmax() == label
    found = Denoise.figures(net, batches, [npx.cpu(0), npx.cpu(1)][:1])
    assert found.denoise_loss == pytest.approx(onp.mean(losses), rel=1e-5)
    assert found.accuracy == pytest.approx(hits / len(losses))
    assert found.perplexity == pytest.approx(onp.exp(onp.mean(losses)),
                                             rel=1e-4)


@pytest.mark.parametrize('given, said', [
    (dict(architecture='book'), 'needs architecture=published'),
    (dict(fill_sequences=False), 'fill_sequences=False'),
    (dict(noise='salt'), 'noise must be'),
    (dict(mask_share=0), 'mask_share'), (dict(pre_norm=True), 'pre_norm'),
    (dict(objective='mlm', noise='masking'), 'is for objective=denoise')])
def test_settings_that_it_cannot_have_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        complete({'objective': 'denoise', **given})
    assert complete(dict(objective='denoise'))['mask_share'] == NOISE_SHARE


def test_it_teaches_nobody(denoise_run, tmp_path):
    with pytest.raises(ValueError, match='is a BART, and students have'):
        d2l.pretrain(tmp_path / 'run', teacher=denoise_run, corpus='sample')
    with pytest.raises(ValueError, match='needs teacher=None'):
        complete(dict(objective='denoise', teacher=str(denoise_run)))


def test_a_run_generates_no_more_than_it_was_trained_on(denoise_run, tmp_path):
    net, tokenizer = d2l.load_model(denoise_run)
    # A net that never ends a text, as one that has learnt little
    net.mlm.mlp[-1].bias.data()[tokenizer.sep_id] = -1e4
    export_run(denoise_run, tmp_path / 'folder')
    exported, _ = d2l.load_pretrained(tmp_path / 'folder')
    exported.mlm.mlp[-1].bias.data()[tokenizer.sep_id] = -1e4
    long = 'the sea ' * 30
    with pytest.warns(TextWarning) as warned:
        d2l.generate(net, tokenizer, ['a crane', long])
    assert [str(one.message) for one in warned] == [
        '1 of 2 texts have more than 24 tokens and were cut',
        '2 of 2 texts end at 24 tokens, the length that the model was '
        'trained at']
    for beams in 1, 2:
        found = [d2l.generate(one, tokenizer, ['a crane', long], beams)
                 for one in (net, exported)]
        assert found[0][0] == found[1][0]
        # The start token and the last one are no words of the text
        assert [len(text.split()) for text in found[0]] == [23, 23]
    # What is asked for is done
    with pytest.warns(TextWarning, match='trained on 24 tokens at most: the '
                                         'vectors of later positions'):
        said, = d2l.generate(net, tokenizer, ['a crane'], max_len=40)
    assert len(said.split()) == 38
    # Of an imported model the length of its training is not known
    import_run(tmp_path / 'folder', tmp_path / 'again')
    assert d2l.load_model(tmp_path / 'again')[0].trained_len is None


def test_a_run_leaves_as_a_folder_and_comes_back(denoise_run, tmp_path):
    export_run(denoise_run, tmp_path / 'folder')
    net, tokenizer = d2l.load_pretrained(tmp_path / 'folder')
    assert net.pretrained.differences == ()
    own, _ = d2l.load_run(denoise_run)
    for name, param in own._collect_params_with_prefix().items():
        assert (net._collect_params_with_prefix()[name].data().asnumpy()
                == param.data().asnumpy()).all()
    texts = ['the sea is [MASK]', 'a crane']
    said = d2l.generate(net, tokenizer, texts, num_beams=2, max_len=9)
    assert said == d2l.generate(*d2l.load_model(denoise_run), texts,
                                num_beams=2, max_len=9)
    import_run(tmp_path / 'folder', tmp_path / 'again')
    assert evaluate_run(tmp_path / 'again', 'sample', 'cpu').accuracy >= 0
