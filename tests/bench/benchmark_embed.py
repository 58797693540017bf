"""The peers of bench_embed: texts to vectors, each as its users do it.

All get the same list of texts in any order and have to give the vectors in
that of the list: cutting into pieces, sorting, batches and pooling count.
Those who pad may try batch sizes beforehand and take their best.
"""
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as onp

BATCH_SIZES = (16, 32, 64)

# Inputs of a graph: ids, mask and segments (B, T) int64
NAMES = ['ids', 'mask', 'segments']


class Encoder:
    """Texts, and the batch size with which a peer is fastest."""

    def threads(self):
        return int(os.environ.get('OMP_NUM_THREADS', os.cpu_count()))

    def wait(self):
        pass

    def open(self, folder, path, tries=True):
        self.lists = json.loads(Path(path).read_text('utf-8'))
        self.load(folder)
        if not tries:
            self.batch_size = BATCH_SIZES[0]
            return 'one text at a time'
        seconds = {}
        for size in BATCH_SIZES:
            self.batch_size = size
            self.embed('texts')     # shapes that it has not seen
            began = time.perf_counter()
            self.embed('texts')
            seconds[size] = time.perf_counter() - began
        self.batch_size = min(seconds, key=seconds.get)
        return f'batches of {self.batch_size}'


class Vectors(Encoder):
    """Ours, which packs as many texts as it likes."""

    def __init__(self, precision='fp32'):
        from benchmark_worker import ours

        import d2lbert
        self.d2l, self.about = d2lbert, ours().about
        self.precision = precision

    def open(self, folder, path, tries=True):
        self.lists = json.loads(Path(path).read_text('utf-8'))
        self.net, self.tokenizer = self.d2l.load_pretrained(
            folder, heads=(), trainable=False, precision=self.precision)
        return 'without padding'

    def embed(self, field):
        return self.d2l.encode(self.net, self.tokenizer, self.lists[field])


class Sentences(Encoder):
    """sentence-transformers on PyTorch."""

    def __init__(self):
        import sentence_transformers
        import torch
        torch.set_num_threads(self.threads())
        self.module = sentence_transformers
        self.about = (f'sentence-transformers '
                      f'{sentence_transformers.__version__}, PyTorch '
                      f'{torch.__version__}')

    def load(self, folder):
        self.model = self.module.SentenceTransformer(folder, device='cpu')

    def embed(self, field):
        return self.model.encode(self.lists[field], batch_size=self.batch_size,
                                 show_progress_bar=False)


class Graph(Encoder):
    """The graph that PyTorch exports, on padded batches, pooled in NumPy.

    Its inputs are called `NAMES`; `run` computes the last hidden states.
    """

    def load(self, folder):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(
            str(Path(folder, 'tokenizer.json')))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)
        with tempfile.TemporaryDirectory() as scratch:
            path = str(Path(scratch, 'model.onnx'))
            _export(folder, path)
            self.compile(path)

    def inputs(self, pieces):
        """{name: array (B, T)} of sequences of ids, the longest first."""
        ids = onp.zeros((len(pieces), len(pieces[0])), 'int64')
        mask = onp.zeros_like(ids)
        for row, some in enumerate(pieces):
            ids[row, :len(some)] = some
            mask[row, :len(some)] = 1
        return dict(zip(NAMES, (ids, mask, onp.zeros_like(ids))))

    def embed(self, field):
        pieces = [text.ids for text in self.tokenizer.encode_batch(
            self.lists[field])]
        order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i]))
        vectors = [None] * len(pieces)
        for first in range(0, len(order), self.batch_size):
            some = order[first:first + self.batch_size]
            inputs = self.inputs([pieces[i] for i in some])
            mask = inputs['mask'][:, :, None]
            pooled = (self.run(inputs) * mask).sum(1, dtype='float32')
            pooled /= onp.linalg.norm(pooled, axis=1, keepdims=True)
            for row, i in enumerate(some):
                vectors[i] = pooled[row]
        return onp.stack(vectors)


class Onnx(Graph):
    """ONNX Runtime, in fp32 or with weights of int8 (dynamic quantizing)."""

    def __init__(self, precision='fp32'):
        import onnxruntime
        self.onnx, self.precision = onnxruntime, precision
        self.about = f'ONNX Runtime {onnxruntime.__version__}'

    def compile(self, path):
        options = self.onnx.SessionOptions()
        options.intra_op_num_threads = self.threads()
        if self.precision == 'int8':
            from onnxruntime.quantization import quantize_dynamic
            exact, path = path, f'{path}.int8.onnx'
            quantize_dynamic(exact, path)
        self.session = self.onnx.InferenceSession(
            path, options, providers=['CPUExecutionProvider'])

    def run(self, inputs):
        X, = self.session.run(None, inputs)
        return X


class OpenVino(Graph):
    """OpenVINO, in bf16 or at int8 by NNCF (static quantizing)."""

    def __init__(self, precision):
        import openvino
        self.openvino, self.precision = openvino, precision
        self.about = f'OpenVINO {openvino.__version__}'
        if precision == 'int8':
            import nncf
            self.about += f', NNCF {nncf.__version__}'

    def compile(self, path):
        core = self.openvino.Core()
        model = core.read_model(path)
        config = {'INFERENCE_NUM_THREADS': self.threads(),
                  'PERFORMANCE_HINT': 'LATENCY'}
        if self.precision == 'int8':
            model = self.quantized(model)
        else:
            config['INFERENCE_PRECISION_HINT'] = self.precision
        self.request = core.compile_model(
            model, 'CPU', config).create_infer_request()

    def quantized(self, model):
        import nncf
        texts = self.lists['calibration']
        return nncf.quantize(
            model, nncf.Dataset([text.ids for text in
                                 self.tokenizer.encode_batch(texts)],
                                lambda ids: self.inputs([ids])),
            subset_size=len(texts), model_type=nncf.ModelType.TRANSFORMER)

    def run(self, inputs):
        return self.request.infer(inputs)['X']


def _export(folder, path):
    """Write the last hidden states of the model as a graph."""
    import torch
    import transformers
    net = transformers.AutoModel.from_pretrained(
        folder, attn_implementation='eager').eval()

    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, ids, mask, segments):
            return self.net(input_ids=ids, attention_mask=mask,
                            token_type_ids=segments).last_hidden_state
    some = torch.ones(2, 9).long()
    torch.onnx.export(
        Last(), (some, some, some * 0), path, input_names=NAMES,
        output_names=['X'], opset_version=17, dynamo=False,
        dynamic_axes={name: {0: 'B', 1: 'T'} for name in [*NAMES, 'X']})
