"""Words of texts that are not in the vocabulary of a tokenizer."""

#: Most unknown words in a message.
NAMED = 8


class UnknownWords:
    """Counts of words, and of words read as the unknown token."""

    def __init__(self, tokenizer):
        self._idx = tokenizer.unk_id
        self._token = (None if self._idx is None
                       else tokenizer.idx_to_token[self._idx])
        self.words = self.unknown = 0
        self._names = {}        # some unknown words, in order

    def shown(self, encoding):
        """The tokens of an `Encoding`, unknown ones as in its text."""
        encoded, (_, *texts) = encoding.encoded, encoding.text
        return [token if idx != self._idx or end == 0
                else texts[segment][begin:end]
                for idx, token, segment, (begin, end), _ in zip(*encoded)]

    def count(self, encoding):
        """Count the words of an `Encoding`, and the unknown ones."""
        encoded = encoding.encoded
        self.words += len({place for place in zip(
            encoded.segments, encoded.words) if place[1] is not None})
        unknown = encoded.ids.count(self._idx)
        self.unknown += unknown
        if unknown and len(self._names) <= NAMED:
            self._names.update(dict.fromkeys(
                token for token, idx in zip(self.shown(encoding), encoded.ids)
                if idx == self._idx))

    def sentence(self, where=None):
        """A sentence with the unknown words, or None if there are none.

        where: a name of the texts for the sentence.
        """
        if not self.unknown:
            return None
        names = list(self._names)
        return (f'{self.unknown:,} of {self.words:,} words'
                + (f' of {where}' if where else '') + ' are not in the '
                f'vocabulary and were read as {self._token}: '
                + ', '.join(names[:NAMED])
                + (' and others' if len(names) > NAMED else ''))
