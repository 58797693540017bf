"""Write vectors to files, and read .npy files of vectors.

H: the size of a vector. All classes in `FORMATS` have the interface of `Npy`.
The constructor gets an open binary file, which `close` leaves open, and the
name of the column of texts, for formats with such a column. `add` appends n
texts or tokens and their vectors, an array (n, H). Before `close`, the caller
may set `about` to a dictionary with a digest of the texts. Only `Npy` writes
it.
"""
import contextlib
import csv
import io
import json
import shutil
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as onp

from d2lbert.command.flags import short_floats
from d2lbert.machine import array_files
from d2lbert.machine.arguments import UsageError, check_out, writing
from d2lbert.machine.files import line_feeds, parse_json

#: The number of vectors that `Parquet` collects before it writes them.
PARQUET_ROWS = 1 << 12


class Npy:
    """Write a .npy file of float32 vectors.

    The header contains the number of vectors, so `close` overwrites it.
    """

    def __init__(self, file, text_column='text'):
        # shape: (number of vectors so far, H)
        self.file, self.shape, self.about = file, (0, 0), None
        file.write(self._header())
        file.flush()        # on a full disk, raise the error now

    def _header(self):
        """Return a header of constant length, which `close` can replace."""
        # The whole header has 128 bytes, a multiple of 64 as NumPy asks: 6 of
        # NPY_MAGIC, 2 of the version, 2 of the length, and 118 of the text
        text = ("{'descr': '<f4', 'fortran_order': False, 'shape': "
                f'{self.shape}, }}').encode().ljust(117) + b'\n'
        version = b'\x01\x00'
        return (array_files.NPY_MAGIC + version
                + struct.pack('<H', len(text)) + text)

    def add(self, texts, vectors):
        """Append the vectors; the format has no place for their texts."""
        self.file.write(onp.ascontiguousarray(vectors, '<f4').tobytes())
        self.shape = (self.shape[0] + len(vectors), vectors.shape[1])

    def close(self):
        """Write the final header, and `about` as a second array, in JSON.

        `numpy.load` reads only the first array of a file.
        """
        self.file.seek(0)
        self.file.write(self._header())
        self.file.seek(0, 2)
        if self.about is not None:
            onp.save(self.file, onp.frombuffer(
                json.dumps(self.about).encode(), 'uint8'))


def read_npy(path, flag):
    """Return (vectors, about) from a .npy file.

    vectors: (n, H), memory-mapped. about: the dictionary that `Npy` stored, or
    {}. Raises ValueError, which names the flag, if the file is invalid.
    """
    try:
        vectors, about = array_files.map_npy(path), {}
        with open(path, 'rb') as file:
            file.seek(vectors.offset + vectors.nbytes)
            about_npy = file.read(1 << 16)      # far more than `about` takes
        if about_npy:
            about = parse_json(bytes(array_files.read_array(
                io.BytesIO(about_npy), len(about_npy))))
        if vectors.ndim != 2 or vectors.dtype.kind != 'f':
            raise ValueError('it does not contain a matrix of floats')
        if not isinstance(about, dict):
            raise ValueError('its second array is no JSON object about the '
                             'vectors')
    except (ValueError, OSError, EOFError, AttributeError,
            TypeError) as error:
        raise ValueError(f'{flag} {path} is no .npy file of vectors: {error}'
                         ) from None
    return vectors, about


class Npz:
    """Write a .npz file with one array, `vectors`."""

    about = None

    def __init__(self, file, text_column='text'):
        # `Npy.close` overwrites the header, which it could not in an archive
        self._file, self._npy_file = file, tempfile.TemporaryFile()
        self._npy_writer = Npy(self._npy_file)

    def add(self, texts, vectors):
        self._npy_writer.add(texts, vectors)

    def close(self):
        with self._npy_file as npy_file:
            self._npy_writer.close()
            npy_file.seek(0)
            with zipfile.ZipFile(self._file, 'w') as archive:
                with archive.open('vectors.npy', 'w',
                                  force_zip64=True) as member:
                    shutil.copyfileobj(npy_file, member)


class Csv:
    """Write a .csv file: each line has a text or token, then its vector."""

    dialect, about = 'excel', None

    def __init__(self, file, text_column='text'):
        self._text_file = io.TextIOWrapper(file, 'utf-8', newline='')
        self._writer = csv.writer(line_feeds(self._text_file), self.dialect)
        self._text_column, self._has_header = text_column, False

    def add(self, texts, vectors):
        if not self._has_header:
            self._writer.writerow([self._text_column,
                                   *range(vectors.shape[1])])
            self._has_header = True
        # str(float32) has the fewest digits that distinguish the number
        self._writer.writerows([text, *map(str, vector)]
                               for text, vector in zip(texts, vectors))

    def close(self):
        self._text_file.flush()
        # A wrapper that is not detached closes the binary file when deleted
        self._text_file.detach()


class Tsv(Csv):
    """Write a .tsv file: like `Csv`, with tabs in place of commas."""

    dialect = 'excel-tab'


class JsonLines:
    """Write a .jsonl file: each line has a text or token, and its vector."""

    about = None

    def __init__(self, file, text_column='text'):
        self._file, self._text_column = file, text_column

    def add(self, texts, vectors):
        for text, vector in zip(texts, vectors):
            line = json.dumps({self._text_column: text,
                               'vector': short_floats(vector)},
                              ensure_ascii=False)
            self._file.write(line.encode() + b'\n')

    def close(self):
        """Do nothing: `add` writes complete lines."""


class Parquet:
    """Write a .parquet file: a column of texts or tokens, and `vector`."""

    about = None

    def __init__(self, file, text_column='text'):
        self._file, self._text_column = file, text_column
        self._writer = None     # made when H is known
        self._texts, self._vectors = [], []

    def add(self, texts, vectors):
        self._texts += texts
        self._vectors += list(vectors)
        if len(self._vectors) >= PARQUET_ROWS:
            self._write_collected()

    def _write_collected(self):
        import pyarrow as pa
        from pyarrow import parquet
        texts = pa.array(self._texts, pa.string())
        array = onp.array(self._vectors, 'float32')
        vectors = pa.FixedSizeListArray.from_arrays(
            pa.array(array.reshape(-1)), array.shape[1])
        table = pa.table({self._text_column: texts, 'vector': vectors})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._texts, self._vectors = [], []

    def close(self):
        if self._vectors:
            self._write_collected()
        if self._writer is not None:
            self._writer.close()


#: {extension: class that writes the format}
FORMATS = {'.npy': Npy, '.npz': Npz, '.csv': Csv, '.tsv': Tsv,
           '.jsonl': JsonLines, '.parquet': Parquet}


def _check_vectors_out(out, force, reads, flag):
    check_out(out, force, 'x.npy', reads, flag)
    path = Path(out)
    extension = path.suffix.lower()
    # Pipes and devices need no extension: their default format is .npy
    is_pipe_or_device = path.exists() and not path.is_file()
    if extension not in FORMATS and not is_pipe_or_device:
        raise UsageError(f'{flag} {out} has no extension of a format for '
                         f'vectors: let it end in {", ".join(FORMATS)}')
    if extension == '.parquet':
        try:        # imported now, to fail before the vectors are computed
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f'{flag} {out}: Parquet files need pyarrow, which cannot be '
                f'imported ({error}): pip install pyarrow, or choose '
                'another extension') from None


@contextlib.contextmanager
def vectors_file(out, force=False, reads=(), text_column='text',
                 flag='--out'):
    """Yield an object of a class in `FORMATS`, which writes the file `out`.

    It writes a temporary file. On success this file is renamed to `out`, or
    its content is copied to `out` if that is a pipe. text_column: as in the
    classes. The other arguments are as for `check_out`.
    """
    _check_vectors_out(out, force, reads, flag)
    format_class = FORMATS.get(Path(out).suffix.lower(), Npy)
    with writing(out, force, flag) as path, open(path, 'wb') as file:
        # `path` is `out` itself if that is a pipe, in which `Npy.close` could
        # not overwrite the header
        with (contextlib.nullcontext(file) if file.seekable()
              else tempfile.TemporaryFile()) as seekable_file:
            writer = format_class(seekable_file, text_column)
            yield writer
            writer.close()
            if seekable_file is not file:
                seekable_file.seek(0)
                shutil.copyfileobj(seekable_file, file)
