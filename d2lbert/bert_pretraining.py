"""The book's page "Pretraining BERT": shards, losses, loop, encodings."""
import functools
import math
from pathlib import Path

import numpy as onp

from d2lbert import kernels
from d2lbert.bert import get_tokens_and_segments
from d2lbert.bert_dataset import Batch
from d2lbert.devices import wait_for_step_before
from d2lbert.kernels import draw
from d2lbert.machine.backend import autograd, gluon
from d2lbert.machine.files import new_run_folder, write_text
from d2lbert.nn.checks import check_labels, check_whole, on_device
from d2lbert.nn.layers import cross_entropy, is_ours
from d2lbert.nn.packed import at_real_places
from d2lbert.progress import Accumulator, Animator, Timer, in_notebook
from d2lbert.text import special_of


def _get_batch_bert(batch, ctx):
    """Spread the seven fields of a batch over the devices in `ctx`.

    Returns a list of shards for each field. A batch smaller than the number
    of devices leaves the last devices without a shard.
    """
    (tokens_X, segments_X, valid_lens_x, pred_positions_X, mlm_weights_X,
     mlm_Y, nsp_y) = batch
    ctx = ctx[:len(tokens_X)]

    def shards(X, dtype=None):
        X = on_device(X, ctx[0], dtype)
        return gluon.utils.split_and_load(X, ctx, even_split=False)
    return Batch(shards(tokens_X), shards(segments_X),
                 shards(valid_lens_x, 'float32'), shards(pred_positions_X),
                 shards(mlm_weights_X), shards(mlm_Y), shards(nsp_y))


def _get_batch_loss_bert(net, loss, vocab_size, tokens_X_shards,
                         segments_X_shards, valid_lens_x_shards,
                         pred_positions_X_shards, mlm_weights_X_shards,
                         mlm_Y_shards, nsp_y_shards):
    """The losses of every shard: three lists of scalars, MLM, NSP and sum.

    The MLM loss is the mean over predictions whose weight is not zero, the
    NSP loss the mean over examples. Waits for the step before, not for this.
    """
    wait_for_step_before()
    mlm_ls, nsp_ls, ls = [], [], []
    for shard in map(Batch, tokens_X_shards, segments_X_shards,
                     valid_lens_x_shards, pred_positions_X_shards,
                     mlm_weights_X_shards, mlm_Y_shards, nsp_y_shards):
        check_labels(net, vocab_size, shard.mlm_Y, shard.nsp_y)
        hidden = None
        if is_ours(net) and _is_the_books(loss):
            hidden = _hidden_words(shard)
        mlm_l, nsp_l = (_page_losses(net, loss, vocab_size, *shard)
                        if hidden is None else
                        _real_losses(net, hidden, shard))
        mlm_ls.append(mlm_l)
        nsp_ls.append(nsp_l)
        ls.append(mlm_l + nsp_l)
    return mlm_ls, nsp_ls, ls


def _hidden_words(shard):
    """Where words are to be predicted: example, column, place, on the host.

    None where there are none, or one in the padding.
    """
    example, column = onp.nonzero(shard.mlm_weights_X.asnumpy())
    check_whole(shard.pred_positions_X, 'prediction position')
    place = shard.pred_positions_X.asnumpy()[example, column]
    lens = shard.valid_lens_x.asnumpy().reshape(-1)
    if not len(place) or (place < 0).any() or (place >= lens[example]).any():
        return None
    return example, column, place


def _page_losses(net, loss, vocab_size, tokens_X, segments_X, valid_lens_x,
                 pred_positions_X, mlm_weights_X, mlm_Y, nsp_y):
    """Both losses of one shard as the page writes them, for any net."""
    _, mlm_Y_hat, nsp_Y_hat = net(tokens_X, segments_X,
                                  valid_lens_x.reshape(-1), pred_positions_X)
    mlm_l = loss(mlm_Y_hat.reshape((-1, vocab_size)), mlm_Y.reshape(-1),
                 mlm_weights_X.reshape((-1, 1)))
    mlm_l = mlm_l.sum() / (mlm_weights_X.sum() + 1e-8)
    return mlm_l, loss(nsp_Y_hat, nsp_y).mean()


def _real_losses(net, hidden, shard):
    """Both losses of one shard, with nothing computed on padding."""
    example, column, place = hidden
    masked_X, _, nsp_Y_hat = at_real_places(
        net, shard.tokens_X, shard.segments_X, shard.valid_lens_x,
        at=(example, place))

    def put(A, dtype='int32'):
        return on_device(A[example, column], masked_X.ctx, dtype)
    mlm_l = net.mlm.loss(masked_X, put(shard.mlm_Y.asnumpy()),
                         put(shard.mlm_weights_X.asnumpy(), 'float32'))
    return mlm_l, cross_entropy(nsp_Y_hat, shard.nsp_y.asnumpy())


def _is_the_books(loss):
    """Whether this is cross-entropy as `SoftmaxCELoss()` has it."""
    return (type(loss) is gluon.loss.SoftmaxCrossEntropyLoss
            and (loss._axis, loss._sparse_label, loss._from_logits,
                 loss._weight, loss._batch_axis) == (-1, True, False, None,
                                                     0))


def train_step(batch, net, loss, vocab_size, devices, trainer):
    """One step of training; returns the MLM and NSP losses of each device.

    The losses stay on their devices: reading them waits for the step.
    """
    shards = _get_batch_bert(batch, devices)
    with autograd.record():
        mlm_ls, nsp_ls, ls = _get_batch_loss_bert(net, loss, vocab_size,
                                                  *shards)
    autograd.backward(ls)
    if len(ls) < len(devices):
        no_gradient(net, devices[len(ls):])
    trainer.step(1)
    return mlm_ls, nsp_ls


def no_gradient(net, devices, like=None):
    """Give devices that got no shard a gradient of zero for this step.

    like: a device that got one; what has no gradient there gets none here.
    """
    for param in net.collect_params().values():
        if param.grad_req != 'null' and (
                like is None or param.data(like)._fresh_grad):
            for device in devices:
                param.grad(device)[:] = 0
                # Gluon refuses to step on gradients it takes for forgotten
                param.data(device)._fresh_grad = True


class History:
    """What a training loop saw: a list entry for each step that it logged.

    losses: their names. `mlm` and `nsp` are means of the losses since step
    1, which is what the book draws and prints; `mlm_loss` and `nsp_loss`
    those of the step itself.
    """

    def __init__(self, losses=('mlm', 'nsp')):
        self.losses = tuple(losses)
        self.columns = ('step', *(f'{name}_loss' for name in losses),
                        *losses)
        for name in self.columns:
            setattr(self, name, [])
        # Each loss, number of sentence pairs, number of steps
        self.sums, self.seconds = Accumulator(len(losses) + 2), 0.0
        self._waiting = []

    def add(self, read, num_pairs):
        """Count a step; `read()` waits for its losses, so not yet."""
        self._waiting.append((read, num_pairs))

    def read_losses(self, waiting=0):
        """Wait for the devices and read losses, but for the last `waiting`.
        """
        while len(self._waiting) > waiting:
            read, num_pairs = self._waiting.pop(0)
            self._last = read()
            self.sums.add(*self._last, num_pairs, 1)

    def log(self, step):
        """Settle, and make an entry for `step`, which is the last one."""
        self.read_losses()
        entry = (step, *self._last, *self.means)
        for name, value in zip(self.columns, entry):
            getattr(self, name).append(value)

    @property
    def num_steps(self):
        """How many steps were taken."""
        return int(self.sums[-1]) + len(self._waiting)

    @property
    def means(self):
        """The losses, means over all steps that were read."""
        return tuple(self.sums[k] / self.sums[-1]
                     for k in range(len(self.losses)))

    @property
    def pairs_per_sec(self):
        """Sentence pairs trained on in a second."""
        return self.sums[-2] / self.seconds

    def save_csv(self, path):
        """Write a row for each logged step; the same run, the same bytes."""
        lines = [','.join(self.columns)]
        lines += [','.join(map(repr, row)) for row in zip(
            *(getattr(self, name) for name in self.columns))]
        write_text(path, '\n'.join(lines) + '\n')

    def __repr__(self):
        if not self.step:
            return '<History of 0 steps>'
        means = ', '.join(f'{name} {getattr(self, name)[-1]:.3f}'
                          for name in self.losses)
        return f'<History of {self.num_steps} steps: {means}>'

    def _ipython_display_(self):
        """Show nothing below a cell that ends with the call, as the book."""


def run_steps(steps, is_over, log_interval, history, animator,
              after=None, about=None):
    """Take from `steps` those that `history` lacks, until `is_over()`.

    `steps` yields (read, number of pairs) as `History.add` takes them;
    `after(step)` is called behind each, and `about(number of pairs)` once,
    behind the first, for a line on what is trained. The last step is logged,
    whatever its number. Draws with `animator`.
    """
    # Before the clock starts: compiling takes longer than many steps
    kernels.load()
    draw.DRAW.get()
    timer = Timer()
    try:
        while not is_over():
            timer.start()
            read, num_pairs = next(steps)
            history.add(read, num_pairs)
            step = history.num_steps
            if about is not None and not animator.begun:
                animator.begin(about(num_pairs))
            if step % log_interval == 0 or is_over():
                history.log(step)       # waits for the devices
            history.seconds += timer.stop()
            if is_over() and history.step[-1:] != [step]:
                history.log(step)       # the time of the run is up just now
            if history.step[-1:] == [step]:
                animator.add(step, history.means)
            if after is not None:
                after(step)
        history.read_losses()
    finally:
        animator.close()


def summary(history, devices, unit='sentence pairs'):
    """The book's two lines about a loop that has ended."""
    losses = ', '.join(f'{name.upper()} loss {mean:.3f}'
                       for name, mean in zip(history.losses, history.means))
    return (f'{losses}\n'
            f'{history.pairs_per_sec:.1f} {unit}/sec on {devices}')


def train_bert(train_iter, net, loss, vocab_size, ctx=None, *args,
               devices=None, log_interval=None, num_steps=None,
               learning_rate=None, optimizer='adam', out=None):
    """Pretrain `net` for `num_steps` steps on batches of `train_iter`.

    Takes both orders of the book: `(..., ctx, log_interval, num_steps)` of
    the first edition, with a learning rate of 0.001, and
    `(..., devices, num_steps)` of the later ones, with 0.01. Draws both
    losses every `log_interval` steps, prints the book's two lines, binds the
    vocabulary of `train_iter` to the net and returns a `History`. In a
    notebook the losses are a figure; in a script a progress bar, or lines
    where standard error is no terminal, and at the end losses.png and
    losses.csv in the folder `out` (runs/<date-time>).
    """
    devices, log_interval, num_steps, learning_rate = _book_arguments(
        ctx, args, devices, log_interval, num_steps, learning_rate)
    net.vocab = vocabulary_of(train_iter) or getattr(net, 'vocab', None)
    trainer = gluon.Trainer(net.collect_params(), optimizer,
                            {'learning_rate': learning_rate})

    def steps():
        for batch in _forever(train_iter):
            mlm_ls, nsp_ls = train_step(batch, net, loss, vocab_size,
                                        devices, trainer)
            yield functools.partial(_means, mlm_ls, nsp_ls), len(batch[0])
    history = History()
    animator = Animator(xlabel='step', ylabel='loss', xlim=[1, num_steps],
                        legend=['mlm', 'nsp'])
    run_steps(steps(), lambda: history.num_steps >= num_steps, log_interval,
              history, animator, about=functools.partial(
                  about, net, f'{num_steps} steps', devices))
    if out is not None or not in_notebook():
        out = Path(out) if out is not None else new_run_folder()
        out.mkdir(parents=True, exist_ok=True)
        animator.save(out / 'losses.png')
        history.save_csv(out / 'losses.csv')
    print(summary(history, devices))
    return history


def about(net, length, devices, batch_size, unit='sentence pairs'):
    """What is trained, in a line; length: for how long, as '50 steps'."""
    return (f'training {num_parameters(net):,} parameters: {length} of '
            f'{batch_size} {unit} on {devices}')


def num_parameters(net):
    """How many numbers a net learns."""
    return sum(math.prod(param.shape)
               for param in net.collect_params().values())


def _book_arguments(ctx, args, devices, log_interval, num_steps,
                    learning_rate):
    """Tell the two argument orders of the book apart, and check values."""
    if ctx is not None and devices is not None:
        raise TypeError('give the devices once, as ctx or as devices')
    devices = devices if ctx is None else ctx
    if len(args) == 2:
        given = dict(log_interval=args[0], num_steps=args[1])
    elif len(args) == 1:
        given = dict(num_steps=args[0])
    elif not args:
        given = {}
    else:
        raise TypeError('after the devices come log_interval and num_steps, '
                        f'or num_steps alone, not {len(args)} arguments')
    for name, value in (('log_interval', log_interval),
                        ('num_steps', num_steps)):
        if value is not None:
            if name in given:
                raise TypeError(f'{name} was given twice')
            given[name] = value
    if learning_rate is None:
        learning_rate = 1e-3 if 'log_interval' in given else 1e-2
    given.setdefault('log_interval', 1)
    if not devices:
        raise ValueError('train_bert needs a list of at least one device, '
                         'as try_all_gpus() gives')
    for name in ('log_interval', 'num_steps'):
        value = given.get(name)
        if value is None or int(value) != value or value < 1:
            raise ValueError(f'{name} must be a whole number of at least 1, '
                             f'not {value}')
    return (list(devices), given['log_interval'], given['num_steps'],
            learning_rate)


def _forever(batches):
    """The batches of one epoch after another, without end."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError('train_iter gave no batch: the corpus has too '
                             'few sentence pairs')


def _means(*losses_of_devices):
    """The mean over devices of each list of losses; waits for them."""
    return [sum(map(float, losses)) / len(losses)
            for losses in losses_of_devices]


def vocabulary_of(batches):
    """The vocabulary of an iterator over batches, or None."""
    for owner in (batches, getattr(batches, 'dataset', None),
                  getattr(batches, '_dataset', None)):
        vocab = getattr(owner, 'vocab', None)
        if vocab is not None:
            return vocab
    return None


def get_bert_encoding(net, tokens_a, tokens_b=None, vocab=None):
    """Encode one text, or a pair, given as lists of tokens: (1, T, H).

    T counts <cls> and each <sep>. The vocabulary is the net's own, bound by
    `train_bert` and `load_run`, unless `vocab` is given; tokens that it does
    not have count as <unk>. Nothing is recorded for gradients, and dropout
    is off. Raises TypeError for a text that is not a list of strings.
    """
    vocab = getattr(net, 'vocab', None) if vocab is None else vocab
    if vocab is None:
        raise ValueError('this net has no vocabulary: train it with '
                         'train_bert, load it with load_run, or pass vocab=')
    _check_tokens('tokens_a', tokens_a)
    if tokens_b is not None:
        _check_tokens('tokens_b', tokens_b)
    _, _, cls, sep = special_of(vocab)
    tokens, segments = get_tokens_and_segments(tokens_a, tokens_b, cls, sep)
    device = next(iter(net.collect_params().values())).list_ctx()[0]
    with autograd.pause():
        encoded_X, _, _ = net(
            on_device([vocab[tokens]], device, 'int32'),
            on_device([segments], device, 'int32'),
            on_device([len(tokens)], device, 'float32'))
    return encoded_X


def _check_tokens(name, tokens):
    """Refuse what would be encoded letter by letter, or as <unk>."""
    if isinstance(tokens, str):
        raise TypeError(f'{name} must be a list of tokens, not the string '
                        f'{tokens!r}: give {tokens!r}.split()')
    for token in tokens:
        if not isinstance(token, str):
            raise TypeError(f'{name} must be a list of strings, and one of '
                            f'its tokens is {token!r}, '
                            f'a {type(token).__name__}')
