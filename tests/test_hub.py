"""Downloads from a server on loopback that answers well, badly or not."""
import contextlib
import hashlib
import http.server
import io
import os
import socket
import ssl
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zipfile

import pytest

from d2lbert import hub
from d2lbert.hub import HubError
from d2lbert.machine import downloads

TEXT = b' = Crane = \n The crane flies . It sings . \n'
FILES = {'wiki.train.tokens': TEXT, 'wiki.valid.tokens': b'valid',
         'wiki.test.tokens': b'test'}


def sha1(data):
    return hashlib.sha1(data).hexdigest()


def blob(data):
    return sha1(b'blob %d\0' % len(data) + data)


def zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


ARCHIVE = zipped({f'wikitext-2/{name}': data for name, data in FILES.items()})


class Server(http.server.ThreadingHTTPServer):
    """Answers path -> (status, body, announced length) or 'silence'."""

    daemon_threads = True

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.answers, self.asked = {}, []
        self.over = threading.Event()

    def address(self, path):
        return f'http://127.0.0.1:{self.server_port}/{path}'

    def serve(self, path, body, status=200, length=None):
        length = len(body) if length is None else length
        self.answers[f'/{path}'] = status, body, length
        return self.address(path)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, self.headers['User-Agent']))
        answer = self.server.answers.get(self.path, (404, b'', 0))
        if answer == 'silence':
            self.server.over.wait()
            return
        if answer == 'trickle':
            self.send_response(200)
            self.send_header('Content-Length', '1000000')
            self.end_headers()
            while not self.server.over.wait(0.05):
                self.wfile.write(b'.')
            return
        if answer == 'loop':
            self.send_response(302)
            self.send_header('Location', self.path)
            self.end_headers()
            return
        if answer == 'endless':
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not self.server.over.is_set():
                    self.wfile.write(bytes(1 << 16))
            return
        status, body, length = answer
        self.send_response(status)
        self.send_header('Content-Length', str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No data on this machine, no proxy, a cache of the test's own."""
    for name in list(os.environ):
        if name.lower().endswith('_proxy') or name == 'D2LBERT_DATA':
            monkeypatch.delenv(name)
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(hub, '_repository', lambda: None)
    monkeypatch.setattr(downloads, 'ANSWER_SECONDS', 0.3)
    monkeypatch.setattr(downloads, 'STALL_SECONDS', 0.4)


@pytest.fixture
def wikitext(server, monkeypatch):
    """WikiText-2's addresses, all of them moved to the server (404)."""
    monkeypatch.setitem(hub.DATA_HUB, 'wikitext-2', (
        server.address('wikitext-2-v1.zip'), sha1(ARCHIVE)))
    folder, files = hub.LOOSE_FILES[hub._WIKITEXT_2_ZIP_SHA1]
    monkeypatch.setitem(hub.LOOSE_FILES, sha1(ARCHIVE), (folder, [
        hub.LooseFile(server.address(url.split('/')[-1]), blob(FILES[name]),
                      name)
        for url, _, name in files]))
    return server


def listed(monkeypatch, name, url, data):
    monkeypatch.setitem(hub.DATA_HUB, name, (url, sha1(data)))


def files_in(folder):
    return sorted(str(path.relative_to(folder))
                  for path in folder.rglob('*') if path.is_file())


def test_a_download_is_kept_and_not_repeated(server, monkeypatch, tmp_path):
    listed(monkeypatch, 'x', server.serve('x.csv', b'1,2'), b'1,2')
    path = hub.download('x', tmp_path / 'data')
    assert path == str(tmp_path / 'data' / 'x.csv')
    assert hub.download('x', tmp_path / 'data') == path
    assert open(path, 'rb').read() == b'1,2'
    assert len(server.asked) == 1
    assert files_in(tmp_path) == ['data/x.csv']


def test_a_user_agent_is_sent(server, monkeypatch):
    listed(monkeypatch, 'x', server.serve('x', b'1'), b'1')
    hub.download('x')
    (_, agent), = server.asked
    assert 'd2lbert' in agent and 'urllib' not in agent


@pytest.mark.parametrize('terminal', [True, False])
def test_progress_is_for_terminals_alone(server, monkeypatch, capsys,
                                         terminal):
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: terminal)
    listed(monkeypatch, 'x', server.serve('x.bin', b'1' * 5000), b'1' * 5000)
    hub.download('x')
    captured = capsys.readouterr()
    assert captured.out == ''
    told, _, rest = captured.err.partition('\n')
    assert told == f'd2lbert: fetching {server.address("x.bin")}'
    assert ('x.bin' in rest) == terminal == bool(rest)


def test_a_kept_file_that_is_damaged_is_fetched_again(
        server, monkeypatch, tmp_path):
    listed(monkeypatch, 'x', server.serve('x', b'right'), b'right')
    (tmp_path / 'x').write_bytes(b'wrong')
    hub.download('x', tmp_path)
    assert (tmp_path / 'x').read_bytes() == b'right'


@pytest.mark.parametrize('answer, reason', [
    ((403, b'<html>No</html>', 15), 'answered 403'),
    ('loop', 'answered 302 .*infinite loop'),
    ((200, b'right', 50), 'broke off after 5 of 50 bytes'),
    ((200, b'', 50), 'broke off after 0 of 50 bytes'),
    ((200, b'wrong', 5), r'sent another file \(5 bytes, checksum'),
    ((200, b'\n<!DOCTYPE html>', 16), 'sent a web page'),
    ('silence', 'no answer for 0.3 s'),
    ('trickle', 'fewer than 1,024 bytes came in 0.4 s'),
])
def test_a_bad_answer_leaves_no_file(server, monkeypatch, tmp_path, answer,
                                       reason):
    listed(monkeypatch, 'x', server.address('x'), b'right')
    server.answers['/x'] = answer
    began = time.monotonic()
    with pytest.raises(HubError, match=reason) as error:
        hub.download('x', tmp_path / 'data')
    assert time.monotonic() - began < 5
    assert server.address('x') in str(error.value)
    assert f'by hand: put x into {tmp_path / "data"}' in str(error.value)
    assert '\n' not in str(error.value)
    # An empty folder would be listed, and taken for data
    assert list(tmp_path.iterdir()) == []


def no_certificate():
    error = ssl.SSLCertVerificationError(
        1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: '
        'self signed certificate (_ssl.c:1006)')
    error.verify_message = 'self signed certificate'
    return error


def no_tls():
    error = ssl.SSLError(1, '[SSL: WRONG_VERSION_NUMBER] wrong version '
                         'number (_ssl.c:1006)')
    error.reason = 'WRONG_VERSION_NUMBER'
    return error


@pytest.mark.parametrize('error, reason', [
    (no_certificate(), 'its certificate is not trusted (self signed '
                       'certificate)'),
    (no_tls(), 'no secure connection (wrong version number)'),
    (ssl.SSLEOFError(8, 'EOF occurred (_ssl.c:997)'),
     'no secure connection (the connection broke off)'),
    (socket.timeout('_ssl.c:1114: The handshake operation timed out'),
     'no answer for 0.3 s')], ids=['certificate', 'version', 'end', 'time'])
@pytest.mark.parametrize('wrapped', [True, False])
def test_reasons_name_no_source_file(error, reason, wrapped, monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError(error) if wrapped else error
    monkeypatch.setattr(urllib.request, 'urlopen', refuse)
    listed(monkeypatch, 'x', 'https://x.invalid/x', b'')
    with pytest.raises(HubError) as told:
        hub.download('x')
    assert f'https://x.invalid/x: {reason}; by hand' in str(told.value)
    assert '_ssl' not in str(told.value)


def test_a_line_names_each_mirror_before_it_is_asked(wikitext, monkeypatch,
                                                     capsys):
    told, urlopen = [], urllib.request.urlopen

    def look(request, **kwargs):
        told.append(capsys.readouterr().err)
        return urlopen(request, **kwargs)
    monkeypatch.setattr(urllib.request, 'urlopen', look)
    with pytest.raises(HubError):
        hub.wikitext2_dir()
    assert told == [f'd2lbert: fetching {wikitext.address(name)}\n'
                    for name in ('wikitext-2-v1.zip', 'train.txt')]


def test_an_unreachable_address_is_an_error(monkeypatch):
    listed(monkeypatch, 'x', 'http://127.0.0.1:9/x', b'')
    with pytest.raises(HubError, match='refused'):
        hub.download('x')


def test_a_name_unknown_to_the_hub_is_an_error():
    with pytest.raises(ValueError, match="'y' is not in DATA_HUB"):
        hub.download('y')


def test_an_archive_is_unpacked_beside_itself(server, monkeypatch, tmp_path):
    listed(monkeypatch, 'x', server.serve('x.zip', ARCHIVE), ARCHIVE)
    assert hub.download_extract('x', 'wikitext-2', tmp_path) == str(
        tmp_path / 'wikitext-2')
    assert hub.download_extract('x', cache_dir=tmp_path) == str(
        tmp_path / 'x')
    assert (tmp_path / 'wikitext-2/wiki.train.tokens').read_bytes() == TEXT
    assert len(files_in(tmp_path)) == 4


def test_unpacking_leaves_other_files_alone(server, monkeypatch, tmp_path):
    listed(monkeypatch, 'x', server.serve('x.zip', ARCHIVE), ARCHIVE)
    (tmp_path / 'wikitext-2').mkdir()
    (tmp_path / 'wikitext-2' / 'notes').write_text('mine')
    hub.download_extract('x', cache_dir=tmp_path)
    assert (tmp_path / 'wikitext-2' / 'notes').read_text() == 'mine'


def tarred(name, **fields):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode='w:gz') as archive:
        info = tarfile.TarInfo(name)
        info.size = 4
        for field, value in fields.items():
            setattr(info, field, value)
        archive.addfile(info, io.BytesIO(b'text'))
    return file.getvalue()


def test_a_tar_archive_is_unpacked(server, monkeypatch, tmp_path):
    data = tarred('a/b')
    listed(monkeypatch, 'x', server.serve('x.tar.gz', data), data)
    hub.download_extract('x', 'a', tmp_path)
    assert (tmp_path / 'a/b').read_bytes() == b'text'


@pytest.mark.parametrize('name, data, member', [
    ('x.zip', zipped({'good': b'1', '../evil': b'2'}), '../evil'),
    ('x.zip', zipped({'a/../../evil': b'2'}), 'a/../../evil'),
    ('x.zip', zipped({'/tmp/evil': b'2'}), '/tmp/evil'),
    ('x.zip', zipped({'..\\evil': b'2'}), 'evil'),
    ('x.tar.gz', tarred('../evil'), '../evil'),
    ('x.tar.gz', tarred('evil', type=tarfile.SYMTYPE, size=0,
                        linkname='/etc'), 'evil'),
], ids=['above', 'above from inside', 'absolute', 'backslash', 'above in tar',
        'link'])
def test_an_archive_cannot_write_outside_its_folder(
        server, monkeypatch, tmp_path, name, data, member):
    listed(monkeypatch, 'x', server.serve(name, data), data)
    with pytest.raises(HubError) as error:
        hub.download_extract('x', cache_dir=tmp_path / 'in')
    assert member in str(error.value).replace('\\\\', '\\')
    assert files_in(tmp_path) == [f'in/{name}']


@pytest.mark.parametrize('name', ['x.zip', 'x.tar', 'x.gz'])
def test_a_file_that_is_no_archive_is_reported(server, monkeypatch, tmp_path,
                                               name):
    listed(monkeypatch, 'x', server.serve(name, b'text'), b'text')
    with pytest.raises(HubError, match='cannot be unpacked'):
        hub.download_extract('x', cache_dir=tmp_path)
    assert files_in(tmp_path) == [name]


def test_wikitext_comes_from_the_archive(wikitext):
    wikitext.serve('wikitext-2-v1.zip', ARCHIVE)
    folder = hub.wikitext2_dir()
    assert (folder / 'wiki.train.tokens').read_bytes() == TEXT
    assert hub.wikitext2_dir() == folder == hub.find_wikitext2()
    assert len(wikitext.asked) == 1


def test_wikitext_comes_file_by_file_when_the_archive_does_not(wikitext):
    wikitext.serve('wikitext-2-v1.zip', b'<html>', status=403)
    for name, data in FILES.items():
        wikitext.serve(f'{name.split(".")[1]}.txt', data)
    folder = hub.wikitext2_dir()
    assert {file.name: file.read_bytes()
            for file in folder.iterdir()} == FILES
    assert [path for path, _ in wikitext.asked] == [
        '/wikitext-2-v1.zip', '/train.txt', '/valid.txt', '/test.txt']


def test_the_files_of_wikitext_do_not_replace_another_archive(
        wikitext, monkeypatch, tmp_path):
    listed(monkeypatch, 'wikitext-2', wikitext.address('mine.zip'), b'mine')
    for name, data in FILES.items():
        wikitext.serve(f'{name.split(".")[1]}.txt', data)
    with pytest.raises(HubError, match='mine.zip: the server answered 404'):
        hub.download_extract('wikitext-2')
    assert files_in(tmp_path) == []


def test_a_mirror_with_another_text_is_refused(wikitext, tmp_path):
    wikitext.serve('train.txt', TEXT + b'.')
    with pytest.raises(HubError, match='sent another file'):
        hub.wikitext2_dir()
    assert files_in(tmp_path) == []


def test_without_a_network_the_error_says_all_that_was_tried(
        wikitext, monkeypatch, tmp_path):
    monkeypatch.setenv('D2LBERT_DATA', str(tmp_path / 'mine'))
    with pytest.raises(HubError) as error:
        hub.wikitext2_dir()
    message = str(error.value)
    for part in (str(tmp_path / 'mine'), str(tmp_path / 'cache' / 'data'),
                 wikitext.address('wikitext-2-v1.zip'),
                 wikitext.address('train.txt'), '404',
                 'put wiki.train.tokens into', 'D2LBERT_DATA'):
        assert part in message
    assert '\n' not in message


def put(folder):
    folder.mkdir(parents=True)
    (folder / 'wiki.train.tokens').write_bytes(TEXT)
    return folder


def test_a_text_that_is_not_wikitext2_is_used_and_named(tmp_path, capsys):
    folder = put(tmp_path / 'cut')
    (folder / 'wiki.valid.tokens').write_bytes(b'<html>403</html>')
    for _ in range(2):
        assert hub.wikitext2_dir(folder) == folder
    said = capsys.readouterr()
    assert said.err == (
        f'{folder / "wiki.train.tokens"} is another text of {len(TEXT)} '
        'bytes, not WikiText-2 (10,797,148 bytes); it is used as it is\n'
        f'{folder / "wiki.valid.tokens"} is a web page of 16 bytes, not '
        'WikiText-2; it is used as it is\n')
    assert not said.out


def test_the_bundled_corpus_is_not_taken_for_wikitext2(capsys, monkeypatch,
                                                       tmp_path):
    monkeypatch.setattr(hub, '_repository', lambda: tmp_path)
    sample = put(tmp_path / 'data' / 'sample')
    assert hub.wikitext2_dir(sample) == sample
    assert capsys.readouterr().err == ''


def test_places_are_searched_in_order(monkeypatch, tmp_path):
    assert hub.find_wikitext2() is None
    cached = put(tmp_path / 'cache' / 'data' / 'wikitext-2')
    assert hub.wikitext2_dir() == cached
    monkeypatch.setattr(hub, '_repository', lambda: tmp_path / 'checkout')
    checkout = put(tmp_path / 'checkout' / 'data' / 'wikitext-2')
    assert hub.wikitext2_dir() == checkout
    monkeypatch.setenv('D2LBERT_DATA', '~no user/x')
    assert hub.wikitext2_dir() == checkout
    named = put(tmp_path / 'named' / 'wikitext-2')
    for value in (named, named.parent):
        monkeypatch.setenv('D2LBERT_DATA', str(value))
        assert hub.wikitext2_dir() == named
    given = put(tmp_path / 'given')
    assert hub.wikitext2_dir(given) == given
    assert hub.wikitext2_dir(str(named.parent)) == named


def test_a_folder_that_is_given_must_hold_the_text(tmp_path):
    put(tmp_path / 'cache' / 'data' / 'wikitext-2')
    with pytest.raises(FileNotFoundError, match='data_dir=.*elsewhere'):
        hub.wikitext2_dir(tmp_path / 'elsewhere')


def test_the_bundled_corpus_is_found_in_the_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, '_repository', lambda: tmp_path)
    sample = put(tmp_path / 'data' / 'sample')
    assert hub.sample_dir() == sample


def test_the_checkout_is_the_folder_that_one_is_in(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(hub, '__file__', str(tmp_path / 'site/d2lbert/hub.py'))
    monkeypatch.chdir(tmp_path)
    assert hub._repository() is None
    (tmp_path / 'setup.py').touch()
    assert hub._repository() is None        # of another project
    (tmp_path / 'd2lbert').mkdir()
    (tmp_path / 'd2lbert/_version.py').touch()
    assert hub._repository() == tmp_path


# Archives that somebody has put on this machine

@pytest.mark.parametrize('place', ['D2LBERT_DATA', 'checkout'])
def test_an_archive_on_this_machine_is_not_fetched(server, monkeypatch,
                                                   tmp_path, place):
    listed(monkeypatch, 'x', server.serve('x.zip', ARCHIVE), ARCHIVE)
    mine = tmp_path / place / 'data'
    mine.mkdir(parents=True)
    (mine / 'x.zip').write_bytes(ARCHIVE)
    if place == 'checkout':
        monkeypatch.setattr(hub, '_repository', lambda: mine.parent)
    else:
        monkeypatch.setenv('D2LBERT_DATA', str(mine))
    with monkeypatch.context() as patch:
        patch.setenv('D2LBERT_CACHE', '~nosuchuser/x')  # no usable cache
        assert hub.download('x') == str(mine / 'x.zip')
    folder = hub.download_extract('x', 'wikitext-2')
    # No file is written to another folder of data
    assert files_in(mine) == ['x.zip'] and not server.asked
    assert folder == str(tmp_path / 'cache' / 'data' / 'wikitext-2')
    assert (tmp_path / 'cache/data/wikitext-2/wiki.train.tokens'
            ).read_bytes() == TEXT
    assert hub.download_extract('x') == str(tmp_path / 'cache/data/x')


def test_wikitext2_on_this_machine_serves_the_pages_own_loader(
        monkeypatch, tmp_path, server):
    mine = tmp_path / 'wikitext-2'
    mine.mkdir()
    (mine / hub.TRAIN_FILE).write_bytes(TEXT)
    monkeypatch.setenv('D2LBERT_DATA', str(tmp_path))
    # The page lists the archive under an address that answers no more
    monkeypatch.setitem(hub.DATA_HUB, 'wikitext-2', (
        server.address('gone.zip'), hub.DATA_HUB['wikitext-2'][1]))
    assert hub.download_extract('wikitext-2', 'wikitext-2') == str(mine)
    assert not server.asked
    # Another archive under that name is another text
    listed(monkeypatch, 'wikitext-2', server.serve('x.zip', ARCHIVE), ARCHIVE)
    assert hub.download_extract('wikitext-2', 'wikitext-2') == str(
        tmp_path / 'cache/data/wikitext-2')


def test_another_archive_of_that_name_is_passed_over(server, monkeypatch,
                                                     tmp_path):
    listed(monkeypatch, 'x', server.serve('x.zip', ARCHIVE), ARCHIVE)
    (tmp_path / 'x.zip').write_bytes(b'another')
    monkeypatch.setenv('D2LBERT_DATA', str(tmp_path))
    assert hub.download('x') == str(tmp_path / 'cache/data/x.zip')
    assert len(server.asked) == 1
    assert (tmp_path / 'x.zip').read_bytes() == b'another'


def test_another_archive_of_that_name_is_named_where_nothing_helps(
        server, monkeypatch, tmp_path):
    listed(monkeypatch, 'x', server.address('x.zip'), ARCHIVE)
    (tmp_path / 'x.zip').write_bytes(b'another')
    monkeypatch.setenv('D2LBERT_DATA', str(tmp_path))
    with pytest.raises(HubError) as error:
        hub.download_extract('x')
    assert (f'{tmp_path / "x.zip"} is another file, with checksum '
            f'{sha1(b"another")}') in str(error.value)


def test_a_folder_that_is_given_is_the_only_place(server, monkeypatch,
                                                  tmp_path):
    listed(monkeypatch, 'x', server.serve('x.zip', ARCHIVE), ARCHIVE)
    (tmp_path / 'x.zip').write_bytes(ARCHIVE)
    monkeypatch.setenv('D2LBERT_DATA', str(tmp_path))
    assert hub.download('x', tmp_path / 'in') == str(tmp_path / 'in/x.zip')


def test_an_address_may_be_a_file(monkeypatch, tmp_path):
    (tmp_path / 'x.zip').write_bytes(ARCHIVE)
    listed(monkeypatch, 'x', (tmp_path / 'x.zip').as_uri(), ARCHIVE)
    assert files_in(tmp_path / 'cache') == []
    hub.download_extract('x', 'wikitext-2')
    assert 'data/wikitext-2/wiki.test.tokens' in files_in(tmp_path / 'cache')
    listed(monkeypatch, 'y', (tmp_path / 'x.zip').as_uri(), TEXT)
    with pytest.raises(HubError, match='sent another file'):
        hub.download('y', tmp_path / 'other')


@pytest.mark.parametrize('answer', [
    'endless', (200, b'', 2_000_000), (200, bytes(2_000_000), 2_000_000)])
def test_a_server_that_sends_too_much_is_cut_off(server, monkeypatch,
                                                 tmp_path, answer):
    listed(monkeypatch, 'x', server.address('x.csv'), b'1,2')
    monkeypatch.setitem(hub.MAX_BYTES_OF_FILES, 'x.csv', 1_000_000)
    server.answers['/x.csv'] = answer
    with pytest.raises(HubError, match=r'x.csv: sends [\d,]+ bytes or more, '
                                       'but at most 1,000,000 are accepted'):
        hub.download('x', tmp_path / 'data')
    assert files_in(tmp_path) == []


def test_a_file_of_unknown_size_is_bounded_too(server, monkeypatch, tmp_path):
    server.answers['/x.csv'] = 200, b'', downloads.MAX_BYTES + 1
    with pytest.raises(HubError, match='at most'):
        hub.download(server.address('x.csv'), tmp_path)


def test_an_address_of_an_unknown_kind_is_named(tmp_path):
    with pytest.raises(HubError, match=': foo://x/y: unknown url type: foo;'):
        hub.download('foo://x/y', tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_loose_files_have_the_sizes_of_the_published_ones(wikitext):
    for path in ('wiki.train.tokens', 'train.txt'):
        wikitext.answers[f'/{path}'] = 200, b'', 10797149
    with pytest.raises(HubError, match='but at most 10,797,148 are'):
        hub.download_extract('wikitext-2', 'wikitext-2')


def test_the_books_addresses_are_asked_by_a_secure_connection_first(
        server, monkeypatch, tmp_path):
    assert hub._SECURE_DATA_URL.startswith('https://')
    assert hub._addresses(hub.DATA_HUB['bert.base'][0]) == [
        hub._SECURE_DATA_URL + 'bert.base.zip', hub.DATA_URL + 'bert.base.zip']
    monkeypatch.setattr(hub, 'DATA_URL', server.address('plain/'))
    monkeypatch.setattr(hub, '_SECURE_DATA_URL', server.address('secure/'))
    listed(monkeypatch, 'x', server.serve('plain/x.zip', b'1'), b'1')
    assert hub.download('x', tmp_path / 'one')
    assert [path for path, _ in server.asked] == ['/secure/x.zip',
                                                  '/plain/x.zip']
    server.serve('secure/x.zip', b'1')
    assert hub.download('x', tmp_path / 'two')
    assert [path for path, _ in server.asked][2:] == ['/secure/x.zip']
    listed(monkeypatch, 'x', server.serve('plain/x.zip', b'2'), b'3')
    with pytest.raises(HubError, match='secure/x.zip: sent another file.*; '
                                       '.*plain/x.zip: sent another file'):
        hub.download('x', tmp_path / 'three')


def test_the_books_archives_are_listed():
    assert hub.DATA_HUB['bert.small'] == (
        hub.DATA_URL + 'bert.small.zip',
        'a4e718a47137ccd1809c9107ab4f5edd317bae2c')
    assert hub.DATA_HUB['bert.base'] == (
        hub.DATA_URL + 'bert.base.zip',
        '7b3820b35da691042e5d34c0971ac3edbd80d3f4')


def test_snli_is_listed_as_in_the_books_package(book):
    assert hub.DATA_HUB['SNLI'] == book.DATA_HUB['SNLI']
    assert hub.DATA_URL == book.DATA_URL
