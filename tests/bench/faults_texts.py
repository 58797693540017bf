"""Damaged texts, archives and command lines, for faults.py."""
import gzip
import hashlib
import http.server
import io
import os
import tarfile
import tempfile
import threading
import zipfile
from pathlib import Path

from faults_processes import TINY, Case, cut, flipped, noise

from d2lbert import hub
from d2lbert.machine import cache as kept
from d2lbert.training.settings import SETTINGS

#: Where a damaged archive would like to write.
SLIPPED = Path(tempfile.gettempdir(), f'slipped-{os.getpid()}.txt')


def plain_text(rng):
    words = [f'word{k}' for k in range(30)]
    return '\n\n'.join(
        ' . '.join(' '.join(rng.choices(words, k=5)) for _ in range(4)) + ' .'
        for _ in range(60)).encode()


def damaged_corpus(rng, folder):
    path, data = folder / 'text.txt', plain_text(rng)
    kind = rng.choice(['bytes', 'bytes', 'empty', 'long line', 'no pairs',
                       'too long', 'gz cut', 'gz flipped', 'gz noise',
                       'folder', 'missing', 'loop', 'UTF-16',
                       'blank', 'noise', 'below a file', 'twice'])
    names = ['text.txt']
    argv = ['pretrain', *TINY[2:], '--num-steps', '1', '--out', 'new',
            '--corpus', 'text.txt']
    if kind == 'bytes':
        place = rng.randrange(len(data))
        data = data[:place] + bytes([rng.randrange(0xf5, 256)]) + data[place:]
    elif kind == 'empty':
        data = b''
    elif kind == 'long line':
        data = b'word ' * 1_000_000 + b'. and . another . \n'
    elif kind == 'no pairs':
        data = b'one sentence and no other\n\n' * 50
    elif kind == 'too long':
        data = (b'word ' * 40 + b' . ' + b'word ' * 40 + b' .\n\n') * 5
    elif kind.startswith('gz'):
        data = gzip.compress(data * 20)
        data = {'gz cut': cut, 'gz flipped': flipped,
                'gz noise': lambda rng, data: data[:10] + noise(rng)
                }[kind](rng, data)
        # What a flipped bit changed may be text still
        names += ['UTF-8']
    elif kind == 'UTF-16':
        data = data.decode().encode('utf-16')
    elif kind == 'blank':
        data = b' \n\n\t\n' * 100
    elif kind == 'noise':
        data = noise(rng)
    if kind == 'folder':
        path.mkdir()
    elif kind == 'loop':
        path.symlink_to('text.txt')
    elif kind == 'twice':
        path.write_bytes(data)
        argv += ['--valid', 'text.txt', '--eval-every', '1']
    elif kind == 'below a file':
        path.write_bytes(data)
        argv[-1] = 'text.txt/more.txt'
    elif kind != 'missing':
        path.write_bytes(data)
    return Case(f'corpus: {kind}', argv, tuple(names))


def damaged_archive(rng, folder):
    kind = rng.choice(['above', 'absolute', 'backslash', 'link', 'device',
                       'cut', 'flipped', 'noise', 'checksum', 'page',
                       'broken off', 'not found', 'empty', 'encrypted',
                       'no text', 'hang up'])
    text = (hub.sample_dir() / hub.TRAIN_FILE).read_bytes()
    archive = io.BytesIO()
    ending = 'zip'
    if kind in ('link', 'device'):
        ending = 'tgz'
        with tarfile.open(fileobj=archive, mode='w:gz') as f:
            info = tarfile.TarInfo(f'wikitext-2/{hub.TRAIN_FILE}')
            info.type, info.linkname = (
                (tarfile.SYMTYPE, '/etc/hostname') if kind == 'link'
                else (tarfile.CHRTYPE, ''))
            f.addfile(info)
    else:
        name = {'above': '../slipped.txt', 'absolute': str(SLIPPED),
                'backslash': '..\\slipped.txt', 'no text': 'readme.txt'
                }.get(kind, f'wikitext-2/{hub.TRAIN_FILE}')
        with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as f:
            f.writestr('wikitext-2/other.txt', 'other')
            f.writestr(name, text)
    data = archive.getvalue()
    if kind in ('cut', 'flipped'):
        data = (cut if kind == 'cut' else flipped)(rng, data)
    elif kind in ('noise', 'empty'):
        data = noise(rng) if kind == 'noise' else b''
    elif kind == 'encrypted':
        # The flag of the first member, in both of its headers
        data = bytearray(data)
        for place in (6, data.index(b'PK\1\2') + 8):
            data[place] |= 1
        data = bytes(data)
    sha1 = hashlib.sha1(b'x' if kind in ('checksum', 'page') else data
                        ).hexdigest()
    sent = b'<html>sorry</html>' if kind == 'page' else data

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if kind == 'hang up':
                self.connection.close()
                return
            self.send_response(404 if kind == 'not found' else 200)
            self.send_header('Content-Length', str(
                len(sent) + 99 * (kind == 'broken off')))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *args):
            pass

        def handle(self):
            try:
                super().handle()
            except (OSError, ValueError):
                pass        # the connection that was hung up

    def serve():
        server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f'http://127.0.0.1:{server.server_port}/text.{ending}'
        hub.DATA_HUB['wikitext-2'] = url, sha1
        hub.LOOSE_FILES.clear()
        hub._data_folders = lambda: [folder / 'nothing']
        for name in list(os.environ):
            if name.lower().endswith('_proxy') or name == 'D2LBERT_DATA':
                del os.environ[name]
        os.environ['D2LBERT_CACHE'] = str(folder / 'cache')
    (folder / 'cache').mkdir()
    (folder / 'cache' / 'kernels').symlink_to(kept.folder('kernels'))
    argv = ['pretrain', *TINY[2:], '--corpus', 'wikitext-2', '--num-steps',
            '1', '--out', 'new']
    return Case(f'archive: {kind}', argv, (f'text.{ending}', hub.TRAIN_FILE),
                serve)


def damaged_command(rng, folder):
    (folder / 'notes').mkdir()
    (folder / 'notes' / 'thesis.txt').write_text('precious')
    base = ['pretrain', *TINY, '--num-steps', '1', '--out', 'new']
    kind = rng.choice(['number', 'number', 'number', 'name', 'flag', 'whole'])
    if kind == 'number':
        setting = rng.choice([setting for setting in SETTINGS.values()
                              if setting.kind in (int, float)])
        flag, of = '--' + setting.name.replace('_', '-'), setting.kind
        values = ['-1', '', 'x', '1,5', '0x10', '-inf', 'nan', '1e999']
        if of is int:
            values += ['1.5', '1e3']
        # What takes for ever, or all memory, is no mistake that can be told
        value = rng.choice(values)
        name = flag[2:]
        return Case(f'command: {flag} {value!r}', [*base, f'{flag}={value}'],
                    (name, name.replace('-', '_')))
    if kind == 'name':
        flag, value = rng.choice([
            ('--recipe', 'cake'), ('--decay', 'steep'), ('--split', 'words'),
            ('--initializer', 'zero'), ('--precision', 'fp8'),
            ('--devices', 'tpu'), ('--devices', 'cpu:0'),
            ('--devices', 'gpu:77'), ('--devices', ''),
            ('--data-dir', 'nowhere'), ('--vocab', 'nowhere'),
            ('--valid', 'nowhere'), ('--corpus', 'nowhere'),
            ('--out', 'notes'), ('--out', 'notes/thesis.txt/run'),
            ('--out', 'run'), ('--resume', 'nowhere'),
            ('--resume', 'notes'), ('--resume', 'notes/thesis.txt')])
        if flag == '--data-dir':
            base[base.index('sample')] = 'wikitext-2'
        elif flag == '--resume':
            base = ['pretrain']
        return Case(f'command: {flag} {value}', [*base, flag, value],
                    (value or 'devices', flag[2:]))
    if kind == 'flag':
        flag = rng.choice(['--colour', '--lrate', '-x', '--no-force'])
        return Case(f'command: {flag}', [*base, flag, '1'], (flag,))
    argv, *names = rng.choice([
        (['train'], 'train'), ([], 'COMMAND'),
        (['pretrain', '--lr'], '--lr'),
        (['pretrain', *TINY, '--out', 'notes', '--force'], 'notes'),
        (['pretrain', '--resume', 'run', '--out', 'new'], 'out'),
        (['pretrain', '--resume', 'run', '--lr', '1'], 'lr'),
        (['pretrain', '--resume', 'run', '--num-steps', '1'], 'num_steps'),
        (['encode'], 'RUN'), (['encode', 'run'], 'text'),
        (['encode', 'notes', 'a'], 'notes'),
        (['encode', 'nowhere', 'a'], 'nowhere'),
        (['encode', 'run', ''], 'text'),
        (['encode', 'run', 'a ' * 2000], 'tokens'),
        (['encode', 'run', 'a', '--pair', ''], '--pair'),
        (['encode', 'run', 'a', '--out', 'nowhere/x.npy'], 'nowhere'),
        (['encode', 'run', 'a', '--out', 'notes'], 'notes'),
        (['evaluate'], 'RUN'), (['evaluate', 'notes'], 'notes'),
        (['evaluate', 'run', '--corpus'], '--corpus'),
        (['evaluate', 'run', '--corpus', 'nowhere'], 'nowhere'),
        (['evaluate', 'run', '--corpus', 'notes'], 'notes'),
        (['evaluate', 'run', '--devices', 'x'], 'devices'),
        (['launch', '--workers', 'x'], '--workers'), (['launch'], 'pretrain'),
        (['doctor', '--lr'], '--lr')])
    return Case(f'command: {" ".join(argv)[:40]}', argv, tuple(names))
