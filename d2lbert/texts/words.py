"""A text split into paragraphs, sentences and words by the book's rule."""
import collections
import re
from pathlib import Path
from typing import NamedTuple

import numpy as onp

from d2lbert.kernels import cut, draw
from d2lbert.texts import text_files

# The end of a sentence; a full stop at the end of a line is not one
STOP = ' . '


class TokenizedText(NamedTuple):
    """The words of a text, with a number for each different word.

    Word i is names[types[i]]. Sentence s consists of the words sentences[s]
    to sentences[s + 1] - 1. Paragraph q consists of the sentences
    paragraphs[q] to paragraphs[q + 1] - 1.
    """

    types: onp.ndarray       # (number of words,) int32
    sentences: onp.ndarray   # (number of sentences + 1,) int64
    paragraphs: onp.ndarray  # (number of paragraphs + 1,) int64
    names: list


_SPACES = re.compile(r'\s{2,}')


# From bytes to sentences

def line_ends(text):
    """The places of line feeds in bytes: (lines,) int64."""
    return onp.flatnonzero(onp.frombuffer(text, 'uint8') == ord('\n'))


def read_lines(path):
    """The lines of a UTF-8 text file, compressed or not.

    Raises FileNotFoundError, or ValueError that names file and line.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f'{path} is no file: name a text file in '
                                "WikiText's format")
    data = b''.join(text_files.pieces(path))
    if b'\r' in data:
        data = data.replace(b'\r\n', b'\n').replace(b'\r', b'\n')
    lines = []
    for number, line in enumerate(data.split(b'\n'), 1):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f'{path}, line {number}: byte {error.start + 1} '
                f'({line[error.start]:#04x}) is not UTF-8: convert the file '
                'to UTF-8') from None
    return lines


def paragraphs_of_lines(lines, lower=True):
    """The paragraphs (lists of sentences) of lines, in lower case."""
    return [(line.strip().lower() if lower else line.strip()).split(STOP)
            for line in lines if STOP in line]


# From sentences to words

def tokens_of_paragraphs(paragraphs):
    """The `TokenizedText` of paragraphs, lists of sentences (strings)."""
    numbers = collections.defaultdict()
    numbers.default_factory = numbers.__len__
    sentences = [sentence.split() for paragraph in paragraphs
                 for sentence in paragraph]
    ends = onp.cumsum([0] + [len(words) for words in sentences])
    types = onp.fromiter(
        (numbers[word] for words in sentences for word in words), 'int32',
        ends[-1])
    return TokenizedText(
        types, ends.astype('int64'),
        onp.cumsum([0] + [len(paragraph) for paragraph in paragraphs],
                   dtype='int64'), list(numbers))


def tokens_of_lines(lines, lower=True):
    """The `TokenizedText` of lines, by C++ where it is compiled."""
    if draw.library() is None:
        return tokens_of_paragraphs(paragraphs_of_lines(lines, lower))
    *arrays, _, names, _ = cut.text('\n'.join(lines).encode(),
                                    cut.PARAGRAPHS, lower)
    return TokenizedText(*arrays, names.decode().split('\n')[:-1])


def tree_words(tree):
    """The words of a bracketed parse tree, as SNLI has them: a string."""
    return _SPACES.sub(' ', tree.replace('(', '').replace(')', '')).strip()


def read_tokens(path):
    """The `TokenizedText` of a file, by the book's rule.

    Raises FileNotFoundError, or ValueError for a file that is not text.
    """
    return tokens_of_lines(read_lines(path))
