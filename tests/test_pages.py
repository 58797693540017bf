"""Every MXNet cell of the book's pages runs against the package.

D2LBERT_PAGES names the folder that holds the pages: 000_* ("BERT", first
edition), 002_* ("Pretraining BERT", first edition) and 003_* ("BERT",
edition 0.17). The page "BERT" of edition 1.0 has the cells of 003_* under
newer names. Only three things are changed: the line that imports d2l, the
device where the page insists on a GPU and none is here, and the number of
training steps.
"""
import ast
import os
import re
from pathlib import Path

import pytest

import d2lbert
from d2lbert import devices
from d2lbert.machine.backend import mx, np

IMPORTS = 'import d2l\n', 'from d2l import mxnet as d2l\n'
OURS = 'import d2lbert as d2l\n'
CELL = re.compile(r'^```\{\.python \.input[^}]*\}\n(.*?)^```$', re.M | re.S)
EDITION_1_0 = (('num_layers', 'num_blks'),
               ('d2l.EncoderBlock', 'd2l.TransformerEncoderBlock'))
CALL = 'train_bert(train_iter, net, loss, len(vocab), ctx, 1, 50)'
CALL_OF_TWO_STEPS = CALL.replace('50', '2')

# What the page's cells show below themselves, in the page's order
SHAPES = {
    'encoded_X': (2, 8, 768), 'mlm_Y_hat': (2, 3, 10000), 'mlm_l': (6,),
    'nsp_Y_hat': (2, 2), 'nsp_l': (2,),
}


def page_cells(number):
    """The sources of a page's MXNet cells, with our import; or skip."""
    folder = os.environ.get('D2LBERT_PAGES')
    if not folder:
        pytest.skip("D2LBERT_PAGES does not name the folder of the book's "
                    'pages')
    (path,) = Path(folder).glob(f'{number}_*')
    cells = [cell for cell in CELL.findall(path.read_text(encoding='utf-8'))
             if not cell.startswith('#@tab pytorch')]
    imports = [line for cell in cells for line in IMPORTS if line in cell]
    assert len(imports) == 1
    return [cell.replace(imports[0], OURS) for cell in cells]


def without_definitions(cells):
    """Drop classes and functions; import their names from the package."""
    kept, names = [], []
    for cell in cells:
        tree = ast.parse(cell)
        names += [node.name for node in tree.body
                  if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        tree.body = [node for node in tree.body
                     if not isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        kept.append(ast.unparse(tree) if hasattr(ast, 'unparse')
                    else compile(tree, 'cell', 'exec'))
    assert names
    return [f'from d2lbert import {", ".join(names)}\n', *kept]


def run(cells):
    """Execute cells in order; returns the names that they leave."""
    names = {'__name__': 'page'}
    for cell in cells:
        exec(cell, names)
    return names


VERSIONS = pytest.mark.parametrize('version', [list, without_definitions],
                                   ids=['as_printed', 'without_definitions'])


@VERSIONS
@pytest.mark.parametrize('page', ['000', '003', '003 as of 1.0'])
def test_page_bert_gives_the_shapes_that_it_prints(page, version):
    cells = page_cells(page[:3])
    if page.endswith('1.0'):
        for old, new in EDITION_1_0:
            assert any(old in cell for cell in cells)
            cells = [cell.replace(old, new) for cell in cells]
    mx.random.seed(1)
    names = run(version(cells))
    for name, shape in SHAPES.items():
        assert names[name].shape == shape, name
    assert (names['BERTModel'] is d2lbert.BERTModel) == (version is not list)


@pytest.mark.wiki
@VERSIONS
def test_page_pretraining_trains_and_encodes(version, wiki_dir, tmp_path,
                                             monkeypatch, capsys):
    cells = page_cells('002')
    monkeypatch.chdir(tmp_path)
    (call,) = [i for i, cell in enumerate(cells) if CALL in cell]
    cells[call] = cells[call].replace(CALL, CALL_OF_TWO_STEPS)
    if 'gpu' not in str(devices.try_gpu()):
        assert sum('npx.gpu(0)' in cell for cell in cells) == 1
        cells = [cell.replace('npx.gpu(0)', 'npx.cpu()') for cell in cells]
    mx.random.seed(1)
    names = run(version(cells))
    assert len(names['vocab']) == 20256
    assert names['encoded_text'].shape == (1, 6, 128)
    assert names['encoded_pair'].shape == (1, 10, 128)
    crane, other_crane = names['encoded_text_crane'], names[
        'encoded_pair_crane']
    assert crane.shape == other_crane.shape == (1, 128)
    assert not np.allclose(crane, other_crane)
    printed = re.search(r'MLM loss (\S+), NSP loss (\S+)\n'
                        r'(\S+) sentence pairs/sec on \[',
                        capsys.readouterr().out)
    mlm, nsp, speed = map(float, printed.groups())
    # Two steps from ln 20256 = 9.92 and ln 2 = 0.69, guessing
    assert 9 < mlm < 10.5 and 0.4 < nsp < 2 and speed > 0
