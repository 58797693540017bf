"""What a tokenizer gives, and what it is given: ids, texts, lengths."""
from typing import Any, NamedTuple

from d2lbert.text import CLS, MASK, PAD, SEP, UNK
from d2lbert.texts.token_rows import truncate_pair

#: What the special tokens do, as tokenizer_config.json calls it, and their
#: names where a folder says none.
ROLES = ('pad', 'unk', 'cls', 'sep', 'mask')
NAMES = dict(pad=('[PAD]', PAD), unk=('[UNK]', UNK),
             cls=('[CLS]', CLS, '<s>'), sep=('[SEP]', SEP, '</s>'),
             mask=('[MASK]', MASK))


class Encoded(NamedTuple):
    """A text, or a pair of them, as a model takes it; lists of T entries."""

    ids: Any        # numbers of the tokens
    tokens: Any     # strings
    segments: Any   # 0, and 1 in the second of a pair
    offsets: Any    # (begin, end) in characters of the text, special: (0, 0)
    words: Any      # number of the word in its text, None for special tokens


class Tokens:
    """What both kinds know of their tokens."""

    #: How a text becomes one vector, the `pooling.Pooling` of a folder
    pooling = None

    def _number(self, idx_to_token, special, max_len=None):
        """special: {role: token}, of which 'mask' may be missing."""
        self.idx_to_token, self.max_len = idx_to_token, max_len
        self.token_to_idx = {}
        for idx, token in enumerate(idx_to_token):
            self.token_to_idx.setdefault(token, idx)
        self.special = special
        (self.pad_id, self.unk_id, self.cls_id, self.sep_id,
         self.mask_id) = (self.token_to_idx.get(special.get(role))
                          for role in ROLES)

    def __len__(self):
        return len(self.idx_to_token)

    @property
    def special_ids(self):
        """The numbers of all special tokens, rising."""
        return sorted({self.token_to_idx[token]
                       for token in self.special.values()})

    def encode(self, text, pair=None, max_len=None):
        """The `Encoded` of a text, or of a pair of texts.

        max_len: how many tokens it has at most, special ones included; the
        longer of a pair loses its last ones first.
        """
        return self.encode_batch(
            [text], None if pair is None else [pair], max_len)[0]


# Texts and their lengths

def listed(items, what):
    """A list of texts or words; refuses the string that is one of them."""
    if isinstance(items, (str, bytes)):
        raise TypeError(f'expected a list of {what}, not the string {items!r}')
    return list(items)


def check_text(text):
    """The text; refuses what is none."""
    if not isinstance(text, str):
        raise TypeError(f'a text must be a string, not {text!r}')
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f'the text {text[:60]!r} is no Unicode: its character '
            f'{error.start + 1} stands for a byte that was not UTF-8: read '
            'it with the encoding that it has') from None
    return text


def as_many(pairs, texts):
    pairs = listed(pairs, 'texts')
    if len(pairs) != len(texts):
        raise ValueError(f'{len(pairs)} second texts cannot be paired with '
                         f'{len(texts)} first ones: give as many')
    return pairs


def room_of(tokenizer, max_len, is_pair):
    """How many tokens of the texts fit beside the special ones, or None."""
    if max_len is None:
        return None
    special = tokenizer.num_special(is_pair)
    if max_len < special:
        raise ValueError(f'max_len={max_len} has no room for the {special} '
                         'special tokens: raise it')
    return max_len - special


def cut_to_fit(first, second, room):
    """Numbers of tokens to keep of two texts, as ints; second may be None.

    As in transformers with `longest_first`: of an odd room the longer text
    keeps one token more, the second if both are equally long.
    """
    if second is None:
        return min(first, room), 0
    return tuple(map(int, truncate_pair(first, second, room,
                                        odd_to_first=first > second)))
