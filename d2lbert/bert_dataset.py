"""The book's page "The Dataset for Pretraining BERT".

Read paragraphs, pair sentences (NSP), mask words (MLM), pad to columns. The
helpers under the book's names work on lists of strings, as on the page.
`draw_examples`, from which every example comes, does the same on whole
columns: the text is cut and numbered once, and examples are drawn in C++ from
the very random numbers that the helpers would have used, so both give the
book's own examples.

B batch, N examples, T tokens (max_len), P predictions (15% of T).
"""
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert import hub
from d2lbert.bert import get_tokens_and_segments
from d2lbert.kernels import draw
from d2lbert.machine.backend import gluon
from d2lbert.nn.checks import on_device
from d2lbert.text import CLS, SEP, Vocab, special_of
from d2lbert.texts import words
from d2lbert.texts.numbered_text import (
    Corpus,
    ParagraphsOfWords,
    shuffled_paragraphs,
    words_of,
)

MIN_FREQ = 5

# Of the tokens of a pair, so many are hidden
MASK_SHARE = 0.15


class Batch(NamedTuple):
    """What one step needs, or as columns (B = N) a whole data set."""

    tokens_X: Any          # (B, T) int32
    segments_X: Any        # (B, T) int32, 0 or 1
    valid_lens_x: Any      # (B,) float32, how many of T are no padding
    pred_positions_X: Any  # (B, P) int32, 0 pads
    mlm_weights_X: Any     # (B, P) float32, 0 keeps padding out of the loss
    mlm_Y: Any             # (B, P) int32, the words that were there
    nsp_y: Any             # (B,) float32, 1 where the second one does follow


# The page's helpers, in the page's order

def _read_wiki(data_dir=None, rng=random):
    """The paragraphs of wiki.train.tokens in `data_dir`, shuffled.

    Without `data_dir`, as the living edition calls it, WikiText-2 is looked
    for as `hub.wikitext2_dir` says. A list of paragraphs, each a list of
    lower-case sentences (strings).
    """
    folder = hub.wikitext2_dir() if data_dir is None else Path(data_dir)
    paragraphs = words.paragraphs_of_lines(
        words.read_lines(folder / hub.TRAIN_FILE))
    rng.shuffle(paragraphs)
    return paragraphs


def _get_next_sentence(sentence, next_sentence, paragraphs, rng=random):
    """(first, second, whether it follows): in half of the cases it does."""
    if rng.random() < 0.5:
        return sentence, next_sentence, True
    return sentence, rng.choice(rng.choice(paragraphs)), False


def _swap_sentences(sentence, next_sentence, rng=random):
    """(first, second, whether they are in order): half change places.

    Sentence order of Lan et al. 2020, section 3.1, in place of the page's
    next sentences.
    """
    if rng.random() < 0.5:
        return sentence, next_sentence, True
    return next_sentence, sentence, False


def _get_nsp_data_from_paragraph(paragraph, paragraphs, vocab, max_len,
                                 rng=random, swap=False):
    """Examples (tokens, segments, is_next) of a paragraph's neighbours.

    Sentences are lists of tokens; pairs longer than `max_len` are dropped.
    swap: as for `draw_examples`.
    """
    examples = []
    _, _, cls, sep = special_of(vocab)
    for sentence, next_sentence in zip(paragraph, paragraph[1:]):
        tokens_a, tokens_b, is_next = (
            _swap_sentences(sentence, next_sentence, rng) if swap else
            _get_next_sentence(sentence, next_sentence, paragraphs, rng))
        # One <cls> and two <sep> want room, too
        if len(tokens_a) + len(tokens_b) + 3 <= max_len:
            examples.append((*get_tokens_and_segments(
                tokens_a, tokens_b, cls, sep), is_next))
    return examples


def _replace_mlm_tokens(tokens, candidate_pred_positions, num_mlm_preds,
                        vocab, rng=random):
    """Hide `num_mlm_preds` tokens; (input, [(position, hidden token)]).

    80% of them become <mask>, 10% stay, 10% become a random word. Shuffles
    `candidate_pred_positions` in place.
    """
    rng.shuffle(candidate_pred_positions)
    return _hide_tokens(tokens, candidate_pred_positions[:num_mlm_preds],
                        vocab, rng)


def _hide_tokens(tokens, positions, vocab, rng):
    """What `_replace_mlm_tokens` gives, for the tokens at `positions`."""
    mask = special_of(vocab).mask
    mlm_input_tokens = list(tokens)
    for position in positions:
        if rng.random() < 0.8:
            mlm_input_tokens[position] = mask
        elif rng.random() >= 0.5:
            mlm_input_tokens[position] = rng.choice(
                getattr(vocab, 'replacements', vocab.idx_to_token))
    return mlm_input_tokens, [(position, tokens[position])
                              for position in positions]


def _draw_words(tokens, candidates, num_mlm_preds, vocab, rng):
    """Positions of all pieces of random words, `num_mlm_preds` at most.

    A word that would bring more pieces than that is left, and the next one
    tried, as in the published BERT.
    """
    all_words, before = [], None
    for position in candidates:
        if (before != position - 1
                or vocab.begins_word[vocab[tokens[position]]]):
            all_words.append([])
        all_words[-1].append(position)
        before = position
    rng.shuffle(all_words)
    positions = []
    for word in all_words:
        if len(positions) + len(word) <= num_mlm_preds:
            positions += word
    return positions


def _get_mlm_data_from_tokens(tokens, vocab, rng=random,
                              mask_share=MASK_SHARE, whole_words=False):
    """(input ids, prediction positions, label ids) of a list of tokens."""
    never = getattr(vocab, 'never_hidden', Vocab.never_hidden)
    candidates = [position for position, token in enumerate(tokens)
                  if token not in never]
    num_preds = _num_preds(len(tokens), mask_share)
    if whole_words:
        mlm_input_tokens, preds = _hide_tokens(
            tokens, _draw_words(tokens, candidates, num_preds, vocab, rng),
            vocab, rng)
    else:
        mlm_input_tokens, preds = _replace_mlm_tokens(
            tokens, candidates, num_preds, vocab, rng)
    preds.sort()
    return (vocab[mlm_input_tokens], [position for position, _ in preds],
            vocab[[token for _, token in preds]])


def _pad_bert_inputs(examples, max_len, vocab, mask_share=MASK_SHARE):
    """Seven padded columns, as in `Batch`, of a list of examples.

    examples: (token ids, prediction positions, label ids, segments,
    is_next), none longer than `max_len`.
    """
    columns = _empty_columns(len(examples), max_len,
                             vocab[special_of(vocab).pad], mask_share)
    (all_token_ids, all_segments, valid_lens, all_pred_positions,
     all_mlm_weights, all_mlm_labels, nsp_labels) = columns
    for i, (token_ids, pred_positions, mlm_pred_label_ids, segments,
            is_next) in enumerate(examples):
        all_token_ids[i, :len(token_ids)] = token_ids
        all_segments[i, :len(segments)] = segments
        valid_lens[i] = len(token_ids)
        all_pred_positions[i, :len(pred_positions)] = pred_positions
        all_mlm_weights[i, :len(pred_positions)] = 1
        all_mlm_labels[i, :len(pred_positions)] = mlm_pred_label_ids
        nsp_labels[i] = is_next
    return columns


def _num_preds(num_tokens, mask_share):
    """A share of the tokens, rounded as Python rounds (a half to even)."""
    return max(1, round(num_tokens * mask_share))


def _empty_columns(num_examples, max_len, pad, mask_share):
    shape_T = num_examples, max_len
    shape_P = num_examples, _num_preds(max_len, mask_share)
    return Batch(onp.full(shape_T, pad, 'int32'),
                 onp.zeros(shape_T, 'int32'),
                 onp.zeros(num_examples, 'float32'),
                 onp.zeros(shape_P, 'int32'),
                 onp.zeros(shape_P, 'float32'),
                 onp.zeros(shape_P, 'int32'),
                 onp.zeros(num_examples, 'float32'))


class _WikiTextDataset(gluon.data.Dataset):
    """Examples drawn from paragraphs (lists of sentences, strings).

    The columns lie on the host as NumPy arrays: all_token_ids (N, T),
    all_segments (N, T), valid_lens (N,), all_pred_positions (N, P),
    all_mlm_weights (N, P), all_mlm_labels (N, P), nsp_labels (N,); all
    together they are `columns`. An item is the tuple of its seven MXNet
    arrays. Raises ValueError where no example can be made.
    """

    def __init__(self, paragraphs, max_len, min_freq=MIN_FREQ, rng=random):
        _check_max_len(max_len)
        tokens = words.tokens_of_paragraphs(paragraphs)
        order = onp.arange(len(paragraphs), dtype='int32')
        self._draw(Corpus.of_tokens(tokens, order, min_freq), order, max_len,
                   rng)

    @classmethod
    def of_corpus(cls, corpus, order, max_len, rng=random):
        """Draw from a `Corpus` instead, its paragraphs in `order`."""
        _check_max_len(max_len)
        dataset = cls.__new__(cls)
        dataset._draw(corpus, order, max_len, rng)
        return dataset

    def _draw(self, corpus, order, max_len, rng):
        self.vocab = corpus.vocab
        self.columns = draw_examples(corpus, order, max_len, rng)
        if not len(self.columns.tokens_X):
            raise ValueError(no_pair_fits(max_len))
        (self.all_token_ids, self.all_segments, self.valid_lens,
         self.all_pred_positions, self.all_mlm_weights,
         self.all_mlm_labels, self.nsp_labels) = self.columns

    def __getitem__(self, idx):
        return tuple(on_device(column[idx]) for column in self.columns)

    def __len__(self):
        return len(self.all_token_ids)


class BatchLoader:
    """Batches of a data set, in a new order each time they are gone through.

    Yields `Batch`es of MXNet arrays on the CPU; the last one may be smaller.
    The order comes from `rng`, NumPy's own stream by default, as in Gluon's
    DataLoader.
    """

    def __init__(self, dataset, batch_size, rng=onp.random):
        _check_batch_size(batch_size)
        self.dataset, self.batch_size, self.rng = dataset, batch_size, rng

    def __len__(self):
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self):
        order = onp.arange(len(self.dataset))
        self.rng.shuffle(order)
        for start in range(0, len(order), self.batch_size):
            rows = order[start:start + self.batch_size]
            yield Batch(*(on_device(column[rows])
                          for column in self.dataset.columns))


def get_dataloader_workers():
    """How many processes a Gluon `DataLoader` should read with: 0.

    The book's 4 are slower than this process alone, whose items are slices
    of columns.
    """
    return 0


def load_data_wiki(batch_size, max_len, data_dir=None, min_freq=MIN_FREQ,
                   rng=random, shuffle_rng=onp.random):
    """Batches of WikiText-2 for pretraining, and their vocabulary.

    data_dir: the folder that holds wiki.train.tokens; without it the text
    is looked for as `hub.wikitext2_dir` says. With `random` and NumPy
    seeded alike, vocabulary, examples and order are the book's.
    """
    _check_batch_size(batch_size)
    _check_max_len(max_len)
    return load_data(hub.wikitext2_dir(data_dir) / hub.TRAIN_FILE,
                     batch_size, max_len, min_freq, rng, shuffle_rng)


def load_data(path, batch_size, max_len, min_freq=MIN_FREQ, rng=random,
              shuffle_rng=onp.random):
    """Batches of any UTF-8 text in WikiText's format, and the vocabulary.

    The file may be packed, as `textfiles` says.

    A line is a paragraph if ' . ' ends its sentences; other lines (headings)
    are passed over. rng draws the examples, shuffle_rng their order.
    Raises FileNotFoundError, or ValueError for a text without examples.
    """
    _check_batch_size(batch_size)
    _check_max_len(max_len)
    tokens = words.read_tokens(path)
    try:
        order = shuffled_paragraphs(len(tokens.paragraphs) - 1, rng)
        corpus = Corpus.of_tokens(tokens, order, min_freq)
        dataset = _WikiTextDataset.of_corpus(corpus, order, max_len, rng)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None
    return BatchLoader(dataset, batch_size, shuffle_rng), dataset.vocab


def _check_batch_size(batch_size):
    if batch_size < 1:
        raise ValueError(f'batch_size={batch_size}: a batch holds at least '
                         '1 example')


def _check_max_len(max_len):
    if max_len < 5:
        raise ValueError(f'max_len={max_len}: <cls>, a word, <sep>, a word '
                         'and <sep> need at least 5')


def no_pair_fits(max_len):
    """What is wrong with a text of which nothing can be drawn."""
    return (f'not one pair of sentences fits max_len={max_len} with {CLS} '
            f'and two {SEP}: raise max_len')


# Whole columns at once

def draw_examples(corpus, order, max_len, rng=random, mask_share=MASK_SHARE,
                  first=0, last=None, whole_words=False, swap=False):
    """The examples of a corpus as columns: a `Batch` of NumPy arrays.

    order (paragraphs,) int32: how the paragraphs come, as the book's
    shuffled list has them. Examples are those of the sentences in
    order[first:last], their partners come from all. rng: `random` or a
    random.Random, left in the state in which the book's code leaves it.
    whole_words: hide all pieces of a word or none. swap: no partner is
    replaced; instead the two sentences of half of the pairs change places.
    """
    last = len(order) if last is None else last
    if draw.can_draw(rng):
        spans, is_next = draw.pairs(order, first, last, corpus.paragraphs,
                                    corpus.sentences, max_len, rng, swap)
        return mask_pairs(corpus, spans, is_next, max_len, rng, mask_share,
                          whole_words)
    paragraphs = ParagraphsOfWords(corpus, order)
    examples = []
    for k in range(first, last):
        examples.extend(_get_nsp_data_from_paragraph(
            paragraphs[k], paragraphs, corpus.vocab, max_len, rng, swap))
    return _mask_examples(examples, corpus.vocab, max_len, rng, mask_share,
                          whole_words)


def mask_pairs(corpus, spans, is_next, max_len, rng=random,
               mask_share=MASK_SHARE, whole_words=False):
    """The same for pairs that are given by where their words stand.

    spans (N, 4) int64: begin and end of the first, begin and end of the
    second, max_len tokens at most with <cls> and two <sep>; is_next (N,).
    """
    vocab = corpus.vocab
    if not draw.can_draw(rng):
        return _mask_examples(
            [(*get_tokens_and_segments(words_of(corpus, *span[:2]),
                                       words_of(corpus, *span[2:]),
                                       *vocab.special[2:]), follows)
             for span, follows in zip(spans.tolist(), is_next)],
            vocab, max_len, rng, mask_share, whole_words)
    pad, mask, cls, sep = vocab[vocab.special]
    columns = _empty_columns(len(spans), max_len, pad, mask_share)
    num_preds = onp.array([_num_preds(n, mask_share)
                           for n in range(max_len + 1)], 'int32')
    types, spans = corpus.gathered(spans)
    draw.masks(spans, types, corpus.numbers,
               (pad, mask, cls, sep, len(vocab)), num_preds, columns[:6], rng,
               vocab.kinds, vocab.replacement_ids, whole_words)
    columns.nsp_y[:] = is_next
    return columns


def _mask_examples(examples, vocab, max_len, rng, mask_share, whole_words):
    """Hide words of examples (tokens, segments, is_next); their columns."""
    return _pad_bert_inputs(
        [(*_get_mlm_data_from_tokens(tokens, vocab, rng, mask_share,
                                     whole_words), segments, is_next)
         for tokens, segments, is_next in examples],
        max_len, vocab, mask_share)
