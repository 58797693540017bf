"""Training objectives: each defines batches, losses and held-out figures.

`objective.py` has the base class, which documents each member. A setting
chooses among those of `pretrain`, see `OBJECTIVES` in `training.pretraining`.
"""
