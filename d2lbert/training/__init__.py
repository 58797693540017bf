"""Training runs: settings, loop, run folder, checkpoints.

Reading order: settings, pretraining, teacher, loop, hooks, state, schedule,
updater, history, checkpoints, run_folder, saved_runs, load, evaluation,
interrupts.
"""
