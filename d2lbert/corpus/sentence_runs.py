"""Pairs of runs of sentences that fill a row, as in the published BERT."""
import bisect

import numpy as onp

from d2lbert.texts.token_rows import truncate_pair

# Random runs among which `_run_like` chooses
TRIES = 16


def draw_runs(text, order, max_len, rng, swap=False):
    """Draw pairs of runs of sentences whose length is close to max_len.

    text: a `StoredText`; order: the paragraphs to use, in this order.
    Returns spans (N, 4) int64 and is_next (N,) bool, the arguments of
    `examples.mask_pairs`.

    As in the published BERT, sentences are taken until the next one does
    not fit, and split at random. If the second run is replaced, its
    sentences are used again. The last run of a paragraph continues in the
    next paragraph of the article. swap: swap the two runs of half of the
    pairs in place of replacing the second, as in the published ALBERT.
    """
    spans, is_next = [], []
    for q in order.tolist():
        begin, end = text.paragraphs[q:q + 2].tolist()
        ends = _ends(text, begin, end, q, max_len)
        a, last = 0, len(ends) - 2  # sentences, the paragraph's first is 0
        while a < min(end - begin, last):
            stop = a + 2
            while stop <= last and ends[stop + 1] - ends[a] + 3 <= max_len:
                stop += 1
            b = a + 1 + int(rng.random() * (stop - a - 1))
            first, second = (ends[a], ends[b]), (ends[b], ends[stop])
            follows = rng.random() < 0.5
            if not follows and swap:
                first, second = second, first
            elif not follows:
                second = _run_like(
                    text, second, max_len - 3 - (ends[b] - ends[a]), max_len,
                    rng)
            # After swapping, or the truncation would reveal the swap
            spans.append(_cut_to_fit(*first, *second, max_len - 3))
            is_next.append(follows)
            a = stop if follows or swap else b
    return (onp.array(spans, 'int64').reshape(-1, 4),
            onp.array(is_next, bool))


def _ends(text, begin, end, q, max_len):
    """The first words of sentences, and the end of the last sentence.

    These are sentences begin to end - 1, of paragraph q, and at most max_len
    sentences after them in the article.
    """
    k = onp.searchsorted(text.articles, q, 'right')
    if k < len(text.articles):
        limit = int(text.paragraphs[text.articles[k]])
    else:
        limit = text.num_sentences
    return text.sentences[begin:min(end + max_len, limit) + 1].tolist()


def _run_like(text, span, room, max_len, rng):
    """A random run of sentences, about as long as `span`.

    Another length would reveal that the run does not follow, and so would a
    truncation. So it has at most `room` words, unless `span` has more or all
    of TRIES runs are longer.
    """
    wanted = span[1] - span[0]
    room = max(room, wanted)
    best = None
    for _ in range(TRIES):
        q = int(rng.random() * text.num_paragraphs)
        begin, end = text.paragraphs[q:q + 2].tolist()
        begin += int(rng.random() * (end - begin))
        ends = _ends(text, begin, begin + 1, q, max_len)
        # The last end within `wanted` words, or the next end
        stop = max(1, bisect.bisect_right(ends, ends[0] + wanted) - 1)
        for last in ends[stop:stop + 2]:
            length = last - ends[0]
            rank = length > room, abs(length - wanted)
            if best is None or rank < best[0]:
                best = rank, (ends[0], last)
        if best[0] <= (False, wanted // 8):
            break
    return best[1]


def _cut_to_fit(begin_a, end_a, begin_b, end_b, room):
    """Truncate two spans of words to `room` words, the longer one first.

    The first span loses words at its begin, the second at its end.
    """
    len_a, len_b = truncate_pair(end_a - begin_a, end_b - begin_b, room,
                                 odd_to_first=False)
    return end_a - len_a, end_a, begin_b, begin_b + len_b
