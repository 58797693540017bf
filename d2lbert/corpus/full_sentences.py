"""Rows packed with full sentences of one text, as RoBERTa packs them."""
import bisect

import numpy as onp

from d2lbert.texts.numbered_text import shuffled_paragraphs


def full_sentences(text, chunk, num_chunks, max_len, rng):
    """Rows of sentences that follow one another, as many as fit.

    text: a `StoredText`; chunk: which of num_chunks nearly equal parts of
    it. Returns rows (N + 1,) and parts (M, 2), int64: row k is made of parts
    rows[k] to rows[k + 1] - 1, each the begin and end of words. With <cls>
    before them and a <sep> behind each part, no row has more than max_len
    tokens.

    This is FULL-SENTENCES of Liu et al. 2019, section 4.2: a row ends where
    the next sentence would not fit, and goes on from the end of an article
    into another one, behind one more separator. So all rows are of about
    the same length, and what a batch costs and teaches does not depend on
    how long articles are; kept apart, short articles would leave rows half
    empty. The articles come in a new order each time. Only a sentence that
    is longer than a row is cut, and goes on in the next.
    """
    rows, parts = [0], []
    room = full = max_len - 1       # behind <cls>
    borders = _borders(text, chunk, num_chunks)
    for k in shuffled_paragraphs(len(borders) - 1, rng).tolist():
        ends = text.sentences[borders[k]:borders[k + 1] + 1].tolist()
        begin = ends[0]
        while begin < ends[-1]:
            limit = begin + room - 1                # a <sep> is to follow
            end = ends[max(0, bisect.bisect_right(ends, limit) - 1)]
            if end <= begin and room == full:       # longer than a row
                end = limit
            if end > begin:
                parts.append((begin, end))
                room -= end - begin + 1
                begin = end
            if begin < ends[-1]:                    # the next does not fit
                rows.append(len(parts))
                room = full
    if len(parts) > rows[-1]:
        rows.append(len(parts))
    return (onp.array(rows, 'int64'),
            onp.array(parts, 'int64').reshape(-1, 2))


def _borders(text, chunk, num_chunks):
    """The sentences with which articles begin in a chunk, and its ends."""
    first, last = onp.searchsorted(
        text.sentences, [text.num_words * k // num_chunks
                         for k in (chunk, chunk + 1)]).tolist()
    paragraphs = onp.searchsorted(text.paragraphs, [first + 1, last])
    articles = text.articles[slice(*onp.searchsorted(text.articles,
                                                     paragraphs))]
    return [first, *text.paragraphs[articles].tolist(), last]
