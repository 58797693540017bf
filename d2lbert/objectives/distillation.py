"""Learning from a teacher, as DistilBERT did: losses, and how a net begins.

R rows without padding (see `packing`), S hidden words, H hiddens, V
vocabulary.
"""

from d2lbert.kernels import ops
from d2lbert.machine import workers
from d2lbert.machine.backend import autograd, np
from d2lbert.machine.terminal import warn
from d2lbert.nn.masked_tokens import MaskedTokens
from d2lbert.nn.shards import shards
from d2lbert.pretrained.families.config import DEFAULTS


class Taught:
    """An objective with a teacher: Sanh et al. 2019, section 3.

    To the losses of `objective` come `soft`, what the guesses of the teacher
    for the hidden words say, and `cosine`, the angle between its last hidden
    states and those of the model, over all tokens; each counts by its weight
    in the settings, and one without weight is not computed. All else is that
    of `objective`. teacher: a `training.teaching.Teacher`. begins: whether
    the net begins with what it can take over.
    """

    def __init__(self, objective, teacher, begins=True):
        self._objective, self._begins = objective, begins
        self.teacher = teacher
        s = objective.settings
        self._taught = tuple(name for name in ('soft', 'cosine')
                             if s[f'{name}_weight'])
        self.losses = *objective.losses, *self._taught
        self.weights = (s['mlm_weight'], *objective.weights[1:],
                        *(s[f'{name}_weight'] for name in self._taught))

    def __getattr__(self, name):
        return getattr(self._objective, name)

    def net(self, devices):
        """The net, with new weights or the teacher's, on every device."""
        net = self._objective.net(devices)
        self.teacher.net.collect_params().reset_ctx(devices)
        if self._begins:
            said = begin(self._objective.model_of(net), self.teacher)
            if workers.rank() == 0:
                warn(said)
        return net

    def counts(self, batch):
        """What each loss is a mean over; the last of them, tokens."""
        found = dict(soft=batch.mlm_weights_X.sum(),
                     cosine=batch.valid_lens_x.sum())
        return (*self._objective.counts(batch),
                *(found[name] for name in self._taught))

    def shard_losses(self, net, batch, devices):
        """[(loss, count), ...] of each device, as in `losses`."""
        return [self._losses(net, shard, device)
                for shard, device in shards(batch, devices)]

    def _losses(self, net, shard, device):
        teacher, student = self.teacher.net, self._objective.model_of(net)
        with autograd.pause():      # no gradient, and no dropout
            theirs = MaskedTokens.of(teacher, shard, device)
            if 'soft' in self._taught:
                scores = teacher.mlm.mlp(theirs.masked_X)
        ours = MaskedTokens.of(student, shard, device)
        losses = self._objective.losses_of(net, ours)
        if 'soft' in self._taught:
            # Of hidden words alone: all places would be seven times as many
            losses.append((soft_loss(
                student.mlm.mlp(ours.at(ours.rows)), scores, ours.weights,
                self.settings['temperature']), ours.count))
        if 'cosine' in self._taught:
            losses.append((cosine_loss(ours.X, theirs.X), len(ours.X)))
        return losses

    @property
    def recorded(self):
        """What must be the same in a resumed run, by what it is of."""
        return dict(self._objective.recorded, teacher=self.teacher.sha256)

    def described(self, history):
        """What config.json says besides: who the teacher is."""
        return dict(self._objective.described(history), teacher=dict(
            folder=str(self.teacher.path), sha256=self.teacher.sha256))


def soft_loss(scores, taught, weights, temperature):
    """T^2 KL(teacher || model), a weighted mean over rows: a scalar.

    scores of the model and `taught`, those of the teacher, (S, V), are both
    divided by the temperature T before softmax; T^2 makes up for what that
    takes from the gradients (Hinton et al. 2015, section 2). weights (S,).
    """
    rows = ops.divergence(scores, taught, temperature)
    return temperature ** 2 * (rows * weights).sum() / (
        weights.sum() + 1e-8)


def cosine_loss(X, taught_X):
    """1 - the cosine between rows of two (R, H), the mean: a scalar.

    As PyTorch's CosineEmbeddingLoss has it, with 1e-12 below the root.
    """
    squares = ((X * X).sum(axis=1) + 1e-12) * (
        (taught_X * taught_X).sum(axis=1) + 1e-12)
    return (1 - (X * taught_X).sum(axis=1) / np.sqrt(squares)).mean()


#: In what a model may differ from a teacher whose weights it begins with.
_OWN = {'num_layers', 'dropout', 'attention_dropout', 'precision', 'max_len',
        'num_segments', 'family', 'heads'}


def begin(net, teacher):
    """Let a net begin with weights of its teacher; what was done, in words.

    Embeddings, the heads that both have, and of n layers where the teacher
    has N its layers k N // n for k = 0, 1, ...: every second one where it has
    twice as many. Only where the two differ in nothing else than depth,
    length and heads; any other net stays as it was drawn.
    """
    n, N = (config['num_layers'] for config in (net.config,
                                                teacher.net.config))
    differing = differences(net.config, teacher.net.config)
    if n > N:
        differing.append('num_layers')
    if differing:
        return ('the model begins anew, as it is not like its teacher '
                f'{teacher.path} in {", ".join(differing)}')
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
    return ('the model begins with the embeddings, heads and layers '
            f'{", ".join(map(str, layers))} (of 0 to {N - 1}) of its teacher '
            f'{teacher.path}')


def differences(config, other):
    """The arguments in which two `BERTModel`s differ, but for those in _OWN.
    """
    def said(config):
        found = {**DEFAULTS, **config}
        # As many groups as layers share nothing
        if found['num_groups'] == found['num_layers']:
            found['num_groups'] = None
        return found
    config, other = said(config), said(other)
    return sorted(name for name in {*config, *other} - _OWN
                  if config.get(name) != other.get(name))


def _copy(block, other, skipped=()):
    """Give a block the values of another's parameters of the same names."""
    theirs = other._collect_params_with_prefix()
    for name, param in block._collect_params_with_prefix().items():
        if name in theirs and not name.startswith(skipped):
            param.set_data(_value(theirs[name]))


def _copy_positions(encoder, other):
    """Give an encoder the first positions of another.

    One without segments gets with them what the other adds for the first.
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
