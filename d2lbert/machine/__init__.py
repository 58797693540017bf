"""Import MXNet, find cores and GPUs, cache data, download and write files."""
