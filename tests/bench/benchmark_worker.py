"""One peer of a benchmark, in a process and an interpreter of its own.

    python benchmark_worker.py ours|book|torch|... COLUMNS.npz

The book's packages for MXNet (0.17.6) and for PyTorch (1.0.3) bear one name,
d2l, so no interpreter can hold both. A worker reads one JSON object a line
on its standard input, {"do": name, argument: value}, and answers each with
one line. COLUMNS.npz holds the columns of texts, as `benchmark.Text` wrote
them; a batch is named by [text, first row, row after the last].
"""
import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import platform
import sys
import time
import types

import numpy as onp

FIELDS = ('tokens_X', 'segments_X', 'valid_lens_x', 'pred_positions_X',
          'mlm_weights_X', 'mlm_Y', 'nsp_y')


class Empty(types.ModuleType):
    """A module that may be called, as functions of IPython are at once."""

    def __call__(self, *args):
        return None


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules for what d2l imports for the sake of other chapters.

    Asked last, so that they only stand in for what is not installed.
    """

    NAMES = ('IPython', 'PIL', 'matplotlib', 'matplotlib_inline', 'pandas',
             'requests', 'scipy', 'torchvision')

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition('.')[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(fullname, self,
                                                  is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def stand_ins():
    finder = StandIns()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class Gluon:
    """What ours and the book's MXNet package have in common."""

    def __init__(self, d2l, about):
        import mxnet as mx
        self.d2l, self.mx, self.about = d2l, mx, about
        mx.npx.set_np()
        mx.random.seed(0)

    def threads(self):
        """OpenMP threads as MXNet has set them at its import."""
        try:
            return ctypes.CDLL('libgomp.so.1').omp_get_max_threads()
        except OSError:
            return None

    def batch(self, columns):
        """The seven fields, each a list of one shard."""
        return [[self.mx.np.array(column, dtype=column.dtype)]
                for column in columns]

    def build(self, vocab_size, sizes, precision, optimizer='adam'):
        choice = {} if precision == 'fp32' else {'precision': precision}
        self.vocab_size = vocab_size
        self.net = self.d2l.BERTModel(vocab_size, *sizes, **choice)
        self.net.initialize(self.mx.init.Xavier())
        self.loss = self.mx.gluon.loss.SoftmaxCELoss()
        settings = {'learning_rate': 0.01}
        if optimizer == 'adamw':
            settings['ahead'] = True    # as runs have it
        self.trainer = self.mx.gluon.Trainer(
            self.net.collect_params(), optimizer, settings)

    def step(self, shards):
        """One step as the book's own loop writes it."""
        with self.mx.autograd.record():
            mlm_ls, nsp_ls, ls = self.d2l._get_batch_loss_bert(
                self.net, self.loss, self.vocab_size, *shards)
        for loss in ls:
            loss.backward()
        self.trainer.step(1)
        return (sum(float(loss) for loss in mlm_ls) / len(mlm_ls),
                sum(float(loss) for loss in nsp_ls) / len(nsp_ls))

    def build_classifier(self, vocab_size, sizes, max_len, typed):
        """A BERT of random weights, and three classes of its <cls>.

        typed: by the class that a reader of the page types, not by the
        package's own, if it has one.
        """
        bert = self.d2l.BERTModel(vocab_size, *sizes, max_len)
        bert.initialize(self.mx.init.Xavier())
        kind = getattr(self.d2l, 'BERTClassifier', None)
        self.net = (page_classifier(self.mx.gluon.nn)
                    if typed or kind is None else kind)(bert)
        self.net.output.initialize()
        self.loss = self.mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.trainer = self.mx.gluon.Trainer(
            self.net.collect_params(), 'adam', {'learning_rate': 1e-4})

    def fine_tune(self, shards):
        """One step of train_ch13; the sum of losses, right guesses."""
        features, (labels,) = [X for X, in shards[:3]], shards[6]
        sums = self.d2l.train_batch_ch13(
            self.net, features, labels, self.loss, self.trainer,
            [self.mx.cpu()], self.d2l.split_batch_multi_inputs)
        return tuple(map(float, sums))

    def forward(self, shards, predictions):
        (tokens_X,), (segments_X,), (valid_lens_x,), (positions,) = shards[:4]
        self.net(tokens_X, segments_X, valid_lens_x.reshape(-1),
                 positions if predictions else None)
        self.wait()

    def wait(self):
        self.mx.npx.waitall()

    def product(self, X, W):
        """A function that multiplies X (M, K) by the rows of W (N, K)."""
        X, W = self.mx.np.array(X), self.mx.np.array(W)

        def multiply():
            self.mx.npx.fully_connected(X, W, num_hidden=len(W), no_bias=True)
            self.wait()
        return multiply

    def profile(self, run, path):
        """Call `run`; (operator, calls, milliseconds), longest first.

        path: a file that may come and go. The aggregate alone is wanted,
        but MXNet removes the file and writes it anew, whatever it is.
        """
        profiler = self.mx.profiler
        profiler.set_config(profile_all=True, aggregate_stats=True,
                            filename=path)
        profiler.set_state('run')
        run()
        self.wait()
        profiler.set_state('stop')
        table = json.loads(profiler.dumps(format='json'))
        operators = table['Time'].get('operator', {})
        return sorted(((name, row['Count'], row['Total'])
                       for name, row in operators.items()),
                      key=lambda row: -row[2])


def page_classifier(nn):
    """The class that the page on inference has its readers type."""
    class BERTClassifier(nn.Block):
        def __init__(self, bert):
            super().__init__()
            self.encoder, self.hidden = bert.encoder, bert.hidden
            self.output = nn.Dense(3)

        def forward(self, inputs):
            tokens_X, segments_X, valid_lens_x = inputs
            encoded_X = self.encoder(tokens_X, segments_X, valid_lens_x)
            return self.output(self.hidden(encoded_X[:, 0, :]))
    return BERTClassifier


def ours():
    import d2lbert
    from d2lbert import kernels
    from d2lbert.machine.backend import MXNET_VERSION
    from d2lbert.training import updater  # noqa: F401  (Trainer's 'adamw')
    kernels.load()
    state = kernels.state()
    fused = ('with the fused operators' if state.loaded else
             f'without the fused operators ({state.reason})')
    return Gluon(d2lbert, f'd2lbert {d2lbert.__version__} {fused}, '
                          f'MXNet {MXNET_VERSION}')


def book():
    # NumPy 1.24 took the name away that MXNet 1.9.1 asks for
    if 'bool' not in vars(onp):
        onp.bool = bool
    import mxnet
    with stand_ins():
        import d2l
        from d2l import mxnet as module
    return Gluon(module, f'd2l {d2l.__version__}, MXNet {mxnet.__version__}')


class Torch:
    """The book's package for PyTorch."""

    def __init__(self):
        import torch
        with stand_ins():
            import d2l
            from d2l import torch as module
        torch.manual_seed(0)
        self.torch, self.d2l = torch, module
        self.about = f'd2l {d2l.__version__}, PyTorch {torch.__version__}'

    def threads(self):
        return self.torch.get_num_threads()

    def batch(self, columns):
        fields = [self.torch.tensor(column) for column in columns]
        # Indices and labels are int64 there
        return [fields[i] if i in (2, 4) else fields[i].long()
                for i in range(len(fields))]

    def build(self, vocab_size, sizes, precision):
        self.vocab_size, self.bf16 = vocab_size, precision == 'bf16'
        if self.bf16 and 'bf16' not in os.environ.get('CPU_FEATURES', ''):
            # PyTorch would emulate it, which compares nothing
            raise RuntimeError('this CPU has no bfloat16 instructions')
        self.net = self.d2l.BERTModel(vocab_size, *sizes)
        self.loss = self.torch.nn.CrossEntropyLoss()
        self.trainer = None

    def _autocast(self):
        return self.torch.autocast('cpu', self.torch.bfloat16,
                                   enabled=self.bf16)

    def step(self, fields):
        """One step as the book's own loop writes it."""
        self.net.train()
        if self.trainer is None:
            # Its lazy layers have no parameters before they see a batch
            with self.torch.no_grad():
                self.net(*(field[:1] for field in fields[:4]))
            self.trainer = self.torch.optim.Adam(self.net.parameters(),
                                                 lr=0.01)
        self.trainer.zero_grad()
        with self._autocast():
            mlm_l, nsp_l, total = self.d2l._get_batch_loss_bert(
                self.net, self.loss, self.vocab_size, *fields)
        total.backward()
        self.trainer.step()
        return float(mlm_l), float(nsp_l)

    def forward(self, fields, predictions):
        self.net.eval()
        tokens_X, segments_X, valid_lens_x, positions = fields[:4]
        with self.torch.no_grad(), self._autocast():
            self.net(tokens_X, segments_X, valid_lens_x.reshape(-1),
                     positions if predictions else None)

    def sums(self, fields):
        """MLM: loss, hits, predictions; NSP: loss, hits, pairs."""
        (tokens_X, segments_X, valid_lens_x, positions, weights, labels,
         nsp_y) = fields
        self.net.eval()
        with self.torch.no_grad():
            _, mlm_Y_hat, nsp_Y_hat = self.net(
                tokens_X, segments_X, valid_lens_x.reshape(-1), positions)
            real = weights != 0
            return [float(number) for scores, answers in (
                (mlm_Y_hat[real], labels[real]), (nsp_Y_hat, nsp_y))
                for number in (
                    self.torch.nn.functional.cross_entropy(
                        scores, answers, reduction='sum'),
                    (scores.argmax(1) == answers).sum(), len(answers))]

    def wait(self):
        pass


def published():
    from benchmark_published import Published
    return Published()


def transformers():
    from benchmark_published import Transformers
    return Transformers()


def of_sentences(name, *arguments):
    def peer():
        import benchmark_embed
        return getattr(benchmark_embed, name)(*arguments)
    return peer


def products(name, *arguments):
    def peer():
        import benchmark_products
        return getattr(benchmark_products, name)(*arguments)
    return peer


PEERS = {'products': products('Gluon', False),
         'onednn': products('Gluon', True), 'linear': products('Linear'),
         'ours': ours, 'book': book, 'torch': Torch, 'published': published,
         'transformers': transformers, 'vectors': of_sentences('Vectors'),
         'vectors-int8': of_sentences('Vectors', 'int8'),
         'sentences': of_sentences('Sentences'), 'onnx': of_sentences('Onnx'),
         'onnx-int8': of_sentences('Onnx', 'int8'),
         'openvino-bf16': of_sentences('OpenVino', 'bf16'),
         'openvino-int8': of_sentences('OpenVino', 'int8')}


class Worker:
    """Does what the lines ask for; every method answers with a dict."""

    def __init__(self, name, path):
        self.peer, self.path = PEERS[name](), path
        self.batches = {}

    def about(self):
        """What this peer is, and how many threads it uses."""
        return {'about': f'{self.peer.about}, NumPy {onp.__version__}, '
                         f'CPython {platform.python_version()}',
                'threads': self.peer.threads(),
                'memory': self.memory()}

    def build(self, **arguments):
        """Make a new net, which takes the place of the last one."""
        self.batches.clear()
        self.peer.build(**arguments)
        return {}

    def build_classifier(self, **arguments):
        """Make a new net that classifies, in place of the last one."""
        self.batches.clear()
        self.peer.build_classifier(**arguments)
        return {}

    def train(self, batches, step='step'):
        """A step on each batch: their seconds altogether, the last losses.

        step: the peer's method that takes it.
        """
        shards = [self._batch(*batch) for batch in batches]

        def steps():
            losses = [getattr(self.peer, step)(shard) for shard in shards]
            return losses[-1]
        times, losses = self._timed(steps)
        if not onp.isfinite(losses).all():
            raise ArithmeticError(f'the losses became {losses}')
        return {**times, 'losses': losses}

    def train_on(self, text, batch_size, seconds):
        """Train for so many seconds on a text, shuffled anew each epoch.

        A further call goes on where the last one ended.
        """
        if not hasattr(self, 'stream'):
            self.stream = self._shuffled(text, batch_size)
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            self.peer.step(next(self.stream))
            steps += 1
        return {'seconds': time.perf_counter() - began, 'steps': steps}

    def _shuffled(self, text, batch_size):
        with onp.load(self.path) as columns:
            fields = self.peer.batch([columns[f'{text}.{field}']
                                      for field in FIELDS])
        rng = onp.random.RandomState(0)
        while True:
            order = rng.permutation(len(fields[0]))
            for start in range(0, len(order), batch_size):
                rows = order[start:start + batch_size]
                yield [field[rows] for field in fields]

    def held_out(self, text, batch_size):
        """Sums over a text in inference mode, as `Torch.sums` has them."""
        with onp.load(self.path) as columns:
            rows = len(columns[f'{text}.tokens_X'])
        sums = [self.peer.sums(self._batch(text, start, start + batch_size))
                for start in range(0, rows, batch_size)]
        return {'sums': [sum(column) for column in zip(*sums)]}

    def forward(self, batches, predictions):
        """A forward pass over each batch in inference mode: their seconds."""
        shards = [self._batch(*batch) for batch in batches]
        times, _ = self._timed(lambda: [self.peer.forward(shard, predictions)
                                        for shard in shards])
        return times

    def open(self, folder, **keywords):
        """Load the sentence encoder in a folder, and the texts."""
        return {'about': self.peer.open(folder, self.path, **keywords)}

    def latency(self, field, count):
        """Encode a list of texts so many times: the seconds of each."""
        def run():
            return [self._timed(lambda: self.peer.embed(field))[0]['seconds']
                    for _ in range(count)]
        times, each = self._timed(run)
        return {**times, 'each': each}

    def embed(self, out=None, field='texts'):
        """Encode the texts: their seconds; the vectors go to `out`.

        field: which of the lists of texts in the file.
        """
        times, vectors = self._timed(lambda: self.peer.embed(field))
        if out is not None:
            onp.save(out, vectors)
        return times

    def gemm(self, M, N, K, times):
        """The best rate of a fully connected layer, in floating point
        operations a second."""
        rng = onp.random.RandomState(0)
        multiply = self.peer.product(rng.randn(M, K).astype('float32'),
                                     rng.randn(N, K).astype('float32'))
        multiply()
        best = min(self._timed(multiply)[0]['seconds'] for _ in range(times))
        return {'rate': 2 * M * N * K / best}

    def dense(self, R, K, N, what, seconds):
        """The shortest time of a dense layer, or of its gradients."""
        self.peer.prepare(R, K, N)
        return {'seconds': self.peer.best(what, seconds)}

    def profile(self, batch):
        """Operators of one step, after one step without the profiler."""
        shards = self._batch(*batch)
        self.peer.step(shards)
        times, operators = self._timed(
            lambda: self.peer.profile(lambda: self.peer.step(shards),
                                      f'{self.path}.profile.json'))
        return {**times, 'operators': operators}

    def memory(self):
        """The most memory that this process had resident, in bytes."""
        with contextlib.suppress(OSError), open('/proc/self/status') as lines:
            for line in lines:
                if line.startswith('VmHWM:'):
                    return {'peak': int(line.split()[1]) * 1024}
        return {'peak': None}

    def _batch(self, text, start, stop):
        key = text, start, stop
        if key not in self.batches:
            with onp.load(self.path) as columns:
                self.batches[key] = self.peer.batch(
                    [columns[f'{text}.{field}'][start:stop]
                     for field in FIELDS])
        return self.batches[key]

    def _timed(self, run):
        self.peer.wait()
        cpu, began = time.process_time(), time.perf_counter()
        result = run()
        self.peer.wait()
        return {'seconds': time.perf_counter() - began,
                'cpu': time.process_time() - cpu}, result


def serve(name, path):
    # What libraries print must not come between the answers
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    worker = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or Worker(name, path)
            answer = getattr(worker, request.pop('do'))(**request)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [''])[0]
            answer = {'error': f'{type(error).__name__}: {reason}'}
        answers.write(json.dumps(answer) + '\n')
        answers.flush()


if __name__ == '__main__':
    serve(*sys.argv[1:])
