"""Training objectives: each defines batches, losses and held-out figures.

`objective.py` has the base class, which documents each member. `pretrain`
chooses one by its setting `objective`, from `OBJECTIVES` in
`training.pretraining`.
"""
