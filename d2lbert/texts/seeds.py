"""Seeds that depend only on what they are for, not on earlier draws."""
import hashlib

import numpy as onp


def derive_seed(*what):
    """A seed of 31 bits, a hash of the arguments."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=4).digest()
    return int.from_bytes(digest, 'little') >> 1


def derive_bits(*what):
    """32 random bytes, a hash of the arguments."""
    return hashlib.sha256(repr(what).encode()).digest()


def derive_shuffler(*what):
    """A RandomState seeded by 256 bits, a hash of the arguments.

    NumPy promises never to change the numbers of this generator.
    """
    return onp.random.RandomState(
        onp.frombuffer(derive_bits(*what), '<u4').astype('uint32'))
