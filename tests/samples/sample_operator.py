"""A sample operator: RMSNorm, Zhang and Sennrich 2019.

An operator of the package has the same three parts in other places:
`rms_norm.cc` among the files of `kernels`, the call in `fused.py`, and the
declaration in `ops.py`. A library of its own replaces the line in `SOURCES`.
"""
from pathlib import Path

from d2lbert import kernels
from d2lbert.kernels import fused, ops
from d2lbert.machine.backend import mx, np
from d2lbert.machine.files import MXNetPath

# In fused.py: the call of the C++ operator

def compiled_rms_norm(X, gamma, eps, grad_req):
    """`ops.rms_norm`; the scale of each row is kept for the gradient."""
    return fused.call('rms_norm', [
        fused._guarded(X), *fused._parameters(grad_req, gamma)], eps=eps)[0]


# In ops.py: the contract, and the definition by MXNet's operators

def rms_norm(X, gamma, eps=1e-6, grad_req='add'):
    """gamma * X / sqrt(mean(X^2) + eps) over the last axis.

    X (..., H), gamma (H,); returns (..., H).
    """
    return X / np.sqrt((X * X).mean(axis=-1, keepdims=True) + eps) * gamma


def declare():
    """The operator: C++ for float32 arrays on a CPU, else the definition."""
    fused.rms_norm = compiled_rms_norm
    try:
        return ops.operator('X')(rms_norm)
    finally:
        del fused.rms_norm


# In kernels/__init__.py: the file's name in SOURCES

def _opened(path):
    mx.library.load(MXNetPath(path), verbose=False)
    return True


LIBRARY = kernels.Library(
    'sample', [Path(__file__).with_name('rms_norm.cc'), 'gemm.cc', 'amx.cc',
               'amx_permission.cc'],
    _opened, mxnet=True, what='the sample operator', takes='half a minute',
    options=(f'-I{kernels.FOLDER}',))
