"""Archives that are unpacked; `test_hub` has those that are fetched."""
import zipfile

import pytest

from d2lbert.machine.archives import ArchiveError, unpack


def test_a_member_without_a_name_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / 'a.zip', 'w') as archive:
        info = zipfile.ZipInfo('x')
        info.filename = ''
        archive.writestr(info, b'text')
    with pytest.raises(ArchiveError, match='a member has no name'):
        unpack(str(tmp_path / 'a.zip'), tmp_path / 'out')
    assert list((tmp_path / 'out').iterdir()) == []
