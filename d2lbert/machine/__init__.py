"""Use this computer: import MXNet, find cores and GPUs, cache, write files."""
