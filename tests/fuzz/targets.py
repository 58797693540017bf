"""What reads files, each with small valid files to begin with."""
import bz2
import gzip
import hashlib
import io
import json
import lzma
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as onp

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part)
                for part in ('', 'finetuning', 'pretrained')]

import prose  # noqa: E402
import sentences  # noqa: E402

import d2lbert as d2l  # noqa: E402
from d2lbert.command.vector_files import Npy, read_npy  # noqa: E402
from d2lbert.corpus.corpus import open_corpus  # noqa: E402
from d2lbert.finetuning.tasks.catalog import read_task  # noqa: E402
from d2lbert.machine import array_files, cache  # noqa: E402
from d2lbert.machine.backend import np, npx  # noqa: E402
from d2lbert.machine.downloads import unpack  # noqa: E402
from d2lbert.pretrained.folders import load_finetuned_folder  # noqa: E402
from d2lbert.pretrained.heads import About, FineTuned  # noqa: E402
from d2lbert.pretrained.tensor_files import DIGESTS, INDEX, WEIGHTS  # noqa: E402
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece  # noqa: E402
from d2lbert.texts import text_files, text_sources  # noqa: E402
from d2lbert.training import checkpoints  # noqa: E402
from d2lbert.training.load import load  # noqa: E402

#: Small folders with the names and numbers of other libraries.
FIXTURES = Path(__file__).resolve().parents[1] / 'pretrained' / 'fixtures'
FAMILIES = {'albert': 'albert-2', 'bart': 'bart-0', 'camembert': 'camembert-0',
            'distilbert': 'distilbert-0', 'flaubert': 'flaubert-0',
            'roberta': 'roberta-0'}

TEXT = ''.join(f'line {k} of é . and more\n' for k in range(60)).encode()


class Target(NamedTuple):
    """A reader.

    make(folder): write the valid files; read(folder): read them all. Of the
    files that make() wrote, those in `files` are damaged, or those that
    files(folder) returns, or all. answer: of
    what read() returned, what no damage may change without an error.
    """

    make: Callable
    read: Callable
    files: Any = ()
    answer: Callable = lambda found: None


def has_lost_its_digest(path, data, whole):
    """True if tensors were changed and the digests of their file were not."""
    if path.suffix != '.safetensors' or DIGESTS.encode() not in whole:
        return False
    begin = 8 + int.from_bytes(whole[:8], 'little')
    return data[:begin] == whole[:begin] and data != whole


def _make_params(folder):
    npx.save(str(folder / 'a.params'), {
        'a.weight': np.ones((3, 4)), 'a.bias': np.zeros(3),
        'b.é': np.array(3.0)})


def _make_run(folder):
    d2l.pretrain(corpus='sample', batch_size=16, max_len=32, num_hiddens=8,
                 ffn_num_hiddens=8, num_layers=1, num_steps=2, seed=1,
                 save_every=1, devices='cpu', out=folder / 'run')


def _read_checkpoint(folder):
    found = []
    for path in checkpoints.all_of(folder / 'run'):
        state, arrays = checkpoints.load(path)
        checkpoints.vocab_of(path, arrays)
        found.append((state, arrays))
    return found


def _digest(found):
    digest = hashlib.sha1()
    for state, arrays in found:
        digest.update(repr(state).encode())
        for name in sorted(arrays):
            digest.update(name.encode() + onp.asarray(arrays[name]).tobytes())
    return digest.digest()


def _make_folder(folder):
    sentences.write_folder(folder / 'model', {
        **sentences.OLD, 'config_sentence_transformers.json': {
            'prompts': {'a': 'the '}, 'default_prompt_name': 'a'}})


def _make_shards(folder):
    _make_folder(folder)
    from safetensors.numpy import load_file, save_file
    tensors = load_file(folder / 'model' / WEIGHTS)
    (folder / 'model' / WEIGHTS).unlink()
    index = {}
    for i in range(2):
        names = sorted(tensors)[i::2]
        save_file({name: tensors[name] for name in names},
                  folder / 'model' / f'part-{i}.safetensors')
        index.update(dict.fromkeys(names, f'part-{i}.safetensors'))
    (folder / 'model' / INDEX).write_text(json.dumps(dict(weight_map=index)))


def _read_model(folder):
    net, tokenizer = d2l.load_pretrained(folder / 'model', trainable=False)
    d2l.encode(net, tokenizer, ['a grey crane flies'], 'mean')


def _make_pieces(folder):
    sentences.word_pieces().save(folder)


def _make_pairs(folder):
    (folder / 'vocab.json').write_text(json.dumps({
        token: idx for idx, token in enumerate(
            ['<s>', '<pad>', '</s>', '<unk>', 'a', 'b', 'ab', '<mask>'])}))
    (folder / 'merges.txt').write_text('#version: 0.2\na b\n')


def _make_codes(folder):
    (folder / 'vocab.txt').write_text('a@@ 9\nb 8\nab 7\n')
    (folder / 'bpe.codes').write_text('a b</w> 7\n')


def _copy(source):
    def make(folder):
        # Without the answers that are expected
        shutil.copytree(source, folder / 'model', ignore=(
            shutil.ignore_patterns('peers.npz', 'tokens.json')))
    return make


def _read_tokens(folder):
    WordPiece.load(folder / 'model').encode_batch(
        ['a Grey crane\u00e9 flies , 12'], ['a ab'])


def _make_finetuned(folder):
    net = FineTuned(sentences.build_net(len(sentences.word_pieces())),
                    'classify', 2, 0.1)
    net.initialize()
    net.about = About('', 'classify', False, ('good', 'bad'), (), 20, 5,
                      False, 0.1)
    net.trained_len = 20
    d2l.save_pretrained(net, sentences.word_pieces(), folder / 'model')


def _read_finetuned(folder):
    net, tokenizer = load_finetuned_folder(folder / 'model')
    d2l.predict(net, tokenizer, ['a grey crane flies'])


def _read_tokenizer(folder):
    tokenizer = WordPiece.load(folder)
    tokenizer.encode('a ab grey crane' + 'a' * 40 + 'b')


def _make_packed(folder):
    (folder / 'x.gz').write_bytes(gzip.compress(TEXT))
    (folder / 'x.bz2').write_bytes(bz2.compress(TEXT))
    (folder / 'x.xz').write_bytes(lzma.compress(TEXT))
    with zipfile.ZipFile(folder / 'x.zip', 'w',
                         zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('x.txt', TEXT)
    with tarfile.open(folder / 'x.tar', 'w') as archive:
        info = tarfile.TarInfo('x.txt')
        info.size = len(TEXT)
        archive.addfile(info, io.BytesIO(TEXT))
    (folder / 'x.txt').write_bytes(TEXT)


def _make_archives(folder):
    with zipfile.ZipFile(folder / 'x.zip', 'w',
                         zipfile.ZIP_DEFLATED) as archive:
        for name in ('a/b.txt', 'a/c/d.txt', 'e'):
            archive.writestr(name, TEXT)
    with tarfile.open(folder / 'x.tar.gz', 'w:gz') as archive:
        for name in ('a/b.txt', 'e'):
            info = tarfile.TarInfo(name)
            info.size = len(TEXT)
            archive.addfile(info, io.BytesIO(TEXT))


def _read_archives(folder):
    base = folder / 'unpacked'
    try:
        for name in ('x.zip', 'x.tar.gz'):
            unpack(str(folder / name), str(base / 'in' / 'deep'))
        outside = [path for path in base.rglob('*')
                   if not path.is_dir() and base / 'in/deep'
                   not in path.parents]
        assert not outside
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _open(folder):
    return open_corpus([folder / 'text.txt'], min_freq=1, progress=False)


def _make_stored(folder):
    (folder / 'text.txt').write_text('a b . c d . e a . b\n\n' * 40)
    _open(folder)


def _read_stored(folder):
    _, batch = next(iter(_open(folder).train.batches(4, 16, seed=0)))
    return [onp.asarray(column).tobytes() for column in batch]


def _stored(folder):
    return sorted(path for path in (cache.root() / 'corpora').rglob('*')
                  if path.is_file() and path.suffix != '.lock')


def _read_packed(folder):
    for path in sorted(folder.iterdir()):
        for piece in text_files.pieces(path):
            assert len(piece) <= text_files.PIECE_BYTES


def _make_lines(folder):
    (folder / 'x.jsonl').write_text(''.join(
        json.dumps(dict(text=f'line {k}', number=k)) + '\n'
        for k in range(9)))


def _read_lines(folder):
    path = str(folder / 'x.jsonl')
    for _ in text_sources.pieces(text_sources.Source(path, path, 'text')):
        pass


def _task(task, make, name='', columns=None):
    def read(folder):
        path = folder / name if name else folder
        found = read_task(task, path, 'train', columns)
        assert len(found[0]) > 0
    return Target(make, read)


def _make_csv(folder):
    prose.write(folder / 'x.csv', 'text,label\n' + ''.join(
        f'"a ""{k}"" b, c",{k % 2}\n' for k in range(9)))


def _make_npy(folder):
    with open(folder / 'x.npy', 'wb') as file:
        vectors = Npy(file)
        vectors.add(['a', 'b'], onp.ones((2, 5)))
        vectors.about = dict(texts='12')
        vectors.close()


TARGETS = {
    'params': Target(_make_params, lambda folder: array_files.read_params(
        folder / 'a.params')),
    'checkpoint': Target(_make_run, _read_checkpoint, (
        'run/checkpoints/step-00000002.npz',), _digest),
    'run': Target(_make_run, lambda folder: load(folder / 'run'), (
        'run/config.json', 'run/model.params', 'run/vocab.txt')),
    'folder': Target(_make_folder, _read_model),
    'shards': Target(_make_shards, _read_model, (
        f'model/{INDEX}', 'model/part-0.safetensors',
        'model/part-1.safetensors')),
    'pieces': Target(_make_pieces, _read_tokenizer),
    'pairs': Target(_make_pairs, _read_tokenizer),
    'codes': Target(_make_codes, _read_tokenizer),
    **{name: Target(_copy(FIXTURES / folder), lambda folder:
                    d2l.load_pretrained(folder / 'model', trainable=False))
       for name, folder in FAMILIES.items()},
    **{f'{folder.name}-ids': Target(_copy(folder), _read_tokens)
       for folder in sorted((FIXTURES / 'tokens').iterdir())
       if folder.is_dir()},
    'finetuned': Target(_make_finetuned, _read_finetuned, (
        'model/config.json', f'model/{WEIGHTS}')),
    'stored': Target(_make_stored, _read_stored, _stored, lambda found: found),
    'archives': Target(_make_archives, _read_archives),
    'packed': Target(_make_packed, _read_packed),
    'lines': Target(_make_lines, _read_lines),
    'csv': _task('classify', _make_csv, 'x.csv', 'text,label'),
    'tsv': _task('sst2', lambda folder: prose.glue(
        folder, 'sst2', 12, ['train'])),
    'conll': _task('tag', lambda folder: prose.conll(
        folder / 'x.conll', prose.tagged(6)), 'x.conll'),
    'squad': _task('span', lambda folder: prose.write_squad(
        folder / 'x.json', num=3, impossible=.5), 'x.json'),
    'npy': Target(_make_npy, lambda folder: read_npy(
        folder / 'x.npy', '--vectors')),
}


def files_of(name, folder):
    """Write the files of a target; returns those that are damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    TARGETS[name].make(folder)
    if callable(TARGETS[name].files):
        return TARGETS[name].files(folder)
    if TARGETS[name].files:
        return [folder / file for file in TARGETS[name].files]
    return sorted(path for path in folder.rglob('*') if path.is_file())
