"""The page on fine-tuning BERT for inference, and archives of its layout.

`CELLS` are what a reader of the page types, in its order and with its names;
`archives` makes bert.small.zip, with random weights, and snli_1.0.zip, with
pairs made up here.
"""
import hashlib
import io
import json
import random
import zipfile

import numpy as onp
from legacy import legacy_mode

from d2lbert.machine.backend import mx, np, npx
from d2lbert.text import RESERVED, UNK

SHA1 = {'bert.base': '7b3820b35da691042e5d34c0971ac3edbd80d3f4',
        'bert.small': 'a4e718a47137ccd1809c9107ab4f5edd317bae2c',
        'SNLI': '9fcde07509c7e87ec61c640c1b2753d9041758e4'}

IMPORT = 'from d2l import mxnet as d2l\n'

CELLS = [f'''\
{IMPORT}import json
import multiprocessing
import os
from mxnet import gluon, np, npx
from mxnet.gluon import nn

npx.set_np()
''', f'''\
d2l.DATA_HUB['bert.base'] = (
    d2l.DATA_URL + 'bert.base.zip', '{SHA1["bert.base"]}')
d2l.DATA_HUB['bert.small'] = (
    d2l.DATA_URL + 'bert.small.zip', '{SHA1["bert.small"]}')
''', '''\
def load_pretrained_model(pretrained_model, num_hiddens, ffn_num_hiddens,
                          num_heads, num_layers, dropout, max_len, devices):
    data_dir = d2l.download_extract(pretrained_model)
    vocab = d2l.Vocab()         # what is in the file takes its place
    with open(os.path.join(data_dir, 'vocab.json')) as f:
        vocab.idx_to_token = json.load(f)
    vocab.token_to_idx = {
        token: i for i, token in enumerate(vocab.idx_to_token)}
    bert = d2l.BERTModel(len(vocab), num_hiddens, ffn_num_hiddens, num_heads,
                         num_layers, dropout, max_len)
    bert.load_parameters(os.path.join(data_dir, 'pretrained.params'),
                         ctx=devices)
    return bert, vocab
''', '''\
devices = d2l.try_all_gpus()
bert, vocab = load_pretrained_model(
    'bert.small', num_hiddens=256, ffn_num_hiddens=512, num_heads=4,
    num_layers=2, dropout=0.1, max_len=512, devices=devices)
''', '''\
class SNLIBERTDataset(gluon.data.Dataset):
    def __init__(self, dataset, max_len, vocab=None):
        pairs = [list(pair) for pair in zip(*(
            d2l.tokenize([s.lower() for s in sentences])
            for sentences in dataset[:2]))]
        self.labels = np.array(dataset[2])
        self.vocab = vocab
        self.max_len = max_len
        (self.all_token_ids, self.all_segments,
         self.valid_lens) = self._preprocess(pairs)
        print(f'read {len(self.all_token_ids)} examples')

    def _preprocess(self, pairs):
        with multiprocessing.Pool(4) as pool:
            columns = zip(*pool.map(self._mp_worker, pairs))
        token_ids, segments, valid_lens = map(list, columns)
        return (np.array(token_ids, dtype='int32'),
                np.array(segments, dtype='int32'), np.array(valid_lens))

    def _mp_worker(self, pair):
        p_tokens, h_tokens = pair
        self._truncate_pair_of_tokens(p_tokens, h_tokens)
        tokens, segments = d2l.get_tokens_and_segments(p_tokens, h_tokens)
        missing = self.max_len - len(tokens)
        return (self.vocab[tokens] + [self.vocab['<pad>']] * missing,
                segments + [0] * missing, len(tokens))

    def _truncate_pair_of_tokens(self, p_tokens, h_tokens):
        # <cls> and two <sep> come to them
        while len(p_tokens) + len(h_tokens) > self.max_len - 3:
            (p_tokens if len(p_tokens) > len(h_tokens) else h_tokens).pop()

    def __getitem__(self, idx):
        return (self.all_token_ids[idx], self.all_segments[idx],
                self.valid_lens[idx]), self.labels[idx]

    def __len__(self):
        return len(self.all_token_ids)
''', '''\
batch_size, max_len, num_workers = 512, 128, d2l.get_dataloader_workers()
data_dir = d2l.download_extract('SNLI')
train_set = SNLIBERTDataset(d2l.read_snli(data_dir, True), max_len, vocab)
test_set = SNLIBERTDataset(d2l.read_snli(data_dir, False), max_len, vocab)
train_iter = gluon.data.DataLoader(train_set, batch_size, shuffle=True,
                                   num_workers=num_workers)
test_iter = gluon.data.DataLoader(test_set, batch_size,
                                  num_workers=num_workers)
''', '''\
class BERTClassifier(nn.Block):
    def __init__(self, bert):
        super(BERTClassifier, self).__init__()
        self.encoder = bert.encoder
        self.hidden = bert.hidden
        self.output = nn.Dense(3)

    def forward(self, inputs):
        tokens_X, segments_X, valid_lens_x = inputs
        encoded_X = self.encoder(tokens_X, segments_X, valid_lens_x)
        return self.output(self.hidden(encoded_X[:, 0, :]))
''', '''\
net = BERTClassifier(bert)
net.output.initialize(ctx=devices)
''', '''\
lr, num_epochs = 1e-4, 5
trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': lr})
loss = gluon.loss.SoftmaxCrossEntropyLoss()
d2l.train_ch13(net, train_iter, test_iter, loss, trainer, num_epochs,
               devices, d2l.split_batch_multi_inputs)
''']

# Who does what; where else they are, and what they are not doing
_WHO = ['A man', 'Two young women', 'The old (and tired) dog', 'A child']
_WHAT = ['is playing a guitar', 'are crossing the street', 'runs', 'sits']
_WHERE = ['in a park', 'near the  water', 'outdoors', 'at a café']

HEAD = '\t'.join(['gold_label', 'sentence1_binary_parse',
                  'sentence2_binary_parse', 'sentence1_parse',
                  'sentence2_parse', 'sentence1', 'sentence2', 'captionID',
                  'pairID', *(f'label{k}' for k in range(1, 6))])


def rows(count, seed=0):
    """(label, premise, hypothesis) of made-up pairs; some labels are '-'."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        who, what, where = map(rng.choice, (_WHO, _WHAT, _WHERE))
        label = rng.choice(['entailment', 'contradiction', 'neutral'] * 5
                           + ['-'])
        said = {'entailment': f'Somebody {what} .',
                'contradiction': f'Nobody {what} .',
                'neutral': f'{who} {what} all day long .'}
        made.append((label, f'{who} {what} {where} .',
                     said.get(label, 'It is unclear .')))
    return made


def _tree(sentence):
    """A sentence with the brackets of a binary tree, leaning right."""
    words = sentence.replace('(', '').replace(')', '').split(' ')
    return ('( ' * (len(words) - 1) + words[0]
            + ''.join(f' {word} )' for word in words[1:]))


def snli_text(made):
    """The text of a file of SNLI: 14 columns."""
    lines = [HEAD]
    for k, (label, premise, hypothesis) in enumerate(made):
        lines.append('\t'.join([
            label, _tree(premise), _tree(hypothesis),
            f'(ROOT (S {premise}))', f'(ROOT (S {hypothesis}))', premise,
            hypothesis, f'{k}.jpg#0', f'{k}.jpg#0r1c', label, '', '', '',
            '']))
    return '\n'.join(lines) + '\n'


def tokens():
    """A vocabulary of most of the words of `rows`."""
    words = sorted({word for _, *pair in rows(200) for sentence in pair
                    for word in sentence.lower().split()})
    return [UNK, *RESERVED, *words[3:]]


def shapes(V, H, F, num_layers, max_len):
    """Names and shapes of a saved model, as the book's package has them."""
    def dense(name, units, in_units):
        return {f'{name}.weight': (units, in_units), f'{name}.bias': (units,)}

    def norm(name):
        return {f'{name}.gamma': (H,), f'{name}.beta': (H,)}
    named = {'encoder.pos_embedding': (1, max_len, H),
             'encoder.token_embedding.weight': (V, H),
             'encoder.segment_embedding.weight': (2, H),
             **dense('mlm.mlp.0', H, H), **norm('mlm.mlp.1'),
             **dense('mlm.mlp.2', V, H), **dense('hidden', H, H),
             **dense('nsp.output', 2, H)}
    for k in range(num_layers):
        block = f'encoder.blks.{k}'
        for name in ('W_q', 'W_k', 'W_v', 'W_o'):
            named.update(dense(f'{block}.attention.{name}', H, H))
        named.update(dense(f'{block}.ffn.dense1', F, H))
        named.update(dense(f'{block}.ffn.dense2', H, F))
        for k in (1, 2):
            named.update(norm(f'{block}.addnorm{k}.ln'))
    return named


def weights(V, H=256, F=512, num_layers=2, max_len=512, seed=0):
    """Random parameters of a model, by name."""
    rng = onp.random.RandomState(seed)
    return {name: onp.ones(shape, 'float32') if name.endswith('gamma')
            else rng.normal(0, 0.1, shape).astype('float32')
            for name, shape in shapes(V, H, F, num_layers, max_len).items()}


def write_params(path, named, legacy=False):
    """A .params file; legacy: as written without MXNet's numpy mode."""
    if not legacy:
        npx.save(str(path), {name: np.array(array)
                             for name, array in named.items()})
        return
    with legacy_mode():
        mx.nd.save(str(path), {name: mx.nd.array(array)
                               for name, array in named.items()})


def archives(folder, train=200, test=40):
    """Write bert.small.zip and snli_1.0.zip into a folder; {name: sha1}."""
    vocab = tokens()
    write_params(folder / 'x.params', weights(len(vocab)))
    made = {'bert.small': pack(folder / 'bert.small.zip', {
        'bert.small/': b'',
        'bert.small/vocab.json': json.dumps(vocab).encode(),
        'bert.small/pretrained.params': (folder / 'x.params').read_bytes()})}
    (folder / 'x.params').unlink()
    made['SNLI'] = pack(folder / 'snli_1.0.zip', {
        'snli_1.0/': b'', 'snli_1.0/Icon\r': b'', 'snli_1.0/README.txt': b'.',
        'snli_1.0/snli_1.0_train.txt': snli_text(rows(train)).encode(),
        'snli_1.0/snli_1.0_test.txt': snli_text(rows(test, 1)).encode(),
        '__MACOSX/snli_1.0/._README.txt': b'.'})
    return made


def pack(path, members):
    """Write a .zip file; its sha1."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, 'w') as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    path.write_bytes(packed.getvalue())
    return hashlib.sha1(packed.getvalue()).hexdigest()
