"""What a run trains for: what a batch asks, its losses, its figures.

An objective is what `training.run.Run` goes through without knowing more:

- `losses`: the names of its losses, whose sum is minimized; `examples`:
  what a batch is made of, in words;
- `net(...)`: the net with its initial weights, with its `config`; of one
  with several parts, `parts` says under which names they are saved;
- `batches(epoch, start)`: (position, batch) from a place in an epoch on, a
  batch being a named tuple of arrays with an entry for each example;
- `counts(batch)`: over how many things each loss is a mean;
- `shard_losses(net, batch, devices)`: for each device that got something, a
  list of (loss, count), one for each of `losses`;
- `evaluate(net, devices)`: figures of held-out text, a named tuple whose
  type is `Figures`; `drawn(figures)`, those for the picture; `line(figures)`;
- `summary(history, devices)`: what is printed in the end;
- `fingerprint`: a word that is another one for another text; `vocab`.
"""
