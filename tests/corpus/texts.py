"""Made-up texts, and what the tests read out of what came of them."""
import random
from pathlib import Path

import numpy as onp

from d2lbert.text import CLS, PAD, RESERVED, SEP, UNK, Vocab
from d2lbert.texts.examples import Batch

# Two paragraphs of two sentences
VALID = b'a . b\n\nc . d\n'

WORDS = [f'w{k}' for k in range(60)] + ['é', 'Ärger', 'Σ', '日本', 'A']


def make_paragraph(rng, least=1):
    """One paragraph; Zipf's law, roughly."""
    return ' . '.join(
        ' '.join(rng.choice(WORDS[:rng.randint(1, len(WORDS))])
                 for _ in range(rng.randint(1, 9)))
        for _ in range(rng.randint(least, 6))) + ' .'


def make_wiki(num_articles, seed=0, mark=''):
    """A text in WikiText's format, and its articles (lists of lines)."""
    rng = random.Random(seed)
    articles = [
        [f'{mark}{k} ' + make_paragraph(rng, 2)
         for _ in range(rng.randint(1, 5))] for k in range(num_articles)]
    text = ''.join(
        f' \n = Title {k} = \n \n' + f' \n = = Part = = \n \n {lines[0]} \n'
        + ''.join(f' {line} \n' for line in lines[1:])
        for k, lines in enumerate(articles))
    return text, articles


def write(name, text):
    path = Path(name)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def words_of(part):
    """The part as paragraphs of sentences of words."""
    words = part.vocab.to_tokens(part.ids.tolist())
    sentences = [words[a:b] for a, b in zip(part.sentences.tolist(),
                                            part.sentences.tolist()[1:])]
    return [sentences[a:b] for a, b in zip(part.paragraphs.tolist(),
                                           part.paragraphs.tolist()[1:])]


def book_words(lines):
    """The page's paragraphs of the lines of a text."""
    return [[sentence.split() for sentence in
             line.strip().lower().split(' . ')]
            for line in lines if len(line.split(' . ')) > 1]


def book_vocab(paragraphs, min_freq=5):
    return Vocab([sentence for paragraph in paragraphs
                  for sentence in paragraph], min_freq, RESERVED)


def known(paragraphs, vocab):
    return [[[word if word in vocab.token_to_idx else UNK
              for word in sentence] for sentence in paragraph]
            for paragraph in paragraphs]


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def rows_of(batches):
    """All rows of some batches, one `Batch`."""
    return Batch(*map(onp.concatenate, zip(*(batch for _, batch in batches))))


def restored(rows):
    """The tokens before any was hidden."""
    tokens = rows.tokens_X.copy()
    row, k = onp.nonzero(rows.mlm_weights_X)
    tokens[row, rows.pred_positions_X[row, k]] = rows.mlm_Y[row, k]
    return tokens


def pairs_of(rows, vocab):
    """(first, second, is_next) of each row, tuples of words."""
    cls, sep, pad = vocab[[CLS, SEP, PAD]]
    for tokens, segments, length, is_next in zip(
            restored(rows), rows.segments_X, rows.valid_lens_x.astype(int),
            rows.nsp_y):
        second = length - segments.sum()
        assert tokens[0] == cls and tokens[second - 1] == sep
        assert tokens[length - 1] == sep
        assert (tokens[length:] == pad).all()
        assert not segments[:second].any() and segments[second:length].all()
        yield (tuple(vocab.to_tokens(tokens[1:second - 1].tolist())),
               tuple(vocab.to_tokens(tokens[second:length - 1].tolist())),
               bool(is_next))
