"""What a run trains for: what a batch asks, its losses, its figures.

An objective is what `training.run.Run` goes through without knowing more:

- `losses`: the names of its losses; `weights`: how much each counts in the
  sum that is minimized; `unit`: what an example is called; `command`: the
  sub-command that goes on with a run;
- `num_steps`, `eval_every`: how long a run is, and how often it is scored;
- `net(...)`: the net with its initial weights, with its `config`; of one
  with several parts, `parts` says under which names they are saved;
- `batches(epoch, start)`: (position, batch) from a place in an epoch on, a
  batch being a named tuple of arrays with an entry for each example;
- `counts(batch)`: over how many things each loss is a mean;
- `shard_losses(net, batch, devices)`: for each device that got something, a
  list of (loss, count), one for each of `losses`;
- `evaluate(net, devices)`: figures of held-out text, a named tuple whose
  type is `Figures`; `drawn`, the names of those for the picture, in the
  order of `losses`; `line(figures)`;
- `score(figures)`: the number by which the best weights are known, which
  are kept then, the larger the better; None in place of this function: the
  weights of the last step are;
- `losses_of(net, hidden)`, of one of `pretrain`: [(loss, count), ...] of a
  `hidden.Hidden`, for `teaching.Taught`, an objective with a teacher;
- `trained(bert)`, `held_out_batches(text, batch_size, max_len)` and
  `figures(net, batches, devices)`: what `d2lbert evaluate` asks the class of
  an objective of `pretrain` for;
- `summary(history, devices)`: what is printed in the end;
- `fingerprint`: a word that is another one for another text; `recorded`: it,
  and others that must stay the same while a run goes on, by name, which
  checkpoints keep; `changed`: by the same names, what has changed then, and
  why that may be; `vocab`;
- `described(history)`: what config.json says besides, a dictionary.
"""
