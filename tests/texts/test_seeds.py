"""Seeds that are hashes of what they are for."""
import hashlib

from d2lbert.texts.examples import derive_bits, derive_seed, derive_shuffler


def test_a_seed_depends_on_every_argument_and_nothing_else():
    seeds = {derive_seed('dropout', seed, step)
             for seed in range(10) for step in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert derive_seed('a', 1) == derive_seed('a', 1) != derive_seed('a', 2)


def test_the_bits_are_a_hash_that_any_machine_computes():
    assert derive_bits('rows', 1) == hashlib.sha256(b"('rows', 1)").digest()


def test_a_shuffler_has_its_own_stream():
    first, again, other = (derive_shuffler('chunks', k).permutation(50)
                           for k in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
