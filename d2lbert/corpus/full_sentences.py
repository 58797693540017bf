"""Rows packed with full sentences of one text, as in RoBERTa."""
import bisect

import numpy as onp

from d2lbert.texts.numbered_text import shuffled_paragraphs


def full_sentences(text, chunk, num_chunks, max_len, rng):
    """Pack rows with as many consecutive sentences as fit.

    text: a `StoredText`; chunk: the number of one of num_chunks nearly equal
    parts of it. Returns rows (N + 1,) and parts (M, 2), int64. Row k consists
    of parts rows[k] to rows[k + 1] - 1; a part is the begin and end of its
    words. With <cls> first and a <sep> after each part, a row has at most
    max_len tokens.

    These are the FULL-SENTENCES of Liu et al. 2019, section 4.2. A row ends
    where the next sentence does not fit. At the end of an article it
    continues with another one, after a separator. So all rows have about
    the same length; one row per article would leave rows of short articles
    half empty. The articles are shuffled. Only a sentence longer than a row
    is split, and continues in the next row.
    """
    rows, parts = [0], []
    room = full = max_len - 1       # after <cls>
    borders = _borders(text, chunk, num_chunks)
    for k in shuffled_paragraphs(len(borders) - 1, rng).tolist():
        ends = text.sentences[borders[k]:borders[k + 1] + 1].tolist()
        begin = ends[0]
        while begin < ends[-1]:
            limit = begin + room - 1                # a <sep> follows
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
    """The sentences at which a chunk and its articles begin, and its end."""
    first, last = onp.searchsorted(
        text.sentences, [text.num_words * k // num_chunks
                         for k in (chunk, chunk + 1)]).tolist()
    paragraphs = onp.searchsorted(text.paragraphs, [first + 1, last])
    articles = text.articles[slice(*onp.searchsorted(text.articles,
                                                     paragraphs))]
    return [first, *text.paragraphs[articles].tolist(), last]
