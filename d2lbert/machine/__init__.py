"""What this computer has: the door to MXNet, cores, GPUs, cache, files.
"""
