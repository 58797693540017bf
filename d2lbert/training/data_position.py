"""Where a run is in its data: what a step takes, and what comes next."""


class Place:
    """The place behind the batch that was given last.

    epoch; position: of the next batch of the objective, see `objectives`;
    taken: how many of its examples were given before, in smaller batches.
    """

    def __init__(self):
        self.epoch, self.position, self.taken = 0, (0, 0), 0

    def batches(self, objective, size):
        """Batches from here on, without end; size(): examples in the next.

        Where an objective's batch has more, the rest of it comes next.
        """
        while True:
            for position, batch in objective.batches(self.epoch,
                                                     self.position):
                begin, rows = self.taken, len(batch[0])
                while begin < rows:
                    end = begin + size()
                    if end < rows:
                        self.taken = end
                    else:
                        self.position, self.taken = position, 0
                    yield type(batch)(*(column[begin:end]
                                        for column in batch))
                    begin = end
            self.epoch, self.position = self.epoch + 1, (0, 0)

    def state(self):
        """What a checkpoint says of it."""
        return dict(epoch=self.epoch, position=list(self.position),
                    taken=self.taken)

    def restore(self, state):
        """Go on from the place that `state` gave a checkpoint."""
        self.epoch = int(state['epoch'])
        self.position = tuple(map(int, state['position']))
        self.taken = int(state.get('taken', 0))
