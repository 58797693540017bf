"""Fine-tuning as an objective of a run: examples, net and metrics."""
import hashlib
import json
import math
from collections import namedtuple
from pathlib import Path

from d2lbert.finetuning import metrics
from d2lbert.finetuning.batches import (
    batch_of,
    encode,
    outputs_of,
    shuffled_batches,
)
from d2lbert.finetuning.datasets import folder_of, pretrained_model, read_part
from d2lbert.finetuning.task_kinds import KINDS
from d2lbert.finetuning.tasks.catalog import TASKS, named
from d2lbert.finetuning.tasks.tables import shown
from d2lbert.kernels import ops
from d2lbert.machine.backend import mx
from d2lbert.machine.files import read_json, write_text
from d2lbert.machine.hardware import require_memory
from d2lbert.nn.precision import set_precision
from d2lbert.nn.steps import shards
from d2lbert.objectives.objective import Objective
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.heads import WHOLE, About, FineTuned
from d2lbert.pretrained.tokenizers.tokenizer import (
    CONFIG,
    TOKENIZER,
    VOCAB,
    WholeWords,
)
from d2lbert.progress import bar
from d2lbert.training.load import tuned_of_config
from d2lbert.training.saved_runs import RunError
from d2lbert.training.state import best_step


class FineTuning(Objective):
    """A labelled task, learnt with all weights of a pretrained model.

    settings: a dictionary of all `finetuning.settings`. begun: the folder of
    the run to resume, which has the tokenizer and the config of the net.
    model: a `GivenModel` that replaces the setting `model`.
    """

    losses, weights, plotted = ('task',), (1,), ('loss',)
    unit, command = 'examples', 'finetune'
    changed = {'fingerprint': ('the data', 'a file of the task, or how it is '
                               'read')}

    def __init__(self, settings, begun=None, model=None):
        self.settings = s = settings
        ops.check_precision(s['precision'])
        task = TASKS[s['task']]
        folder = folder_of(task, s['data'])
        # Seeds new weights: the head, and parts that the checkpoint lacks
        mx.random.seed(s['seed'] % 2 ** 31)
        if begun is None:
            bert, self.tokenizer = (
                pretrained_model(s['model'], ('pooler',) if task.kind in WHOLE
                                 else ())
                if model is None else model.copied())
            set_precision(bert, s['precision'])
        else:
            self._net, self.tokenizer = begun_net(begun)
        train, dev = self._read(task, folder)
        self.about = About(
            task.name, task.kind, train.has_pairs, train.labels_names,
            task.metrics, s['max_len'], s['stride'],
            train.impossible,
            self._net.about.dropout if begun is not None
            else dropout_of(bert, task.kind))
        if begun is None:
            check_kind(bert, task)
            self._net = FineTuned(bert, task.kind, self.about.num_scores,
                                  self.about.dropout)
            self._net.about = self.about
        elif self._net.about != self.about:
            raise RunError(
                f'the data of {begun} have changed since the run began (the '
                'labels have other names): resume with the original data')
        check_fits(self._net, self.about)
        self.kind = KINDS[task.kind](self.about, self.tokenizer)
        self.train = self.kind.inputs(train, training=True)
        self.dev_data, self.dev = dev, self.kind.inputs(dev)
        if not self.train.tokens:
            raise ValueError(f'{train.path} has no example to train on')
        for data, inputs in (train, self.train), (dev, self.dev):
            if inputs.labels is None:
                raise ValueError(f'{data.path} has no answers, so that there '
                                 'is nothing to learn or to compare with')
        self.vocab = SavedTokenizer(self.tokenizer)
        self.Figures = figures_of(self.about)
        self.fingerprint = f'{digest(self.train)}-{digest(self.dev)}'
        self.eval_every = math.ceil(len(self.train.tokens) / s['batch_size'])
        self.num_steps = s['num_epochs'] * self.eval_every

    def _read(self, task, folder):
        """The training part and the development part of the data."""
        s = self.settings
        train = read_part(task, folder, 'train', s['columns'],
                          self.tokenizer)
        names = train.labels_names
        if names is not None and len(names) == 1:
            raise ValueError(
                f'{train.path} has the label {shown(names)} alone, so that '
                'there is nothing to tell apart: give examples of two classes '
                'or more')
        dev = read_part(task, folder, 'dev', s['columns'], self.tokenizer,
                        names)
        return first(train, s['num_examples']), dev

    def described(self, history):
        """Entries of config.json: the task, and metrics of the weights."""
        found, step = {'finetuned': self.about._asdict()}, None
        if history.num_steps == self.num_steps or history.is_ended:
            step = best_step(history, self.score)
        if step is not None:
            found['figures'] = history.held_out[step]._asdict()
            found['best_epoch'] = self._epoch(step)
        return found

    def _epoch(self, step):
        return math.ceil(step / self.eval_every)

    def net(self, devices):
        """The net with its pretrained weights and a new head."""
        net = self._net
        # float32: a weight, its gradient and Adam's two moments
        require_memory(
            16 * sum(math.prod(param.shape)
                     for param in net.collect_params().values()),
            'fine-tuning this model', 'choose a smaller one')
        net.begin(devices)
        return net

    def batches(self, epoch, start):
        """Yield (position, Batch) of an epoch, from batch start[0] on."""
        s = self.settings
        batches = shuffled_batches(self.train.lens, s['batch_size'],
                                   s['bucket'], s['seed'], epoch)
        for k in range(start[0], len(batches)):
            yield (k + 1, 0), batch_of(self.train, batches[k])

    def counts(self, batch):
        """The number of examples, or for 'tag' of words with a tag."""
        if self.about.kind == 'tag':
            return (int((batch.labels_Y >= 0).sum()),)
        return (len(batch.tokens_X),)

    def shard_losses(self, net, batch, devices):
        """[(loss, count)] of each device that gets examples."""
        return [[net.losses(*encode(net, part, device), part.labels_Y)]
                for part, device in shards(batch, devices)]

    def evaluate(self, net, devices):
        """The loss and metrics of the development part."""
        return evaluated(net, self.kind, self.dev, self.dev_data, devices)

    def score(self, figures):
        """The first metric of the task, which selects the best epoch."""
        return figures[1]

    def line(self, figures):
        """The metrics as a line to print."""
        return 'dev ' + ', '.join(f'{name} {value:.4f}' for name, value
                                  in figures._asdict().items())

    def summary(self, history, devices):
        """The last printed lines: metrics of the saved weights, and speed."""
        step = best_step(history, self.score)
        return (f'{self.line(history.held_out[step])} after epoch '
                f'{self._epoch(step)}\n'
                f'{history.pairs_per_sec:.1f} examples/sec on {devices}')


def evaluated(net, kind, inputs, data, devices, shown=None):
    """Evaluate a net on data: a named tuple of the loss and metrics."""
    with bar(len(inputs.tokens), shown or '', 'examples',
             quiet=shown is None) as progress:
        outputs = outputs_of(net, inputs, devices, progress.update)
    found = metrics.score(named(kind.about.task), kind.wanted(data),
                          kind.guesses(outputs, inputs, data))
    return figures_of(kind.about)(kind.loss(outputs, inputs), **found)


def figures_of(about):
    """The named tuple type of a task: the mean loss, then its metrics."""
    return namedtuple('Figures', ('loss', *about.metrics))


def first(data, count):
    """The first `count` examples of data; None: all."""
    return data._replace(**{
        name: value[:count] for name, value in data._asdict().items()
        if isinstance(value, list)})


def dropout_of(bert, kind):
    """The dropout before a new layer, from the checkpoint or the encoder."""
    described = bert.pretrained
    field, found = family_of(bert.config).dropouts[kind not in WHOLE]
    if described is not None and described.config.get(field) is not None:
        found = described.config[field]
    return bert.config['dropout'] if found is None else found


def begun_net(folder):
    """The net and tokenizer of a run that is resumed."""
    folder = Path(folder)
    try:
        config = read_json(folder / 'config.json')
    except (OSError, ValueError) as error:
        raise RunError(f'{folder / "config.json"} is damaged: {error}'
                       ) from None
    return tuned_of_config(config, folder)


def check_kind(bert, task):
    """Raise if the model's family has no head for the task."""
    family = family_of(bert.config)
    if task.kind not in family.finetuned:
        raise ValueError(
            f'task {task.name} needs a head for '
            f'{"several endings" if task.kind == "choice" else "each word"}, '
            f'and a {family.title} has no published one: choose a BERT or '
            'another relative (--model)')


def check_fits(net, about):
    """Raise if max_len exceeds the positions of the model."""
    if about.max_len > net.encoder.max_len:
        raise ValueError(
            f'max_len={about.max_len} is more than the {net.encoder.max_len} '
            'positions of the model: lower it (--max-len)')


class SavedTokenizer:
    """A tokenizer that can be saved in a run folder.

    It is stored in vocab.txt, and a subword tokenizer also in
    tokenizer.json.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.files = (VOCAB,) if isinstance(tokenizer, WholeWords) else (
            VOCAB, CONFIG, *(tokenizer.files or (TOKENIZER,)))

    def save(self, path):
        """Write vocab.txt at `path`, and the other files beside it."""
        path = Path(path)
        if isinstance(self.tokenizer, WholeWords):
            # WholeWords.save needs a library that is optional here
            self.tokenizer.vocab.save(path)
            return
        self.tokenizer.save(path.parent)
        if not path.is_file():      # a tokenizer other than WordPiece
            write_text(path, ''.join(f'{json.dumps(token)}\n' for token
                                     in self.tokenizer.idx_to_token))


def digest(inputs):
    """A hexadecimal digest of the inputs."""
    found = hashlib.blake2b(digest_size=8)
    for columns in (inputs.tokens, inputs.segments, inputs.labels):
        found.update(b'|')
        for column in columns:
            found.update(column.tobytes())
            found.update(b',')
    return found.hexdigest()
