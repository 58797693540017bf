"""Made-up batches and texts for the tests."""
import hashlib
import random

import numpy as onp

from d2lbert.texts.examples import Batch


def random_batch(rng, lens, weights, T, V):
    """A `Batch` on the host with these lengths (B,) and weights (B, P)."""
    B, P = weights.shape
    positions = onp.array([rng.choice(n, P, False) for n in lens])
    return Batch(rng.randint(0, V, (B, T)).astype('int32'),
                 rng.randint(0, 2, (B, T)).astype('int32'),
                 lens.astype('float32'),
                 onp.where(weights, positions, 0).astype('int32'),
                 weights.astype('float32'),
                 rng.randint(0, V, (B, P)).astype('int32'),
                 rng.randint(0, 2, B).astype('float32'))


def fixed_text():
    """A text in WikiText's format that no generator has a say in."""
    lines, k = [], 0
    for article in range(12):
        lines += [' ', f' = Title {article} = ', ' ']
        for paragraph in range(1 + article % 4):
            sentences = []
            for _ in range(2 + (article + paragraph) % 4):
                k += 1
                sentences.append(' '.join(
                    f'w{(k * k + j * j * 7) % 61}' for j in range(k % 9 + 1)))
            lines.append(f' {" . ".join(sentences)} . ')
    return '\n'.join(lines) + '\n'


def digest_of(batches):
    """sha256 of batches: shapes and numbers, the same on any machine."""
    digest = hashlib.sha256()
    for batch in batches:
        for column in batch:
            column = onp.asarray(column)
            digest.update(repr(column.shape).encode())
            digest.update(column.astype(
                '<' + column.dtype.str[1:]).tobytes())
    return digest.hexdigest()


def prose(num_paragraphs, seed=0, num_words=60, max_words=14):
    """Lines in WikiText's format, of made-up words, some of them odd."""
    rng = random.Random(seed)
    words = [f'W{k}' for k in range(num_words)]
    words += ['<unk>', '<cls>', '<sep>', 'ΟΔΟΣ', 'İstanbul', '戦場', '@-@']
    lines = []
    for _ in range(num_paragraphs):
        lines += [' ', f' = {rng.choice(words)} = ', ' ' + ' . '.join(
            ' '.join(rng.choices(words, k=rng.randint(0, max_words)))
            for _ in range(rng.randint(1, 7))) + ' . ']
    return '\n'.join(lines) + '\n'


def assert_same_columns(ours, others):
    for name, a, b in zip(Batch._fields, ours, others):
        assert a.dtype == b.dtype, name
        onp.testing.assert_array_equal(a, b, err_msg=name)
