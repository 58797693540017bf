"""Train a student on the outputs of a teacher, as in DistilBERT.

R: the number of tokens without padding (see `nn.packed`). S: the number of
masked words. H: the number of hidden units. V: the size of the vocabulary.
"""
from d2lbert.kernels import ops
from d2lbert.machine import workers
from d2lbert.machine.backend import autograd, np
from d2lbert.machine.terminal import warn
from d2lbert.nn.packed import MaskedTokens
from d2lbert.nn.steps import shards
from d2lbert.objectives.objective import Objective
from d2lbert.pretrained.families.config import DEFAULTS
from d2lbert.pretrained.families.tensor_names import PARTS


class Distillation(Objective):
    """An objective with a teacher: Sanh et al. 2019, section 3.

    inner: a `TextObjective` on masked words, to which two losses are added.
    `soft` compares the scores of teacher and student for masked words.
    `cosine` compares their last hidden states for all tokens. The settings
    soft_weight and cosine_weight are the factors of these losses; a loss with
    factor 0 is not computed.

    teacher: a `training.teacher.Teacher`. is_new: False for a resumed run,
    which takes no initial weights from the teacher.
    """

    def __init__(self, inner, teacher, is_new=True):
        self.inner, self.teacher = inner, teacher
        self._is_new = is_new
        self.settings = s = inner.settings
        self.corpus, self.vocab = inner.corpus, inner.vocab
        self.fingerprint = inner.fingerprint
        self.unit, self.command = inner.unit, inner.command
        self.Figures, self.plotted = inner.Figures, inner.plotted
        self.num_steps, self.eval_every = inner.num_steps, inner.eval_every
        self.change_causes = inner.change_causes
        self.added_losses = tuple(name for name in ('soft', 'cosine')
                                  if s[f'{name}_weight'])
        self.losses = *inner.losses, *self.added_losses
        # The first loss of `inner` is the MLM loss
        self.weights = (s['mlm_weight'], *inner.weights[1:],
                        *(s[f'{name}_weight'] for name in self.added_losses))

    @property
    def fixed_entries(self):
        return dict(self.inner.fixed_entries, teacher=self.teacher.sha256)

    def net(self, devices):
        net = self.inner.net(devices)
        # Each device computes the teacher's outputs for its part of a batch
        self.teacher.net.collect_params().reset_ctx(devices)
        if self._is_new:
            message = copy_from_teacher(self.inner.model_of(net), self.teacher)
            if workers.rank() == 0:
                warn(message)
        return net

    def batches(self, epoch, start):
        return self.inner.batches(epoch, start)

    def counts(self, batch):
        num_masked = batch.mlm_weights_X.sum()
        num_tokens = batch.valid_lens_x.sum()
        counts = dict(soft=num_masked, cosine=num_tokens)
        return (*self.inner.counts(batch),
                *(counts[name] for name in self.added_losses))

    def shard_losses(self, net, batch, devices):
        return [self._losses_of_shard(net, shard, device)
                for shard, device in shards(batch, devices)]

    def _losses_of_shard(self, net, shard, device):
        teacher, student = self.teacher.net, self.inner.model_of(net)
        with autograd.pause():      # no gradient, and no dropout
            teacher_output = MaskedTokens.of(teacher, shard, device)
            if 'soft' in self.added_losses:
                teacher_scores = teacher.mlm.mlp(teacher_output.masked_X)
        student_output = MaskedTokens.of(student, shard, device)
        losses = self.inner.losses_of(net, student_output)
        if 'soft' in self.added_losses:
            # Not student_output.masked_X, which has the same values: sharing
            # it would change the order in which gradients are summed, and so
            # the last bits of results
            masked_X = student_output.at(student_output.masked_rows)
            loss = soft_loss(
                student.mlm.mlp(masked_X), teacher_scores,
                student_output.weights, self.settings['temperature'])
            losses.append((loss, student_output.count))
        if 'cosine' in self.added_losses:
            losses.append((cosine_loss(student_output.X, teacher_output.X),
                           len(student_output.X)))
        return losses

    def evaluate(self, net, devices):
        return self.inner.evaluate(net, devices)

    def line(self, figures):
        return self.inner.line(figures)

    def config_entries(self, history):
        return dict(self.inner.config_entries(history), teacher=dict(
            folder=str(self.teacher.path), sha256=self.teacher.sha256))

    def summary(self, history, devices):
        return self.inner.summary(history, devices)


def soft_loss(scores, teacher_scores, weights, temperature):
    """T² KL(teacher || student), a weighted mean over masked words: a scalar.

    scores of the student and teacher_scores (S, V) are divided by the
    temperature T before softmax. This divides gradients by about T², hence
    the factor (Hinton et al. 2015, section 2). weights (S,).
    """
    losses = ops.divergence(scores, teacher_scores, temperature)    # (S,)
    # 1e-8: in a shard without masked words, all weights are 0
    return temperature ** 2 * (losses * weights).sum() / (
        weights.sum() + 1e-8)


def cosine_loss(X, teacher_X):
    """The mean over rows of 1 - cosine of X and teacher_X: a scalar.

    X, teacher_X (R, H). 1e-12 is added to the squared norm of each row, as in
    PyTorch's CosineEmbeddingLoss.
    """
    squared_norm_products = ((X * X).sum(axis=1) + 1e-12) * (
        (teacher_X * teacher_X).sum(axis=1) + 1e-12)
    cosines = (X * teacher_X).sum(axis=1) / np.sqrt(squared_norm_products)
    return (1 - cosines).mean()


#: Arguments in which a student may differ from its teacher and still take
#: weights of the teacher.
_MAY_DIFFER = {'num_layers', 'dropout', 'attention_dropout', 'precision',
               'max_len', 'num_segments', 'family', 'heads'}


def copy_from_teacher(net, teacher):
    """Copy weights of a `Teacher` to a net; return a message about them.

    A net of n layers takes the embeddings, the heads, and n of the N layers of
    the teacher: layers k N // n for k = 0, 1, ..., n - 1. Positions, segments
    and heads that the teacher lacks stay random. All weights stay random if
    the net has more layers than the teacher, or if an argument outside
    _MAY_DIFFER differs.
    """
    n, N = net.config['num_layers'], teacher.net.config['num_layers']
    differing = differences(net.config, teacher.net.config)
    if n > N:
        differing.append('num_layers')
    if differing:
        return ('the student starts from random weights, because it differs '
                f'from its teacher {teacher.path} in {", ".join(differing)}')
    layers = [k * N // n for k in range(n)]
    teacher_blks = teacher.net.encoder.blks.up_to(-1)   # of all layers
    for blk, k in zip(net.encoder.blks.up_to(-1), layers):
        _copy_common_params(teacher_blks[k], blk)
    # The blocks are copied above, positions and segments below
    skipped = ['encoder.blks', 'encoder.pos_embedding',
               'encoder.segment_embedding']
    random_head_titles = []
    for attribute, part in (('hidden', 'pooler'), ('nsp', 'nsp')):
        teacher_lacks_head = (getattr(teacher.net, attribute) is None
                              or teacher.net.has_random(part))
        if teacher_lacks_head:
            skipped.append(attribute)
            if getattr(net, attribute) is not None:
                random_head_titles.append(PARTS[part])
    _copy_common_params(teacher.net, net, tuple(skipped))
    if net.config['positional'] == 'learnable':
        _copy_positions(teacher.net.encoder, net.encoder)
    _copy_segments(teacher.net.encoder, net.encoder)
    message = ('the student starts with the embeddings, heads and layers '
               f'{", ".join(map(str, layers))} (of 0 to {N - 1}) of its '
               f'teacher {teacher.path}')
    if random_head_titles:
        message += (', but with random weights in its '
                    f'{" and its ".join(random_head_titles)}, which the '
                    'teacher lacks')
    return message


def differences(config, other_config):
    """The arguments in which two nets differ, except _MAY_DIFFER, sorted."""
    def with_defaults(partial_config):
        full = {**DEFAULTS, **partial_config}
        # One group for each layer means the same as None: no shared weights
        if full['num_groups'] == full['num_layers']:
            full['num_groups'] = None
        return full
    a, b = with_defaults(config), with_defaults(other_config)
    return sorted(name for name in {*a, *b} - _MAY_DIFFER
                  if a.get(name) != b.get(name))


def _copy_common_params(source, target, skipped_prefixes=()):
    """Copy to `target` the parameters whose names both blocks have."""
    source_params = source._collect_params_with_prefix()
    for name, param in target._collect_params_with_prefix().items():
        if name in source_params and not name.startswith(skipped_prefixes):
            param.set_data(_value(source_params[name]))


def _copy_positions(source, target):
    """Copy the embeddings of the positions that both encoders have.

    If only `source` has segments, the embedding of segment 0 is added to each
    position, since `source` adds it to each token of a single text.
    """
    source_positions = _value(source.pos_embedding)
    if (target.segment_embedding is None
            and source.segment_embedding is not None):
        segment_0 = _value(source.segment_embedding.weight)[0]
        source_positions = source_positions + segment_0
    _copy_common_rows(source_positions, target.pos_embedding)


def _copy_segments(source, target):
    if (source.segment_embedding is not None
            and target.segment_embedding is not None):
        _copy_common_rows(_value(source.segment_embedding.weight),
                          target.segment_embedding.weight)


def _copy_common_rows(source_values, param):
    """Copy to a parameter the rows that both arrays have, along axis -2."""
    values = _value(param)
    num_common = min(values.shape[-2], source_values.shape[-2])
    param.set_data(np.concatenate(
        [source_values[..., :num_common, :], values[..., num_common:, :]],
        axis=-2))


def _value(param):
    return param.data(param.list_ctx()[0])
