"""Files of vectors; the file name extension selects the format."""
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

from d2lbert.machine import array_files
from d2lbert.machine.arguments import UsageError, check_out, writing
from d2lbert.machine.files import parse_json

#: Number of rows that are written to a Parquet file at once.
ROWS = 1 << 12


class Npy:
    """A .npy file of float32 rows; their number is written at the end."""

    def __init__(self, file, name='text'):
        self.file, self.shape, self.about = file, (0, 0), None
        file.write(self._header())      # fails early on a full disk
        file.flush()

    def _header(self):
        # Padded to a constant length: NumPy allows spaces before the newline
        text = ("{'descr': '<f4', 'fortran_order': False, 'shape': "
                f'{self.shape}, }}').encode().ljust(117) + b'\n'
        return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text

    def add(self, names, rows):
        """Append rows (n, H); names: the text or token of each row."""
        self.file.write(onp.ascontiguousarray(rows, '<f4').tobytes())
        self.shape = self.shape[0] + len(rows), rows.shape[1]

    def close(self):
        """Write the number of rows, and their description.

        The description is a second array in the file, with bytes of JSON;
        `numpy.load` reads only the first array.
        """
        self.file.seek(0)
        self.file.write(self._header())
        self.file.seek(0, 2)
        if self.about is not None:
            onp.save(self.file, onp.frombuffer(
                json.dumps(self.about).encode(), 'uint8'))


def read_npy(path, flag):
    """(rows, `Npy.about` or {}) of a .npy file; rows are memory-mapped.

    Raises ValueError, with the flag of the file, if it holds no vectors.
    """
    try:
        rows, about = array_files.map_npy(path), {}
        with open(path, 'rb') as file:
            file.seek(rows.offset + rows.nbytes)
            rest = file.read(1 << 16)
        if rest:
            about = parse_json(bytes(array_files.read_array(io.BytesIO(rest),
                                                    len(rest))))
        if rows.ndim != 2 or rows.dtype.kind != 'f' or not isinstance(
                about, dict):
            raise ValueError('it does not hold rows of numbers')
    except (ValueError, OSError, EOFError, AttributeError,
            TypeError) as error:
        raise ValueError(f'{flag} {path} is no .npy file of vectors: {error}'
                         ) from None
    return rows, about


class Npz:
    """A .npz file with the rows in its array `vectors`."""

    about = None

    def __init__(self, file, name='text'):
        self._file, self._array = file, tempfile.TemporaryFile()
        self._rows = Npy(self._array)

    def add(self, names, rows):
        """As `Npy.add`."""
        self._rows.add(names, rows)

    def close(self):
        """Write the archive."""
        with self._array as array:
            self._rows.close()
            array.seek(0)
            with zipfile.ZipFile(self._file, 'w') as archive:
                with archive.open('vectors.npy', 'w',
                                  force_zip64=True) as member:
                    shutil.copyfileobj(array, member)


class Table:
    """A .csv or .tsv file with one row per vector, text or token first."""

    dialect, about = 'excel', None

    def __init__(self, file, name='text'):
        self._text = io.TextIOWrapper(file, 'utf-8', newline='')
        self._writer = csv.writer(self._text, self.dialect,
                                  lineterminator='\n')
        self._name, self._has_header = name, False

    def add(self, names, rows):
        """As `Npy.add`."""
        if not self._has_header:
            self._writer.writerow([self._name, *range(rows.shape[1])])
            self._has_header = True
        # str of a float32 has the fewest digits that restore it
        self._writer.writerows([name, *map(str, row)]
                               for name, row in zip(names, rows))

    def close(self):
        """Write everything to the file."""
        self._text.flush()
        self._text.detach()


class TabTable(Table):
    """A .tsv file."""

    dialect = 'excel-tab'


class JsonLines:
    """A .jsonl file: per line an object with a text or token and a vector."""

    about = None

    def __init__(self, file, name='text'):
        self._file, self._name = file, name

    def add(self, names, rows):
        """As `Npy.add`."""
        for name, row in zip(names, rows):
            line = json.dumps({self._name: name,
                               'vector': [float(str(x)) for x in row]},
                              ensure_ascii=False)
            self._file.write(line.encode() + b'\n')

    def close(self):
        """Each line is complete; nothing to do."""


class Parquet:
    """A .parquet file with the columns `text` or `token`, and `vector`."""

    about = None

    def __init__(self, file, name='text'):
        self._file, self._name, self._writer = file, name, None
        self._names, self._rows = [], []

    def add(self, names, rows):
        """As `Npy.add`."""
        self._names += names
        self._rows += list(rows)
        if len(self._rows) >= ROWS:
            self._write()

    def _write(self):
        import pyarrow as pa
        from pyarrow import parquet
        rows = onp.array(self._rows, 'float32')
        vectors = pa.FixedSizeListArray.from_arrays(
            pa.array(rows.reshape(-1)), rows.shape[1])
        table = pa.table({self._name: pa.array(self._names, pa.string()),
                          'vector': vectors})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._names, self._rows = [], []

    def close(self):
        """Write the last rows and the footer of the file."""
        if self._rows:
            self._write()
        if self._writer is not None:
            self._writer.close()


FORMATS = {'.npy': Npy, '.npz': Npz, '.csv': Table, '.tsv': TabTable,
           '.jsonl': JsonLines, '.parquet': Parquet}


def check_vectors_out(out, force=False, reads=(), flag='--out'):
    """Raise if vectors cannot be written to --out; as `check_out`."""
    check_out(out, force, 'x.npy', reads, flag)
    path = Path(out)
    if path.exists() and not path.is_file():
        return      # pipes and devices get NumPy's format
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f'{flag} {out} does not end in a format for vectors: '
                         f'let it end in {", ".join(FORMATS)}')
    if path.suffix.lower() == '.parquet':
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f'{flag} {out}: Parquet files need pyarrow, which cannot be '
                f'imported ({error}): pip install pyarrow, or choose '
                'another ending') from None


@contextlib.contextmanager
def vectors_file(out, force=False, reads=(), name='text', flag='--out'):
    """Yield a file of vectors, which becomes --out on success.

    name: the name of the column of texts or tokens.
    """
    check_vectors_out(out, force, reads, flag)
    kind = FORMATS.get(Path(out).suffix.lower(), Npy)
    with writing(out, force, flag) as part, open(part, 'wb') as file:
        if file.seekable():
            rows = kind(file, name)
            yield rows
            rows.close()
            return
        # The header of .npy is written last, which a pipe does not allow
        with tempfile.TemporaryFile() as whole:
            rows = kind(whole, name)
            yield rows
            rows.close()
            whole.seek(0)
            shutil.copyfileobj(whole, file)
