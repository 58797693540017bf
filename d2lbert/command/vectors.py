"""Do the work of `d2lbert encode` and `d2lbert similar` in constant memory."""
import contextlib
import copy
import functools
import hashlib
import heapq
import math
import sys
from pathlib import Path

import numpy as onp

from d2lbert.command.flags import device_of, print_json, short_floats
from d2lbert.command.vector_files import read_npy, vectors_file
from d2lbert.machine.arguments import UsageError, check_text_or_file
from d2lbert.machine.files import is_run
from d2lbert.machine.terminal import note
from d2lbert.pretrained.contents import load_quantized
from d2lbert.pretrained.encoding import Text, TextEncoder
from d2lbert.pretrained.tokenizers.encoded import UnknownWords
from d2lbert.progress import bar
from d2lbert.texts.text_sources import Lines

#: At most this number of texts is encoded again to check vectors from a file.
NUM_CHECKED = 8

#: The remedy for a file --vectors with wrong vectors.
REMEDY = 'name a new file, and the vectors are written to it'


def encode(folder, text=None, pair=None, file=None, pool=None, out=None,
           force=False, text_field=None, skip_empty=False, is_json=False,
           **options):
    """Print or write the vectors of a text, or of each line of a file.

    The arguments are the flags of `d2lbert encode`; options: see `_encoder`.
    Raises an error for invalid arguments, if possible before loading the net.
    """
    row_per_text = file is not None and out is not None
    pooling = _pooling(folder, pool, row_per_text)
    check_text_or_file(text, file, text_field, skip_empty)
    _check_arguments(text, pair, file, pooling, out)
    lines = num_texts = digest = None
    if file is not None:
        # To print vectors, a pipe is read once, as its texts arrive. All other
        # texts are read twice: first for their number and digest
        lines = Lines(file, text_field, skip_empty, single_pass=out is None)
        if not lines.is_stream:
            num_texts, digest = _count_and_digest(lines)
    with contextlib.ExitStack() as stack:
        writer = None if out is None else stack.enter_context(vectors_file(
            out, force, reads=[folder, *(lines.sources if lines else ())],
            text_column='text' if pooling else 'token'))
        encoder = _encoder(folder, pooling=pooling, **options)
        unknown_words = UnknownWords(encoder.tokenizer)
        output = _output_function(writer, unknown_words, is_json, pooling,
                                  has_file=file is not None)
        prints_to_terminal = out is None and sys.stdout.isatty()
        progress = stack.enter_context(bar(
            num_texts, what='encoding', unit='texts',
            quiet=num_texts is None or prints_to_terminal))
        batches = ([[Text('text', text, pair)]] if lines is None
                   else map(_to_texts, lines.batches()))
        for batch in batches:
            for text_item, encoding in zip(batch, encoder.encode(batch)):
                unknown_words.count(encoding)
                output(encoding, text_item.text)
                progress.update(1)
        if writer and digest:
            writer.about = dict(texts=digest)
    _print_notes(encoder, lines, unknown_words.note())
    if writer and is_json:
        print_json(dict(out=str(out), texts=encoder.num_texts,
                        truncated=encoder.num_truncated))


def similar(folder, query, file, top=5, pool=None, vectors_path=None,
            text_field=None, skip_empty=False, is_json=False, **options):
    """Print the `top` texts of a file that are nearest to a query.

    The arguments are the flags of `d2lbert similar`; options: see `_encoder`.
    Texts with equal similarities keep the order of the file.
    """
    if not query.strip():
        raise UsageError('query is empty: give at least one word')
    lines = Lines(file, text_field, skip_empty)
    num_texts, digest = _count_and_digest(lines)
    stored_vectors = _read_vectors(vectors_path, num_texts, digest)
    with contextlib.ExitStack() as stack:
        writer = None
        if vectors_path is not None and stored_vectors is None:
            writer = stack.enter_context(vectors_file(
                vectors_path, force=False, reads=[folder, *lines.sources],
                flag='--vectors'))
        encoder = _encoder(folder, pooling=pool or 'own', **options)
        unknown_words = UnknownWords(encoder.tokenizer)
        unknown_query_words = UnknownWords(encoder.tokenizer)
        # A copy counts its own truncated texts
        query_encoder = copy.copy(encoder)
        (query_encoding,) = query_encoder.encode([Text('query', query)])
        unknown_query_words.count(query_encoding)
        if stored_vectors is None:
            candidates = _encode_lines(encoder, unknown_words, lines,
                                       num_texts, writer)
        else:
            _check_vectors(vectors_path, stored_vectors, copy.copy(encoder),
                           lines)
            candidates = zip((line.text for line in lines), stored_vectors)
        scored_texts = ((_cosine(query_encoding.vectors, vector), text, k)
                        for k, (text, vector) in enumerate(candidates))
        # Of equal cosines, `nlargest` returns the first one first
        nearest = heapq.nlargest(top, scored_texts, key=_rank)
        if writer is not None:
            writer.about = dict(texts=digest)
    for cosine, text, k in nearest:
        if is_json:
            print_json(dict(text=text, similarity=cosine, row=k))
        else:
            print(f'{cosine:.4f} {text}')
    _print_notes(encoder, lines, unknown_query_words.note('the query'),
                 unknown_words.note('the texts'),
                 _query_truncation_note(query_encoder))


def _rank(scored_text):
    cosine, _, _ = scored_text
    # NaN has no order: rank it last
    return -math.inf if math.isnan(cosine) else cosine


def _to_texts(lines):
    return [Text(line.name, line.text) for line in lines]


def _encode_lines(encoder, unknown_words, lines, num_texts, writer):
    """Yield (text, vector) for each text, and count unknown words.

    writer: an object from `vectors_file` that also gets the vectors, or None.
    """
    with bar(num_texts, what='encoding', unit='texts') as progress:
        for batch in map(_to_texts, lines.batches()):
            for text, encoding in zip(batch, encoder.encode(batch)):
                unknown_words.count(encoding)
                if writer is not None:
                    writer.add([text.text], encoding.vectors[None])
                yield text.text, encoding.vectors
                progress.update(1)


def _count_and_digest(lines):
    count, sha256 = 0, hashlib.sha256()
    for line in lines:
        count += 1
        sha256.update(line.text.encode() + b'\n')
    return count, sha256.hexdigest()


# Vectors from a file

def _read_vectors(path, num_texts, digest):
    """Return the vectors in the file --vectors, or None without such a file.

    Raises ValueError if they are of other texts, by number or digest.
    """
    if path is None:
        return None
    if Path(path).suffix.lower() != '.npy':
        raise UsageError(f'--vectors {path} must end in .npy')
    if not Path(path).exists():
        return None
    vectors, about = read_npy(path, '--vectors')
    if len(vectors) != num_texts:
        raise ValueError(f'--vectors {path} has {len(vectors):,} rows, and '
                         f'the file has {num_texts:,} texts: {REMEDY}')
    # A file of another program has no digest
    if about.get('texts', digest) != digest:
        raise ValueError(f'--vectors {path} was made from other texts: '
                         f'{REMEDY}')
    return vectors


def _check_vectors(path, stored_vectors, encoder, lines):
    """Encode some texts again; raise if a stored vector differs."""
    indices = onp.linspace(0, len(stored_vectors) - 1,
                           NUM_CHECKED).astype(int).tolist()
    checked = [(k, line) for k, line in enumerate(lines) if k in indices]
    encodings = encoder.encode(_to_texts(line for _, line in checked))
    for (k, line), encoding in zip(checked, encodings):
        stored = stored_vectors[k]
        expected = encoding.vectors.astype('float64')
        # Another processor or another version may round differently
        tolerance = 1e-3 * onp.abs(expected).max()
        # A NaN in the stored vector compares as False
        is_equal = (expected.shape == stored.shape
                    and onp.abs(expected - stored).max() <= tolerance)
        if not is_equal:
            raise ValueError(
                f'--vectors {path} was not made by this model with these '
                f'settings: the row of {line.name} is another vector; '
                f'{REMEDY}')


def _cosine(x, y):
    """Return the cosine similarity of two vectors; 0 if one is zero."""
    x, y = x.astype('float64'), y.astype('float64')
    norm_product = onp.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm_product) if norm_product else 0.0


# The model and the flags

def _pooling(folder, pool, row_per_text):
    """Return the argument `pooling` of `TextEncoder` for the flag --pool.

    Without the flag, a run has a vector for each token (None) unless
    row_per_text is true, and a pretrained model has one for each text ('own').
    """
    if pool is not None:
        return None if pool == 'none' else pool
    is_pretrained = Path(folder).is_dir() and not is_run(Path(folder))
    return 'own' if is_pretrained or row_per_text else None


def _encoder(folder, precision=None, devices='auto', **options):
    """Return the `TextEncoder` of a folder.

    precision, devices: the flags. options: other arguments of `TextEncoder`.
    """
    may_be_int8 = (precision in (None, 'int8')
                   and devices in ('auto', 'cpu') and not is_run(folder))
    # Avoid the import of MXNet, which takes longer than encoding a text
    loaded = load_quantized(folder, precision) if may_be_int8 else None
    if loaded is None:
        from d2lbert.training.load import load
        # heads=(): do not warn of missing heads, which vectors do not need
        loaded = load(folder, device_of(devices), heads=(), trainable=False,
                      precision=precision)[1:]
    net, tokenizer = loaded
    # Without `pooling`, as in runs of `pretrain` and `finetune`, a text that
    # is too long is an error
    return TextEncoder(net, tokenizer, truncates=tokenizer.pooling is not None,
                       **options)


def _print_notes(encoder, lines, *notes):
    """Print the notes, and notes on truncated texts and skipped lines."""
    truncation = encoder.truncation_note()
    if truncation:
        truncation += '; --overlap would keep them'
    for sentence in (*notes, truncation, lines and lines.skipped_note()):
        if sentence:
            note(sentence)


def _query_truncation_note(query_encoder):
    if not query_encoder.num_truncated:
        return None
    return (f'the query has more than {query_encoder.max_len} tokens and was '
            f'cut; {query_encoder.num_lost_tokens} tokens were left out; '
            '--overlap would keep them')


def _check_arguments(text, pair, file, pooling, out):
    if file is None:
        for name, value in (('text', text), ('--pair', pair)):
            if value is not None and not value.strip():
                raise UsageError(f'{name} is empty: give at least one word')
    elif pair is not None:
        raise UsageError('--pair goes with one text, not with --file')
    elif out is not None and pooling is None:
        raise UsageError('the texts of --file have as many vectors as '
                         'tokens, which do not fit into one array: give '
                         '--pool cls or --pool mean for one vector each, or '
                         'leave out --out')


# Writing and printing vectors

# text: as the user gave it; `encoding.text` may have a prompt, or be in lower
# case

def _output_function(writer, unknown_words, is_json, pooling, has_file):
    """Return output(encoding, text), which writes or prints the vectors."""
    if writer:
        return functools.partial(_write, writer, unknown_words)
    if is_json:
        return functools.partial(_print_json, unknown_words)
    if pooling:
        return _print_pooled
    return functools.partial(_print_paragraph if has_file else _print_tokens,
                             unknown_words)


def _write(writer, unknown_words, encoding, text):
    is_pooled = encoding.vectors.ndim == 1
    writer.add(
        [text] if is_pooled else unknown_words.readable_tokens(encoding),
        onp.atleast_2d(encoding.vectors))


def _print_pooled(encoding, text):
    print(_format(encoding.vectors), flush=True)


def _print_json(unknown_words, encoding, text):
    vectors = encoding.vectors
    if vectors.ndim == 1:       # pooled
        print_json(dict(text=text, vector=short_floats(vectors)))
    else:
        print_json(dict(text=text,
                        tokens=unknown_words.readable_tokens(encoding),
                        vectors=list(map(short_floats, vectors))))


def _format(vector):
    return ' '.join(f'{x:.4f}' for x in vector)


def _print_tokens(unknown_words, encoding, text):
    for token, vector in zip(unknown_words.readable_tokens(encoding),
                             encoding.vectors):
        print(token, _format(vector))


def _print_paragraph(unknown_words, encoding, text):
    _print_tokens(unknown_words, encoding, text)
    print(flush=True)
