"""Learning from a teacher: its losses, how a student begins, runs."""
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path

import loops
import numpy as onp
import pytest
import reference
from loops import step

import d2lbert as d2l
from d2lbert.__main__ import main
from d2lbert.machine.backend import autograd, np, npx
from d2lbert.objectives.distillation import (
    copy_from_teacher,
    cosine_loss,
    soft_loss,
)
from d2lbert.training import checkpoints, pretraining
from d2lbert.training.evaluation import evaluate_run
from d2lbert.training.saved_runs import RunError
from d2lbert.training.settings import complete
from d2lbert.training.teacher import Teacher

TINY = dict(corpus='sample', batch_size=40, max_len=32, num_steps=4, seed=1)
SIZES = dict(num_hiddens=8, ffn_num_hiddens=12)
#: Losses and gradients of PyTorch, as tests/pretrained/record.py wrote them.
PYTORCH = Path(__file__).with_name('teaching.npz')
ORACLE = """
import numpy as np, torch
from torch.nn import functional as F
T = 2.0
scores, taught, weights, X, Y = (
    torch.tensor(array) for array in np.load('in.npz').values())
scores.requires_grad_(), X.requires_grad_()
real = weights > 0
soft = F.kl_div(F.log_softmax(scores[real] / T, -1),
                F.softmax(taught[real] / T, -1),
                reduction='batchmean') * T ** 2
cosine = torch.nn.CosineEmbeddingLoss()(X, Y, torch.ones(len(X)))
(soft + cosine).backward()
np.savez('out.npz', soft.item(), cosine.item(), scores.grad, X.grad)
"""
OBJECTIVES = ['mlm+nsp', 'mlm+sop', 'mlm', 'span']


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
    """The run of a teacher of four layers, with dropout, which must be off.
    """
    run = d2l.pretrain(**dict(TINY, num_steps=1), **SIZES, num_layers=4,
                       dropout=0.5, devices='cpu',
                       out=tmp_path_factory.mktemp('teacher') / 'run')
    # Weights that say something
    net, _ = d2l.load_run(run)
    redraw(net)
    net.save_parameters(str(run / 'model.params'))
    return run


def redraw(net, seed=3):
    rng = onp.random.RandomState(seed)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.5, param.shape)))


def prepared(teacher, devices='cpu', **keywords):
    """A student before its first step."""
    there = Teacher.load(teacher)
    return loops.prepared(
        functools.partial(pretraining._make_objective, teacher=there),
        there.student_settings(dict(TINY, teacher=str(teacher), **keywords)),
        devices)


# The losses, against float64 and against PyTorch

def log_softmax(X):
    X = X - X.max(axis=1, keepdims=True)
    return X - onp.log(onp.exp(X).sum(axis=1, keepdims=True))


def expected_soft(scores, taught, T):
    log_p, log_q = log_softmax(taught / T), log_softmax(scores / T)
    return T ** 2 * (onp.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()


def expected_cosine(X, Y):
    cosines = [x @ y / onp.sqrt((x @ x) * (y @ y)) for x, y in zip(X, Y)]
    return 1 - onp.mean(cosines)


def drawn(seed=0):
    """Scores, taught ones, weights, hidden states and taught ones."""
    rng = onp.random.RandomState(seed)
    return (*(rng.normal(0, 3, (7, 11)) for _ in range(2)),
            onp.array([1, 1, 0, 1, 1, 0, 1.0]),
            *(rng.normal(0, 1, (9, 5)) for _ in range(2)))


def ours(arrays, T):
    """Both losses and their gradients."""
    scores, taught, weights, X, Y = (np.array(array, dtype='float32')
                                     for array in arrays)
    scores.attach_grad()
    X.attach_grad()
    with autograd.record():
        losses = soft_loss(scores, taught, weights, T), cosine_loss(X, Y)
        total = losses[0] + losses[1]
    total.backward()
    return [float(loss) for loss in losses], [
        array.grad.asnumpy() for array in (scores, X)]


@pytest.mark.parametrize('T', [1.0, 2.0, 5.0])
def test_losses_of_teaching_are_the_equations(T):
    arrays = scores, taught, weights, X, Y = drawn()
    losses, grads = ours(arrays, T)
    real, eps = weights > 0, 1e-6
    assert losses[0] == pytest.approx(
        expected_soft(scores[real], taught[real], T), rel=1e-5)
    assert losses[1] == pytest.approx(expected_cosine(X, Y), rel=1e-5)
    for array, grad, loss in (
            (scores, grads[0],
             lambda: expected_soft(scores[real], taught[real], T)),
            (X, grads[1], lambda: expected_cosine(X, Y))):
        for at in onp.ndindex(*array.shape):
            value, found = array[at], []
            for change in (eps, -eps):
                array[at] = value + change
                found.append(loss())
            array[at] = value
            assert grad[at] == pytest.approx(
                (found[0] - found[1]) / (2 * eps), rel=1e-3, abs=1e-5)


def test_what_a_teacher_and_its_student_agree_on_is_no_loss():
    scores, _, weights, X, _ = drawn()
    losses, grads = ours((scores, scores + 3, weights, X, 2 * X), 2.0)
    assert losses == pytest.approx([0, 0], abs=1e-5)
    assert all(abs(grad).max() < 1e-5 for grad in grads)


def asked_of(python, place):
    """The losses and gradients of PyTorch for `drawn(1)`."""
    onp.savez(place / 'in.npz', *drawn(1))
    subprocess.run([python, '-c', ORACLE], check=True, cwd=place,
                   env=dict(os.environ, PYTHONPATH=''))
    return place / 'out.npz'


def record(python, place):
    """Write `PYTORCH`."""
    shutil.copy(asked_of(python, place), PYTORCH)


def check_losses(path):
    *expected, soft_grad, cosine_grad = onp.load(path).values()
    losses, grads = ours(drawn(1), 2.0)
    onp.testing.assert_allclose(losses, expected, rtol=1e-5)
    onp.testing.assert_allclose(grads[0], soft_grad, atol=1e-6)
    onp.testing.assert_allclose(grads[1], cosine_grad, atol=1e-6)


def test_losses_are_those_of_pytorch():
    check_losses(PYTORCH)


def test_losses_are_those_of_this_pytorch(peers_python, tmp_path):
    check_losses(asked_of(peers_python, tmp_path))


def expected_losses(params, taught, batch, T=2.0):
    """[MLM, cosine over real tokens, soft over hidden words] by float64."""
    B, P = batch.pred_positions_X.shape
    segments = getattr(batch, 'segments_X', onp.zeros_like(batch.tokens_X))
    both = [reference.bert(p, 2, batch.tokens_X, segments, batch.valid_lens_x,
                           batch.pred_positions_X) for p in (params, taught)]
    hidden = batch.mlm_weights_X > 0
    real = onp.arange(batch.tokens_X.shape[1]) < batch.valid_lens_x[:, None]
    (X, scores, _), (taught_X, taught_scores, _) = both
    mlm = onp.mean([reference.cross_entropy(row, label) for row, label in zip(
        scores[hidden], batch.mlm_Y[hidden])])
    return dict(
        mlm=mlm, soft=expected_soft(scores[hidden], taught_scores[hidden], T),
        cosine=expected_cosine(X[real], taught_X[real]))


def small_batch(run):
    batch = next(run.batches())
    return type(batch)(*(column[:3] for column in batch))


@pytest.mark.parametrize('objective', OBJECTIVES)
def test_a_run_has_the_losses_of_its_objective_and_of_teaching(teacher,
                                                               objective):
    run = prepared(teacher, objective=objective, dropout=0.0)
    redraw(run.net, 5)
    batch = small_batch(run)
    with autograd.record():     # where dropout would drop
        (shard,) = run.objective.shard_losses(run.net, batch, [npx.cpu()])
    found = dict(zip(run.objective.losses, (float(loss) for loss, _ in
                                            shard)))
    assert [count for _, count in shard] == list(run.objective.counts(batch))
    own = run.objective.inner
    assert run.objective.losses == (*own.losses, 'soft', 'cosine')
    assert run.objective.weights == (
        (2, 5, 1) if objective == 'mlm' else (2, 1, 5, 1))
    # What it would have lost without a teacher is still among it
    (alone,) = own.shard_losses(run.net, batch, [npx.cpu()])
    for name, (loss, _) in zip(own.losses, alone):
        assert found[name] == pytest.approx(float(loss), rel=1e-5)
    params = reference.parameters(run.net)
    expected = expected_losses(
        reference.under(params, 'bert') or params,
        reference.parameters(run.objective.teacher.net), batch)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name


def test_gradients_are_finite_differences_of_the_weighted_sum(teacher):
    run = prepared(teacher, objective='mlm', dropout=0.0, num_layers=1,
                   soft_weight=3.0, cosine_weight=7.0, temperature=3.0)
    redraw(run.net, 5)
    batch, weights = small_batch(run), dict(mlm=2, soft=3, cosine=7)
    run.updater.gradients(batch)
    params, taught = (reference.parameters(net) for net in (
        run.net, run.objective.teacher.net))
    for name in ('mlm.mlp.2.bias', 'encoder.blks.0.addnorm2.ln.gamma'):
        grad = run.net._collect_params_with_prefix()[name].grad().asnumpy()
        at, eps, found = int(abs(grad).argmax()), 1e-5, []
        value = params[name][at]
        for change in (eps, -eps):
            params[name][at] = value + change
            losses = expected_losses(params, taught, batch, 3.0)
            found.append(sum(weights[k] * losses[k] for k in weights))
        params[name][at] = value
        assert grad[at] == pytest.approx(
            (found[0] - found[1]) / (2 * eps), rel=2e-3), name


@pytest.mark.parametrize('objective', ['mlm+nsp', 'mlm'])
@pytest.mark.parametrize('devices, accumulate', [('cpu:3', 1), ('cpu:2', 2)])
def test_a_batch_in_parts_gives_the_gradients_of_the_whole(
        teacher, objective, devices, accumulate):
    found = []
    for keywords in (dict(devices=devices, accumulate=accumulate), {}):
        run = prepared(teacher, objective=objective, dropout=0.0, **keywords)
        losses = run.updater.totals(run.updater.gradients(next(run.batches())))
        run.updater.trainer.allreduce_grads()
        found.append((losses, {
            name: param.grad(run.devices[0]).asnumpy() for name, param
            in run.net._collect_params_with_prefix().items()
            if param.grad_req != 'null'}))
    parts, whole = found
    onp.testing.assert_allclose(parts[0], whole[0], rtol=1e-5)
    for name, grad in whole[1].items():
        onp.testing.assert_allclose(parts[1][name], grad, rtol=1e-4,
                                    atol=1e-6 * abs(grad).max() + 1e-7,
                                    err_msg=name)


def test_the_teacher_stays_as_it_was(teacher):
    run = prepared(teacher)
    net = run.objective.teacher.net
    before = reference.parameters(net)
    for _ in range(2):
        step(run)
    assert all((value == before[name]).all()
               for name, value in reference.parameters(net).items())
    assert not {id(p) for p in net.collect_params().values()} & {
        id(p) for p in run.net.collect_params().values()}


# How a student begins

def model_messages(capsys):
    """Standard error without lines about the text."""
    lines = capsys.readouterr().err.splitlines(True)
    assert lines[0].startswith(('sample: 403 paragraphs used', 'the student'))
    return ''.join(line for line in lines if not line.startswith('sample: '))


def test_every_second_layer_is_taken_over(teacher, capsys):
    run = prepared(teacher)
    assert run.net.config['num_layers'] == 2
    assert run.net.config['num_hiddens'] == 8
    assert model_messages(capsys) == (
        'the student starts with the embeddings, heads and layers 0, 2 (of 0 '
        f'to 3) of its teacher {teacher}\n')
    ours, theirs = map(reference.parameters, (run.net,
                                              d2l.load_run(teacher)[0]))
    for name, value in ours.items():
        name = name.replace('blks.1', 'blks.2')
        assert (value == theirs[name]).all(), name
    three = prepared(teacher, num_layers=3)
    for k, blk in enumerate(three.net.encoder.blks):
        name = 'attention.W_q.weight'
        assert (reference.parameters(blk)[name] == theirs[
            f'encoder.blks.{(0, 1, 2)[k]}.{name}']).all()


@pytest.mark.parametrize('keywords', [
    dict(), dict(embedding_norm=True, tie_embeddings=True),
    dict(positional='sinusoidal'), dict(embedding_size=3, num_groups=1)])
def test_with_all_layers_it_says_what_its_teacher_says(keywords, tmp_path):
    def make(seed, **more):
        net = d2l.BERTModel(20, 8, 12, 2, 3, 0.1, **{
            **dict(max_len=9), **keywords, **more})
        net.initialize()
        redraw(net, seed)
        return net
    there, inputs = make(1), (
        np.array([[3, 7, 8, 4, 9, 4]]), np.zeros((1, 6), dtype='int32'),
        np.array([6]), np.array([[1, 2]]))
    begun = Teacher(tmp_path, there, None, '')
    nets = [make(2), make(2, max_len=12)]
    if not keywords:
        nets.append(make(2, num_segments=0, heads=('mlm',)))
    for net in nets:
        assert copy_from_teacher(net, begun).endswith(
            f'layers 0, 1, 2 (of 0 to 2) of its teacher {tmp_path}')
        for found, expected in zip(net(*inputs), there(*inputs)):
            if found is not None:
                onp.testing.assert_allclose(found.asnumpy(),
                                            expected.asnumpy(), atol=1e-5)


def test_heads_that_the_teacher_has_not_are_named(tmp_path):
    there, net = (d2l.BERTModel(20, 8, 12, 2, 2, 0.0, max_len=9, heads=heads)
                  for heads in (('mlm', 'pooler'), ('pooler', 'mlm', 'nsp')))
    for one, seed in (there, 1), (net, 2):
        one.initialize()
        redraw(one, seed)
    before = reference.parameters(net)
    said = copy_from_teacher(net, Teacher(tmp_path, there, None, ''))
    assert said.endswith(f'of its teacher {tmp_path}, but with random weights '
                         'in its next sentence head, which the teacher lacks')
    ours, theirs = map(reference.parameters, (net, there))
    for name, old in (('nsp.output.weight', before),
                      ('hidden.weight', theirs), ('mlm.mlp.2.bias', theirs)):
        assert (ours[name] == old[name]).all()


@pytest.mark.parametrize('num_segments', [1, 3])
def test_segments_that_both_nets_have_are_taken_over(num_segments, tmp_path):
    there, net = (d2l.BERTModel(20, 8, 12, 2, 2, 0.0, max_len=9,
                                num_segments=number)
                  for number in (num_segments, 2))
    for one, seed in (there, 1), (net, 2):
        one.initialize()
        redraw(one, seed)
    table = 'encoder.segment_embedding.weight'
    before = reference.parameters(net)[table]
    said = copy_from_teacher(net, Teacher(tmp_path, there, None, ''))
    assert 'layers 0, 1 (of 0 to 1) of' in said
    ours, theirs = map(reference.parameters, (net, there))
    common = min(num_segments, 2)
    assert (ours[table][:common] == theirs[table][:common]).all()
    assert (ours[table][common:] == before[common:]).all()
    inputs = np.array([[3, 7, 8, 4, 9, 4]]), np.zeros((1, 6), dtype='int32')
    for found, expected in zip(net(*inputs), there(*inputs)):
        if found is not None:
            onp.testing.assert_allclose(found.asnumpy(), expected.asnumpy(),
                                        atol=1e-5)


def test_one_that_is_otherwise_begins_anew_and_says_so(teacher, capsys):
    for keywords, said in ((dict(ffn_num_hiddens=6), 'ffn_num_hiddens'),
                           (dict(num_layers=5), 'num_layers'),
                           (dict(share_layers=True), 'num_groups')):
        run = prepared(teacher, **keywords)
        assert model_messages(capsys) == (
            'the student starts from random weights, because it differs '
            f'from its teacher {teacher} in {said}\n')
        alone = loops.prepared(pretraining._make_objective, complete(dict(
            TINY, **{**SIZES, **keywords})))
        for name, value in reference.parameters(alone.net).items():
            if alone.net.config['num_layers'] == run.net.config['num_layers']:
                assert (reference.parameters(run.net)[name] == value).all()


# Runs

@pytest.fixture(scope='module')
def run(teacher, tmp_path_factory):
    """A finished run of a student, with its checkpoints."""
    return d2l.pretrain(**TINY, teacher=teacher, dropout=0.3, eval_every=2,
                        accumulate=2, clip=0.5, save_every=2, devices='cpu',
                        out=tmp_path_factory.mktemp('runs') / 'student')


def unfinished(run, path):
    """A copy of a run of four steps that was stopped behind the second."""
    shutil.copytree(run, path)
    for lost in (checkpoints.all_of(path)[-1], path / 'model.params',
                 path / 'losses.csv'):
        lost.unlink()
    return path


def test_a_resumed_run_is_the_run_that_never_stopped(run, tmp_path, capsys):
    again = unfinished(run, tmp_path / 'again')
    d2l.pretrain(resume=again, devices='cpu')
    assert loops.result(again) == loops.result(run)
    assert 'student' not in capsys.readouterr().err


def test_a_run_says_who_taught_it_and_is_evaluated_without(run, teacher,
                                                           tmp_path):
    config = json.loads((run / 'config.json').read_text())
    assert config['teacher'] == dict(
        folder=str(teacher), sha256=Teacher.load(teacher).sha256)
    assert config['training']['teacher'] == str(teacher)
    header, *rows = (run / 'losses.csv').read_text().splitlines()
    assert 'soft_loss,cosine_loss' in header
    assert (run / 'vocab.txt').read_bytes() == (
        teacher / 'vocab.txt').read_bytes()
    moved = teacher.with_name('away')
    teacher.rename(moved)
    try:
        figures = evaluate_run(run, devices='cpu')
        with pytest.raises(ValueError, match='there is no folder .*run'):
            d2l.pretrain(resume=unfinished(run, tmp_path / 'a'))
        again = unfinished(run, tmp_path / 'b')
        d2l.pretrain(resume=again, teacher=moved, devices='cpu')
        assert (again / 'model.params').read_bytes() == (
            run / 'model.params').read_bytes()
    finally:
        moved.rename(teacher)
    onp.testing.assert_allclose(
        figures, list(map(float, rows[-1].split(',')[-len(figures):])),
        rtol=1e-6)


def test_a_teacher_that_has_changed_is_refused(run, teacher, tmp_path):
    other = tmp_path / 'other'
    shutil.copytree(teacher, other)
    net, _ = d2l.load_run(other)
    redraw(net, 9)
    net.save_parameters(str(other / 'model.params'))
    again = unfinished(run, tmp_path / 'again')
    with pytest.raises(RunError) as caught:
        d2l.pretrain(resume=again, teacher=other, devices='cpu')
    assert str(caught.value) == (
        f'cannot resume: the teacher of {checkpoints.all_of(again)[-1]} has '
        'changed since (its weights are different): restore the original, or '
        'start a new run')
    alone = tmp_path / 'alone'
    d2l.pretrain(**dict(TINY, num_steps=1), **SIZES, save_every=1,
                 devices='cpu', out=alone)
    with pytest.raises(RunError, match='the teacher of .* has changed'):
        d2l.pretrain(resume=alone, num_steps=2, teacher=other, devices='cpu')
    with pytest.raises(RunError, match='the teacher of .* has changed'):
        d2l.pretrain(resume=again, teacher=None, devices='cpu')


def test_what_cannot_teach_is_refused_in_one_sentence(teacher, tmp_path):
    few = tmp_path / 'few.txt'
    few.write_text(''.join(f'{token}\n' for token in (
        '<unk>', '<pad>', '<mask>', '<cls>', '<sep>', 'the')))
    size = len(d2l.load_run(teacher)[1])
    for keywords, said in (
            (dict(vocab=few), f'{size} tokens, .* another vocabulary, of 6'),
            (dict(vocab_size=99),
             f'{size} tokens, .* another vocabulary, of 99'),
            (dict(max_len=1001), 'max_len=1001 is more than the 1000 pos'),
            (dict(tokenizer='wordpiece'),
             'tokenizer words, but the .* tokenizer=word'),
            (dict(num_hiddens=6), 'student has 6, and its teacher .* has 8'),
            (dict(temperature=0), 'temperature must be above 0'),
            (dict(soft_weight=0, cosine_weight=0), 'teacher has no effect'),
            (dict(teacher=tmp_path / 'no'), 'there is no folder')):
        with pytest.raises(ValueError, match=said) as caught:
            d2l.pretrain(**{**TINY, 'teacher': teacher, **keywords},
                         devices='cpu', out=tmp_path / 'out')
        assert '\n' not in str(caught.value)
        assert not (tmp_path / 'out').exists()
    with pytest.raises(ValueError, match='is for runs with a teacher'):
        complete(dict(temperature=3.0))


def test_a_smaller_student_learns_from_the_scores_alone(teacher):
    run = prepared(teacher, num_hiddens=6, cosine_weight=0.0)
    assert run.objective.losses == ('mlm', 'nsp', 'soft')
    assert len(step(run)) == 3


def test_two_workers_make_the_steps_of_one(teacher, tmp_path):
    settings = dict(TINY, teacher=teacher, dropout=0.0, num_steps=2)
    losses = loops.by_one_and_two(settings, tmp_path)
    assert losses[0].shape == (2, 9)
    onp.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A published BERT of word pieces, with random weights."""
    pytest.importorskip('tokenizers')
    made = loops.prepared(pretraining._make_objective, complete(dict(
        TINY, **SIZES, num_layers=2, architecture='published',
        tokenizer='wordpiece', vocab_size=300)))
    redraw(made.net)
    path = tmp_path_factory.mktemp('folder') / 'bert'
    d2l.save_pretrained(made.net, made.net.vocab.tokenizer, path)
    return path


def test_a_folder_teaches_a_distilbert(folder, tmp_path):
    run = d2l.pretrain(**TINY, teacher=folder, architecture='distilbert',
                       objective='mlm', devices='cpu', out=tmp_path / 'run')
    net, tokenizer = d2l.load_pretrained(folder)
    student, _ = d2l.load_run(run)
    assert student.config['num_layers'] == 1
    assert student.config['family'] == 'distilbert'
    assert (run / 'tokenizer.json').read_bytes() == (
        folder / 'tokenizer.json').read_bytes()
    d2l.save_pretrained(student, tokenizer, tmp_path / 'out')
    config = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert config['architectures'] == ['DistilBertForMaskedLM']
    assert config['dim'] == 8 and config['n_layers'] == 1
    # Which can teach in its turn, and be the pattern of what it teaches
    there = Teacher.load(tmp_path / 'out')
    settings = there.student_settings(dict(
        TINY, teacher=str(tmp_path / 'out')))
    assert settings['architecture'] == 'distilbert'
    assert settings['objective'] == 'mlm'
    assert settings['tokenizer'] == 'wordpiece'


def test_heads_that_a_folder_lacks_do_not_change_who_it_is(folder, tmp_path,
                                                           capsys):
    from safetensors.numpy import load_file, save_file
    path = tmp_path / 'bert'
    shutil.copytree(folder, path)
    weights = path / 'model.safetensors'

    def without(*parts):
        save_file({name: tensor for name, tensor in load_file(
            str(weights)).items() if not any(
                part in name for part in parts)}, str(weights),
            {'format': 'pt'})
    without('pooler', 'seq_relationship')
    whole = Teacher.load(folder)
    lacking = [Teacher.load(path) for _ in range(2)]
    assert {teacher.sha256 for teacher in lacking} == {whole.sha256}
    assert lacking[0].net.has_random('nsp')
    assert not whole.net.has_random('nsp')
    capsys.readouterr()
    run = prepared(path, num_layers=2)
    assert model_messages(capsys).endswith(
        f'layers 0, 1 (of 0 to 1) of its teacher {path}, but with random '
        'weights in its pooler and its next sentence head, which the teacher '
        'lacks\n')
    alone = loops.prepared(pretraining._make_objective, complete(dict(
        TINY, **SIZES, num_layers=2, architecture='published',
        tokenizer='wordpiece', vocab=str(folder))))
    for name in ('hidden.weight', 'nsp.output.weight'):
        assert (reference.parameters(run.net)[name]
                == reference.parameters(alone.net)[name]).all()
    without('cls.predictions')
    # Nor is the head of a run with random weights, after an import
    assert main(['import', str(path), str(tmp_path / 'imported')]) == 0
    for teacher in path, tmp_path / 'imported':
        with pytest.raises(ValueError, match='has no head that predicts'):
            Teacher.load(teacher)
