"""Archives that are unpacked; `test_hub` has those that are fetched."""
import errno
import gzip
import io
import tarfile
import zipfile

import pytest

from d2lbert.machine import downloads
from d2lbert.machine.downloads import ArchiveError, unpack


def test_a_member_without_a_name_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / 'a.zip', 'w') as archive:
        info = zipfile.ZipInfo('x')
        info.filename = ''
        archive.writestr(info, b'text')
    with pytest.raises(ArchiveError, match='a member has no name'):
        unpack(str(tmp_path / 'a.zip'), tmp_path / 'out')
    assert list((tmp_path / 'out').iterdir()) == []


def zipped(name='x', text=b'text', method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', method) as archive:
        archive.writestr(name, text)
    return file.getvalue()


def tarred(name='x', text=b'text' * 999):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode='w') as archive:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return file.getvalue()


def place_before(data):
    """An archive that claims a far longer list of members."""
    end = data.rindex(b'PK\5\6')
    return data[:end + 16] + b'\xff\xff\xff\x7f' + data[end + 20:]


def checksum(data):
    packed = bytearray(gzip.compress(data, mtime=0))
    packed[-8] ^= 1
    return bytes(packed)


def encrypted():
    data = bytearray(zipped())
    data[data.index(b'PK\3\4') + 6] |= 1
    data[data.index(b'PK\1\2') + 8] |= 1
    return bytes(data)


@pytest.mark.parametrize('name, data', [
    ('a.zip', encrypted()), ('x.csv.gz', gzip.compress(b'a,b\n')),
    ('a.zip', place_before(zipped())),
    ('a.tar.gz', checksum(tarred())),
    ('a.tar.gz', checksum(b'')),
    ('a.zip', zipped(method=zipfile.ZIP_BZIP2).replace(b'1AY&SY', b'1AY&SX')),
    ('a.zip', zipped(method=zipfile.ZIP_LZMA).replace(
        b'\t\4\5\0]', b'\t\4\5\0\xff')),
    ('a.zip', zipped('\u00e9').replace(b'\xc3\xa9', b'\xff\xff')),
    ('a.tar', tarred('x' * 90 + '/' + 'y' * 300))], ids=range(9))
def test_damage_is_told_in_a_sentence_and_leaves_nothing(tmp_path, name,
                                                         data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArchiveError, match=f'{name} cannot be unpacked '
                       r'\(.*\): delete it and try again, or unpack it with '
                       'another program$'):
        unpack(str(tmp_path / name), tmp_path / 'out')
    assert list((tmp_path / 'out').iterdir()) == []


def test_of_members_with_one_name_the_last_counts(tmp_path):
    with tarfile.open(tmp_path / 'a.tar', 'w') as archive:
        for text in b'first', b'last':
            info = tarfile.TarInfo('folder/x')
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    unpack(str(tmp_path / 'a.tar'), tmp_path / 'out')
    assert (tmp_path / 'out/folder/x').read_bytes() == b'last'


def test_a_disk_that_is_full_is_no_damage(tmp_path, monkeypatch):
    (tmp_path / 'a.zip').write_bytes(zipped())

    def fail(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(downloads.shutil, 'copyfileobj', fail)
    with pytest.raises(OSError, match='No space left') as caught:
        unpack(str(tmp_path / 'a.zip'), tmp_path / 'out')
    assert not isinstance(caught.value, ArchiveError)
