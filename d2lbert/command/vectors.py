"""What `d2lbert encode` does: texts in, vectors out, as many as come."""
import contextlib
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import numpy as onp

from d2lbert.encoding import POOLS, Text, encode_texts
from d2lbert.machine.files import replacing
from d2lbert.progress import bar
from d2lbert.text import Vocab
from d2lbert.training.runs import load_run

#: Bytes read at once, and at most in a line.
CHUNK, LONGEST = 1 << 16, 1 << 24


def read_texts(file, name, cut=Vocab.cut):
    """Lists of the `Text`s of a binary file, a line each, as they come.

    cut: what makes a list of tokens of a text. Raises ValueError, with the
    number of the line, for one that is not UTF-8 or without end.
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
                              cut(_decoded(line, name, number))))
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
    try:
        file = open(path, 'rb')
    except OSError as error:
        raise ValueError(f'--file {path} cannot be read: {error.strerror}'
                         ) from None
    with file:
        yield file, path


class NpyRows:
    """A .npy file of float32 rows whose number is known at its end."""

    def __init__(self, file):
        self.file, self.shape = file, (0, 0)
        file.write(self._header())      # a full disk shows here, at once
        file.flush()

    def _header(self):
        # Always as long: NumPy allows spaces before the end of the line
        text = ("{'descr': '<f4', 'fortran_order': False, 'shape': "
                f'{self.shape}, }}').encode().ljust(117) + b'\n'
        return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text

    def add(self, rows):
        """Write more rows, (n, H)."""
        self.file.write(onp.ascontiguousarray(rows, '<f4').tobytes())
        self.shape = self.shape[0] + len(rows), rows.shape[1]

    def add_encoding(self, encoding):
        """Write the rows of an `Encoding`."""
        self.add(encoding.vectors)

    def close(self):
        """Write how many rows there are."""
        self.file.seek(0)
        self.file.write(self._header())


@contextlib.contextmanager
def npy_rows(out):
    """An `NpyRows` that is in the file `out` when all went well."""
    path, part = Path(out), None
    if path.is_dir():
        raise ValueError(f'--out {out} is a folder: name a file, as '
                         f'{path / "x.npy"}')
    if not path.parent.is_dir():
        raise ValueError(f'--out {out} cannot be written: there is no folder '
                         f'{path.parent}')
    try:
        with replacing(path) as part, open(part, 'wb') as file:
            if file.seekable():
                rows = NpyRows(file)
                yield rows
                rows.close()
            else:       # a pipe, which cannot take the header last
                with tempfile.TemporaryFile() as whole:
                    rows = NpyRows(whole)
                    yield rows
                    rows.close()
                    whole.seek(0)
                    shutil.copyfileobj(whole, file)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename not in (None, str(part), str(path)):
            raise
        raise ValueError(f'--out {out} cannot be written: {error.strerror}'
                         ) from None


def encode(folder, text=None, pair=None, file=None, pool=None, out=None):
    """Print or write the vectors of a text, or of each line of a file.

    Arguments as those of the command. Raises ValueError for what it cannot
    do, before the net is loaded where that can be known.
    """
    _check_arguments(text, pair, file, pool, out)
    with contextlib.ExitStack() as stack:
        if file is not None:
            lines = stack.enter_context(opened(file))
        write = (_print_pooled if pool else
                 _print_tokens if file is None else _print_block)
        if out is not None:
            rows = stack.enter_context(npy_rows(out))
            write = rows.add_encoding
        net, vocab = load_run(folder)
        if file is not None:
            texts = read_texts(*lines, vocab.cut)
        else:
            texts = [[Text('text', vocab.cut(text),
                           None if pair is None else vocab.cut(pair))]]
        unknown = _UnknownWords(vocab)
        shown = stack.enter_context(bar(
            what='encoding', unit='texts', quiet=file is None or out is None))
        for encoding in encode_texts(net, unknown.counted(texts)):
            if pool:
                encoding = encoding._replace(
                    vectors=POOLS[pool](encoding.vectors)[None])
            write(encoding)
            shown.update(1)
    unknown.report(by_name=file is None)


def _check_arguments(text, pair, file, pool, out):
    if (text is None) == (file is None):
        raise ValueError('give a text, or --file FILE with a text on each '
                         'line' + (', not both' if file else ''))
    if file is None:
        for name, given in (('text', text), ('--pair', pair)):
            if given is not None and not given.split():
                raise ValueError(f'{name} is empty: give at least one word')
    elif pair is not None:
        raise ValueError('--pair goes with one text, not with --file')
    elif out is not None and pool is None:
        raise ValueError('the texts of --file have as many vectors as '
                         'tokens, which no one array holds: give --pool cls '
                         'or --pool mean for one vector each, or leave out '
                         '--out')


def _print_tokens(encoding):
    for token, vector in zip(*encoding):
        print(token, _numbers(vector))


def _print_block(encoding):
    _print_tokens(encoding)
    print(flush=True)       # an empty line: this text is complete


def _print_pooled(encoding):
    print(_numbers(encoding.vectors[0]), flush=True)


def _numbers(vector):
    return ' '.join(f'{x:.4f}' for x in vector)


class _UnknownWords:
    """Counts the words that a vocabulary does not have."""

    def __init__(self, vocab):
        self.vocab = vocab
        self.unknown = vocab.idx_to_token[vocab.unk]
        # Pieces have been looked up already
        self.are_pieces = vocab.begins_word is not None
        self.count, self.seen, self.last = 0, 0, set()

    def counted(self, texts):
        """The same lists of texts, counted as they pass."""
        for some in texts:
            for text in some:
                tokens = text.tokens_a + (text.tokens_b or [])
                unknown = [t for t in tokens if self._is_unknown(t)]
                self.seen += len(tokens)
                self.count += len(unknown)
                self.last = set(unknown)
            yield some

    def _is_unknown(self, token):
        if self.are_pieces:
            return token == self.unknown
        return token not in self.vocab.token_to_idx

    def report(self, by_name):
        """Say on standard error which, or how many, there were."""
        if self.count:
            what = 'pieces' if self.are_pieces else 'words'
            print(f'not in the vocabulary, read as {self.unknown}: '
                  + ', '.join(sorted(self.last))
                  if by_name and not self.are_pieces else
                  f'{self.count} of {self.seen} {what} are not in the '
                  f'vocabulary and were read as {self.unknown}',
                  file=sys.stderr)
