"""`show`: what a model learnt, gathered for the page."""
import re
from pathlib import Path

from d2lbert._version import __version__
from d2lbert.finetuning.prediction import predict
from d2lbert.machine.arguments import UsageError, check_out, writing
from d2lbert.pictures import sample_texts, sense_points
from d2lbert.pictures.activations import attention_of
from d2lbert.pictures.inputs import loaded
from d2lbert.pictures.mask_guesses import guesses_of
from d2lbert.pictures.neighbours import neighbours_of
from d2lbert.pictures.page import FINE, MOST, Page, packed
from d2lbert.pictures.run_records import name_of, read_record
from d2lbert.pretrained.fill_mask import has_mask_head
from d2lbert.training.load import is_run
from d2lbert.training.saved_runs import RunError, is_finetuned

#: What is shown where nobody says what: the book's two cranes.
TEXTS = ('a crane is flying', ('a crane driver came', 'he just left'))
PAIRS = (('a crane is flying', 'a bird is in the air'), TEXTS[1])

#: Words whose senses are shown, where nobody says which, at most.
SENSED = 6


def show(model, texts=None, *, words=None, file=None, out=None, force=False,
         text_field=None):
    """A page that shows what a model learnt; a notebook shows it at once.

    model: the folder of a run of `pretrain` or `finetune`, or of a released
    model; or (net, tokenizer) as `load_model` or `load_run` gives them.
    texts: a text, or a list of texts and pairs of texts (the book's two
    cranes). words: whose vectors are shown in many sentences (those of the
    texts that are used several times). file: the texts, one on each line,
    among which neighbours are looked for (a run's own text, else the sample
    corpus); text_field: the field of JSON lines that holds the text. out: a
    file to write the page to as well, which force replaces.

    Returns a `Page`. The file needs no network, and no other file. Raises
    ValueError and OSError, in one sentence.
    """
    if out is None:
        return Page(gathered(model, texts, words, file, text_field))
    return write_page(model, out, force, texts=texts, words=words, file=file,
                      text_field=text_field)


def write_page(model, out, force=False, **choices):
    """Write the `Page` of `show(model, **choices)`, and return it.

    What keeps it from being written is said before the model is loaded,
    where that can be known.
    """
    reads = [model] if isinstance(model, (str, Path)) else []
    check_out(out, force, 'page.html', [
        *reads, *filter(None, [choices.get('file')])])
    page = Page(gathered(model, **choices))
    with writing(out, force) as part:
        Path(part).write_text(page.html, 'utf-8', 'backslashreplace')
    return page


def gathered(model, texts=None, words=None, file=None, text_field=None):
    """What the page shows, as JSON can hold it; arguments as for `show`."""
    net, tokenizer, folder = loaded(model)
    about = getattr(net, 'about', None)
    if texts is None:
        texts = PAIRS if about is not None and about.pair else TEXTS
    texts = _checked(texts)
    encoded = [tokenizer.encode(*text) for text in texts]
    _check_sizes(net, encoded)
    sample = _sample(folder, file, text_field)
    asked = [word for text in texts for part in text if part
             for word in re.findall(r'\w+', part.lower())]
    sentences = sample_texts.chosen(
        sample, {*asked, *map(str.lower, words or ())})
    places, near = neighbours_of(net, tokenizer, encoded, sentences)
    shown = [_shown(*one) for one in zip(texts, encoded)]
    guess = has_mask_head(net) and tokenizer.mask_id is not None
    config, bits = net.config, 16 if sum(
        _num_weights(net, one) for one in encoded) <= FINE else 8
    used = {}
    for one, text, layers in zip(encoded, shown, near):
        text['attention'] = packed(
            attention_of(net, one.ids, one.segments), bits)
        text['guesses'] = _guesses(net, tokenizer, one) if guess else None
        text['near'] = _near(layers, used)
        text['says'] = _says(net, tokenizer, text) if about else None
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
        sample=_sample_data(sample, sentences, places, used),
        senses=_senses(net, tokenizer, sample, asked, words),
        training=_training(folder))


def _checked(texts):
    """A list of (text, its pair or None)."""
    found = []
    for text in [texts] if isinstance(texts, str) else texts:
        parts = (text, None) if isinstance(text, str) else text
        if not isinstance(parts, (tuple, list)) or len(parts) != 2 or (
                not isinstance(parts[0], str)) or (
                not isinstance(parts[1], (str, type(None)))):
            raise TypeError('a text must be a string, or a pair of them, not '
                            f'{text!r}')
        for part in parts:
            if part is not None and not part.strip():
                raise UsageError('a text is empty: give at least one word')
        found.append(tuple(parts))
    if not found:
        raise ValueError('there is no text: give at least one')
    return found


def _num_weights(net, one):
    return (len(net.encoder.blks) * net.config['num_heads']
            * len(one.ids) ** 2)


def _check_sizes(net, encoded):
    for k, one in enumerate(encoded, 1):
        if len(one.ids) > net.encoder.max_len:
            raise ValueError(f'text {k} has {len(one.ids)} tokens, and this '
                             f'model only {net.encoder.max_len} positions: '
                             'cut it')
    count = sum(_num_weights(net, one) for one in encoded)
    if count > MOST:
        raise ValueError(f'the texts have {count:,} attention weights, and a '
                         f'page holds {MOST:,}: give fewer or shorter ones')


def _size(param):
    size = 1
    for length in param.shape:
        size *= length
    return size


def _sample(folder, file, text_field):
    if file is not None:
        return sample_texts.of_file(file, text_field)
    if folder is not None and is_run(folder) and not is_finetuned(folder):
        return sample_texts.of_run(folder)
    return sample_texts.bundled()


# What is known of each text

def _shown(text, one):
    """A text and its tokens, as they are written in it."""
    tokens = []
    for token, segment, (begin, end), word in zip(*one[1:]):
        written = text[segment][begin:end] if word is not None else ''
        tokens.append(dict(token=token, written=written, segment=segment,
                           special=word is None))
    return dict(text=text[0], pair=text[1], tokens=tokens)


def _guesses(net, tokenizer, one):
    """For each token [[[token, share], ...], its own share, its rank]."""
    return [None if hidden is None else
            [[[guess.token, guess.probability] for guess in hidden.guesses],
             hidden.own.probability, hidden.rank]
            for hidden in guesses_of(net, tokenizer, one)]


def _near(layers, used):
    """Neighbours by numbers of `used`: {number of a place: its own}.

    Of each token two lists of [place, cosine, place, cosine, ...].
    """
    def flat(near):
        numbers = []
        for place, cosine in zip(*near):
            numbers += [used.setdefault(place, len(used)), round(cosine, 4)]
        return numbers
    return [[[flat(of_kind), flat(same) if same != of_kind else 0]
             for of_kind, same in layer] for layer in layers]


def _sample_data(sample, sentences, places, used):
    """The places in use, and the sentences that these are in."""
    kept = {}
    rows = []
    for place in sorted(used, key=used.get):
        at = places[place]
        rows.append([kept.setdefault(at.sentence, len(kept)), at.begin,
                     at.end])
    return dict(name=sample.name, count=len(sentences), places=rows,
                sentences=[sentences[s] for s in sorted(kept, key=kept.get)])


def _says(net, tokenizer, text):
    """What a fine-tuned model says of a text: rows of a name and a value."""
    found, = predict(net, tokenizer, [text['text']],
                     None if text['pair'] is None else [text['pair']])
    kind = net.about.kind
    if kind == 'tag':
        return [[word, tag] for word, tag in zip(text['text'].split(),
                                                 found.label)]
    if kind == 'classify':
        return [[name, share] for name, share in sorted(
            found.shares.items(), key=lambda one: -one[1])]
    if kind == 'regress':
        return [['value', f'{found.label:.4f}']]
    return [['answer', found.label]]


# What is known of the model

def _senses(net, tokenizer, sample, asked, words):
    """Points of the words asked for, or of some of the texts'."""
    found = []
    for word in dict.fromkeys(map(str.lower, words or ())):
        found.append(_points(net, tokenizer, sample, word))
    if words is None:
        common = sample_texts.common(sample)
        likely = [word for word in dict.fromkeys(asked)
                  if word not in common and not word.isdigit()]
        likely.sort(key=lambda word: not sample_texts.noted(word))
        for word in likely:
            if len(found) < SENSED:
                try:
                    found.append(_points(net, tokenizer, sample, word, 6))
                except ValueError:
                    continue        # too rare to make a picture
    return found


def _points(net, tokenizer, sample, word, fewest=3):
    uses = (sample_texts.noted(word)
            or sample_texts.uses_of(word, sample.sentences))
    if len(uses) < fewest:
        raise ValueError(f'the word {word!r} is in {len(uses)} of the '
                         f'sentences of {sample.name}: three are the fewest '
                         'that make a picture')
    found = sense_points.sense_points(net, tokenizer, word, uses)
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
    """The history of a run, or None."""
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
        losses={name: [column(own), column(mean)]
                for name, (own, mean) in record.losses.items()},
        held_out={name: column(found)
                  for name, found in record.held_out.items()},
        settings={name: _told(value) for name, value
                  in config.get('training', {}).items()},
        machine=config.get('machine'), version=config.get('d2lbert'),
        log=[line for line in record.log.splitlines()[-3:]
             if not line.startswith('step ')])


def _told(value):
    """A setting in words."""
    if isinstance(value, (list, tuple)):
        return ', '.join(map(_told, value))
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    return 'none' if value is None else str(value)
