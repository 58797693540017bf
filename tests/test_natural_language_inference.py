"""The page on inference: its cells as typed, and the package's own."""
import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nli_page
import numpy as onp
import pytest
import reference
from test_pages import CELL, IMPORTS, OURS, without_definitions

import d2lbert as d2l
from d2lbert import hub
from d2lbert.machine.backend import autograd, gluon, init, mx, nn, np, npx
from d2lbert.text import RESERVED

ROOT = Path(__file__).resolve().parents[1]
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    """A folder of archives of the page's layout, and their checksums."""
    folder = tmp_path_factory.mktemp('archives')
    return folder, nli_page.archives(folder)


@pytest.fixture
def here(archives, monkeypatch, tmp_path):
    """The archives are what DATA_HUB lists, in $D2LBERT_DATA."""
    folder, sums = archives
    monkeypatch.setenv('D2LBERT_DATA', str(folder))
    monkeypatch.setenv('D2LBERT_CACHE', str(tmp_path / 'cache'))
    for name, sha1 in sums.items():
        monkeypatch.setitem(hub.DATA_HUB, name, (hub.DATA_HUB[name][0], sha1))
    return folder


# The page

def printed_pages():
    """The cells of a page of the book where D2LBERT_PAGES has this one."""
    folder = os.environ.get('D2LBERT_PAGES')
    for path in sorted(Path(folder).iterdir()) if folder else ():
        cells = [cell for cell in CELL.findall(
            path.read_text('utf-8', errors='ignore'))
            if not re.match(r'(#@tab|%%tab)(?!.*\b(mxnet|all)\b)', cell)]
        if any('SNLIBERTDataset' in cell for cell in cells):
            return [re.sub(r'^%%tab.*\n', '', cell) for cell in cells]
    pytest.skip('D2LBERT_PAGES names no folder with the page "Natural '
                'Language Inference: Fine-Tuning BERT"')


def edition_1_0():
    return [cell.replace('num_layers', 'num_blks') for cell in nli_page.CELLS]


PAGES = {'as typed': lambda: list(nli_page.CELLS), 'as of 1.0': edition_1_0,
         'as printed': printed_pages}


def as_script(cells, sums, epochs=1):
    """The cells with our import, these archives and fewer epochs."""
    (old,) = [line for cell in cells for line in IMPORTS if line in cell]
    text = '\n'.join(cells).replace(old, OURS)
    for name, sha1 in sums.items():
        text = text.replace(nli_page.SHA1[name], sha1)
    # `ast.unparse` puts tuples in parentheses before Python 3.11
    text, count = re.subn(r'(num_epochs\)? = [^,]+), 5\b',
                          rf'\1, {epochs}', text)
    assert count == 1
    # From Python 3.14 on, worker processes do not know the classes of cells
    text = ("import multiprocessing\n"
            "multiprocessing.set_start_method('fork')\n" + text)
    # Facts about the data that no cell of the page prints
    listed = hub.DATA_HUB['SNLI'][0], sums['SNLI']
    return text.replace('npx.set_np()\n', (
        f"npx.set_np()\nd2l.DATA_HUB['SNLI'] = {listed!r}\n"), 1)


def run_script(text, folder, tmp_path, timeout=300):
    """The output of a script; the archives are in a folder."""
    (tmp_path / 'page.py').write_text(text, encoding='utf-8')
    done = subprocess.run(
        [sys.executable, 'page.py'], cwd=tmp_path, timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, env={
            **os.environ, 'D2LBERT_DATA': str(folder), 'PYTHONPATH': str(ROOT)
        })
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_output(printed):
    made = [nli_page.rows(200), nli_page.rows(40, 1)]
    read = ''.join(
        f'read {sum(label != "-" for label, _, _ in rows)} examples\n'
        for rows in made)
    found = re.fullmatch(
        re.escape(read) + r'loss (\d\.\d{3}), train acc (0\.\d{3}), test acc '
        r'(0\.\d{3})\n(\d+\.\d) examples/sec on \[.pu\(0\)\]\n', printed)
    assert found, printed
    loss, train_acc, test_acc, speed = map(float, found.groups())
    assert 0.7 < loss < 2.5 and speed > 0


@pytest.mark.parametrize('page', list(PAGES))
def test_the_page_runs_as_a_reader_types_it(page, archives, tmp_path):
    folder, sums = archives
    check_output(run_script(as_script(PAGES[page](), sums), folder, tmp_path))


@pytest.mark.parametrize('page', list(PAGES))
def test_the_page_runs_without_its_definitions(page, archives, tmp_path):
    if not hasattr(ast, 'unparse'):
        pytest.skip('ast.unparse came with Python 3.9')
    folder, sums = archives
    names, *cells = without_definitions(PAGES[page]())
    assert {'load_pretrained_model', 'SNLIBERTDataset',
            'BERTClassifier'} <= set(re.findall(r'\w+', names))
    script = as_script(cells, sums, epochs=2)
    check_output(run_script(script.replace(OURS, OURS + names), folder,
                            tmp_path))


def test_the_manual_shows_lines_that_run(archives, tmp_path):
    folder, sums = archives
    page = (ROOT / 'd2lbert' / 'manual' / 'book.md').read_text('utf-8')
    code, = [code for code in re.findall(r'```python\n(.*?)```', page,
                                         re.DOTALL)
             if 'load_pretrained_model' in code]
    assert code.count('trainer, 5, ') == 1
    listed = {name: (hub.DATA_HUB[name][0], sha1)
              for name, sha1 in sums.items()}
    check_output(run_script(
        code.replace('trainer, 5, ', 'trainer, 1, ').replace(
            OURS, f'{OURS}d2l.DATA_HUB.update({listed!r})\n'),
        folder, tmp_path))


# Data

def test_snli_is_read_as_the_book_reads_it(book, tmp_path):
    text = nli_page.snli_text(nli_page.rows(60))
    text += ('neutral\t( ( A\xa0man )   . )\t(  Hm\u3000\u3000! )\n'
             '-\tcut\n'
             'entailment\t Naïve (  ) \t"x\n')
    for part in ('train', 'test'):
        (tmp_path / f'snli_1.0_{part}.txt').write_text(text, 'utf-8')
        text += 'contradiction\ta\tb\tc'
    for is_train in (True, False):
        ours = d2l.read_snli(tmp_path, is_train)
        assert ours == book.read_snli(str(tmp_path), is_train)
    assert ours[2][-4:] == [ours[2][-4], 2, 0, 1]
    assert ours[0][-3:] == ['A\xa0man .', 'Naïve', 'a']


def test_snli_that_is_not_there_or_broken_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match='snli_1.0_test.txt.*archive'):
        d2l.read_snli(tmp_path, False)
    path = tmp_path / 'snli_1.0_train.txt'
    path.write_text('gold_label\nneutral\ta\tb\nneutral\ta\n')
    with pytest.raises(ValueError, match=r'line 3: expected .* found 2 col'):
        d2l.read_snli(tmp_path, True)
    path.write_bytes(b'gold_label\nneutral\t\xff\tb\n')
    with pytest.raises(ValueError, match='train.txt is not UTF-8'):
        d2l.read_snli(tmp_path, True)


def vocabulary():
    vocab = d2l.Vocab()
    vocab.idx_to_token = nli_page.tokens()
    vocab.token_to_idx = {
        token: i for i, token in enumerate(vocab.idx_to_token)}
    return vocab


def by_hand(premise, hypothesis, vocab, max_len):
    """Token ids, segments and length of a pair, one word at a time."""
    p, h = premise.lower().split(), hypothesis.lower().split()
    while len(p) + len(h) > max_len - 3:
        del (p if len(p) > len(h) else h)[-1]
    row = ['<cls>', *p, '<sep>', *h, '<sep>']
    ids = [vocab[token] for token in row]
    segments = [0] * (len(p) + 2) + [1] * (len(h) + 1)
    padding = max_len - len(row)
    return (ids + [vocab['<pad>']] * padding, segments + [0] * padding,
            len(row))


@pytest.mark.parametrize('max_len', [5, 6, 9, 10, 15, 40])
def test_pairs_are_cut_as_the_page_cuts_them(max_len, capsys):
    rng = onp.random.RandomState(max_len)
    words = [*nli_page.tokens()[5:], 'Unheard-of', 'CAFÉ']
    premises, hypotheses = ([' '.join(rng.choice(words, rng.randint(0, 14)))
                             for _ in range(200)] for _ in range(2))
    labels = rng.randint(0, 3, 200).tolist()
    vocab = vocabulary()
    dataset = d2l.SNLIBERTDataset((premises, hypotheses, labels), max_len,
                                  vocab)
    assert capsys.readouterr().out == 'read 200 examples\n'
    ids, segments, lens = zip(*(by_hand(*pair, vocab, max_len)
                                for pair in zip(premises, hypotheses)))
    onp.testing.assert_array_equal(dataset.all_token_ids, ids)
    onp.testing.assert_array_equal(dataset.all_segments, segments)
    onp.testing.assert_array_equal(dataset.valid_lens, lens)
    assert dataset.vocab is vocab and len(dataset) == 200


@pytest.mark.parametrize('num_workers', [0, 2])
def test_batches_are_those_of_the_page(num_workers):
    rows = [row for row in nli_page.rows(30) if row[0] != '-']
    labels = [k % 3 for k in range(len(rows))]
    dataset = d2l.SNLIBERTDataset(
        ([row[1] for row in rows], [row[2] for row in rows], labels), 16,
        vocabulary())
    seen = []
    for features, y in gluon.data.DataLoader(dataset, 8,
                                             num_workers=num_workers):
        assert [type(X) for X in features] == [np.ndarray] * 3
        assert [X.dtype for X in (*features, y)] == [
            onp.int32, onp.int32, onp.float32, onp.float32]
        assert [X.shape[1:] for X in (*features, y)] == [(16,), (16,), (), ()]
        seen += [(*row, label) for *row, label in zip(
            *(X.asnumpy().tolist() for X in (*features, y)))]
    assert seen == [(*by_hand(*row[1:], dataset.vocab, 16), label)
                    for row, label in zip(rows, labels)]


@pytest.mark.parametrize('dataset, arguments, message', [
    ((['a'], ['b'], [0]), (4, vocabulary()), 'max_len=4'),
    ((['a'], ['b'], [0]), (9,), 'vocab is missing'),
    ((['a'], [], [0]), (9, vocabulary()), '1 premises, 0 hypotheses and 1'),
])
def test_wrong_data_sets_are_refused(dataset, arguments,
                                                    message):
    with pytest.raises(ValueError, match=message):
        d2l.SNLIBERTDataset(dataset, *arguments)


# The pretrained model

def small_archive(folder, monkeypatch, legacy=False, members=()):
    """List an archive of a model of 8 hiddens, or one that is damaged."""
    vocab = nli_page.tokens()
    named = nli_page.weights(len(vocab), 8, 12, 1, 16)
    nli_page.write_params(folder / 'x.params', named, legacy)
    members = {'vocab.json': json.dumps(vocab).encode(),
               'pretrained.params': (folder / 'x.params').read_bytes(),
               **dict(members)}
    path = folder / 'mine.zip'
    sha1 = nli_page.pack(path, {
        f'mine/{member}': data for member, data in members.items()
        if data is not None})
    monkeypatch.setitem(hub.DATA_HUB, 'mine', (path.as_uri(), sha1))
    return named


SIZES = dict(num_hiddens=8, ffn_num_hiddens=12, num_heads=2, num_layers=1,
             max_len=16)


@pytest.mark.parametrize('legacy', [False, True])
def test_the_archive_gives_the_model_and_its_vocabulary(
        own_cache, tmp_path, monkeypatch, legacy):
    named = small_archive(tmp_path, monkeypatch, legacy)
    devices = [npx.cpu(0), npx.cpu(1)]
    bert, vocab = d2l.load_pretrained_model('mine', **SIZES, dropout=0.3,
                                            devices=devices)
    params = bert._collect_params_with_prefix()
    assert params.keys() == named.keys()
    for name, param in params.items():
        assert param.list_ctx() == devices
        onp.testing.assert_array_equal(param.data(devices[1]).asnumpy(),
                                       named[name], err_msg=name)
    assert vocab.idx_to_token == nli_page.tokens()
    assert vocab['<sep>'] == 4 and vocab['zebra'] == 0 == vocab['<unk>']
    assert vocab.to_tokens(vocab[['dog', 'runs']]) == ['dog', 'runs']
    assert bert.vocab is vocab and bert.config['dropout'] == 0.3
    assert d2l.get_bert_encoding(bert, ['the', 'dog']).shape == (1, 4, 8)


def test_the_books_package_loads_the_same_parameters(book, tmp_path):
    V = len(nli_page.tokens())
    named = nli_page.weights(V, 8, 12, 1, 16)
    nli_page.write_params(tmp_path / 'x.params', named)
    net = book.BERTModel(V, 8, 12, 2, 1, 0.0, max_len=16)
    net.load_parameters(str(tmp_path / 'x.params'))
    assert net._collect_params_with_prefix().keys() == named.keys()


def test_sizes_of_the_books_models_are_known(here):
    bert, vocab = d2l.load_pretrained_model('bert.small')
    assert [bert.config[name] for name in (
        'num_hiddens', 'ffn_num_hiddens', 'num_heads', 'num_layers',
        'dropout', 'max_len')] == [256, 512, 4, 2, 0.1, 512]
    assert len(vocab) == bert.config['vocab_size']
    again, _ = d2l.load_pretrained_model('bert.small', num_heads=8,
                                         num_blks=2)
    assert again.config['num_heads'] == 8
    assert not list(here.glob('*/')) or sorted(
        path.name for path in here.iterdir()) == [
            'bert.small.zip', 'snli_1.0.zip']
    # The published one: 768 hiddens, 12 heads, 12 blocks
    assert d2l.natural_language_inference.SIZES['bert.base'] == (
        768, 3072, 12, 12)


@pytest.mark.parametrize('sizes, members, error, message', [
    (dict(SIZES, num_hiddens=4), {}, ValueError,
     'of these sizes .*4, 12, 2, 1; max_len 16.*in the model'),
    (dict(SIZES, num_layers=2), {}, ValueError, 'encoder.blks.1.*missing'),
    (dict(SIZES, num_heads=None), {}, ValueError, "'mine' are not known"),
    (dict(SIZES, num_blks=1), {}, TypeError, 'give one'),
    (SIZES, {'pretrained.params': None}, ValueError, 'no pretrained.params'),
    (SIZES, {'pretrained.params': b'PK\3\4 and no more'}, ValueError,
     'does not hold the parameters'),
    (SIZES, {'vocab.json': None}, ValueError, 'vocab.json cannot be read'),
    (SIZES, {'vocab.json': b'["<unk>"'}, ValueError, 'cannot be read'),
    (SIZES, {'vocab.json': b'{"a": 1}'}, ValueError, 'list of tokens'),
    (SIZES, {'vocab.json': b'["<unk>", "<pad>"]'}, ValueError,
     'lacks <mask>, <cls>, <sep>'),
])
def test_an_archive_that_does_not_fit_is_an_error(
        own_cache, tmp_path, monkeypatch, sizes, members, error, message):
    small_archive(tmp_path, monkeypatch, members=members)
    with pytest.raises(error, match=message) as raised:
        d2l.load_pretrained_model('mine', **sizes)
    assert '\n' not in str(raised.value)


def test_an_unlisted_model_is_an_error():
    with pytest.raises(ValueError, match="'bert.tiny' is not in DATA_HUB"):
        d2l.load_pretrained_model('bert.tiny', **SIZES)


# The classifier

class Typed(nn.Block):
    """The classifier as the page has it: every place, then <cls>."""

    def __init__(self, bert):
        super().__init__()
        self.encoder, self.hidden = bert.encoder, bert.hidden
        self.output = nn.Dense(3)

    def forward(self, inputs):
        tokens_X, segments_X, valid_lens_x = inputs
        encoded_X = self.encoder(tokens_X, segments_X, valid_lens_x)
        return self.output(self.hidden(encoded_X[:, 0, :]))


V, T, LENS = 30, 12, [12, 4, 3, 7, 5]


def features():
    rng = onp.random.RandomState(1)
    B = len(LENS)
    return (np.array(rng.randint(0, V, (B, T)), dtype='int32'),
            np.array(rng.randint(0, 2, (B, T)), dtype='int32'),
            np.array(LENS, dtype='float32'))


def bert(module=d2l, dropout=0.0, **sizes):
    """A model with the same weights whichever package makes it."""
    net = module.BERTModel(V, 8, 12, 2, 2, dropout, max_len=16, **sizes)
    net.initialize()
    tokens_X, segments_X, valid_lens_x = features()
    net(tokens_X, segments_X, valid_lens_x, tokens_X[:, :2] * 0)
    fill(net)
    return net


def fill(net):
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.3, param.shape)))


def classifier(kind, module=d2l, **sizes):
    net = kind(bert(module, **sizes))
    net.output.initialize()
    net(features())
    fill(net.output)
    return net


def scores_and_gradients(net):
    net.collect_params().zero_grad()
    y = np.array([0, 2, 1, 1, 0], dtype='float32')
    with autograd.record():
        Y_hat = net(features())
        total = LOSS(Y_hat, y).sum()
    total.backward()
    return Y_hat.asnumpy(), {
        name: param.grad().asnumpy() for name, param
        in net._collect_params_with_prefix().items()}


def same(ours, theirs):
    onp.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        onp.testing.assert_allclose(ours[1][name], gradient, rtol=1e-4,
                                    atol=2e-6, err_msg=name)


def test_scores_and_gradients_are_those_of_the_books_package(book, path):
    theirs = scores_and_gradients(classifier(Typed, book))
    same(scores_and_gradients(classifier(d2l.BERTClassifier)), theirs)
    same(scores_and_gradients(classifier(Typed)), theirs)


def test_scores_are_those_of_a_plain_numpy_model():
    net = classifier(d2l.BERTClassifier)
    params = reference.parameters(net)
    tokens_X, segments_X, valid_lens_x = (X.asnumpy() for X in features())
    X, _, _ = reference.bert(
        {**reference.parameters(bert()), **params}, 2, tokens_X, segments_X,
        valid_lens_x.astype(int), tokens_X[:, :1] * 0)
    H = onp.tanh(reference.dense(reference.under(params, 'hidden'), X[:, 0]))
    onp.testing.assert_allclose(
        net(features()).asnumpy(),
        reference.dense(reference.under(params, 'output'), H), atol=1e-5)


def test_nothing_is_computed_but_what_cls_needs(path, rows):
    net = classifier(d2l.BERTClassifier)
    del rows[:]
    net(features())
    B, R = len(LENS), sum(LENS)
    # Queries, keys and values; W_o; the two layers of the feed-forward net
    assert rows == [R, R, R, R] + [R, B, B, B] + [B, B]


def test_a_net_with_a_hook_is_called_as_on_the_page(rows):
    net = classifier(d2l.BERTClassifier)
    scores = net(features()).asnumpy()
    seen = []
    net.encoder.blks[1].register_forward_hook(
        lambda block, inputs, Y: seen.append(Y.shape))
    onp.testing.assert_allclose(net(features()).asnumpy(), scores, atol=1e-6)
    assert seen == [(5, 12, 8)]


def test_keeping_attention_gives_the_same_scores():
    net = classifier(d2l.BERTClassifier)
    scores = net(features()).asnumpy()
    with d2l.keep_attention(net):
        onp.testing.assert_allclose(net(features()).asnumpy(), scores,
                                    atol=1e-6)
        weights = net.encoder.blks[1].attention.attention.attention_weights
    assert weights.shape == (10, 12, 12)


def test_the_classifier_trains_the_model_further():
    whole = bert()
    net = d2l.BERTClassifier(whole)
    assert net.encoder is whole.encoder and net.hidden is whole.hidden
    assert net.output.weight.shape == (3, 8)
    assert not any(name.startswith(('mlm', 'nsp'))
                   for name in net._collect_params_with_prefix())


def test_a_first_edition_model_has_no_hidden_layer_to_take():
    with pytest.raises(ValueError, match='needs a model with `hidden`'):
        d2l.BERTClassifier(bert(positional='sinusoidal'))


def test_labels_that_words_give_away_are_learned(capsys):
    rows = [row for row in nli_page.rows(150) if row[0] != '-']
    numbers = {'entailment': 0, 'contradiction': 1, 'neutral': 2}
    data = ([row[1] for row in rows], [row[2] for row in rows],
            [numbers[row[0]] for row in rows])
    vocab = vocabulary()
    mx.random.seed(0)
    onp.random.seed(0)
    whole = d2l.BERTModel(len(vocab), 32, 32, 2, 1, 0.0, max_len=24)
    whole.initialize(init.Xavier())
    net = d2l.BERTClassifier(whole)
    net.output.initialize()
    batches = gluon.data.DataLoader(d2l.SNLIBERTDataset(data, 24, vocab), 16,
                                    shuffle=True)
    d2l.train_ch13(net, batches, batches, LOSS, gluon.Trainer(
        net.collect_params(), 'adam', {'learning_rate': 5e-3}), 12,
        [npx.cpu()], d2l.split_batch_multi_inputs)
    assert float(re.search(r'test acc (\S+)',
                           capsys.readouterr().out).group(1)) > 0.9
    assert set(RESERVED) < set(vocab.token_to_idx)
