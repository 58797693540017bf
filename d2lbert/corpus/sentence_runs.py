"""Rows filled with runs of sentences, as the published BERT draws them."""
import bisect

import numpy as onp

# Runs that are looked at for one that is as long; see _run_like
TRIES = 16


def draw_runs(text, order, max_len, rng, swap=False):
    """Pairs of runs of sentences that come close to max_len together.

    text: a `StoredText`; order: the paragraphs to take, as they come. Returns
    spans (N, 4) int64 and is_next (N,) bool, as `bert_dataset.mask_pairs`
    takes them.

    As in the published BERT: sentences are taken until the next one would
    not fit, and parted at random; if the second text is replaced, its
    sentences come again. The last run of a paragraph goes on into the
    article's next one. swap: none is replaced; the two texts of half of the
    pairs change places, as in the published ALBERT.
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
            # Behind the change of places, or what is cut would tell of it
            spans.append(_cut_to_fit(*first, *second, max_len - 3))
            is_next.append(follows)
            a = stop if follows or swap else b
    return (onp.array(spans, 'int64').reshape(-1, 4),
            onp.array(is_next, bool))


def _ends(text, begin, end, q, max_len):
    """Where sentences begin, and the last of them ends.

    They are sentences begin to end - 1, of paragraph q, and as many of
    those that follow in the article as can be of use.
    """
    k = onp.searchsorted(text.articles, q, 'right')
    if k < len(text.articles):
        limit = int(text.paragraphs[text.articles[k]])
    else:
        limit = text.num_sentences
    return text.sentences[begin:min(end + max_len, limit) + 1].tolist()


def _run_like(text, span, room, max_len, rng):
    """A random run of sentences, about as long as `span`.

    Otherwise its length would tell that it does not follow. So would a cut:
    it has no more than `room` words, unless `span` has, or none of TRIES
    runs is so short.
    """
    wanted = span[1] - span[0]
    room = max(room, wanted)
    best = None
    for _ in range(TRIES):
        q = int(rng.random() * text.num_paragraphs)
        begin, end = text.paragraphs[q:q + 2].tolist()
        begin += int(rng.random() * (end - begin))
        ends = _ends(text, begin, begin + 1, q, max_len)
        # The last end that is not beyond `wanted`, or the one after it
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
    """Two spans of words, cut to `room` words where they part.

    The longer one loses first; the words where they meet stay.
    """
    len_a, len_b = end_a - begin_a, end_b - begin_b
    len_a = min(len_a, max(room - len_b, room // 2))
    len_b = min(len_b, room - len_a)
    return end_a - len_a, end_a, begin_b, begin_b + len_b
