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


class Encoder:
    """Texts, and the batch size with which a peer is fastest."""

    def threads(self):
        return int(os.environ.get('OMP_NUM_THREADS', os.cpu_count()))

    def wait(self):
        pass

    def open(self, folder, path):
        self.texts = json.loads(Path(path).read_text('utf-8'))
        self.load(folder)
        seconds = {}
        for size in BATCH_SIZES:
            self.batch_size = size
            self.embed()        # shapes that it has not seen
            began = time.perf_counter()
            self.embed()
            seconds[size] = time.perf_counter() - began
        self.batch_size = min(seconds, key=seconds.get)
        return f'batches of {self.batch_size}'


class Vectors(Encoder):
    """Ours, which packs as many texts as it likes."""

    def __init__(self):
        from benchmark_worker import ours

        import d2lbert
        self.d2l, self.about = d2lbert, ours().about

    def open(self, folder, path):
        self.texts = json.loads(Path(path).read_text('utf-8'))
        self.net, self.tokenizer = self.d2l.load_pretrained(folder, heads=())
        return 'without padding'

    def embed(self):
        return self.d2l.encode(self.net, self.tokenizer, self.texts)


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

    def embed(self):
        return self.model.encode(self.texts, batch_size=self.batch_size,
                                 show_progress_bar=False)


class Onnx(Encoder):
    """ONNX Runtime on the graph that PyTorch exports, pooled in NumPy."""

    def __init__(self):
        import onnxruntime
        import tokenizers
        self.onnx, self.tokenizers = onnxruntime, tokenizers
        self.about = f'ONNX Runtime {onnxruntime.__version__}'

    def load(self, folder):
        options = self.onnx.SessionOptions()
        options.intra_op_num_threads = self.threads()
        with tempfile.TemporaryDirectory() as scratch:
            path = str(Path(scratch, 'model.onnx'))
            _export(folder, path)
            self.session = self.onnx.InferenceSession(
                path, options, providers=['CPUExecutionProvider'])
        self.tokenizer = self.tokenizers.Tokenizer.from_file(
            str(Path(folder, 'tokenizer.json')))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)

    def embed(self):
        pieces = [text.ids for text in self.tokenizer.encode_batch(
            self.texts)]
        order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i]))
        vectors = [None] * len(pieces)
        for first in range(0, len(order), self.batch_size):
            some = order[first:first + self.batch_size]
            ids = onp.zeros((len(some), len(pieces[some[0]])), 'int64')
            mask = onp.zeros_like(ids)
            for row, i in enumerate(some):
                ids[row, :len(pieces[i])] = pieces[i]
                mask[row, :len(pieces[i])] = 1
            X, = self.session.run(None, {
                'ids': ids, 'mask': mask, 'segments': onp.zeros_like(ids)})
            pooled = (X * mask[:, :, None]).sum(1, dtype='float32')
            pooled /= onp.linalg.norm(pooled, axis=1, keepdims=True)
            for row, i in enumerate(some):
                vectors[i] = pooled[row]
        return onp.stack(vectors)


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
    names, some = ['ids', 'mask', 'segments'], torch.ones(2, 9).long()
    torch.onnx.export(
        Last(), (some, some, some * 0), path, input_names=names,
        output_names=['X'], opset_version=17, dynamo=False,
        dynamic_axes={name: {0: 'B', 1: 'T'} for name in [*names, 'X']})
