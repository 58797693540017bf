"""Tokens and vocabularies, from the book's page "Text Preprocessing".

The id of a token is its index in the vocabulary. V: the number of tokens of a
vocabulary.
"""
import collections
import itertools
import operator
from pathlib import Path
from typing import NamedTuple

from d2lbert.machine.files import write_text

UNK, UNK_ID = '<unk>', 0
PAD, MASK, CLS, SEP = RESERVED = ['<pad>', '<mask>', '<cls>', '<sep>']


class Special(NamedTuple):
    """The special tokens of a vocabulary, except the unknown token."""

    pad: str
    mask: str
    cls: str
    sep: str


def tokenize(lines, token='word'):
    """Split each line of a list into a list of words or of characters."""
    if token == 'word':
        return [line.split() for line in lines]
    if token == 'char':
        return [list(line) for line in lines]
    raise ValueError(f"token={token!r} must be 'word' or 'char'")


def count_corpus(tokens):
    """Return a Counter of the tokens in a list, or in a list of lists."""
    if len(tokens) == 0 or isinstance(tokens[0], list):
        tokens = (token for line in tokens for token in line)
    return collections.Counter(tokens)


class Vocab:
    """Tokens and their ids, by falling frequency.

    Id 0 is `<unk>`, then come the reserved tokens, then every token that
    occurs at least `min_freq` times. Equally frequent tokens get ids in the
    order in which they first occur.
    """

    #: The names of a vocabulary's files in a run folder
    files = ('vocab.txt',)
    special = Special(*RESERVED)
    never_masked = frozenset((CLS, SEP))

    # Vocabularies of word pieces set the following four attributes

    #: (V,) uint8, bits of kernels/draw.py for each token: FIXED if it is never
    #: masked, GOES_ON if it continues a word. None for whole words
    mask_flags = None
    #: (V,) bool; None if every token begins a word
    begins_word = None
    #: The tokenizer that splits words into these tokens, or None
    tokenizer = None
    #: The ids of `replacements`, int32; None for all ids
    replacement_ids = None

    def __init__(self, tokens=None, min_freq=0, reserved_tokens=None):
        counter = count_corpus([] if tokens is None else tokens)
        # sorted() is stable, and a Counter keeps the order of first occurrence
        token_freqs = sorted(counter.items(), key=operator.itemgetter(1),
                             reverse=True)
        self._assign_ids(token_freqs, min_freq, reserved_tokens)

    @classmethod
    def from_freqs(cls, token_freqs, min_freq=0, reserved_tokens=None):
        """Build from (token, frequency) pairs, sorted by falling frequency."""
        vocab = cls.__new__(cls)
        vocab._assign_ids(token_freqs, min_freq, reserved_tokens)
        return vocab

    def _assign_ids(self, token_freqs, min_freq, reserved_tokens):
        self._token_freqs = token_freqs
        self.idx_to_token = [UNK] + list(reserved_tokens or [])
        self.token_to_idx = {
            token: idx for idx, token in enumerate(self.idx_to_token)}
        for token, freq in token_freqs:
            if freq < min_freq:
                break
            if token not in self.token_to_idx:
                self.token_to_idx[token] = len(self.idx_to_token)
                self.idx_to_token.append(token)

    def __len__(self):
        return len(self.idx_to_token)

    def __getitem__(self, tokens):
        """Return the id of a token, or a list of ids for a list."""
        if isinstance(tokens, (list, tuple)):
            return [self[token] for token in tokens]
        return self.token_to_idx.get(tokens, self.unk)

    def to_tokens(self, indices):
        """Return the token of an id, or a list of tokens for a list."""
        if isinstance(indices, (list, tuple)):
            return [self.to_tokens(index) for index in indices]
        return self.idx_to_token[indices]

    @property
    def unk(self):
        """The id of the unknown token."""
        return UNK_ID

    @property
    def replacements(self):
        """The tokens from which masking draws random tokens, a list."""
        return self.idx_to_token

    @property
    def token_freqs(self):
        """All (token, frequency) pairs by falling frequency, a list.

        Includes tokens rarer than min_freq. Empty after `load`. A frequency of
        0 is unknown.
        """
        return self._token_freqs

    def save(self, path):
        """Write one token a line in UTF-8; line n + 1 has the token of id n.

        Raises ValueError for a token that does not fit into a line.
        """
        for idx, token in enumerate(self.idx_to_token):
            if not token or '\n' in token or '\r' in token:
                raise ValueError(f'token {idx} is {token!r}, which cannot be '
                                 'written to a file of one token a line')
        write_text(path, ''.join(f'{token}\n'
                                 for token in self.idx_to_token))

    @classmethod
    def load(cls, path, reserved_tokens=RESERVED):
        """Read a file that `save` wrote.

        The file must begin with `<unk>` and `reserved_tokens` in order. Lines
        may end in '\\r\\n'. Raises a ValueError that names the wrong line.
        """
        vocab = cls(reserved_tokens=reserved_tokens)
        data = Path(path).read_bytes()
        if not vocab._add_all_at_once(data):
            vocab._add_line_by_line(data, path)
        return vocab

    def _add_all_at_once(self, data):
        """Add all tokens of a file; faster than `_add_line_by_line`.

        Returns False, without a change, if a line is not as `save` writes it.
        """
        reserved_lines = ''.join(
            f'{token}\n' for token in self.idx_to_token).encode()
        if (not data.startswith(reserved_lines) or not data.endswith(b'\n')
                or b'\r' in data):
            return False
        try:
            # [:-1]: without the empty text after the last '\n'
            new_tokens = data[len(reserved_lines):].decode().split('\n')[:-1]
        except UnicodeDecodeError:
            return False
        token_to_idx = dict(self.token_to_idx)
        token_to_idx.update(zip(new_tokens, itertools.count(len(self))))
        has_duplicates = len(token_to_idx) < len(self) + len(new_tokens)
        if has_duplicates or '' in token_to_idx:
            return False
        self.token_to_idx = token_to_idx
        self.idx_to_token += new_tokens
        return True

    def _add_line_by_line(self, data, path):
        """Add all tokens of a file, or raise ValueError for its wrong line."""
        lines = data.split(b'\n')
        if not lines[-1]:       # after the last '\n', not a line
            lines.pop()
        for idx, token in enumerate(self.idx_to_token):  # <unk> and reserved
            line = lines[idx] if idx < len(lines) else None
            if line is None or line.rstrip(b'\r') != token.encode():
                found = ('the end of the file' if line is None
                         else repr(line.decode(errors='replace')))
                raise ValueError(
                    f'{path}, line {idx + 1}: expected the special token '
                    f'{token!r}, found {found}: give the path of a vocabulary '
                    'that d2lbert saved')
        for idx, line in enumerate(lines[len(self):], len(self)):
            where = f'{path}, line {idx + 1}'
            try:
                token = line.rstrip(b'\r').decode()
            except UnicodeDecodeError:
                raise ValueError(f'{where}: {line!r} is not UTF-8: save the '
                                 'file in UTF-8') from None
            if not token:
                raise ValueError(f'{where}: expected a token, found an empty '
                                 'line: remove it')
            if token in self.token_to_idx:
                first_line = self.token_to_idx[token] + 1
                raise ValueError(f'{where}: token {token!r} is in line '
                                 f'{first_line} already: remove one of them')
            self.token_to_idx[token] = idx
            self.idx_to_token.append(token)


def special_of(vocab):
    """The `Special` tokens of a vocabulary, also of one by the package d2l."""
    return getattr(vocab, 'special', Vocab.special)
