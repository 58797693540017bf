"""Measure the differences between nets here and in transformers.

    PYTHONPATH=. python tests/pretrained/closeness.py [DIR...]

prints the largest differences of each family over the folders in DIR, which
relatives.py makes. The default is fixtures/.
"""
import re
import sys
from pathlib import Path

import numpy as onp
import relatives
from safetensors import safe_open

from d2lbert.machine.backend import autograd, np
from d2lbert.nn import packed
from d2lbert.pretrained.folders import (
    load_finetuned_folder,
    load_pretrained,
    save_pretrained,
)

FIXTURES = Path(__file__).with_name('fixtures')
#: Models that were saved here and loaded by transformers.
WRITTEN = FIXTURES / 'written'


def load(folder):
    """Load the net and tokenizer of a pretrained or fine-tuned folder."""
    is_finetuned = re.search('classify|-tag|-span', folder.name)
    return (load_finetuned_folder if is_finetuned else load_pretrained)(folder)


def check_written_again(folder, again):
    """Check that loading and saving a folder reproduces its files."""
    save_pretrained(*load(folder), again)
    here, there = (contents(some) for some in (folder, again))
    assert sorted(here) == sorted(there)
    for name, data in here.items():
        assert data == there[name], name


def contents(folder):
    """The bytes of each file, {name: bytes}; of weights metadata and tensors.
    """
    found = {}
    for path in folder.iterdir():
        if path.suffix == '.safetensors':
            # The library writes names in another order each time
            with safe_open(str(path), 'numpy') as tensors:
                found[path.name] = tensors.metadata(), {
                    name: tensors.get_tensor(name).tobytes()
                    for name in tensors.keys()}
        elif not path.name.startswith('peers.'):
            found[path.name] = path.read_bytes()
    return found


def put(A):
    return np.array(A, dtype='int32')


class Worst(dict):
    """{quantity: the largest difference}."""

    def see(self, what, ours, theirs):
        ours = ours.asnumpy() if isinstance(ours, np.ndarray) else ours
        assert onp.shape(ours) == onp.shape(theirs), what
        self[what] = max(self.get(what, 0.0), float(onp.max(onp.abs(
            onp.subtract(ours, theirs)))))


def of_heads(folder):
    """The `Worst` of hidden states and scores, with and without padding."""
    net, _ = load(folder)
    lost = {line.part for line in net.pretrained.differences}
    assert lost == ({'mlm'} if 'encoder' in folder.name else set())
    their, worst = onp.load(folder / 'peers.npz'), Worst()
    B, T = their['ids'].shape
    places = onp.broadcast_to(onp.arange(T), (B, T))
    inputs = [put(their[name]) for name in ('ids', 'segments', 'lens')]
    X, mlm, nsp = net(*inputs, put(places))
    rows, begins, packed_nsp, _ = packed.encode(net, *inputs)
    for b, n in enumerate(their['lens']):
        alone, _, _ = net(*(A[b:b + 1, :n] for A in inputs[:2]))
        for found in (X[b, :n], rows[begins[b]:begins[b] + n], alone[0]):
            worst.see('hidden', found, their['hidden'][b, :n])
        if not lost:
            worst.see('mlm', mlm[b, :n], their['mlm'][b, :n])
        if net.hidden is not None:
            worst.see('pooled', net.hidden(X[b:b + 1, 0])[0],
                      their['pooled'][b])
        if net.nsp is not None:
            for found in nsp, packed_nsp:
                worst.see('nsp', found[b], their['nsp'][b, ::-1])
    assert (net.nsp is None) == (nsp is None) == ('nsp' not in their)
    return worst


def of_learning(folder):
    """The `Worst` of scores, loss and gradient norm around one step."""
    net, _ = load(folder)
    assert net.pretrained.differences == ()
    their, labels = onp.load(folder / 'peers.npz'), onp.array(relatives.LABELS)
    params = {id(p): p for p in net.collect_params().values()}.values()
    worst = Worst()
    for k in range(2):
        with autograd.record(train_mode=False):
            X, begins = net.encode(*(put(their[name]) for name in (
                'ids', 'segments', 'lens')))
            scores = net.score(X, begins)
            loss, _ = net.losses(X, begins, their['lens'], labels)
        loss.backward()
        worst.see('scores', scores, their[f'scores_{k}'])
        worst.see('loss', float(loss), their[f'loss_{k}'])
        norm = sum((p.grad().asnumpy().astype('float64') ** 2).sum()
                   for p in params) ** 0.5
        worst.see('norm', norm / their[f'norm_{k}'], 1.0)
        for param in params:
            param.set_data(param.data() - relatives.RATE * param.grad())
    return worst


def main(places):
    families = {}
    for place in places or [FIXTURES]:
        for folder in sorted(Path(place).iterdir()):
            if (folder / 'peers.npz').is_file():
                classify = folder.name.endswith('-classify')
                found = (of_learning if classify else of_heads)(folder)
                worst = families.setdefault(folder.name.split('-')[0],
                                            Worst())
                for what, value in found.items():
                    worst.see(what, value, 0.0)
    for family, worst in families.items():
        print(f'{family}: ' + ', '.join(
            f'{what} {value:.1e}' for what, value in worst.items()))


if __name__ == '__main__':
    main(sys.argv[1:])
