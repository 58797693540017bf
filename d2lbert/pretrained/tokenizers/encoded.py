"""The inputs and outputs of tokenizers: texts, ids, lengths, unknown words."""
import functools
import re
import unicodedata
from typing import List, NamedTuple, Optional, Tuple

from d2lbert.machine.terminal import warn_once
from d2lbert.text import CLS, MASK, PAD, SEP, UNK
from d2lbert.texts.examples import truncate_pair

#: Roles of special tokens, as in tokenizer_config.json, and their default
#: names.
ROLES = ('pad', 'unk', 'cls', 'sep', 'mask')
NAMES = dict(pad=('[PAD]', PAD), unk=('[UNK]', UNK),
             cls=('[CLS]', CLS, '<s>'), sep=('[SEP]', SEP, '</s>'),
             mask=('[MASK]', MASK))


#: Chinese characters, as the published BERT has them.
IDEOGRAPHS = ('\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df'
              '\U0002a700-\U0002b73f\U0002b740-\U0002b81f'
              '\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f')
_IDEOGRAPH = re.compile(f'[{IDEOGRAPHS}]')


@functools.lru_cache(maxsize=1 << 12)
def is_word_alone(letter):
    """True if a character is a word by itself in running text.

    Unicode calls it punctuation or a symbol, or it is Chinese, as in the
    published BERT.
    """
    return (unicodedata.category(letter)[0] in 'PS'
            or _IDEOGRAPH.match(letter) is not None)


class Details(NamedTuple):
    """What an `Encoded` knows of its T tokens beside their ids; lists."""

    tokens: List[str]
    offsets: List[Tuple[int, int]]      # begin and end in characters of the
                                        # text; (0, 0) for special tokens
    words: List[Optional[int]]          # index of the word in its text; None
                                        # for special tokens


class Encoded:
    """The inputs of a model for a text or a pair, T tokens.

    ids: a list of token ids. segments: a list of 0, and of 1 in the second
    text of a pair. get_details: a function that returns the `Details`. It is
    called when one of them is used for the first time, since encoding many
    texts needs none of them.
    """

    __slots__ = 'ids', 'segments', '_get_details', '_details'

    def __init__(self, ids, segments, get_details):
        self.ids, self.segments = ids, segments
        self._get_details, self._details = get_details, None

    def __eq__(self, other):
        return isinstance(other, Encoded) and (
            self.ids, self.segments, self.details) == (
            other.ids, other.segments, other.details)

    def __repr__(self):
        return f'Encoded({self.ids}, {self.segments}, {self.details})'

    @property
    def details(self):
        """The `Details` of the tokens."""
        if self._details is None:
            self._details, self._get_details = self._get_details(), None
        return self._details

    @property
    def tokens(self):
        """See `Details`."""
        return self.details.tokens

    @property
    def offsets(self):
        """See `Details`."""
        return self.details.offsets

    @property
    def words(self):
        """See `Details`."""
        return self.details.words


class Tokens:
    """The tokens of a tokenizer and their ids."""

    #: The `pooling.Pooling` of the folder it was loaded from
    pooling = None

    #: The `Vocab` of whole words, None for other tokenizers
    vocab = None

    def _set_tokens(self, idx_to_token, special, max_len=None):
        """Set the tokens and ids; special: {role: token}, may lack 'mask'."""
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
        """The ids of all special tokens, sorted."""
        return sorted({self.token_to_idx[token]
                       for token in self.special.values()})

    def encode(self, text, pair=None, max_len=None):
        """Encode a text, or a pair of texts: an `Encoded`.

        max_len: most tokens, special tokens included. Truncation removes the
        last tokens of the longer text first.
        """
        return self.encode_batch(
            [text], None if pair is None else [pair], max_len)[0]


# Texts and their lengths

def listed(items, what):
    """A list of texts or words; raise TypeError for a single string."""
    if isinstance(items, (str, bytes)):
        raise TypeError(f'expected a list of {what}, not the string {items!r}')
    return list(items)


def check_text(text):
    """Return text; raise TypeError unless it is a str."""
    if not isinstance(text, str):
        raise TypeError(f'a text must be a string, not {text!r}')
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f'the text {text[:60]!r} is not Unicode: its character '
            f'{error.start + 1} comes from a byte that was not UTF-8: read '
            'the text with its right encoding') from None
    return text


def check_pairs(pairs, texts):
    """Return the second texts as a list; raise if their number differs."""
    pairs = listed(pairs, 'texts')
    if len(pairs) != len(texts):
        raise ValueError(f'{len(pairs)} second texts cannot be paired with '
                         f'{len(texts)} first texts: give equal numbers')
    return pairs


def room_of(tokenizer, max_len, is_pair):
    """The number of tokens that fit beside special tokens, or None."""
    if max_len is None:
        return None
    special = tokenizer.num_special(is_pair)
    if max_len < special:
        raise ValueError(f'max_len={max_len} has no room for the {special} '
                         'special tokens: raise it')
    return max_len - special


def cut_to_fit(first, second, room):
    """The numbers of tokens to keep of two texts, (int, int).

    first, second: the lengths of the texts; second is None for a single
    text. As `longest_first` in transformers: if the room is odd, the longer
    text keeps one token more; of equally long texts the second does.
    """
    if second is None:
        return min(first, room), 0
    return tuple(map(int, truncate_pair(first, second, room,
                                        odd_to_first=first > second)))


#: Most unknown words in a message.
NAMED = 8


class UnknownWords:
    """Counts of tokens, and of those that are the unknown token."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._idx = tokenizer.unk_id
        self._token = (None if self._idx is None
                       else tokenizer.idx_to_token[self._idx])
        self._num_special = [tokenizer.num_special(is_pair)
                             for is_pair in (False, True)]
        self.tokens = self.unknown = 0      # special tokens do not count
        self._names = {}        # some unknown words, in order

    def shown(self, encoding):
        """The tokens of an `Encoding`; unknown ones as the text has them."""
        encoded, (_, *texts) = encoding.encoded, encoding.text
        return [token if idx != self._idx or end == 0
                else texts[segment][begin:end]
                for idx, token, segment, (begin, end) in zip(
                    encoded.ids, encoded.tokens, encoded.segments,
                    encoded.offsets)]

    def count(self, encoding):
        """Count the tokens of an `Encoding`, and the unknown ones."""
        ids, is_pair = encoding.encoded.ids, encoding.text.pair is not None
        self.tokens += len(ids) - self._num_special[is_pair]
        unknown = ids.count(self._idx)
        self.unknown += unknown
        if unknown and len(self._names) <= NAMED:
            self._names.update(dict.fromkeys(
                token for token, idx in zip(self.shown(encoding), ids)
                if idx == self._idx))

    def warn(self):
        """Warn of unknown words, the first time for this tokenizer."""
        if self.unknown:
            warn_once(self._tokenizer, 'unknown', self.sentence())

    def sentence(self, where=None):
        """A sentence with the unknown words, or None if there are none.

        where: a name of the texts for the sentence.
        """
        if not self.unknown:
            return None
        names = list(self._names)
        return (f'{self.unknown:,} of {self.tokens:,} tokens'
                + (f' of {where}' if where else '')
                + f' are unknown words, read as {self._token}: '
                + ', '.join(names[:NAMED])
                + (' and others' if len(names) > NAMED else ''))
