"""`show`: the page of what a model learnt, one HTML file with its data."""
import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any, Iterable, Optional

import numpy as onp

from d2lbert._version import __version__
from d2lbert.finetuning.prediction import predict
from d2lbert.machine.arguments import PathLike, UsageError, check_out, writing
from d2lbert.machine.files import write_text
from d2lbert.pictures import sample_texts
from d2lbert.pictures.activations import (
    attention_of,
    clearest_head,
    guesses_of,
    neighbours_of,
)
from d2lbert.pictures.run_records import name_of, read_record
from d2lbert.pictures.sample_texts import open_model
from d2lbert.pictures.senses import sense_points
from d2lbert.pretrained.fill_mask import has_mask_head
from d2lbert.training.load import is_run
from d2lbert.training.saved_runs import RunError, is_finetuned

#: The default texts, the book's two cranes, and pairs for models of pairs.
TEXTS = ('a crane is flying', ('a crane driver came', 'he just left'))
PAIRS = (('a crane is flying', 'a bird is in the air'), TEXTS[1])

#: Most words whose senses are shown, if the user names none.
MOST_WORDS = 6

#: Fewest uses in a picture of a word that the user named, and of others.
NAMED_USES, FOUND_USES = 3, 6


def show(model: Any, texts: Any = None, *,
         words: Optional[Iterable[str]] = None,
         file: Optional[PathLike] = None, out: Optional[PathLike] = None,
         force: bool = False, text_field: Optional[str] = None) -> 'Page':
    """Make a page that shows what a model learnt.

    model: a run folder of `pretrain` or `finetune`, or the folder of a
    released model; or a pair (net, tokenizer) of `load_model` or `load_run`.
    texts: a text, or a list of texts and pairs (default: the book's two
    cranes). words: the words whose vectors are shown in many sentences
    (default: words of the texts that are frequent enough). file: sentences,
    one on each line, in which neighbours are found (default: the text of the
    run, else the sample corpus). text_field: the field of JSON lines that
    holds the text. out: a file to write the page to; force: replace it.

    Returns a `Page`, which a notebook displays. Its file needs no network
    and no other file. Raises ValueError or OSError with a one-line message.
    """
    if out is None:
        return Page(page_data(model, texts, words, file, text_field))
    return write_page(model, out, force, texts=texts, words=words, file=file,
                      text_field=text_field)


def write_page(model, out, force=False, **choices):
    """Write the `Page` of `show(model, **choices)` and return it.

    A path that cannot be written is reported before the model is loaded.
    """
    reads = [model] if isinstance(model, (str, Path)) else []
    check_out(out, force, 'page.html', [
        *reads, *filter(None, [choices.get('file')])])
    page = Page(page_data(model, **choices))
    with writing(out, force) as part:
        Path(part).write_text(page.html, 'utf-8', 'backslashreplace')
    return page


def page_data(model, texts=None, words=None, file=None, text_field=None,
              ctx=None):
    """The data of the page, ready for JSON; arguments as for `show`.

    ctx: the device; None is the CPU.
    """
    net, tokenizer, folder = open_model(model, 'fp32', ctx)
    about = net.about
    if texts is None:
        texts = PAIRS if about is not None and about.pair else TEXTS
    texts = _checked(texts)
    encoded = [tokenizer.encode(*text) for text in texts]
    _check_sizes(net, encoded)
    sample = _sample(folder, file, text_field)
    text_words = [word for text in texts for part in text if part
                  for word in re.findall(r'\w+', part.lower())]
    sentences = sample_texts.pick_sentences(
        sample, {*text_words, *map(str.lower, words or ())})
    sample_tokens, neighbours = neighbours_of(net, tokenizer, encoded,
                                              sentences)
    fills_masks = has_mask_head(net) and tokenizer.mask_id is not None
    num_weights = sum(_num_weights(net, one) for one in encoded)
    config, bits = net.config, 16 if num_weights <= FINE else 8
    shown, used = [], {}
    for text, one, layers in zip(texts, encoded, neighbours):
        tokens = _tokens(text, one)
        weights = attention_of(net, one.ids, one.segments)
        shown.append(dict(
            text=text[0], pair=text[1], tokens=tokens,
            attention=quantize(weights, bits),
            head=clearest_head(weights, [token['special']
                                         for token in tokens]),
            guesses=_guesses(net, tokenizer, one) if fills_masks else None,
            near=_neighbours(layers, used),
            prediction=_prediction(net, tokenizer, *text) if about
            else None))
    name = 'a net in memory' if folder is None else name_of(folder)
    return dict(
        title=f'What {name} learnt', name=name, version=__version__,
        kind=('fine-tuned' if about else 'run' if folder is not None
              and is_run(folder) else 'released'),
        task=about.task if about else None,
        layers=len(net.encoder.blks), heads=config['num_heads'],
        hiddens=config['num_hiddens'], tokens=len(tokenizer),
        parameters=sum(int(_size(param)) for param
                       in net.collect_params().values()),
        special=sorted({tokenizer.idx_to_token[idx] for idx in (
            tokenizer.cls_id, tokenizer.sep_id)}),
        mask=None if tokenizer.mask_id is None
        else tokenizer.idx_to_token[tokenizer.mask_id],
        bits=bits, texts=shown,
        sample=_sample_data(sample, sentences, sample_tokens, used),
        senses=_senses(net, tokenizer, sample, text_words, words),
        training=_training(folder))


def _checked(texts):
    """A list of (text, second text or None); raises for other types."""
    found = []
    for text in [texts] if isinstance(texts, str) else texts:
        parts = (text, None) if isinstance(text, str) else text
        if not isinstance(parts, (tuple, list)) or len(parts) != 2 or (
                not isinstance(parts[0], str)) or (
                not isinstance(parts[1], (str, type(None)))):
            raise TypeError('a text must be a string or a pair of strings, '
                            f'not {text!r}')
        for part in parts:
            if part is not None and not part.strip():
                raise UsageError('a text is empty: give at least one word')
        found.append(tuple(parts))
    if not found:
        raise ValueError('texts is empty: give at least one text')
    return found


def _num_weights(net, one):
    return (len(net.encoder.blks) * net.config['num_heads']
            * len(one.ids) ** 2)


def _check_sizes(net, encoded):
    for k, one in enumerate(encoded, 1):
        if len(one.ids) > net.encoder.max_len:
            raise ValueError(f'text {k} has {len(one.ids)} tokens, but this '
                             f'model has only {net.encoder.max_len} '
                             'positions: shorten it')
    count = sum(_num_weights(net, one) for one in encoded)
    if count > MOST:
        raise ValueError(f'the texts have {count:,} attention weights, but a '
                         f'page holds {MOST:,}: give fewer or shorter texts')


def _size(param):
    size = 1
    for length in param.shape:
        size *= length
    return size


def _sample(folder, file, text_field):
    if file is not None:
        return sample_texts.sample_of_file(file, text_field)
    if folder is not None and is_run(folder) and not is_finetuned(folder):
        return sample_texts.sample_of_run(folder)
    return sample_texts.bundled_sample()


# Data of each text

def _tokens(text, one):
    """The tokens of a text or pair, each with its spelling in the text."""
    tokens = []
    for token, segment, (begin, end), word in zip(
            one.tokens, one.segments, one.offsets, one.words):
        written = text[segment][begin:end] if word is not None else ''
        tokens.append(dict(token=token, written=written, segment=segment,
                           special=word is None))
    return tokens


def _guesses(net, tokenizer, one):
    """For each token [guesses, probability of the token, its rank].

    A guess is [token, probability]; special tokens have None.
    """
    return [None if masked is None else
            [[[guess.token, guess.probability] for guess in masked.guesses],
             masked.own.probability, masked.rank]
            for masked in guesses_of(net, tokenizer, one)]


def _neighbours(layers, used):
    """Neighbours of each token in each layer, for the page.

    A token has two lists [i, cosine, i, cosine, ...]: neighbours among all
    tokens, and among occurrences of the same token. The second is 0 if it
    equals the first. used: {index of a sample token: i, its index on the
    page}; new neighbours are added.
    """
    def flat(neighbours):
        numbers = []
        for index, cosine in zip(*neighbours):
            numbers += [used.setdefault(index, len(used)), round(cosine, 4)]
        return numbers
    return [[[flat(of_kind), flat(same) if same != of_kind else 0]
             for of_kind, same in layer] for layer in layers]


def _sample_data(sample, sentences, sample_tokens, used):
    """The sample tokens in `used`, and their sentences, for the page.

    A token is [index of its sentence on the page, begin, end].
    """
    kept = {}
    rows = []
    for index in sorted(used, key=used.get):
        token = sample_tokens[index]
        rows.append([kept.setdefault(token.sentence, len(kept)), token.begin,
                     token.end])
    return dict(name=sample.name, count=len(sentences), tokens=rows,
                sentences=[sentences[s] for s in sorted(kept, key=kept.get)])


def _prediction(net, tokenizer, text, pair):
    """The prediction of a fine-tuned model, as rows [name, value]."""
    found, = predict(net, tokenizer, [text], None if pair is None
                     else [pair])
    kind = net.about.kind
    if kind == 'tag':
        return [[word, tag] for word, tag in zip(text.split(), found.label)]
    if kind == 'classify':
        return [[name, share] for name, share in sorted(
            found.shares.items(), key=lambda one: -one[1])]
    if kind == 'regress':
        return [['value', f'{found.label:.4f}']]
    return [['answer', found.label]]


# Data of the model

def _senses(net, tokenizer, sample, text_words, words):
    """Points of the given words, or of frequent words of the texts."""
    if words is not None:
        return [_word_points(net, tokenizer, sample, word, NAMED_USES)
                for word in dict.fromkeys(map(str.lower, words))]
    common = sample_texts.common_words(sample)
    candidates = [word for word in dict.fromkeys(text_words)
                  if word not in common and not word.isdigit()]
    # Words with labelled senses first
    candidates.sort(key=lambda word: not sample_texts.labelled_uses(word))
    found = []
    for word in candidates:
        if len(found) < MOST_WORDS:
            try:
                found.append(_word_points(net, tokenizer, sample, word,
                                          FOUND_USES))
            except ValueError:
                continue        # too rare for a picture
    return found


def _word_points(net, tokenizer, sample, word, fewest):
    """The points of a word by layer, with sentences and senses."""
    uses = (sample_texts.labelled_uses(word)
            or sample_texts.uses_of(word, sample.sentences))
    if len(uses) < fewest:
        raise ValueError(f'the word {word!r} is in {len(uses)} sentences of '
                         f'{sample.name}: a picture needs at least {fewest}')
    found = sense_points(net, tokenizer, word, uses)
    senses = [use.sense for use in found.uses]
    names = sorted(set(senses) - {None})
    return dict(
        word=word, names=names, texts=[use.sentence for use in found.uses],
        spans=[(use.begin, use.end) for use in found.uses],
        sample='the sample corpus' if names else sample.name,
        senses=[names.index(sense) for sense in senses if names],
        layers=[[[float(f'{x:.4g}') for x in point] for point in layer]
                for layer in found.points.tolist()])


def _training(folder):
    """The history of a run for the page, or None."""
    try:
        record = read_record(folder) if folder is not None else None
    except RunError:
        return None
    if record is None or not record.losses:
        return None

    def column(found):
        return [found[0], [float(f'{value:.6g}') for value in found[1]]]
    config = record.config
    return dict(
        losses={name: [column(each), column(mean)]
                for name, (each, mean) in record.losses.items()},
        held_out={name: column(found)
                  for name, found in record.held_out.items()},
        settings={name: _setting_text(value) for name, value
                  in config.get('training', {}).items()},
        machine=config.get('machine'), version=config.get('d2lbert'),
        log=[line for line in record.log.splitlines()[-3:]
             if not line.startswith('step ')])


def _setting_text(value):
    """The value of a setting as text."""
    if isinstance(value, (list, tuple)):
        return ', '.join(map(_setting_text, value))
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    return 'none' if value is None else str(value)


#: The files of the page, in the order in which they are joined.
STYLES = 'page.css',
PROGRAMS = ('page.js', 'heads.js', 'lines.js', 'attention.js', 'masks.js',
            'neighbours.js', 'senses.js', 'training.js')

#: Pages of at most this many attention weights store them in 16 bits each,
#: others in 8.
FINE = 300_000

#: Most attention weights of a page; BERT base has 38 million for 512 tokens.
MOST = 40_000_000

#: Characters that could end the script with the JSON, or begin a comment.
_ESCAPES = {ord(c): f'\\u{ord(c):04x}' for c in '<>&\u2028\u2029'}


class Page:
    """A page that shows what a model learnt.

    html: its text. A notebook shows it as the result of a cell.
    """

    def __init__(self, data):
        self.html = render(data)

    def save(self, path, force=False):
        """Write the page to a file, which is complete or not there at all.

        Raises FileExistsError if the file exists, unless `force`.
        """
        path = Path(path)
        if path.is_file() and not force:
            raise FileExistsError(f'{path} exists already: choose another '
                                  'name, or give force=True to replace it')
        write_text(path, self.html)

    def _repr_html_(self):
        return ('<iframe title="What a model learnt" style="width: 100%; '
                'height: 820px; border: 1px solid #8888" sandbox='
                '"allow-scripts" srcdoc="'
                f'{html.escape(self.html)}"></iframe>')

    def __repr__(self):
        return f'<Page of {len(self.html):,} characters: save(path) writes it>'


def render(data):
    """The HTML of the page for `data`, as `show.page_data` returns it."""
    here = Path(__file__).resolve().parent

    def read(name):
        return (here / name).read_text('utf-8')
    program = "'use strict';\n" + '\n'.join(map(read, PROGRAMS))
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest())
    parts = dict(title=html.escape(data['title']), program=program,
                 style='\n'.join(map(read, STYLES)), data=escape_json(data),
                 digest=digest.decode())
    # In one pass, so that {{…}} in the data stays as it is
    return re.sub(r'\{\{(\w+)\}\}', lambda match: parts[match.group(1)],
                  read('page.html'))


def escape_json(data):
    """JSON that is safe inside a script of HTML, for any strings in it."""
    text = json.dumps(_encodable(data), ensure_ascii=False,
                      separators=(',', ':'), allow_nan=False)
    return text.translate(_ESCAPES)


def _encodable(data):
    """The data with strings that UTF-8 can encode.

    Names of files may contain surrogates, which become escapes.
    """
    if isinstance(data, str):
        return data.encode('utf-8', 'backslashreplace').decode()
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value)
                for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_encodable(value) for value in data]
    return data


def quantize(weights, bits):
    """Attention weights (..., T, T), quantized, as base64.

    A row stores the square roots of its weights, which keep small weights
    apart, scaled so that the largest is 2 ** bits - 1. To read a row, square
    its numbers and divide the squares by their sum. Numbers are unsigned,
    little-endian, of 8 or 16 bits.
    """
    most = weights.max(axis=-1, keepdims=True)
    top = (1 << bits) - 1
    numbers = onp.rint(onp.sqrt(weights / onp.maximum(most, 1e-30)) * top)
    numbers = numbers.astype('<u2' if bits == 16 else 'uint8')
    return base64.b64encode(numbers.tobytes()).decode()
