"""Write vectors to files, and read .npy files of vectors.

H: the size of a vector. The extension of the file's name selects a class from
`FORMATS`. All these classes have the interface of `Npy`. The constructor gets
`file`, an open binary file, and `title`, the title of the column of texts or
tokens, if the format has such a column. The method `add` appends the vectors
`rows`, an array (n, H), and `texts`, a list of n texts or tokens. The
attribute `about` is None, or a dictionary with a digest of the texts, which
`close` writes to .npy files only. `close` completes the content, but leaves
`file` open.
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
from d2lbert.machine.files import parse_json

#: `Parquet` keeps vectors until it has this number, and then writes them.
PARQUET_ROWS = 1 << 12


class Npy:
    """Write a .npy file of float32 vectors.

    The header contains the number of vectors, so `close` overwrites it.
    """

    def __init__(self, file, title='text'):
        # shape: (number of vectors so far, H)
        self.file, self.shape, self.about = file, (0, 0), None
        file.write(self._header())
        file.flush()        # on a full disk, raise the error now

    def _header(self):
        """Return a header of constant length, which `close` can replace."""
        # Spaces pad the text to 118 bytes with its newline. With the 10 bytes
        # before it, the header has 128 bytes: a multiple of 64, as NumPy asks
        text = ("{'descr': '<f4', 'fortran_order': False, 'shape': "
                f'{self.shape}, }}').encode().ljust(117) + b'\n'
        # The magic string of .npy files, with version 1.0 of the format
        return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text

    def add(self, texts, rows):
        """Append the vectors; the format has no place for their texts."""
        self.file.write(onp.ascontiguousarray(rows, '<f4').tobytes())
        self.shape = (self.shape[0] + len(rows), rows.shape[1])

    def close(self):
        """Write the final header, and append `about`.

        `about` becomes a second array, with bytes of JSON. `numpy.load` reads
        only the first array of a file.
        """
        self.file.seek(0)
        self.file.write(self._header())
        self.file.seek(0, 2)
        if self.about is not None:
            onp.save(self.file, onp.frombuffer(
                json.dumps(self.about).encode(), 'uint8'))


def read_npy(path, flag):
    """Return (rows, about) from a .npy file.

    rows: the vectors (n, H), memory-mapped; about: the dictionary that `Npy`
    stored, or {}. Raises ValueError if vectors cannot be read from the file;
    flag: the flag that named the file, for this error.
    """
    try:
        rows, about = array_files.map_npy(path), {}
        with open(path, 'rb') as file:
            file.seek(rows.offset + rows.nbytes)
            # `about` as an array, far shorter than this limit; b'' without it
            second_npy = file.read(1 << 16)
        if second_npy:
            about = parse_json(bytes(array_files.read_array(
                io.BytesIO(second_npy), len(second_npy))))
        if rows.ndim != 2 or rows.dtype.kind != 'f':
            raise ValueError('it does not contain a matrix of floats')
        if not isinstance(about, dict):
            raise ValueError('its second array is no JSON object about the '
                             'vectors')
    except (ValueError, OSError, EOFError, AttributeError,
            TypeError) as error:
        raise ValueError(f'{flag} {path} is no .npy file of vectors: {error}'
                         ) from None
    return rows, about


class Npz:
    """Write a .npz file with one array, `vectors`."""

    about = None

    def __init__(self, file, title='text'):
        # `Npy.close` overwrites the header, which is not possible in an
        # archive, so the vectors go to a temporary file first
        self._file, self._npy_file = file, tempfile.TemporaryFile()
        self._npy = Npy(self._npy_file)

    def add(self, texts, rows):
        """Append the vectors; the format has no place for their texts."""
        self._npy.add(texts, rows)

    def close(self):
        """Write the archive."""
        with self._npy_file as npy_file:
            self._npy.close()
            npy_file.seek(0)
            with zipfile.ZipFile(self._file, 'w') as archive:
                with archive.open('vectors.npy', 'w',
                                  force_zip64=True) as member:
                    shutil.copyfileobj(npy_file, member)


class Csv:
    """Write a .csv file: each line has a text or token, then its vector."""

    dialect, about = 'excel', None

    def __init__(self, file, title='text'):
        self._text_file = io.TextIOWrapper(file, 'utf-8', newline='')
        self._writer = csv.writer(self._text_file, self.dialect,
                                  lineterminator='\n')
        self._title, self._has_header = title, False

    def add(self, texts, rows):
        """Append a line for each vector; the first call adds a header."""
        if not self._has_header:
            self._writer.writerow([self._title, *range(rows.shape[1])])
            self._has_header = True
        # str(float32) has the fewest digits that distinguish the number
        self._writer.writerows([text, *map(str, row)]
                               for text, row in zip(texts, rows))

    def close(self):
        """Write the lines that are still in the buffer."""
        self._text_file.flush()
        # A wrapper that is not detached closes the binary file when deleted
        self._text_file.detach()


class Tsv(Csv):
    """Write a .tsv file: like `Csv`, with tabs in place of commas."""

    dialect = 'excel-tab'


class JsonLines:
    """Write a .jsonl file: each line has a text or token, and its vector."""

    about = None

    def __init__(self, file, title='text'):
        self._file, self._title = file, title

    def add(self, texts, rows):
        """Append a line for each vector."""
        for text, row in zip(texts, rows):
            line = json.dumps({self._title: text, 'vector': short_floats(row)},
                              ensure_ascii=False)
            self._file.write(line.encode() + b'\n')

    def close(self):
        """Do nothing: `add` writes complete lines."""


class Parquet:
    """Write a .parquet file: a column of texts or tokens, and `vector`."""

    about = None

    def __init__(self, file, title='text'):
        self._file, self._title = file, title
        self._writer = None     # made when the size of the vectors is known
        self._texts, self._rows = [], []

    def add(self, texts, rows):
        """Keep the vectors; write them once there are `PARQUET_ROWS`."""
        self._texts += texts
        self._rows += list(rows)
        if len(self._rows) >= PARQUET_ROWS:
            self._write_rows()

    def _write_rows(self):
        """Write the texts and vectors that were kept."""
        import pyarrow as pa
        from pyarrow import parquet
        rows = onp.array(self._rows, 'float32')
        vector_column = pa.FixedSizeListArray.from_arrays(
            pa.array(rows.reshape(-1)), rows.shape[1])
        table = pa.table({self._title: pa.array(self._texts, pa.string()),
                          'vector': vector_column})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._texts, self._rows = [], []

    def close(self):
        """Write the last rows and the footer of the file."""
        if self._rows:
            self._write_rows()
        if self._writer is not None:
            self._writer.close()


#: {extension: class that writes the format}
FORMATS = {'.npy': Npy, '.npz': Npz, '.csv': Csv, '.tsv': Tsv,
           '.jsonl': JsonLines, '.parquet': Parquet}


def check_vectors_out(out, force=False, reads=(), flag='--out'):
    """Raise an error if vectors cannot be written to the file `out`.

    The arguments are those of `check_out` in machine/arguments.py.
    """
    check_out(out, force, 'x.npy', reads, flag)
    path = Path(out)
    # A pipe or a file in /dev needs no extension: .npy is the default format
    is_special = path.exists() and not path.is_file()
    if not is_special and path.suffix.lower() not in FORMATS:
        raise UsageError(f'{flag} {out} has no extension of a format for '
                         f'vectors: let it end in {", ".join(FORMATS)}')
    if path.suffix.lower() == '.parquet':
        try:        # imported now, to fail before the vectors are computed
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f'{flag} {out}: Parquet files need pyarrow, which cannot be '
                f'imported ({error}): pip install pyarrow, or choose '
                'another ending') from None


@contextlib.contextmanager
def vectors_file(out, force=False, reads=(), title='text', flag='--out'):
    """Yield an object of a class in `FORMATS`, which writes the file `out`.

    The object writes a temporary file, which becomes `out` on success, or is
    copied into a pipe `out`. A seekable device, such as /dev/null, is written
    directly. title: the title of the column of texts or tokens. The other
    arguments are those of `check_out` in machine/arguments.py.
    """
    check_vectors_out(out, force, reads, flag)
    format_class = FORMATS.get(Path(out).suffix.lower(), Npy)
    with writing(out, force, flag) as temporary, open(
            temporary, 'wb') as file:
        if file.seekable():
            writer = format_class(file, title)
            yield writer
            writer.close()
            return
        # In a pipe `out`, `Npy.close` could not overwrite the header
        with tempfile.TemporaryFile() as seekable_file:
            writer = format_class(seekable_file, title)
            yield writer
            writer.close()
            seekable_file.seek(0)
            shutil.copyfileobj(seekable_file, file)
