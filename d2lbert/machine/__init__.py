"""This computer: the import of MXNet, cores, GPUs, cache and files."""
