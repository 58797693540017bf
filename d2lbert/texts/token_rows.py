"""Lists of token ids as rows of a batch: truncated and padded."""
import numpy as onp


def truncate_pair(first_lens, second_lens, room, odd_to_first):
    """Lengths of two texts after longest-first truncation.

    The longer text loses tokens until both are equally long, then both lose
    in turn until `room` tokens are left. odd_to_first: True if the first
    text keeps the odd token where both were truncated. Numbers, or arrays
    (N,); returns two of the same kind.
    """
    half = room // 2 + room % 2 * odd_to_first
    return (onp.minimum(first_lens, onp.maximum(half, room - second_lens)),
            onp.minimum(second_lens, onp.maximum(room - half,
                                                 room - first_lens)))


def pad_rows(rows, pad_id=0):
    """Token ids side by side, padded on the right: (N, T) int32.

    rows: N lists or arrays of ids; T is the length of the longest.
    """
    padded = onp.full((len(rows), max(map(len, rows))), pad_id, 'int32')
    for row, ids in zip(padded, rows):
        row[:len(ids)] = ids
    return padded
