"""Words of a text split into word pieces, each different word once."""
import numpy as onp

from d2lbert.corpus.word_types import WordTypes, counted, narrow, roomy, spread
from d2lbert.kernels.cut import SPARE
from d2lbert.texts.numbered_text import concat_ranges


class PieceTypes:
    """Numbers a text's word pieces, with the interface of `WordTypes`.

    A pruned word is split again when it occurs again, so no word is lost.
    """

    #: False, since pruning words leaves the stored piece numbers valid.
    too_many = False

    def __init__(self, vocab):
        self._words, self._cutter = WordTypes(), vocab.cutter()
        self._ids = narrow(onp.zeros(SPARE, 'int32'), len(vocab))
        # There are at most as many pieces as letters, which are bounded
        self._begins = onp.zeros(1, 'int32')
        self.dtype = self._ids.dtype

    def numbered(self, some):
        """The pieces (pieces,) of a `Cut`, and the ends of its sentences."""
        known = len(self._words)
        table = self._words.add(some.names)
        self._learn(self._words.text(known), known)
        counts = counted(some.types, len(table))
        self._words.count(table, counts)
        begins = self._begins[table]
        lengths = self._begins[table + 1] - begins
        # A cut has few different words, so their pieces are in the cache
        found = spread(self._ids, begins.astype('int64'), lengths, some.types,
                       some.sentences, int(counts @ lengths))
        if self._words.too_many:
            self._forget()
        return found

    def _learn(self, lines, known):
        """Split words, one per line; the first gets number `known`."""
        ids, begins = self._cutter(lines)
        first = self._begins[known]
        self._ids = roomy(self._ids, first + len(ids) + SPARE)
        self._ids[first:first + len(ids)] = ids
        self._begins = roomy(self._begins, known + len(begins))
        self._begins[known:known + len(begins)] = first + begins

    def _forget(self):
        kept = onp.flatnonzero(self._words.prune() >= 0)
        lengths = onp.diff(self._begins)[kept]
        self._ids = onp.append(
            self._ids[concat_ranges(self._begins[kept], lengths)],
            onp.zeros(SPARE, self.dtype))
        self._begins = onp.append(0, onp.cumsum(lengths)).astype('int32')


def in_pieces(cut, vocab):
    """Turn a `CutText` of words, none of them pruned, into word pieces."""
    ids, begins = vocab.cutter()(cut.types.text())
    cut.cut_further(narrow(onp.append(ids, onp.zeros(SPARE, 'int32')),
                           len(vocab)), begins)
