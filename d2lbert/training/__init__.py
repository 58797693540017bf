"""A run one can trust: its settings, its loop, its folder, its checkpoints.

Reading order: settings, pretraining, run, place, pace, updates, average,
history, checkpoints, folder, runs, evaluation, interrupts.
"""
