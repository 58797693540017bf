"""Folders of pretrained BERTs and their relatives: in, and out.

A folder as Hugging Face's libraries write it: config.json, the weights as
safetensors, the tokenizer. All of it is read from disk; nothing is fetched.
"""
import json
from pathlib import Path
from typing import NamedTuple

import numpy as onp

from d2lbert.machine.backend import init, mx
from d2lbert.machine.files import new_folder, write_text
from d2lbert.machine.nonfinite import count_not_finite, warn_not_finite
from d2lbert.machine.terminal import warn
from d2lbert.nn.precision import check_precision, set_precision
from d2lbert.pretrained import tensor_files
from d2lbert.pretrained.families import config as configs
from d2lbert.pretrained.families import tensor_names
from d2lbert.pretrained.families.family import family_of, net_of
from d2lbert.pretrained.families.tensor_names import HEADS, PARTS
from d2lbert.pretrained.sentence_transformers import files_of, load_pooling
from d2lbert.pretrained.size_checks import check_layers
from d2lbert.pretrained.tensor_files import PretrainedError
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece


class Difference(NamedTuple):
    """A tensor that a folder and the table do not have alike."""

    name: str
    state: str          # missing, left over or misshapen
    expected: str       # its shape, '' where there is none
    found: str
    part: str           # of names.PARTS, '' of what is left over


class Pretrained(NamedTuple):
    """Where a net comes from; its text is the table of the differences."""

    folder: Path
    config: dict        # what config.json said
    differences: tuple

    def lacking(self, part):
        """Whether tensors of this part, of names.PARTS, were drawn at random.
        """
        return any(line.state == 'missing' and line.part == part
                   for line in self.differences)

    def __str__(self):
        return table(self.differences) or (
            f'{self.folder} holds every tensor, and no other')


def table(differences):
    """The `Difference`s as lines of aligned columns, key by key."""
    lines = [('tensor', 'state', 'expected', 'found'),
             *(line[:4] for line in differences)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return '\n'.join(
        '  '.join(map(str.ljust, line, widths)).rstrip()
        for line in lines) if differences else ''


def load_pretrained(folder, ctx=None, heads=HEADS, trainable=True,
                    precision='fp32'):
    """The net and tokenizer of a folder on disk, as (net, tokenizer).

    Of BERT, or of a relative in `families.FAMILIES`, as config.json says.
    ctx: a device or a list of them, the CPU if None. Weights come as
    float32. Heads that the folder lacks are drawn at random, as its
    initializer_range says; for those named in `heads` ('pooler', 'mlm',
    'nsp') a warning is logged, and `print(net.pretrained)`
    gives the table of what is missing or left over, key by key.
    trainable=False leaves out the gradients, which take as much memory as
    the weights: enough for a net that is only asked. precision: 'bf16' or
    'int8' for faster answers, see `precision.set_precision`.

    Raises `PretrainedError`, whose text has that table where tensors are
    the reason, and ImportError without the libraries `tokenizers` and
    `safetensors`.
    """
    check_precision(precision)
    opened = open_folder(folder)
    net, tokenizer = fill_net(
        opened, tensor_names.table(opened.keywords, opened.config['skip']),
        lambda: net_of(opened.keywords), ctx, trainable)
    _say(net.pretrained, heads)
    return set_precision(net, precision), tokenizer


class Opened(NamedTuple):
    """A folder whose config.json is understood."""

    folder: Path
    keywords: dict      # of `BERTModel`, or of `BARTModel`
    config: dict        # what config.json said, see `config.keywords`
    current: dict       # {name in a table: `storage.Stored`}


def open_folder(folder):
    """The `Opened` of a folder on disk; raises `PretrainedError`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise PretrainedError(
            f'there is no folder {folder}: name one on this disk that holds '
            'config.json, model.safetensors and tokenizer.json or vocab.txt '
            '(nothing is fetched by name)')
    keywords, config = configs.keywords(folder / 'config.json')
    found = tensor_files.stored(folder)
    try:
        check_layers(keywords, len(found))
    except ValueError as error:
        raise PretrainedError(f'{folder} does not hold what its config.json '
                              f'describes: {error}') from None
    family = family_of(keywords)
    renamed = tensor_names.in_table(found, family)
    current = {name: found[theirs] for name, theirs in renamed.items()}
    _leave_out_copies(folder, family, current)
    if not _is_tied(keywords, current):
        keywords['tie_embeddings'] = False
    _leave_out(keywords, family, current, config['skip'])
    return Opened(folder, keywords, config, current)


def fill_net(opened, lines, make, ctx=None, trainable=True,
             needed=('encoder', 'decoder')):
    """The net with the weights of a folder, and its tokenizer.

    lines: the table of the net that make() makes. needed: the parts of which
    no tensor may be missing; others are drawn at random.
    """
    folder, keywords, config, current = opened
    differences = _compare(lines, dict(current))
    _check(folder, family_of(keywords), differences, needed)
    try:
        tokenizer = WordPiece.load(folder)
        tokenizer.pooling = load_pooling(folder)
    except (ValueError, OSError) as error:
        raise PretrainedError(str(error)) from None
    if len(tokenizer) > keywords['vocab_size']:
        raise PretrainedError(
            f'the tokenizer of {folder} has {len(tokenizer)} tokens, but the '
            f'model only {keywords["vocab_size"]}: they are of two models')
    net = make()
    if not trainable:
        net.collect_params().setattr('grad_req', 'null')
    warn_not_finite(folder, _fill(
        net, lines, current, config['initializer_range'], ctx or mx.cpu()))
    net.pretrained = Pretrained(folder, config, tuple(differences))
    return net, tokenizer


def _leave_out(keywords, family, current, skip):
    """Let the net go without heads that the folder need not have."""
    lost = {part for part in family.optional
            if not any(line.name in current
                       for line in tensor_names.table(keywords, skip)
                       if line.part == part)}
    if lost:
        keywords['heads'] = tuple(part for part in keywords['heads']
                                  if part not in lost)


def _leave_out_copies(folder, family, current):
    """Leave out other names of the token embedding; refuse another one."""
    shared = f'{family.names["encoder.token_embedding"]}.weight'
    for name in [f'{copy}.weight' for copy in family.copies]:
        if name not in current:
            continue
        copy = current.pop(name)
        if not _are_one(copy, current.setdefault(shared, copy)):
            raise PretrainedError(
                f'{folder}: {name} is another tensor than {shared}, and a '
                f'{family.title} with several token embeddings cannot be '
                'served here')


def _are_one(a, b):
    """Whether two `Stored` tensors hold the same."""
    return (a.shape == b.shape
            and {a.dtype, b.dtype} <= set(tensor_files.TYPES)
            and onp.array_equal(tensor_files.read(a), tensor_files.read(b)))


def _is_tied(keywords, current):
    """Whether the last weight of the head is that of the embeddings.

    As transformers 5 has it: two that differ are not tied, whatever
    config.json says.
    """
    called = family_of(keywords).names
    decoder_name = f'{called["mlm.output"]}.weight'
    decoder, embedding = current.get(decoder_name), current.get(
        f'{called["encoder.token_embedding"]}.weight')
    if not keywords['tie_embeddings'] or decoder is None:
        return keywords['tie_embeddings']
    # Where shapes differ, they will be refused with a table
    if embedding is None or not _are_one(decoder, embedding):
        return False
    del current[decoder_name]
    return True


def _compare(lines, current):
    """The `Difference`s between a table and {name in it: `Stored`}."""
    differences, strangers = [], dict(current)
    for line in lines:
        # The second name wins, as it does where both are one in memory
        one = strangers.pop(line.name, None)
        where = strangers.pop(line.also, None) or one
        expected = tensor_files.shown(line.shape)
        if where is None:
            if not line.spare:
                differences.append(Difference(line.name, 'missing', expected,
                                              '', line.part))
        elif (where.shape != line.shape
              or where.dtype not in tensor_files.TYPES):
            differences.append(Difference(where.name, 'misshapen', expected,
                                          str(where), line.part))
    return differences + [Difference(where.name, 'left over', '', str(where),
                                     '') for where in strangers.values()]


def _check(folder, family, differences, needed):
    """Refuse tensors of another shape, and needed parts that are not whole.
    """
    misshapen = [line.name for line in differences
                 if line.state == 'misshapen']
    lost = [line.part for line in differences
            if line.state == 'missing' and line.part in needed]
    if misshapen or lost:
        parts = ' and the '.join(part for part in needed if part in lost)
        reason = (f'{len(misshapen)} tensors are not of the shape that its '
                  'config.json says' if misshapen else
                  f'{len(lost)} tensors of the {parts} are missing')
        raise PretrainedError(f'{folder} does not hold the {family.title} '
                              f'that its config.json describes: {reason}:\n'
                              f'{table(differences)}')


def _fill(net, lines, current, spread, ctx):
    """Set each parameter to its tensor, or draw it where there is none.

    Returns {name: numbers of it that are NaN or infinite}.
    """
    params, counts = net._collect_params_with_prefix(), {}
    for line in lines:
        param = params[line.ours]
        where = current.get(line.also) or current.get(line.name)
        if where is None:
            # Biases and LayerNorms begin as they do in any net
            param.initialize(ctx=ctx, default_init=init.Normal(spread))
            continue
        param.initialize(init.Zero(), ctx)
        values = tensor_files.read(where)
        counts[where.name] = count_not_finite(values)
        param.set_data((values[::-1] if line.turned else values)[line.skip:]
                       .reshape(param.shape))
    return counts


def _say(described, heads):
    """Tell what of the folder is not as it was asked for, in one line."""
    said = []
    lacking = [PARTS[part] for part in heads if described.lacking(part)]
    if lacking:
        said.append('it lacks tensors of the ' + ' and the '.join(lacking)
                    + ', which are random until they are trained')
    over = [line.name for line in described.differences
            if line.state == 'left over']
    if over:
        more = f' and {len(over) - 4} more' if len(over) > 4 else ''
        said.append(f'left over and not used: {", ".join(over[:4])}{more}')
    if said:
        warn(f'{described.folder}: {"; ".join(said)} (net.pretrained has the '
             'table)')


def save_pretrained(net, tokenizer, folder):
    """Write net and tokenizer as a new folder, whole or not at all.

    What `transformers.BertForPreTraining` and `AutoTokenizer` load, and of a
    fine-tuned net BertForSequenceClassification, BertForTokenClassification
    or BertForQuestionAnswering, with the names of its labels, or the classes
    of its family that are these: the weights as float32 in one file, the
    tied ones once. Raises
    `PretrainedError` for a net that the format has no words for (without
    LayerNorm behind its embeddings, or with sinusoidal positions), for one
    that is not exactly a `BERTModel`, for one whose vectors need modules of
    sentence-transformers that are not served, and where `folder` holds
    something. The `pooling` of the tokenizer goes into the files of
    sentence-transformers.
    """
    config = configs.of_net(net, tokenizer)
    if len(tokenizer) > config['vocab_size']:
        raise PretrainedError(
            f'the tokenizer has {len(tokenizer)} tokens, but the net only '
            f'{config["vocab_size"]}: they are of two models')
    write_folder(folder, config, _tensors(net, tokenizer.pad_id), tokenizer,
                 configs.generation_of_net(net, tokenizer),
                 {} if net.about else files_of(
                     tokenizer.pooling, net.config['num_hiddens']))


def _tensors(net, pad_id):
    """{name: array} of a net, as the folder has them."""
    params = net._collect_params_with_prefix()
    kind = net.kind
    skip = configs.skipped(family_of(net.config), pad_id)
    lines = tensor_names.table(net.config, skip) if kind is None else (
        tensor_names.finetuned(net.config, kind, net.num_scores, skip))
    ours = {line.ours for line in lines}
    if net.config['tie_embeddings'] and kind is None:
        ours.add(f'mlm.mlp.{len(net.mlm.mlp) - 1}.weight')
    strange = sorted(ours ^ set(params))
    if strange:
        raise PretrainedError(
            'this net is not exactly a BERTModel, so that a folder of BERT '
            f'cannot hold it: it has or lacks {", ".join(strange[:4])}')
    tensors = {}
    for line in lines:
        if line.part == 'mlm' and configs.is_encoder_alone(net):
            continue
        try:
            values = params[line.ours].data(
                params[line.ours].list_ctx()[0]).asnumpy()
        except RuntimeError:        # not initialized, or not yet of a shape
            raise PretrainedError(f'the net has no values yet ({line.ours} '
                                  'is not initialized): nothing to save'
                                  ) from None
        values = values.reshape(-1, *line.shape[1:])
        if line.skip:
            values = onp.pad(values, ((line.skip, 0), (0, 0)))
        tensors[line.name] = values[::-1] if line.turned else values
        # Untied, the decoder reads a bias of its own
        if line.also and not net.config['tie_embeddings']:
            tensors[line.also] = values
    return tensors


def write_folder(folder, config, tensors, tokenizer, generation=None,
                 others=()):
    """Write a folder of config.json, model.safetensors and a tokenizer.

    config: a dict; tensors: {name: array}; generation: what
    generation_config.json is to say, if there is one; others: {name: JSON}
    of more files. It appears when all is written.
    """
    tensor_files.safetensors()       # before anything is done
    with new_folder(folder) as part:
        for name, said in (('config.json', config),
                           (configs.GENERATION, generation),
                           *dict(others).items()):
            if said is not None:
                (part / name).parent.mkdir(exist_ok=True)
                write_text(part / name, json.dumps(
                    said, indent=2, sort_keys=True) + '\n')
        tokenizer.save(part)
        tensor_files.write(part / tensor_files.WEIGHTS, tensors,
                      Path(folder, tensor_files.WEIGHTS))
