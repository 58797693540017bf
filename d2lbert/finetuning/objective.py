"""`FineTuning` is the objective of a run that learns a labelled task."""
import hashlib
import json
import math
from collections import namedtuple
from pathlib import Path

from d2lbert.finetuning import metrics
from d2lbert.finetuning.batches import (
    batch_of,
    outputs_of,
    run_encoder,
    shuffled_batches,
)
from d2lbert.finetuning.datasets import (
    data_folder_of,
    load_named_model,
    moved_data,
    read_part,
)
from d2lbert.finetuning.task_kinds import CODECS
from d2lbert.finetuning.tasks.catalog import TASKS, task_of
from d2lbert.finetuning.tasks.tables import name_list
from d2lbert.kernels import ops
from d2lbert.machine.backend import mx
from d2lbert.machine.files import read_json, write_text
from d2lbert.machine.hardware import require_memory
from d2lbert.nn.precision import set_precision
from d2lbert.nn.steps import num_parameters, shards
from d2lbert.objectives.objective import Objective
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.heads import TEXT_KINDS, About, FineTuned
from d2lbert.pretrained.tokenizers.tokenizer import (
    CONFIG,
    TOKENIZER,
    VOCAB,
    WholeWords,
)
from d2lbert.progress import bar
from d2lbert.training.load import make_finetuned
from d2lbert.training.saved_runs import RunError
from d2lbert.training.state import best_step


class FineTuning(Objective):
    """Learn a labelled task: train a pretrained model and a new head.

    settings: a dictionary of all settings in finetuning/settings.py.
    run_folder: the folder of the run to resume, which has the tokenizer and
    the config of the net; None for a new run. model_in_memory: a
    `ModelInMemory` (datasets.py) that replaces the setting `model`, or None.
    """

    # `Objective` (objectives/objective.py) documents the members
    losses, weights, plotted = ('task',), (1,), ('loss',)
    unit, command = 'examples', 'finetune'
    change_causes = {'fingerprint': ('the data', 'a file of the task, or how '
                                     'it is read')}

    def __init__(self, settings, run_folder=None, model_in_memory=None):
        self.settings = s = settings
        ops.check_precision(s['precision'])
        if run_folder is not None:
            s['data'] = moved_data(s['data'], run_folder)
        task = TASKS[s['task']]
        data_folder = data_folder_of(task, s['data'])
        # Seed the initial weights of the head and of parts that the model's
        # folder lacks. MXNet's seed is a C int
        mx.random.seed(s['seed'] % 2 ** 31)
        if run_folder is None:
            bert, self.tokenizer = self._load_pretrained(task, model_in_memory)
            dropout = dropout_of(bert, task.kind)
        else:
            self._net, self.tokenizer = load_net_and_tokenizer(run_folder)
            dropout = self._net.about.dropout
        train_data, self.dev_data = self._read_data(task, data_folder)
        self.about = About(
            task.name, task.kind, pair=train_data.has_pairs,
            labels=train_data.labels_names, metrics=task.metrics,
            max_len=s['max_len'], stride=s['stride'],
            null=train_data.impossible, dropout=dropout)
        if run_folder is None:
            check_family_has_head(bert, task)
            self._net = FineTuned(bert, task.kind, self.about.num_scores,
                                  self.about.dropout)
            self._net.about = self.about
        elif self._net.about != self.about:
            raise changed_data_error(run_folder, self._net.about, self.about)
        check_len_fits(self._net, self.about)
        self._codec = CODECS[task.kind](self.about, self.tokenizer)
        self.train_inputs = self._codec.inputs(train_data, training=True)
        self.dev_inputs = self._codec.inputs(self.dev_data)
        for data, inputs in ((train_data, self.train_inputs),
                             (self.dev_data, self.dev_inputs)):
            # Only for 'span': `_read_data` raises an error for other kinds
            if inputs.labels is None:
                raise ValueError(f'{data.path} has no answers, so that there '
                                 'is nothing to learn or to compare with')
        if not self.train_inputs.tokens:
            raise ValueError(f'{train_data.path} has no example to train on')
        self.vocab = TokenizerFiles(self.tokenizer)
        self.Figures = figures_type(self.about)
        self.fingerprint = (f'{digest(self.train_inputs)}-'
                            f'{digest(self.dev_inputs)}')
        # Evaluate after each epoch
        self.eval_every = math.ceil(
            len(self.train_inputs.tokens) / s['batch_size'])
        self.num_steps = s['num_epochs'] * self.eval_every

    def _load_pretrained(self, task, model_in_memory):
        """Return (pretrained net, tokenizer)."""
        if model_in_memory is not None:
            bert, tokenizer = model_in_memory.copy_to_train()
        else:
            heads = ('pooler',) if task.kind in TEXT_KINDS else ()
            bert, tokenizer = load_named_model(self.settings['model'], heads)
        set_precision(bert, self.settings['precision'])
        return bert, tokenizer

    def _read_data(self, task, data_folder):
        """Read the training part and the development part."""
        s = self.settings
        train = read_part(task, data_folder, 'train', s['columns'],
                          self.tokenizer)
        label_names = train.labels_names
        if label_names is not None and len(label_names) == 1:
            raise ValueError(
                f'{train.path} has the label {name_list(label_names)} alone, '
                'so that there is nothing to tell apart: give examples of two '
                'classes or more')
        dev = read_part(task, data_folder, 'dev', s['columns'],
                        self.tokenizer, label_names)
        return first_examples(train, s['num_examples']), dev

    def config_entries(self, history):
        """Entries of config.json: the task, as the fields of an `About`.

        At the end of the run, also the best epoch and its figures.
        """
        entries = {'finetuned': self.about._asdict()}
        is_over = history.num_steps == self.num_steps or history.is_ended
        step = best_step(history, self.score) if is_over else None
        if step is not None:
            entries['figures'] = history.held_out[step]._asdict()
            entries['best_epoch'] = self._epoch_of(step)
        return entries

    def _epoch_of(self, step):
        return math.ceil(step / self.eval_every)

    def net(self, devices):
        """The net with pretrained weights and a new head, on all devices.

        In a resumed run, weights are random until `Run` loads a checkpoint.
        """
        # 16 bytes a weight: float32 weight, gradient, two moments of Adam
        require_memory(16 * num_parameters(self._net),
                       'fine-tuning this model', 'choose a smaller one')
        self._net.begin(devices)
        return self._net

    def batches(self, epoch, start):
        """Yield (next position, `Batch`); a position is (batch index, 0)."""
        s = self.settings
        batches = shuffled_batches(self.train_inputs.lens, s['batch_size'],
                                   s['bucket'], s['seed'], epoch)
        for k in range(start[0], len(batches)):
            yield (k + 1, 0), batch_of(self.train_inputs, batches[k])

    def counts(self, batch):
        """(number of examples,); for 'tag' (number of words with a tag,)."""
        if self.about.kind == 'tag':
            return (int((batch.labels_Y >= 0).sum()),)
        return (len(batch.tokens_X),)

    def shard_losses(self, net, batch, devices):
        """For each device with examples, [(mean loss, number of labels)]."""
        return [[net.losses(*run_encoder(net, part, device), part.labels_Y)]
                for part, device in shards(batch, devices)]

    def evaluate(self, net, devices):
        """The loss and metrics of a net on the development part."""
        return evaluate(net, self._codec, self.dev_inputs, self.dev_data,
                        devices)

    def score(self, figures):
        """The first metric of the task, which selects the best epoch."""
        return figures[1]   # figures[0] is the loss

    def line(self, figures):
        """The loss and the metrics as a line to print."""
        return f'dev {super().line(figures)}'

    def summary(self, history, devices):
        """The lines printed last: figures of the saved weights, and speed."""
        step = best_step(history, self.score)
        return (f'{self.line(history.held_out[step])} after epoch '
                f'{self._epoch_of(step)}\n'
                f'{history.pairs_per_sec:.1f} examples/sec on {devices}')


def evaluate(net, codec, inputs, data, devices, progress_title=None):
    """Evaluate a net on data: return a named tuple of the loss and metrics.

    codec: an object of a class in `CODECS` (task_kinds.py). inputs: the result
    of codec.inputs(data). data: as `read_task` returns it. progress_title:
    None for no progress bar.
    """
    with bar(len(inputs.tokens), progress_title or '', 'examples',
             quiet=progress_title is None) as progress:
        outputs = outputs_of(net, inputs, devices, progress.update)
    values = metrics.score(task_of(codec.about.task), codec.true_labels(data),
                           codec.guesses(outputs, inputs, data))
    Figures = figures_type(codec.about)
    return Figures(codec.loss(outputs, inputs), **values)


def figures_type(about):
    """Make a named tuple type: the mean loss, then the metrics of a task."""
    return namedtuple('Figures', ('loss', *about.metrics))


def first_examples(data, count):
    """Return the first `count` examples of `data`; count None: all.

    data: as `read_task` (tasks/catalog.py) returns it.
    """
    # Each list has an entry for each example; other fields stay
    return data._replace(**{
        name: value[:count] for name, value in data._asdict().items()
        if isinstance(value, list)})


def dropout_of(bert, kind):
    """The rate of dropout before the new output layer for a kind of task."""
    # Each a field of config.json and its default; either may be None
    text_dropout, token_dropout = family_of(bert.config).dropouts
    field, default_rate = text_dropout if kind in TEXT_KINDS else token_dropout
    is_from_folder = bert.pretrained is not None
    folder_rate = bert.pretrained.fields.get(field) if is_from_folder else None
    for rate in folder_rate, default_rate:
        if rate is not None:
            return rate
    return bert.config['dropout']


def load_net_and_tokenizer(folder):
    """Return (net without weights, tokenizer) of a run to resume."""
    folder = Path(folder)
    try:
        config = read_json(folder / 'config.json')
    except (OSError, ValueError) as error:
        raise RunError(f'{folder / "config.json"} is damaged: {error}'
                       ) from None
    return make_finetuned(config, folder)


def changed_data_error(run_folder, about_before, about_now):
    changes = ', '.join(
        f'{name} was {before!r} and is {now!r}' for name, before, now
        in zip(About._fields, about_before, about_now) if before != now)
    return RunError(
        f'the data of {run_folder} have changed since the run began '
        f'({changes}): resume with the original data')


def check_family_has_head(bert, task):
    family = family_of(bert.config)
    if task.kind not in family.finetuned:
        scored = 'several endings' if task.kind == 'choice' else 'each token'
        raise ValueError(
            f'task {task.name} needs a head for {scored}, '
            f'and a {family.title} has no published one: choose a BERT or '
            'another relative (--model)')


def check_len_fits(net, about):
    if about.max_len > net.encoder.max_len:
        raise ValueError(
            f'max_len={about.max_len} is more than the {net.encoder.max_len} '
            'positions of the model: lower it (--max-len)')


class TokenizerFiles:
    """The files of a tokenizer in a run folder, for `Objective.vocab`."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        # A tokenizer with `files` was read from them, not from tokenizer.json
        self.files = (VOCAB,) if isinstance(tokenizer, WholeWords) else (
            VOCAB, CONFIG, *(tokenizer.files or (TOKENIZER,)))

    def save(self, path):
        """Write all files to the folder of `path`, the path of vocab.txt."""
        path = Path(path)
        if isinstance(self.tokenizer, WholeWords):
            # `WholeWords.save` would need the library `tokenizers`
            self.tokenizer.vocab.save(path)
            return
        self.tokenizer.save(path.parent)
        # Some kinds of tokenizer, such as BPE, have not written vocab.txt
        if not path.is_file():
            # As JSON, since a token may contain a line break
            write_text(path, ''.join(f'{json.dumps(token)}\n' for token
                                     in self.tokenizer.idx_to_token))


def digest(inputs):
    """A hexadecimal digest of tokens, segments and labels of `Inputs`."""
    digester = hashlib.blake2b(digest_size=8)
    for arrays in (inputs.tokens, inputs.segments, inputs.labels):
        digester.update(b'|')
        for array in arrays:
            digester.update(array.tobytes())
            digester.update(b',')
    return digester.hexdigest()
