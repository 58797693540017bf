"""What `d2lbert encode` and `similar` do: texts in, vectors out.

As many as come, in constant memory.
"""
import contextlib
import functools
import heapq
import sys
from pathlib import Path

import numpy as onp

from d2lbert.command.formats import vectors_file
from d2lbert.encoding import Text, TextEncoder
from d2lbert.machine.arguments import failures_of
from d2lbert.progress import bar
from d2lbert.training.models import is_run, load_model

#: Bytes read at once, and at most in a line.
CHUNK, LONGEST = 1 << 16, 1 << 24


def read_texts(file, name):
    """Lists of the `Text`s of a binary file, a line each, as they come.

    Raises ValueError, with the number of the line, for one that is not
    UTF-8 or without end.
    """
    kept, number = b'', 0
    while True:
        chunk = file.read1(CHUNK)
        *lines, kept = (kept + chunk).split(b'\n')
        if not chunk and kept:
            lines, kept = [kept], b''
        texts = []
        for line in lines:
            number += 1
            texts.append(Text(f'{name}, line {number}',
                              _decoded(line, name, number).strip()))
        if len(kept) > LONGEST:
            raise ValueError(f'{name}, line {number + 1} is longer than '
                             f'{LONGEST >> 20} MiB: put each text on a line '
                             'of its own')
        yield texts
        if not chunk:
            break
    if not number:
        raise ValueError(f'{name} holds no text: put one on each line')


def _decoded(line, name, number):
    try:
        # Some editors begin a file with a mark of its byte order
        return line.decode('utf-8-sig' if number == 1 else 'utf-8')
    except UnicodeDecodeError as error:
        raise ValueError(f'{name}, line {number} is not UTF-8 ({error.reason}'
                         f' at byte {error.start + 1}): convert the file'
                         ) from None


@contextlib.contextmanager
def opened(path):
    """A file of texts for reading, and its name; '-' is standard input."""
    if path == '-':
        if sys.stdin is None:
            raise ValueError('--file - is standard input, which is closed')
        yield sys.stdin.buffer, 'standard input'
        return
    with failures_of('--file', path, 'read'):
        file = open(path, 'rb')
    with file:
        yield file, path


def encode(folder, text=None, pair=None, file=None, pool=None, out=None,
           force=False, **choices):
    """Print or write the vectors of a text, or of each line of a file.

    Arguments as those of the command; choices: those of `TextEncoder`.
    Raises ValueError for what it cannot do, before the net is loaded where
    that can be known.
    """
    pooling = _pooling(folder, pool)
    _check_arguments(text, pair, file, pooling, out)
    with contextlib.ExitStack() as stack:
        if file is not None:
            texts = read_texts(*stack.enter_context(opened(file)))
        else:
            texts = [[Text('text', text, pair)]]
        rows = out and stack.enter_context(vectors_file(
            out, force, [folder, *filter(None, [file])],
            'text' if pooling else 'token'))
        encoder = _encoder(folder, pooling=pooling, **choices)
        tokens = _Tokens(encoder.tokenizer)
        write = (functools.partial(_add, rows, tokens) if rows else
                 _print_pooled if pooling else
                 tokens.print if file is None else tokens.print_block)
        shown = stack.enter_context(bar(
            what='encoding', unit='texts', quiet=file is None or out is None))
        for some in texts:
            for encoding in encoder.encode(some):
                tokens.count(encoding)
                write(encoding)
                shown.update(1)
    tokens.report(by_name=file is None)
    _report_cuts(encoder)


def similar(folder, query, file, top=5, pool=None, **choices):
    """Print the texts of a file that are nearest to a query, a line each.

    Before each its cosine with the query, both as one vector; of equal ones
    the first comes first.
    """
    if not query.strip():
        raise ValueError('query is empty: give at least one word')
    if top < 1:
        raise ValueError(f'--top {top} must be at least 1')
    nearest = []            # (cosine, -number of the line, text), a heap
    with opened(file) as (lines, name):
        encoder = _encoder(folder, pooling=pool or 'own', **choices)
        (asked,) = encoder.encode([Text('query', query)])
        with bar(what='comparing', unit='texts') as shown:
            for some in read_texts(lines, name):
                for text, encoding in zip(some, encoder.encode(some)):
                    item = (_cosine(asked.vectors, encoding.vectors),
                            -shown.n, text.text)
                    if len(nearest) < top:
                        heapq.heappush(nearest, item)
                    else:
                        heapq.heappushpop(nearest, item)
                    shown.update(1)
    for cosine, _, text in sorted(nearest, reverse=True):
        print(f'{cosine:.4f} {text}')
    _report_cuts(encoder)


def _cosine(x, y):
    x, y = x.astype('float64'), y.astype('float64')
    lengths = onp.sqrt((x @ x) * (y @ y))
    return float(x @ y / lengths) if lengths else 0.0


def _pooling(folder, pool):
    """What `--pool` means: 'own', one of `POOLS`, or None for all tokens.

    Where it is left out, a run gives the vectors of tokens, and a pretrained
    model one vector a text, as its folder says.
    """
    if pool == 'none':
        return None
    is_pretrained = Path(folder).is_dir() and not is_run(Path(folder))
    return pool or ('own' if is_pretrained else None)


def _encoder(folder, **choices):
    """The `TextEncoder` of a folder; the texts of a run are not cut."""
    net, tokenizer = load_model(folder, heads=(), trainable=False)
    return TextEncoder(net, tokenizer, cuts=tokenizer.pooling is not None,
                       **choices)


def _report_cuts(encoder):
    said = encoder.cut_words()
    if said:
        print(f'{said}; --windows would keep them', file=sys.stderr)


def _check_arguments(text, pair, file, pooling, out):
    if (text is None) == (file is None):
        raise ValueError('give a text, or --file FILE with a text on each '
                         'line' + (', not both' if file else ''))
    if file is None:
        for name, given in (('text', text), ('--pair', pair)):
            if given is not None and not given.strip():
                raise ValueError(f'{name} is empty: give at least one word')
    elif pair is not None:
        raise ValueError('--pair goes with one text, not with --file')
    elif out is not None and pooling is None:
        raise ValueError('the texts of --file have as many vectors as '
                         'tokens, which no one array holds: give --pool cls '
                         'or --pool mean for one vector each, or leave out '
                         '--out')


def _add(rows, tokens, encoding):
    """Write the vectors of an `Encoding`, or its one vector, to a file."""
    names = ([encoding.text.text] if encoding.vectors.ndim == 1
             else tokens.shown(encoding))
    rows.add(names, onp.atleast_2d(encoding.vectors))


def _print_pooled(encoding):
    print(_numbers(encoding.vectors), flush=True)


def _numbers(vector):
    return ' '.join(f'{x:.4f}' for x in vector)


class _Tokens:
    """The tokens of texts, of which it counts those that are not known."""

    def __init__(self, tokenizer):
        self._unknown = tokenizer.unk_id
        self._name = tokenizer.idx_to_token[tokenizer.unk_id]
        self.words, self.unknown, self.last = 0, 0, set()

    def shown(self, encoding):
        """The tokens of an `Encoding`; unknown ones as the text has them."""
        encoded, (_, *texts) = encoding.encoded, encoding.text
        return [token if idx != self._unknown or end == 0
                else texts[segment][begin:end]
                for idx, token, segment, (begin, end), _ in zip(*encoded)]

    def print(self, encoding):
        """Print each token and its vector."""
        for token, vector in zip(self.shown(encoding), encoding.vectors):
            print(token, _numbers(vector))

    def print_block(self, encoding):
        """The same, and an empty line: this text is complete."""
        self.print(encoding)
        print(flush=True)

    def count(self, encoding):
        """Count the words of an `Encoding`, and those that are unknown."""
        encoded = encoding.encoded
        self.words += len({place for place in zip(
            encoded.segments, encoded.words) if place[1] is not None})
        unknown = encoded.ids.count(self._unknown)
        self.unknown += unknown
        self.last = set() if not unknown else {
            token for token, idx in zip(self.shown(encoding), encoded.ids)
            if idx == self._unknown}

    def report(self, by_name):
        """Say on standard error which, or how many, are unknown."""
        if self.unknown:
            what = (f'not in the vocabulary, read as {self._name}: '
                    + ', '.join(sorted(self.last))) if by_name else (
                f'{self.unknown} of {self.words} words are not in the '
                f'vocabulary and were read as {self._name}')
            print(what, file=sys.stderr)
