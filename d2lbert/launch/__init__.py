"""Several processes and machines: the launcher, its guards, what they run.
"""
