"""Distillation as in DistilBERT: losses, and the initial weights of a net.

R rows without padding (see `nn.packed`), S masked words, H hiddens, V
vocabulary.
"""
from d2lbert.kernels import ops
from d2lbert.machine import workers
from d2lbert.machine.backend import autograd, np
from d2lbert.machine.terminal import warn
from d2lbert.nn.packed import MaskedTokens
from d2lbert.nn.steps import shards
from d2lbert.objectives.objective import Objective
from d2lbert.pretrained.families.config import DEFAULTS


class Distillation(Objective):
    """Another objective, with a teacher: Sanh et al. 2019, section 3.

    Two losses are added to the losses of `objective`, a `TextObjective` on
    masked words. `soft` compares the scores of teacher and model for masked
    words. `cosine` compares their last hidden states for all tokens. Each
    has a weight in the settings, and is not computed if that is 0.

    teacher: a `training.teacher.Teacher`. is_new: False if the run is
    resumed, so that the net takes no weights of its teacher.
    """

    def __init__(self, objective, teacher, is_new=True):
        self.inner, self.teacher = objective, teacher
        self._is_new = is_new
        self.settings = s = objective.settings
        self.text, self.vocab = objective.text, objective.vocab
        self.fingerprint = objective.fingerprint
        self.unit, self.command = objective.unit, objective.command
        self.Figures, self.plotted = objective.Figures, objective.plotted
        self.num_steps, self.eval_every = (objective.num_steps,
                                           objective.eval_every)
        self.changed = objective.changed
        self.added_losses = tuple(name for name in ('soft', 'cosine')
                                  if s[f'{name}_weight'])
        self.losses = *objective.losses, *self.added_losses
        self.weights = (s['mlm_weight'], *objective.weights[1:],
                        *(s[f'{name}_weight'] for name in self.added_losses))

    @property
    def recorded(self):
        """Entries of a checkpoint that must be equal when it is resumed."""
        return dict(self.inner.recorded, teacher=self.teacher.sha256)

    def net(self, devices):
        """The net, with random weights or the teacher's, on every device."""
        net = self.inner.net(devices)
        self.teacher.net.collect_params().reset_ctx(devices)
        if self._is_new:
            report = take_over(self.inner.model_of(net), self.teacher)
            if workers.rank() == 0:
                warn(report)
        return net

    def batches(self, epoch, start):
        """Yield (position, batch) of an epoch, as the other objective."""
        return self.inner.batches(epoch, start)

    def counts(self, batch):
        """The number of items of each loss; of `cosine` these are tokens."""
        counts = dict(soft=batch.mlm_weights_X.sum(),
                      cosine=batch.valid_lens_x.sum())
        return (*self.inner.counts(batch),
                *(counts[name] for name in self.added_losses))

    def shard_losses(self, net, batch, devices):
        """[(loss, count), ...] of each device, as in `losses`."""
        return [self._losses(net, shard, device)
                for shard, device in shards(batch, devices)]

    def _losses(self, net, shard, device):
        teacher, student = self.teacher.net, self.inner.model_of(net)
        with autograd.pause():      # no gradient, and no dropout
            theirs = MaskedTokens.of(teacher, shard, device)
            if 'soft' in self.added_losses:
                scores = teacher.mlm.mlp(theirs.masked_X)
        ours = MaskedTokens.of(student, shard, device)
        losses = self.inner.losses_of(net, ours)
        if 'soft' in self.added_losses:
            # Of masked words only: all tokens are seven times as many
            losses.append((soft_loss(
                student.mlm.mlp(ours.at(ours.rows)), scores, ours.weights,
                self.settings['temperature']), ours.count))
        if 'cosine' in self.added_losses:
            losses.append((cosine_loss(ours.X, theirs.X), len(ours.X)))
        return losses

    def evaluate(self, net, devices):
        """`Figures` of the held-out text, without the teacher."""
        return self.inner.evaluate(net, devices)

    def line(self, figures):
        """Figures as a line of the log."""
        return self.inner.line(figures)

    def described(self, history):
        """Further entries of config.json: folder and weights of the teacher.
        """
        return dict(self.inner.described(history), teacher=dict(
            folder=str(self.teacher.path), sha256=self.teacher.sha256))

    def summary(self, history, devices):
        """The book's two lines, and the losses of the last steps."""
        return self.inner.summary(history, devices)


def soft_loss(scores, teacher_scores, weights, temperature):
    """T^2 KL(teacher || model), a weighted mean over rows: a scalar.

    scores and teacher_scores (S, V) are both divided by the temperature T
    before softmax. This divides the gradients by T^2, hence the factor
    (Hinton et al. 2015, section 2). weights (S,).
    """
    rows = ops.divergence(scores, teacher_scores, temperature)
    return temperature ** 2 * (rows * weights).sum() / (
        weights.sum() + 1e-8)


def cosine_loss(X, teacher_X):
    """The mean of 1 - cosine between the rows of two (R, H): a scalar.

    As PyTorch's CosineEmbeddingLoss, with 1e-12 under the root.
    """
    squares = ((X * X).sum(axis=1) + 1e-12) * (
        (teacher_X * teacher_X).sum(axis=1) + 1e-12)
    return (1 - (X * teacher_X).sum(axis=1) / np.sqrt(squares)).mean()


#: Arguments that may differ between a teacher and a model with its weights.
_MAY_DIFFER = {'num_layers', 'dropout', 'attention_dropout', 'precision',
               'max_len', 'num_segments', 'family', 'heads'}


def take_over(net, teacher):
    """Give a net the weights of its teacher; returns a sentence about it.

    The net takes the embeddings, the common heads, and n of the N layers of
    the teacher: k N // n for k = 0, 1, ... If the nets differ in anything
    besides depth, length and heads, the net keeps its random weights.
    """
    n, N = (config['num_layers'] for config in (net.config,
                                                teacher.net.config))
    differing = differences(net.config, teacher.net.config)
    if n > N:
        differing.append('num_layers')
    if differing:
        return ('the student starts from random weights, because it differs '
                f'from its teacher {teacher.path} in {", ".join(differing)}')
    layers = [k * N // n for k in range(n)]
    blks = teacher.net.encoder.blks.up_to(-1)
    for blk, k in zip(net.encoder.blks.up_to(-1), layers):
        _copy(blk, blks[k])
    lacks = [{'pooler': 'hidden', 'nsp': 'nsp'}[part]
             for part in ('pooler', 'nsp') if teacher.lacks(part)]
    _copy(net, teacher.net, skipped=('encoder.blks', 'encoder.pos_embedding',
                                     *lacks))
    if net.config['positional'] == 'learnable':
        _copy_positions(net.encoder, teacher.net.encoder)
    return ('the student starts with the embeddings, heads and layers '
            f'{", ".join(map(str, layers))} (of 0 to {N - 1}) of its teacher '
            f'{teacher.path}')


def differences(config, other):
    """Arguments in which two `BERTModel`s differ, without _MAY_DIFFER."""
    def complete(config):
        found = {**DEFAULTS, **config}
        # A group for each layer shares nothing
        if found['num_groups'] == found['num_layers']:
            found['num_groups'] = None
        return found
    config, other = complete(config), complete(other)
    return sorted(name for name in {*config, *other} - _MAY_DIFFER
                  if config.get(name) != other.get(name))


def _copy(block, other, skipped=()):
    """Give a block the values of another's parameters of the same names."""
    theirs = other._collect_params_with_prefix()
    for name, param in block._collect_params_with_prefix().items():
        if name in theirs and not name.startswith(skipped):
            param.set_data(_value(theirs[name]))


def _copy_positions(encoder, other):
    """Give an encoder the first position embeddings of another.

    If only the other has segments, its first segment embedding is added.
    """
    theirs = _value(other.pos_embedding)
    if (encoder.segment_embedding is None
            and other.segment_embedding is not None):
        theirs = theirs + _value(other.segment_embedding.weight)[0]
    rows = _value(encoder.pos_embedding)
    common = min(rows.shape[1], theirs.shape[1])
    encoder.pos_embedding.set_data(np.concatenate(
        [theirs[:, :common], rows[:, common:]], axis=1))


def _value(param):
    return param.data(param.list_ctx()[0])
