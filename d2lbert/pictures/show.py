"""Make the page of `show`, an HTML file about a model.

`page_data` computes the data of the page, and `render` puts it into page.html.
"""
import base64
import contextlib
import hashlib
import html
import json
import math
import re
from pathlib import Path
from typing import Any, Iterable, Optional

import numpy as onp

from d2lbert._version import __version__
from d2lbert.finetuning.prediction import predict
from d2lbert.machine.arguments import (
    PathLike,
    UsageError,
    check_out,
    items_of,
    short_repr,
    writing,
)
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

#: Default texts with the book's two senses of "crane", by `About.pair`;
#: None is also the key for a model that is not fine-tuned.
DEFAULT_TEXTS = {
    None: ('a crane is flying', ('a crane driver came', 'he just left')),
    True: (('a crane is flying', 'a bird is in the air'),
           ('a crane driver came', 'he just left')),
    False: ('a crane is flying', 'a crane driver came')}

#: Maximum number of words whose uses are shown, if the user names no words.
MAX_SHOWN_WORDS = 6

#: Minimum number of uses: of a word that the user named, and of other words.
MIN_USES_IF_NAMED, MIN_USES = 3, 6

#: Maximum number of attention weights of a page. BERT base has 38 million for
#: a text of 512 tokens.
MAX_WEIGHTS = 40_000_000

#: A page with more attention weights stores them in 8 bits.
MAX_WEIGHTS_IN_16_BITS = 300_000

#: The files of the page, in the order in which they are joined.
STYLE_SHEETS = ('page.css',)
SCRIPTS = ('page.js', 'heads.js', 'lines.js', 'attention.js', 'masks.js',
           'neighbours.js', 'senses.js', 'training.js')

#: Escapes of characters with a meaning in HTML or JavaScript. '<' could end
#: the script that contains the JSON.
_ESCAPES = {ord(c): f'\\u{ord(c):04x}' for c in '<>&\u2028\u2029'}


def show(model: Any, texts: Any = None, *,
         words: Optional[Iterable[str]] = None,
         file: Optional[PathLike] = None, out: Optional[PathLike] = None,
         force: bool = False, text_field: Optional[str] = None) -> 'Page':
    """Make a page that shows what a model learnt.

    model: a run folder of `pretrain` or `finetune`, or the folder of a
    released model; or a pair (net, tokenizer or vocabulary), as `load_model`
    and `load_run` return it. texts: a text, or a list of texts and pairs
    (default: the book's texts with the word crane). words: the words whose
    vectors in many sentences are shown, or one word (default: words of `texts`
    with enough uses). file: sentences, one on each line, to search for the
    nearest tokens and the uses of words (default: the text of a run of
    `pretrain`, else the sample corpus). The uses of a word with labelled
    senses always come from the sample corpus. text_field: the field of `file`
    that holds the text, if the lines are JSON. out: a file to write the page
    to; force: replace this file if it exists.

    The page of a fine-tuned model has its predictions, except for multiple
    choice: a pair has only one ending.

    Returns a `Page`, which a notebook displays. Its file needs no network
    and no other file. Raises ValueError, TypeError or OSError with a one-line
    message.
    """
    if out is None:
        return Page(page_data(model, texts, words, file, text_field))
    return write_page(model, out, force, texts=texts, words=words, file=file,
                      text_field=text_field)


def write_page(model, out, force=False, **keywords):
    """Write the page of `show` to the file `out`; return the `Page`.

    keywords: arguments of `page_data`. `out` is checked before the model is
    loaded.
    """
    reads = []      # paths that `out` must not replace
    if isinstance(model, (str, Path)):
        reads.append(model)
    if keywords.get('file'):
        reads.append(keywords['file'])
    check_out(out, force, example='page.html', reads=reads)
    page = Page(page_data(model, **keywords))
    with writing(out, force) as temporary:
        Path(temporary).write_text(page.html, 'utf-8', 'backslashreplace')
    return page


def page_data(model, texts=None, words=None, file=None, text_field=None,
              ctx=None):
    """Return the data of the page, a dictionary for JSON.

    ctx: the device for a model in a folder; None is the CPU. The other
    arguments are as for `show`.
    """
    net, tokenizer, folder = open_model(model, 'fp32', ctx)
    about = net.about       # None unless the model is fine-tuned
    if texts is None:
        texts = DEFAULT_TEXTS[about and about.pair]
    pairs = _check_texts(texts)
    if words is not None:
        words = items_of([words] if isinstance(words, str) else words,
                         'words', 'words')
    all_encoded = [tokenizer.encode(*pair) for pair in pairs]
    num_weights = _count_weights(net, all_encoded)
    sample = _load_sample(folder, file, text_field)
    text_words = _words_of(pairs)
    sentences = sample_texts.pick_sentences(
        sample, {*text_words, *map(str.lower, words or ())})
    sample_tokens, neighbours = neighbours_of(net, tokenizer, all_encoded,
                                              sentences)
    can_fill = has_mask_head(net) and tokenizer.mask_id is not None
    bits = 16 if num_weights <= MAX_WEIGHTS_IN_16_BITS else 8
    data_of_texts = []
    page_index = {}     # {index of a sample token: its index on the page}
    for pair, encoded, text_neighbours in zip(pairs, all_encoded, neighbours):
        tokens = _token_data(pair, encoded)
        weights = attention_of(net, encoded.ids, encoded.segments)
        # A layer of an ALBERT may have several blocks: show the last one
        num_blocks = len(net.encoder.blks.of_layer(1))
        weights = weights[num_blocks - 1::num_blocks]
        data_of_texts.append(dict(
            text=pair[0], pair=pair[1], tokens=tokens,
            attention=quantize(weights, bits),
            head=clearest_head(weights, [token['special']
                                         for token in tokens]),
            guesses=(_guess_data(net, tokenizer, encoded) if can_fill
                     else None),
            near=_neighbour_data(text_neighbours, page_index),
            prediction=(_prediction_data(net, tokenizer, *pair)
                        if about and about.kind != 'choice' else None)))
    return dict(
        **_model_data(net, tokenizer, folder),
        bits=bits, texts=data_of_texts,
        sample=_sample_data(sample, sentences, sample_tokens, page_index),
        senses=_sense_data(net, tokenizer, sample, text_words, words),
        training=_training_data(folder))


def _check_texts(texts):
    """Check the texts; return a list of pairs (text, second text or None)."""
    pairs = []
    for text in items_of([texts] if isinstance(texts, str) else texts):
        pair = (text, None) if isinstance(text, str) else text
        is_pair = (isinstance(pair, (tuple, list)) and len(pair) == 2
                   and isinstance(pair[0], str)
                   and isinstance(pair[1], (str, type(None))))
        if not is_pair:
            raise TypeError('a text must be a string or a pair of strings, '
                            f'not {short_repr(text)}')
        for part in pair:
            if part is not None and not part.strip():
                raise UsageError('a text is empty: give at least one word')
        pairs.append(tuple(pair))
    if not pairs:
        raise ValueError('texts is empty: give at least one text')
    return pairs


def _count_weights(net, all_encoded):
    """Count attention weights; check that the texts fit the model and page."""
    for k, encoded in enumerate(all_encoded, 1):
        if len(encoded.ids) > net.encoder.max_len:
            raise ValueError(f'text {k} has {len(encoded.ids)} tokens, but '
                             f'this model has only {net.encoder.max_len} '
                             'positions: shorten it')
    num_weights = sum(net.encoder.blks.num_layers * net.config['num_heads']
                      * len(encoded.ids) ** 2 for encoded in all_encoded)
    if num_weights > MAX_WEIGHTS:
        raise ValueError(f'the texts have {num_weights:,} attention weights, '
                         f'but a page may have only {MAX_WEIGHTS:,}: give '
                         'fewer or shorter texts')
    return num_weights


def _words_of(pairs):
    words = []
    for pair in pairs:
        for text in filter(None, pair):
            words += re.findall(r'\w+', text.lower())
    return words


def _load_sample(folder, file, text_field):
    if file is not None:
        return sample_texts.sample_of_file(file, text_field)
    if folder is not None and is_run(folder) and not is_finetuned(folder):
        return sample_texts.sample_of_run(folder)
    return sample_texts.bundled_sample()


# Data of each text

def _token_data(pair, encoded):
    """Return a dictionary for each token of a pair of texts.

    'written' is the token's spelling in the text.
    """
    tokens = []
    for token, segment, (begin, end), word_index, text_index in zip(
            encoded.tokens, encoded.segments, encoded.offsets,
            encoded.words, encoded.text_indices):
        is_special = word_index is None
        written = '' if is_special else pair[text_index][begin:end]
        tokens.append(dict(token=token, written=written, segment=segment,
                           special=is_special))
    return tokens


def _guess_data(net, tokenizer, encoded):
    """Return [guesses, probability, rank] for each token; None if special.

    A guess is [token, probability]. The probability and the rank are those of
    the token that was masked.
    """
    data = []
    for found in guesses_of(net, tokenizer, encoded):
        data.append(None if found is None else [
            [[guess.token, guess.probability] for guess in found.guesses],
            found.own.probability, found.rank])
    return data


def _neighbour_data(neighbours, page_index):
    """Return, for each layer, two lists for each token of a text.

    A list is [i, cosine, i, cosine, ...], where i is the index of a neighbour
    on the page. The first list has the nearest tokens, the second the nearest
    occurrences of the same token. If they are equal, 0 replaces the second.
    neighbours: the text's entry in the second result of `neighbours_of`.
    page_index: {index of a sample token: i}, which this function extends.
    """
    def flat_list(found):       # a `Neighbours`
        numbers = []
        for index, cosine in zip(found.indices, found.cosines):
            i = page_index.setdefault(index, len(page_index))
            numbers += [i, round(cosine, 4)]
        return numbers
    return [[[flat_list(among_all),
              flat_list(among_same) if among_same != among_all else 0]
             for among_all, among_same in layer] for layer in neighbours]


def _sample_data(sample, sentences, sample_tokens, page_index):
    """Return the sample tokens in `page_index`, and their sentences.

    A token becomes [index of its sentence in the result, begin, end]. 'count'
    is the number of sentences that were searched.
    """
    sentence_index = {}     # {index in `sentences`: index in the result}
    rows = []
    for index in sorted(page_index, key=page_index.get):
        token = sample_tokens[index]
        s = sentence_index.setdefault(token.sentence, len(sentence_index))
        rows.append([s, token.begin, token.end])
    return dict(name=sample.name, count=len(sentences), tokens=rows,
                sentences=[sentences[index] for index in sentence_index])


def _prediction_data(net, tokenizer, text, text_b):
    """Return the prediction of a fine-tuned model, as rows [name, value]."""
    [prediction] = predict(net, tokenizer, [text],
                           None if text_b is None else [text_b])
    kind = net.about.kind
    if kind == 'tag':
        return [[word, tag] for word, tag
                in zip(text.split(), prediction.label)]
    if kind == 'classify':
        return [[label, probability] for label, probability in sorted(
            prediction.shares.items(), key=lambda item: -item[1])]
    if kind == 'regress':
        return [['value', f'{prediction.label:.4f}']]
    return [['answer', prediction.label]]


# Data of the model

def _model_data(net, tokenizer, folder):
    about = net.about
    name = 'a net in memory' if folder is None else name_of(folder)
    if about:
        kind = 'fine-tuned'
    elif folder is None:
        kind = 'in memory'
    else:
        kind = 'run' if is_run(folder) else 'released'
    return dict(
        title=f'What {name} learnt', name=name, version=__version__,
        kind=kind, task=about.task if about else None,
        layers=net.encoder.blks.num_layers, heads=net.config['num_heads'],
        hiddens=net.config['num_hiddens'], tokens=len(tokenizer),
        parameters=sum(int(math.prod(param.shape)) for param
                       in net.collect_params().values()),
        special=sorted({tokenizer.idx_to_token[idx] for idx in (
            tokenizer.cls_id, tokenizer.sep_id)}),
        mask=None if tokenizer.mask_id is None
        else tokenizer.idx_to_token[tokenizer.mask_id])


def _sense_data(net, tokenizer, sample, text_words, words):
    """Return a list with the data of each word that is shown.

    They are `words` or, if this is None, up to MAX_SHOWN_WORDS of `text_words`
    with at least MIN_USES uses, without stop words of the sample and numbers.
    """
    if words is not None:
        return [_word_data(net, tokenizer, sample, word, MIN_USES_IF_NAMED)
                for word in dict.fromkeys(map(str.lower, words))]
    stop_words = sample_texts.stop_words(sample)
    candidates = [word for word in dict.fromkeys(text_words)
                  if word not in stop_words and not word.isdigit()]
    # Words with labelled senses come first
    candidates.sort(key=lambda word: not sample_texts.labelled_uses(word))
    data = []
    for word in candidates:
        if len(data) == MAX_SHOWN_WORDS:
            break
        with contextlib.suppress(ValueError):   # the word is too rare
            data.append(_word_data(net, tokenizer, sample, word, MIN_USES))
    return data


def _word_data(net, tokenizer, sample, word, min_uses):
    """Return the data of a word: points by layer, sentences and senses.

    Labelled uses, which are in the sample corpus, replace uses in `sample`.
    Raises ValueError if there are too few uses.
    """
    uses = (sample_texts.labelled_uses(word)
            or sample_texts.uses_of(word, sample.sentences))
    if len(uses) < min_uses:
        raise ValueError(f'the word {word!r} is in {len(uses)} sentences of '
                         f'{sample.name}: a picture needs at least '
                         f'{min_uses}')
    found = sense_points(net, tokenizer, word, uses)
    # Either all uses have labels or none
    sense_names = sorted({use.sense for use in found.uses} - {None})
    return dict(
        word=word, names=sense_names,
        texts=[use.sentence for use in found.uses],
        spans=[(use.begin, use.end) for use in found.uses],
        sample='the sample corpus' if sense_names else sample.name,
        senses=[sense_names.index(use.sense) for use in found.uses
                if use.sense is not None],
        # Four digits keep the page small
        layers=[[[float(f'{x:.4g}') for x in point] for point in layer]
                for layer in found.points.tolist()])


def _training_data(folder):
    """Return a run's losses and settings; None if no losses can be read."""
    try:
        record = read_record(folder) if folder is not None else None
    except RunError:
        return None
    if record is None or not record.losses:
        return None

    def rounded(curve):
        steps, values = curve
        return [steps, [float(f'{value:.6g}') for value in values]]
    config = record.config
    return dict(
        losses={name: [rounded(each_step), rounded(mean)]
                for name, (each_step, mean) in record.losses.items()},
        held_out={name: rounded(curve)
                  for name, curve in record.held_out.items()},
        settings={name: _setting_text(value) for name, value
                  in config.get('training', {}).items()},
        machine=config.get('machine'), version=config.get('d2lbert'),
        # The log of a finished run ends with the losses and the speed
        log=[line for line in record.log.splitlines()[-3:]
             if not line.startswith('step ')])


def _setting_text(value):
    if isinstance(value, (list, tuple)):
        return ', '.join(map(_setting_text, value))
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    return 'none' if value is None else str(value)


# The page as HTML

class Page:
    """A page that shows what a model learnt.

    html: the text of the page, which a notebook displays.
    """

    def __init__(self, data):
        self.html = render(data)

    def save(self, path, force=False):
        """Write the page to a file, atomically.

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
    """Return the HTML of the page; data: the result of `page_data`."""
    folder = Path(__file__).resolve().parent

    def read(name):
        return (folder / name).read_text('utf-8')
    program = "'use strict';\n" + '\n'.join(map(read, SCRIPTS))
    # The content security policy of page.html allows only a script with this
    # digest
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest())
    values = dict(title=html.escape(data['title']), program=program,
                  style='\n'.join(map(read, STYLE_SHEETS)),
                  data=escape_json(data), digest=digest.decode())
    # All values are inserted in one pass, so that a {{…}} within a value stays
    return re.sub(r'\{\{(\w+)\}\}', lambda match: values[match.group(1)],
                  read('page.html'))


def escape_json(data):
    """Return `data` as JSON that cannot end the HTML script around it."""
    text = json.dumps(_encodable(data), ensure_ascii=False,
                      separators=(',', ':'), allow_nan=False)
    return text.translate(_ESCAPES)


def _encodable(data):
    """Return `data` with backslash escapes in place of lone surrogates.

    UTF-8 cannot encode these characters, which file names may contain.
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
    """Quantize attention weights (..., T, T); return them as base64.

    A row stores the square roots of its weights, so that small weights remain
    distinct. The roots are scaled so that the largest root of the row becomes
    2 ** bits - 1. To read a row, square its numbers and divide the squares by
    their sum. Numbers are unsigned, little-endian, of 8 or 16 bits.
    """
    row_max = weights.max(axis=-1, keepdims=True)
    max_number = (1 << bits) - 1
    numbers = onp.rint(onp.sqrt(weights / onp.maximum(row_max, 1e-30))
                       * max_number)
    numbers = numbers.astype('<u2' if bits == 16 else 'uint8')
    return base64.b64encode(numbers.tobytes()).decode()
