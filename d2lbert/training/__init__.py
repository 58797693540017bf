"""A run one can trust: its settings, its loop, its folder, its checkpoints.

Reading order: settings, pretraining, teacher, loop, state, schedule, updater,
history, checkpoints, run_folder, saved_runs, load, evaluation, interrupts.
"""
