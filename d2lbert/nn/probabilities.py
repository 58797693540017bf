"""Probabilities of scores, in NumPy on the host."""
import numpy as onp


def log_softmax(scores):
    """The log-softmax of scores (..., V) float64 over the last axis."""
    scores = scores - scores.max(axis=-1, keepdims=True)
    return scores - onp.log(onp.exp(scores).sum(axis=-1, keepdims=True))
