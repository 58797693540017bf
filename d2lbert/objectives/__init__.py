"""Training objectives: what a batch is, its losses and its figures.

`objective.py` has the base class, which documents each member. A setting
chooses among those of `pretrain`, see `OBJECTIVES` in `training.pretraining`.
"""
