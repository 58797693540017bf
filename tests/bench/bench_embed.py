"""How many texts a second become vectors, beside others, and how good.

    python tests/bench/bench_embed.py --peer-python PATH [--model FOLDER]

FOLDER is one of sentence-transformers with mean pooling and normalizing
($D2LBERT_WEIGHTS/minilm), the texts are the first 2,000 different sentences
of STS-B's training file (below $D2LBERT_DATA/glue), and PATH is an
interpreter with sentence-transformers, ONNX Runtime, onnx, OpenVINO and NNCF
($D2LBERT_PEERS). A turn goes from the list of texts to the array of vectors,
with as many threads for each peer; the peers take their fastest batch size of
three. NNCF calibrates on texts of the training file that are not timed.

Beside the rate of each stands the Spearman correlation of its cosines with
the scores of STS-B's dev.tsv. The operations that the texts need at least are
compared to the rate of multiplying matrices in the same run, for fp32.

rate     the above, with --threads
latency  one text of ten words at a time, in processes of one thread and of
         two: the 50th and the 99th percentile of all calls of all rounds

--isa holds ours, PyTorch and OpenVINO to the instructions of an older
processor. ONNX Runtime has no such switch, and stays as it is.

Nothing here passes or fails: it prints figures of this machine.
"""
import csv
import json
import os
import sys
import tempfile
from pathlib import Path

import benchmark
import numpy as onp
from tokenizers import Tokenizer

from d2lbert.finetuning.metrics import spearman

#: {peer: its kind in benchmark_worker}, those in fp32 first
KINDS = {'ours': 'vectors', 'sentence-transformers': 'sentences',
         'onnxruntime': 'onnx', 'ours int8': 'vectors-int8',
         'onnxruntime int8': 'onnx-int8', 'openvino bf16': 'openvino-bf16',
         'openvino int8': 'openvino-int8'}
FP32 = 'ours', 'sentence-transformers', 'onnxruntime'

#: Texts on which NNCF calibrates
CALIBRATION = 300

ROWS = 'rate', 'latency'

#: The text of latency, the calls of a turn, and the numbers of threads
TEXT, CALLS, THREADS = (
    'a crane is flying over the old harbour at ten', 50, (1, 2))


class Peers(benchmark.Peers):
    """Ours, sentence-transformers, ONNX Runtime and OpenVINO."""

    def __init__(self, args, path):
        self._path, self._all, self.missing = path, {}, {}
        self._start('ours', 'vectors', sys.executable, args.threads)
        for name in args.who[1:]:
            kind = KINDS[name]
            if kind.startswith('vectors'):
                self._start(name, kind, sys.executable, args.threads)
            elif args.peer_python:
                self._start(name, kind, args.peer_python,
                            self['ours'].threads)
            else:
                self.missing[name] = 'give --peer-python'

    def _start(self, name, kind, python, threads=None):
        super()._start(name, kind, python, threads)
        if name in self.missing and name == 'ours':
            sys.exit(f'd2lbert cannot be measured: {self.missing[name]}')


class Sentences:
    """The texts, as `benchmark.introduce` names them."""

    def __init__(self, folder, count):
        self.name, self.vocab_size = f'{count:,} sentences of STS-B', 30522
        found = {}
        for row in self._rows(folder, 'train.tsv'):
            found.update({row['sentence1']: 0, row['sentence2']: 0})
        found = [text for text in found if text]
        self.texts, rest = found[:count], found[count:]
        self.calibration = rest[::max(len(rest) // CALIBRATION, 1)][
            :CALIBRATION]
        self.pairs = [row for row in self._rows(folder, 'dev.tsv')
                      if row['sentence1'] and row['sentence2']]
        self.scores = onp.array([float(row['score']) for row in self.pairs])

    @staticmethod
    def _rows(folder, name):
        path = Path(folder, 'STS-B', name)
        if not path.is_file():
            sys.exit(f'there is no {path}: --data names the folder of GLUE')
        with open(path, encoding='utf-8', newline='') as file:
            return list(csv.DictReader(file, delimiter='\t',
                                       quoting=csv.QUOTE_NONE))

    def save(self, path):
        Path(path).write_text(json.dumps(dict(
            texts=self.texts, calibration=self.calibration, one=[TEXT],
            pairs=[row[side] for side in ('sentence1', 'sentence2')
                   for row in self.pairs])), 'utf-8')

    def correlation(self, vectors):
        """Spearman's, of cosines and scores; vectors (2 P, H) of P pairs."""
        X = vectors / onp.linalg.norm(vectors, axis=1, keepdims=True)
        X, Y = X.astype('f8').reshape(2, len(self.pairs), -1)
        return spearman(self.scores, (X * Y).sum(axis=1))


def necessary_flops(config, encoded):
    """Operations of the products of matrices, without any padding.

    config: that of a released BERT; encoded: what a tokenizer made of texts.
    """
    lens = [len(one.ids) for one in encoded]
    return 2 * config['num_hidden_layers'] * benchmark.layer_products(
        sum(lens), sum(T * T for T in lens), config['hidden_size'],
        config['intermediate_size'])


def show_quality(count, measured, quality):
    """Print rates beside Spearman's correlations, and both as shares."""
    # Without a compiler there is no int8 of ours
    mine = measured.get('ours int8', measured['ours'])
    exact, label = quality['ours'], (
        'ours int8 is' if 'ours int8' in measured else 'ours is')
    benchmark.table(
        "Spearman's correlation on STS-B beside the rate", (
            '', 'texts/s', label, 'Spearman', 'of fp32'),
        [[name, f'{count / result.median:.1f}',
          f'{result.median / mine.median:.2f} times',
          f'{quality[name]:.4f}', f'{quality[name] / exact:.2%}']
         for name, result in measured.items()])


def compare_rates(texts, path, args):
    """Print the rate of each peer and its quality."""
    folder = Path(path).parent
    with Peers(args, path) as peers:
        numbers = benchmark.introduce(peers, texts, args)
        how = {}

        def prepare(peer):
            how[peer.name] = peer.ask('open', folder=args.model)['about']

        def turn(peer):
            multiplier.measure(peer)
            return peer.ask('embed')
        with benchmark.Multiplier(peers) as multiplier:
            results = benchmark.take_turns(peers, args.who, args.rounds,
                                           turn, prepare)
        benchmark.compare(f'{len(texts.texts):,} texts to vectors',
                          results, len(texts.texts), 'texts')
        measured = {name: result for name, result in results.items()
                    if not isinstance(result, str)}
        tokenizer = Tokenizer.from_file(
            str(Path(args.model, 'tokenizer.json')))
        tokenizer.no_padding()
        flops = necessary_flops(
            json.loads(Path(args.model, 'config.json').read_text('utf-8')),
            tokenizer.encode_batch(texts.texts))
        multiplier.compare(flops, {
            name: measured[name] for name in FP32 if name in measured})
        vectors = {}
        for name in measured:
            out = str(Path(folder, f'{name}.npy'))
            peers[name].ask('embed', out=out)
            vectors[name] = onp.load(out)
        quality = {}
        for name in measured:
            out = str(Path(folder, 'pairs.npy'))
            peers[name].ask('embed', out=out, field='pairs')
            quality[name] = float(texts.correlation(onp.load(out)))
        show_quality(len(texts.texts), measured, quality)
        for name in measured:
            apart = abs(vectors[name] - vectors['ours']).max()
            print(f'  {name}: {how[name]}, farthest from ours '
                  f'{apart:.1e}')
        numbers.update(turns=benchmark.as_json(results), how=how,
                       spearman=quality,
                       flops=flops, rates=multiplier.rates)
        return numbers


def compare_latency(path, args):
    """Print percentiles of each peer, for each number of threads."""
    numbers = {}
    for threads in THREADS:
        args.threads, each = threads, {}
        with Peers(args, path) as peers:
            def prepare(peer):
                peer.ask('open', folder=args.model, tries=False)

            def turn(peer):
                answer = peer.ask('latency', field='one', count=CALLS)
                each.setdefault(peer.name, []).append(answer.pop('each'))
                return answer
            results = benchmark.take_turns(peers, args.who, args.rounds, turn,
                                           prepare)
        # The first turn does not count
        found = {name: onp.percentile(each[name][1:], (50, 99)) * 1e3
                 for name, result in results.items()
                 if not isinstance(result, str)}
        mine = found.get('ours int8', found['ours'])
        benchmark.table(
            f'One text of ten words, {threads} '
            f'{"threads" if threads > 1 else "thread"}, in milliseconds',
            ('', '50th', 'ratio', '99th', 'ratio'),
            [[name, result] if isinstance(result, str) else
             [name, *(cell for own, time in zip(mine, found[name])
                      for cell in (f'{time:.3f}', f'{time / own:.2f}'))]
             for name, result in results.items()])
        numbers[threads] = {name: times.tolist()
                            for name, times in found.items()}
    return numbers


def main():
    parser = benchmark.parser(__doc__)
    parser.add_argument('--rows', type=benchmark.rows_of(ROWS),
                        default=list(ROWS), metavar='A,B',
                        help='some of ' + ', '.join(ROWS))
    parser.add_argument('--who', type=benchmark.rows_of(KINDS), metavar='A,B',
                        default=list(KINDS),
                        help='some of ' + ', '.join(KINDS))
    parser.add_argument('--model', metavar='FOLDER', default=str(Path(
        os.environ.get('D2LBERT_WEIGHTS', ''), 'minilm')))
    parser.add_argument('--peer-python', metavar='PATH',
                        default=os.environ.get('D2LBERT_PEERS'))
    parser.add_argument('--threads', type=int, metavar='N',
                        help='of each peer (one for each core)')
    parser.add_argument('--texts', type=int, default=2000, metavar='N')
    args = benchmark.parse(parser)
    args.steps = 1
    # All are compared with ours
    args.who = ['ours', *(name for name in args.who if name != 'ours')]
    data = args.data or Path(os.environ.get('D2LBERT_DATA', ''), 'glue')
    texts = Sentences(data, args.texts)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, 'texts.json'))
        texts.save(path)
        numbers = {}
        if 'rate' in args.rows:
            numbers.update(compare_rates(texts, path, args))
        if 'latency' in args.rows:
            numbers['latency'] = compare_latency(path, args)
        benchmark.write_json(args.json, numbers)


if __name__ == '__main__':
    benchmark.run(main)
