"""The book's page "Pretraining BERT": train a BERT, and encode texts.

A shard is the part of a batch that one device computes.
"""
import functools
from pathlib import Path

from d2lbert.bert import get_tokens_and_segments
from d2lbert.devices import device_list
from d2lbert.machine.arguments import check_sizes
from d2lbert.machine.backend import autograd, gluon
from d2lbert.machine.files import new_run_folder
from d2lbert.nn.checks import check_labels, on_device, predicts_real_tokens
from d2lbert.nn.layers import is_plain_cross_entropy, is_unmodified
from d2lbert.nn.packed import MaskedTokens
from d2lbert.nn.steps import (
    History,
    describe_training,
    devices_in_use,
    run_steps,
    summary,
    wait_for_previous_step,
    zero_gradients,
)
from d2lbert.progress import Animator, in_notebook
from d2lbert.text import special_of
from d2lbert.texts.examples import Batch


def _get_batch_bert(batch, ctx):
    """Split a batch over the devices in the list `ctx`.

    Returns a `Batch` whose fields are lists with an array for each shard. If
    there are fewer examples than devices, the last devices get no shard.
    """
    (tokens_X, segments_X, valid_lens_x, pred_positions_X, mlm_weights_X,
     mlm_Y, nsp_y) = batch
    ctx = devices_in_use(tokens_X, ctx)

    def split(X, dtype=None):
        X = on_device(X, ctx[0], dtype)
        return gluon.utils.split_and_load(X, ctx, even_split=False)
    return Batch(split(tokens_X), split(segments_X),
                 split(valid_lens_x, 'float32'), split(pred_positions_X),
                 split(mlm_weights_X), split(mlm_Y), split(nsp_y))


def _get_batch_loss_bert(net, loss, vocab_size, tokens_X_shards,
                         segments_X_shards, valid_lens_x_shards,
                         pred_positions_X_shards, mlm_weights_X_shards,
                         mlm_Y_shards, nsp_y_shards):
    """Return the MLM, NSP and total loss of each shard, three lists.

    The MLM loss is the weighted mean over predictions. The NSP loss is the
    mean over examples. The total loss is the sum of the MLM and NSP loss. A
    loss is a scalar on the device of its shard. Waits for the previous step.
    """
    wait_for_previous_step()
    mlm_ls, nsp_ls, ls = [], [], []
    for shard in map(Batch, tokens_X_shards, segments_X_shards,
                     valid_lens_x_shards, pred_positions_X_shards,
                     mlm_weights_X_shards, mlm_Y_shards, nsp_y_shards):
        check_labels(net, vocab_size, shard.mlm_Y, shard.nsp_y)
        can_omit_padding = (is_unmodified(net) and is_plain_cross_entropy(loss)
                            and predicts_real_tokens(shard))
        if can_omit_padding:    # faster than the page's code
            (mlm_l, _), (nsp_l, _) = MaskedTokens.of(net, shard).losses(net)
        else:
            mlm_l, nsp_l = _page_losses(net, loss, vocab_size, *shard)
        mlm_ls.append(mlm_l)
        nsp_ls.append(nsp_l)
        ls.append(mlm_l + nsp_l)
    return mlm_ls, nsp_ls, ls


def _page_losses(net, loss, vocab_size, tokens_X, segments_X, valid_lens_x,
                 pred_positions_X, mlm_weights_X, mlm_Y, nsp_y):
    """Return the MLM and NSP losses of a shard by the page's code."""
    _, mlm_Y_hat, nsp_Y_hat = net(tokens_X, segments_X,
                                  valid_lens_x.reshape(-1), pred_positions_X)
    mlm_l = loss(mlm_Y_hat.reshape((-1, vocab_size)), mlm_Y.reshape(-1),
                 mlm_weights_X.reshape((-1, 1)))
    mlm_l = mlm_l.sum() / (mlm_weights_X.sum() + 1e-8)
    return mlm_l, loss(nsp_Y_hat, nsp_y).mean()


def train_step(batch, net, loss, vocab_size, devices, trainer):
    """Take a training step; return the MLM losses and NSP losses of shards.

    A loss is a scalar on a device. Reading a loss waits for the step.
    """
    shards = _get_batch_bert(batch, devices)
    with autograd.record():
        mlm_ls, nsp_ls, ls = _get_batch_loss_bert(net, loss, vocab_size,
                                                  *shards)
    autograd.backward(ls)
    if len(ls) < len(devices):
        # A device without a shard may have gradients of an earlier step
        zero_gradients(net, devices[len(ls):])
    trainer.step(1)     # 1: the losses are means already
    return mlm_ls, nsp_ls


def train_bert(train_iter, net, loss, vocab_size, ctx=None, *args,
               devices=None, log_interval=None, num_steps=None,
               learning_rate=None, optimizer='adam', out=None):
    """Pretrain `net` for `num_steps` steps on batches of `train_iter`.

    Takes the arguments in both orders of the book:
    `(..., ctx, log_interval, num_steps)` as in the first edition, and
    `(..., devices, num_steps)` as in the later editions. The default learning
    rate is 0.001 if log_interval is given, else 0.01. Every `log_interval`
    steps (default: 1), and at the last step, the means of the MLM and NSP
    losses since step 1 are recorded and shown. Sets net.vocab to the
    vocabulary of `train_iter`, if it has one. Prints the book's two lines
    after training, and returns a `History`. A notebook shows the losses as a
    figure, a script as a progress bar, or as lines of text if standard error
    is not a terminal. out: the folder for losses.png and losses.csv; by
    default runs/<date-time> in a script, and no files in a notebook.
    """
    devices, log_interval, num_steps, learning_rate = _resolve_arguments(
        ctx, args, devices, log_interval, num_steps, learning_rate)
    net.vocab = vocabulary_of(train_iter) or getattr(net, 'vocab', None)
    trainer = gluon.Trainer(net.collect_params(), optimizer,
                            {'learning_rate': learning_rate})

    def steps():
        """Take steps; yield the arguments of `History.add`."""
        for batch in _repeat_epochs(train_iter):
            mlm_ls, nsp_ls = train_step(batch, net, loss, vocab_size,
                                        devices, trainer)
            yield (functools.partial(_means_over_shards, mlm_ls, nsp_ls),
                   len(batch[0]))
    history = History()
    animator = Animator(xlabel='step', ylabel='loss', xlim=[1, num_steps],
                        legend=['mlm', 'nsp'])
    run_steps(steps(), is_over=lambda: history.num_steps >= num_steps,
              log_interval=log_interval, history=history, animator=animator,
              describe=functools.partial(
                  describe_training, net, f'{num_steps} steps', devices))
    if out is not None or not in_notebook():
        out = Path(out) if out is not None else new_run_folder()
        out.mkdir(parents=True, exist_ok=True)
        animator.save(out / 'losses.png')
        history.save_csv(out / 'losses.csv')
    print(summary(history, devices))
    return history


def _resolve_arguments(ctx, args, devices, log_interval, num_steps,
                       learning_rate):
    """Return (devices, log_interval, num_steps, learning_rate), checked.

    The arguments are those of `train_bert`, in either order of the book.
    """
    if ctx is not None and devices is not None:
        raise TypeError('give the devices once, as ctx or as devices')
    devices = device_list(devices if ctx is None else ctx, 'train_bert')
    if len(args) == 2:
        step_settings = dict(log_interval=args[0], num_steps=args[1])
    elif len(args) == 1:
        name = 'num_steps' if num_steps is None else 'log_interval'
        step_settings = {name: args[0]}
    elif not args:
        step_settings = {}
    else:
        raise TypeError('after the devices come log_interval and num_steps, '
                        f'or num_steps alone, not {len(args)} arguments')
    for name, value in (('log_interval', log_interval),
                        ('num_steps', num_steps)):
        if value is not None:
            if name in step_settings:
                raise TypeError(f'{name} was given twice')
            step_settings[name] = value
    if learning_rate is None:   # only the first edition has log_interval
        learning_rate = 1e-3 if 'log_interval' in step_settings else 1e-2
    step_settings.setdefault('log_interval', 1)
    step_settings.setdefault('num_steps', None)
    check_sizes(**step_settings)
    return (devices, step_settings['log_interval'],
            step_settings['num_steps'], learning_rate)


def _repeat_epochs(batches):
    """Yield the batches of one epoch after another, without end."""
    step = 0
    while True:
        step_before_epoch = step
        for batch in batches:
            step += 1
            yield batch
        if step == 0:
            raise ValueError('train_iter gave no batch: it must be a list or '
                             'a data loader of at least one batch')
        if step == step_before_epoch:
            raise ValueError(
                f'train_iter is used up after step {step}, as a generator '
                'is, which can be read only once: give a list or a data '
                f'loader, or lower num_steps to {step}')


def _means_over_shards(*loss_lists):
    """Return the mean of each list; waits for the devices."""
    return [sum(map(float, losses)) / len(losses) for losses in loss_lists]


def vocabulary_of(loader):
    """Return the vocabulary of a data loader or of its data set, or None.

    A `BatchLoader` has a `dataset`, Gluon's `DataLoader` a `_dataset`.
    """
    for owner in (loader, getattr(loader, 'dataset', None),
                  getattr(loader, '_dataset', None)):
        vocab = getattr(owner, 'vocab', None)
        if vocab is not None:
            return vocab
    return None


def get_bert_encoding(net, tokens_a, tokens_b=None, vocab=None):
    """Encode a text, or a pair of texts, as token vectors (1, T, H).

    tokens_a, tokens_b: lists of tokens; T counts <cls> and <sep>, too. vocab:
    by default net.vocab, which `train_bert` and `load_run` set. Unknown tokens
    become <unk>. Gradients are not recorded, and dropout is off. Raises
    TypeError for a text that is not a list of strings, and ValueError without
    a vocabulary.
    """
    vocab = getattr(net, 'vocab', None) if vocab is None else vocab
    if vocab is None:
        raise ValueError('this net has no vocabulary: train it with '
                         'train_bert, load it with load_run, or pass vocab=')
    tokens_a = _checked_strings('tokens_a', tokens_a)
    if tokens_b is not None:
        tokens_b = _checked_strings('tokens_b', tokens_b)
    special = special_of(vocab)
    tokens, segments = get_tokens_and_segments(tokens_a, tokens_b,
                                               special.cls, special.sep)
    device = next(iter(net.collect_params().values())).list_ctx()[0]
    with autograd.pause():
        encoded_X, _, _ = net(
            on_device([vocab[tokens]], device, 'int32'),
            on_device([segments], device, 'int32'),
            on_device([len(tokens)], device, 'float32'))
    return encoded_X


def _checked_strings(name, tokens):
    """Return `tokens`, any iterable of strings, as a list.

    Raises TypeError for a string, which would be encoded letter by letter, and
    for an item that is not a string, which would be encoded as <unk>.
    """
    if isinstance(tokens, str):
        raise TypeError(f'{name} must be a list of tokens, not the string '
                        f'{tokens!r}: give {tokens!r}.split()')
    tokens = list(tokens)
    for token in tokens:
        if not isinstance(token, str):
            raise TypeError(f'{name} must be a list of strings, and one of '
                            f'its tokens is {token!r}, '
                            f'a {type(token).__name__}')
    return tokens
