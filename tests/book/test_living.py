"""The living edition: its cells with our import, and what they rest on.

D2LBERT_BOOK names a checkout of its repository. What the cells use has
tests of its own, which need none.
"""
import hashlib
import inspect
import os
import re
from pathlib import Path

import pytest

import d2lbert as d2l
from d2lbert import bert_dataset, hub, natural_language_inference
from d2lbert.hub import TRAIN_FILE

nbformat = pytest.importorskip('nbformat')

from test_natural_language_inference import (  # noqa: E402
    archives,  # noqa: F401  (a fixture)
    as_script,
    check_output,
    run_script,
)

from d2lbert.book.pages import is_code, read_page  # noqa: E402

PRETRAINING = 'chapter_natural-language-processing-pretraining'
APPLICATIONS = 'chapter_natural-language-processing-applications'
IMPORT = 'from d2l import mxnet as d2l'

TEXT = [' = A heading = \n', ' The crane flew . It was grey . \n', ' \n',
        ' One sentence alone . \n', ' A driver came . He just left . \n']


@pytest.fixture
def cells():
    """A function: the MXNet cells of a page, with our import."""
    book = Path(os.environ.get('D2LBERT_BOOK') or os.devnull)
    if not (book / 'outputs' / 'mxnet').is_dir():
        pytest.skip('D2LBERT_BOOK names no checkout of the living edition, '
                    'which has a folder outputs/mxnet')

    def read(path):
        found = [cell.source for cell in read_page(book / path).notebook.cells
                 if is_code(cell)]
        assert sum(IMPORT in cell for cell in found) == 1
        return [cell.replace(IMPORT, 'import d2lbert as d2l')
                for cell in found]
    return read


def printing(cells):
    """A script of cells that prints what a notebook shows below them."""
    lines = []
    for cell in cells:
        *rest, last = cell.rstrip().split('\n')
        shown = re.fullmatch(r'[\w.]+\.shape|len\(vocab\)|(encoded_\w+'
                             r'(\.shape|\[0\]\[:3\])(, )?)+', last)
        lines += rest + [f'print({last})' if shown else last]
    return '\n'.join(lines) + '\n'


def test_the_page_bert(cells, tmp_path):
    text = printing(cells(f'{PRETRAINING}/bert.md'))
    assert run_script(text, tmp_path, tmp_path).split('\n')[:-1] == [
        '(2, 8, 768)', '(2, 3, 10000)', '(6,)', '(2, 2)', '(2,)']


def test_the_page_on_its_data(cells, wiki_dir, tmp_path):
    pytest.importorskip('pandas')
    pytest.importorskip('pyarrow')
    (tmp_path / 'here').mkdir()
    printed = run_script(printing(cells(f'{PRETRAINING}/bert-dataset.md')),
                         Path(wiki_dir).parent, tmp_path / 'here')
    shapes, size = printed.rstrip('\n').rsplit('\n', 1)
    assert shapes.split('\n') == [
        '(512, 64) (512, 64) (512,)', '(512, 10) (512, 10) (512, 10) (512,)']
    assert size in ('20256', '20257')


@pytest.mark.slow
def test_the_page_on_pretraining(cells, wiki_dir, tmp_path):
    text = printing(cells(f'{PRETRAINING}/bert-pretraining.md'))
    found = re.search(r'MLM loss (\d+\.\d{3}), NSP loss (\d\.\d{3})\n',
                      run_script(text, Path(wiki_dir).parent, tmp_path,
                                 timeout=3600))
    # The page prints 9.604 and 0.715
    assert abs(float(found.group(1)) - 9.604) < 0.15
    assert abs(float(found.group(2)) - 0.715) < 0.05


def test_the_page_on_inference(cells, archives, tmp_path):  # noqa: F811
    folder, sums = archives
    page = cells(f'{APPLICATIONS}/natural-language-inference-bert.md')
    assert 'num_blks' in '\n'.join(page)
    page = [cell.replace('import d2lbert as d2l', IMPORT) for cell in page]
    check_output(run_script(as_script(page, sums), folder, tmp_path))


# What the cells use

@pytest.fixture
def text(tmp_path, monkeypatch):
    """A small WikiText-2 on this machine, and no network."""
    folder = tmp_path / 'data' / 'wikitext-2'
    folder.mkdir(parents=True)
    (folder / TRAIN_FILE).write_text(''.join(TEXT), 'utf-8')
    monkeypatch.setenv('D2LBERT_DATA', str(tmp_path / 'data'))
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(hub, 'WIKITEXT_2_URL', 'http://127.0.0.1:9/x.parquet')
    return tmp_path


def test_read_wiki_without_arguments_reads_the_text_on_this_machine(text):
    expected = [['a driver came', 'he just left .'],
                ['one sentence alone .'], ['the crane flew', 'it was grey .']]
    assert sorted(bert_dataset._read_wiki()) == expected
    assert sorted(bert_dataset._read_wiki(
        text / 'data' / 'wikitext-2')) == expected


def test_the_parquet_file_is_made_if_it_cannot_be_downloaded(text, capsys):
    pandas = pytest.importorskip('pandas')
    pytest.importorskip('pyarrow')
    path = d2l.download(hub.WIKITEXT_2_URL, folder=str(text / 'made'),
                        sha1_hash=d2l.WIKITEXT_2_SHA1)
    assert path == str(text / 'made' / 'x.parquet')
    assert pandas.read_parquet(path)['text'].tolist() == TEXT
    assert f'{path} was made from' in capsys.readouterr().err


def test_the_parquet_file_is_made_once_for_a_text(text, capsys):
    parquet = pytest.importorskip('pyarrow.parquet')

    def lines():
        path = d2l.download(hub.WIKITEXT_2_URL, folder=str(text / 'made'),
                            sha1_hash=d2l.WIKITEXT_2_SHA1)
        return parquet.read_table(path).column('text').to_pylist()
    assert lines() == TEXT
    assert 'was made from' in capsys.readouterr().err
    assert lines() == TEXT
    assert capsys.readouterr().err == ''
    (text / 'data' / 'wikitext-2' / TRAIN_FILE).write_text(TEXT[1], 'utf-8')
    assert lines() == TEXT[1:2]
    assert 'was made from' in capsys.readouterr().err
    (text / 'made' / 'x.parquet').write_bytes(b'damaged')
    assert lines() == TEXT[1:2]


def test_a_missing_pyarrow_is_named(text, monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'pyarrow', None)
    with pytest.raises(hub.HubError, match='pip install pyarrow'):
        d2l.download(hub.WIKITEXT_2_URL, folder=str(text / 'made'),
                     sha1_hash=d2l.WIKITEXT_2_SHA1)
    assert not (text / 'made').exists()


def test_a_file_is_downloaded_by_its_address(tmp_path, capsys):
    (tmp_path / 'there').mkdir()
    (tmp_path / 'there' / 'a.txt').write_bytes(b'text')
    url = (tmp_path / 'there' / 'a.txt').as_uri()
    sha1 = hashlib.sha1(b'text').hexdigest()
    folder = tmp_path / 'here'
    with pytest.raises(hub.HubError, match='instead of the file'):
        d2l.download(url, folder=folder, sha1_hash='0' * 40)
    assert not folder.exists()
    for digest in (sha1, None):
        path = d2l.download(url, folder=str(folder), sha1_hash=digest)
        assert path == str(folder / 'a.txt')
        assert Path(path).read_bytes() == b'text'
    assert capsys.readouterr().err.count('fetching') == 2    # then it is there


@pytest.mark.parametrize('address, said', [
    ('no-such-name', 'is not in DATA_HUB'),
    ('http://127.0.0.1:9/', 'no file')])
def test_invalid_addresses_are_refused(address, said):
    with pytest.raises(ValueError, match=said):
        d2l.download(address)


def test_a_folder_is_named_once(tmp_path):
    with pytest.raises(TypeError, match='one argument'):
        d2l.download('SNLI', folder=tmp_path, cache_dir=tmp_path)


@pytest.mark.parametrize('function, names', [
    (natural_language_inference.load_pretrained_model,
     'pretrained_model num_hiddens ffn_num_hiddens num_heads num_blks dropout '
     'max_len devices'),
    (d2l.tokenize, 'paragraph token'), (bert_dataset._read_wiki, 'data_dir'),
    (d2l.get_dataloader_workers, ''), (d2l.train_bert, 'train_iter net loss '
                                       'vocab_size devices num_steps')])
def test_the_pages_calls_fit(function, names):
    names = names.split()
    if function is d2l.tokenize:    # the first is given by its place
        inspect.signature(function).bind('', **{names[1]: 'word'})
    elif function is not d2l.train_bert:
        inspect.signature(function).bind(**dict.fromkeys(names))
    else:
        inspect.signature(function).bind(*names)
