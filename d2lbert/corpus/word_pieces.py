"""Words of a text in the pieces of a vocabulary, each word cut once."""
import numpy as onp

from d2lbert.corpus.word_types import WordTypes, counted, narrow, roomy, spread
from d2lbert.kernels.cut import SPARE
from d2lbert.texts.numbered_text import stretched


class PieceTypes:
    """As `WordTypes`, for a text of which pieces are written down.

    A word that is forgotten is cut again when it comes again, so that none
    is lost.
    """

    #: Of the words whose numbers are written down.
    too_many = False

    def __init__(self, vocab):
        self._words, self._cutter = WordTypes(), vocab.cutter()
        self._ids = narrow(onp.zeros(SPARE, 'int32'), len(vocab))
        # There are no more pieces than letters, which are bounded
        self._begins = onp.zeros(1, 'int32')
        self.dtype = self._ids.dtype

    def numbered(self, some):
        """A `Cut`'s pieces (pieces,), and where its sentences end in them."""
        known = len(self._words)
        table = self._words.add(some.names)
        self._learn(self._words.text(known), known)
        counts = counted(some.types, len(table))
        self._words.count(table, counts)
        begins = self._begins[table]
        lengths = self._begins[table + 1] - begins
        # By the numbers of the cut: of few words, whose pieces are at hand
        found = spread(self._ids, begins.astype('int64'), lengths, some.types,
                       some.sentences, int(counts @ lengths))
        if self._words.too_many:
            self._forget()
        return found

    def _learn(self, lines, known):
        """Cut words, a line each, the first of which has number `known`."""
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
            self._ids[stretched(self._begins[kept], lengths)],
            onp.zeros(SPARE, self.dtype))
        self._begins = onp.append(0, onp.cumsum(lengths)).astype('int32')


def in_pieces(cut, vocab):
    """Let a `CutText` of words, none of them forgotten, be one of pieces."""
    ids, begins = vocab.cutter()(cut.types.text())
    cut.cut_further(narrow(onp.append(ids, onp.zeros(SPARE, 'int32')),
                           len(vocab)), begins)
