"""Text files as they are and packed, broken ones, and what is no text."""
import bz2
import gzip
import io
import lzma
import os
import random
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from d2lbert.texts import text_files
from d2lbert.texts.text_files import TextFileError, pieces

TEXT = ''.join(f'line {k} . of é\n' for k in range(500)).encode()
# Letters that hardly pack, so that damage hits them and buffers are filled
LETTERS = bytes(random.Random(0).choices(range(97, 123), k=300000))
NOISE = bytes(range(1, 256)) * 40


def zipped(members, **options):
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data, **options)
    return file.getvalue()


def tarred(members, mode='w'):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data or b''))
    return file.getvalue()


def encrypted(members):
    """A zip archive whose members say that they are encrypted."""
    data = bytearray(zipped(members))
    for signature, flags in ((b'PK\3\4', 6), (b'PK\1\2', 8)):
        data[data.index(signature) + flags] |= 1
    return bytes(data)


def read(data, name='text'):
    path = Path(name)
    path.write_bytes(data)
    return b''.join(pieces(path))


PACKED = {
    'plain': lambda data: data,
    '.gz': gzip.compress,
    '.bz2': bz2.compress,
    '.xz': lzma.compress,
    'two .gz': lambda data: gzip.compress(data[:99]) + gzip.compress(
        data[99:]),
    '.zip': lambda data: zipped({'in/': b'', 'in/a.txt': data}),
    'a Mac\'s .zip': lambda data: zipped({
        'a.txt': data, '__MACOSX/': b'', '__MACOSX/._a.txt': b'1'}),
    '.tar': lambda data: tarred({'in': None, 'in/a.txt': data}),
    '.tar.gz': lambda data: tarred({'a.txt': data}, 'w:gz'),
    '.tar.xz': lambda data: tarred({'a.txt': data}, 'w:xz'),
    '.gz in .zip': lambda data: zipped({'a.gz': gzip.compress(data)}),
}


@pytest.mark.parametrize('packed', PACKED.values(), ids=PACKED)
@pytest.mark.parametrize('size', [100, 1 << 22])
def test_a_packed_text_is_the_text(packed, size):
    assert read(packed(LETTERS)) == LETTERS
    assert read(packed(TEXT)) == TEXT
    sizes = []
    parts = list(pieces(Path('text'), sizes.append, size))
    assert b''.join(parts) == TEXT
    # All but the last are whole, so a text is never held at once
    assert {len(part) for part in parts[:-1]} <= {size}
    # The bytes of a progress bar, without an archive's headers
    assert sum(sizes) <= os.path.getsize('text')
    assert sum(sizes) > 0


@pytest.mark.parametrize('packed', PACKED.values(), ids=PACKED)
def test_an_empty_text_is_reported(packed):
    with pytest.raises(TextFileError, match='text is empty'):
        read(packed(b''))


def cut(data):
    return data[:len(data) * 2 // 3]


def damaged(data):
    middle = len(data) // 2
    return data[:middle] + bytes(
        255 - byte for byte in data[middle:middle + 20]) + data[middle + 20:]


@pytest.mark.parametrize('ending', ['.gz', '.bz2', '.xz', '.zip', '.tar.gz',
                                    '.tar.xz'])
@pytest.mark.parametrize('damage', [cut, damaged])
def test_a_broken_file_is_reported_in_a_sentence(ending, damage):
    data = PACKED[ending](LETTERS)
    with pytest.raises(TextFileError, match=f'^text is a broken {ending} file '
                                            r'\(.+\): fetch or pack') as error:
        read(damage(data))
    assert '\n' not in str(error.value)


def test_a_truncated_tar_is_reported():
    with pytest.raises(TextFileError, match='text is a broken .tar file'):
        read(cut(PACKED['.tar'](TEXT * 9)))


def test_the_checksum_of_a_packed_text_is_verified():
    data = bytearray(zipped({'a': TEXT}, compress_type=zipfile.ZIP_STORED))
    data[200] ^= 1
    with pytest.raises(TextFileError, match='broken .zip file .*CRC'):
        read(bytes(data))


@pytest.mark.parametrize('data, message', [
    (zipped({'a.txt': TEXT, 'b.txt': TEXT}),
     r"is a .zip archive of several files \('a.txt', 'b.txt'\): unpack it"),
    (tarred({'a.txt': TEXT, 'b.txt': TEXT}, 'w:bz2'),
     r"is a .tar archive of several files \('a.txt', 'b.txt'\): unpack it"),
    (tarred({f'{k}\n': TEXT for k in range(20)}),
     r"is a .tar archive of several files \('0\\n', .*, '7\\n' and more\)"),
    (zipped({'only/': b''}), 'is a .zip archive without a file in it'),
    (zipped({}), 'is a .zip archive without a file in it'),
    (tarred({'only': None}), 'is a .tar archive without a file in it'),
    (encrypted({'a.txt': TEXT}), 'is encrypted: unpack it with its password'),
    (zipped({'[Content_Types].xml': b'<', 'word/document.xml': b'<'}),
     'is a document or an e-book, not text'),
    (gzip.compress(gzip.compress(gzip.compress(gzip.compress(TEXT)))),
     'is packed more than 3 times over'),
], ids=['two in .zip', 'two in .tar', 'many', 'folder in .zip', 'no file',
        'folder in .tar', 'encrypted', 'document', 'layers'])
def test_an_archive_must_hold_one_file(data, message):
    with pytest.raises(TextFileError, match=f'^text {message}') as error:
        read(data)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('begins, what', [
    (b'%PDF-1.7\n', 'a PDF file'),
    (b'PAR1\x15\0', 'a Parquet file'),
    (b'SQLite format 3\0', 'an SQLite database'),
    (b"7z\xbc\xaf'\x1c\0\4", 'a 7z archive'),
    (b'{\\rtf1\\ansi', 'an RTF document'),
    (b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1', 'an Office document'),
])
@pytest.mark.parametrize('packed', ['plain', '.gz'])
def test_other_formats_are_named(begins, what, packed):
    with pytest.raises(TextFileError, match=f'^text is {what}, not text'):
        read(PACKED[packed](begins + NOISE))


def test_zero_bytes_are_refused():
    with pytest.raises(TextFileError, match='its byte 2 is zero, as in .*16'):
        read('a line\n'.encode('utf-16-le'))


@pytest.mark.parametrize('data', [b'PK is a word', b'BZh is no word',
                                  b'PAR10 .', b'x' * 257 + b'ustair'])
def test_text_that_begins_much_like_another_format_is_text(data):
    assert read(data) == data


def test_a_python_without_a_compression_module_is_reported(monkeypatch):
    data = lzma.compress(TEXT)
    monkeypatch.setitem(sys.modules, 'lzma', None)
    with pytest.raises(TextFileError, match='packed as .xz, which this Py'):
        read(data)


def test_a_disk_error_is_not_reported_as_a_broken_file(monkeypatch):
    def fail(*args):
        raise OSError(5, 'Input/output error')
    monkeypatch.setattr(text_files, '_open_zip', fail)
    with pytest.raises(OSError, match='Input/output error'):
        read(zipped({'a': TEXT}))


# .zst, which needs a library

def zst(data):
    return pytest.importorskip('zstandard').ZstdCompressor(
        write_checksum=True).compress(data)


def test_a_zst_file_needs_a_library(monkeypatch):
    for name in text_files.ZSTD:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TextFileError, match='^text is packed as .zst, which '
                                            '.*pip install zstandard'):
        read(b'\x28\xb5\x2f\xfd\x04')


@pytest.mark.parametrize('size', [100, 1 << 22])
def test_a_zst_file_is_its_text(size):
    # Several frames, as pzstd writes them
    for data in (zst(TEXT), zst(TEXT[:99]) + zst(TEXT[99:]) + zst(b'')):
        assert read(data) == TEXT
        parts = list(pieces(Path('text'), size=size))
        assert b''.join(parts) == TEXT
        assert {len(part) for part in parts[:-1]} <= {size}
    assert read(zipped({'a.zst': zst(LETTERS)})) == LETTERS
    assert read(zst(gzip.compress(LETTERS))) == LETTERS


def test_a_zst_file_goes_back_to_its_begin_alone():
    pytest.importorskip('zstandard')
    f = text_files._ZstandardReader(io.BytesIO(zst(TEXT)))
    assert f.read(5) == TEXT[:5] and f.tell() == f.seek(5) == 5
    for place, whence in ((3, 0), (1, 1), (0, 2)):
        with pytest.raises(io.UnsupportedOperation, match='only be rewound'):
            f.seek(place, whence)
    assert f.seek(0) == 0 and f.readall() == TEXT


@pytest.mark.parametrize('damage', [cut, damaged])
def test_a_broken_zst_file_is_reported(damage):
    with pytest.raises(TextFileError, match='^text is a broken .zst file '
                                            r'\(.+\): fetch or pack'):
        read(damage(zst(LETTERS)))


def test_a_pipe_is_read_as_a_file_is():
    os.mkfifo('pipe')
    for name, pack in PACKED.items():
        thread = threading.Thread(target=Path('pipe').write_bytes,
                                  args=[pack(TEXT)])
        thread.start()
        assert b''.join(pieces(Path('pipe'))) == TEXT, name
        thread.join()
    for data, message in ((b'', 'pipe is empty'), (b'%PDF-', 'is a PDF fil')):
        thread = threading.Thread(target=Path('pipe').write_bytes,
                                  args=[data])
        thread.start()
        with pytest.raises(TextFileError, match=message):
            list(pieces(Path('pipe')))
        thread.join()


def test_a_member_without_a_name_is_read_as_any_other(tmp_path):
    path = tmp_path / 'a.zip'
    with zipfile.ZipFile(path, 'w') as archive:
        info = zipfile.ZipInfo('x')
        info.filename = ''
        archive.writestr(info, TEXT)
    assert b''.join(pieces(path)) == TEXT


def test_a_member_before_the_begin_of_an_archive_is_named(tmp_path):
    data = bytearray(zipped({'x.txt': TEXT}))
    end = data.rindex(b'PK\5\6')
    # The directory is longer than it is: all before it moves down
    data[end + 12:end + 16] = (len(data) // 2).to_bytes(4, 'little')
    path = tmp_path / 'x.zip'
    path.write_bytes(data)
    with pytest.raises(TextFileError, match='x.zip is a broken .zip file'):
        b''.join(pieces(path))
    data = bytearray(zipped({'x.txt': TEXT}))
    place = data.rindex(b'PK\5\6') + 16
    begin = int.from_bytes(data[place:place + 4], 'little')
    data[place:place + 4] = (begin + 50).to_bytes(4, 'little')
    path.write_bytes(data)
    with pytest.raises(TextFileError, match='x.zip is a broken .zip file'):
        b''.join(pieces(path))
