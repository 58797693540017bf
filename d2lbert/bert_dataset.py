"""The book's page "The Dataset for Pretraining BERT".

The functions from `_read_wiki` to `_pad_bert_inputs` work on lists, as in the
book. `load_data_wiki` draws examples faster, with texts/examples.py. From the
same random state, both ways make the examples of the book's code. A column is
the array of one field of all examples. NSP is next sentence prediction, MLM
the masked language model.

Letters in shapes: N examples, T tokens of a row (max_len), P predictions of a
row (15% of T).
"""
import random

import numpy as onp

from d2lbert import hub
from d2lbert.bert import get_tokens_and_segments
from d2lbert.machine.backend import gluon
from d2lbert.nn.checks import on_device
from d2lbert.text import Vocab, special_of
from d2lbert.texts import numbered_text
from d2lbert.texts.examples import (
    Batch,
    check_batch_size,
    check_max_len,
    draw_examples,
    empty_columns,
    no_pair_message,
    num_predictions,
)
from d2lbert.texts.numbered_text import (
    MIN_FREQ,
    NumberedText,
    shuffled_paragraphs,
)


def _read_wiki(data_dir=None, rng=random):
    """Return the shuffled paragraphs of wiki.train.tokens.

    A paragraph is a list of lower-case sentences (strings). data_dir: as for
    `load_data_wiki`; the book's living edition gives none.
    """
    paragraphs = numbered_text.paragraphs_of_lines(numbered_text.read_lines(
        hub.wikitext2_dir(data_dir) / hub.TRAIN_FILE))
    rng.shuffle(paragraphs)
    return paragraphs


def _get_next_sentence(sentence, next_sentence, paragraphs, rng=random):
    """Return (sentence, second sentence, is_next).

    The second sentence is next_sentence or a random sentence of `paragraphs`,
    each with probability 0.5.
    """
    if rng.random() < 0.5:
        return sentence, next_sentence, True
    return sentence, rng.choice(rng.choice(paragraphs)), False


def _get_nsp_data_from_paragraph(paragraph, paragraphs, vocab, max_len,
                                 rng=random):
    """Return a list of NSP examples (tokens, segments, is_next).

    paragraph: a list of sentences, which are lists of tokens. Random second
    sentences come from `paragraphs`. Examples of more than `max_len` tokens
    are dropped.
    """
    examples = []
    special = special_of(vocab)
    for sentence, next_sentence in zip(paragraph, paragraph[1:]):
        tokens_a, tokens_b, is_next = _get_next_sentence(
            sentence, next_sentence, paragraphs, rng)
        # 3: <cls> and two <sep>
        if len(tokens_a) + len(tokens_b) + 3 <= max_len:
            tokens, segments = get_tokens_and_segments(
                tokens_a, tokens_b, special.cls, special.sep)
            examples.append((tokens, segments, is_next))
    return examples


def _replace_mlm_tokens(tokens, candidate_pred_positions, num_mlm_preds,
                        vocab, rng=random):
    """Mask up to `num_mlm_preds` tokens, at random candidate positions.

    A masked token becomes <mask> with probability 0.8, and a random token with
    probability 0.1; else it stays. Returns the new tokens and a list of
    (position, original token). Shuffles `candidate_pred_positions` in place.
    """
    mask = special_of(vocab).mask
    mlm_input_tokens = list(tokens)
    rng.shuffle(candidate_pred_positions)
    positions = candidate_pred_positions[:num_mlm_preds]
    for position in positions:
        if rng.random() < 0.8:
            mlm_input_tokens[position] = mask
        elif rng.random() >= 0.5:   # a half of the other 0.2
            # The `Vocab` of the book's package has no `replacements`
            mlm_input_tokens[position] = rng.choice(
                getattr(vocab, 'replacements', vocab.idx_to_token))
    return mlm_input_tokens, [(position, tokens[position])
                              for position in positions]


def _get_mlm_data_from_tokens(tokens, vocab, rng=random):
    """Mask about 15% of the tokens: (ids, masked positions, original ids)."""
    # The `Vocab` of the book's package has no `never_masked`
    never_masked = getattr(vocab, 'never_masked', Vocab.never_masked)
    candidates = [position for position, token in enumerate(tokens)
                  if token not in never_masked]
    mlm_input_tokens, preds = _replace_mlm_tokens(
        tokens, candidates, num_predictions(len(tokens)), vocab, rng)
    preds.sort()
    return (vocab[mlm_input_tokens], [position for position, _ in preds],
            vocab[[token for _, token in preds]])


def _pad_bert_inputs(examples, max_len, vocab):
    """Pad examples and return a `Batch` of their seven columns.

    examples: a list of (token ids, masked positions, label ids, segments,
    is_next), each of at most `max_len` tokens.
    """
    columns = empty_columns(len(examples), max_len,
                            vocab[special_of(vocab).pad])
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


class _WikiTextDataset(gluon.data.Dataset):
    """Pretraining examples, drawn from paragraphs.

    paragraphs: lists of sentences (strings). Words that occur less than
    min_freq times become <unk>. `columns` is a `Batch` of NumPy arrays, which
    are also attributes: all_token_ids (N, T), all_segments (N, T), valid_lens
    (N,), all_pred_positions (N, P), all_mlm_weights (N, P), all_mlm_labels
    (N, P), nsp_labels (N,). An item is one example, a tuple of MXNet arrays.
    Raises ValueError if no example can be made.
    """

    def __init__(self, paragraphs, max_len, min_freq=MIN_FREQ, rng=random):
        check_max_len(max_len)
        tokenized = numbered_text.tokens_of_paragraphs(paragraphs)
        # The paragraphs are shuffled already, so they keep their order
        order = onp.arange(len(paragraphs), dtype='int32')
        self._set_columns(NumberedText.of_tokens(tokenized, order, min_freq),
                          order, max_len, rng)

    @classmethod
    def of_text(cls, text, order, max_len, rng=random):
        """Make a data set of a `NumberedText`; order: see `draw_examples`."""
        check_max_len(max_len)
        dataset = cls.__new__(cls)
        dataset._set_columns(text, order, max_len, rng)
        return dataset

    def _set_columns(self, text, order, max_len, rng):
        self.vocab = text.vocab
        self.columns = draw_examples(text, order, max_len, rng)
        (self.all_token_ids, self.all_segments, self.valid_lens,
         self.all_pred_positions, self.all_mlm_weights,
         self.all_mlm_labels, self.nsp_labels) = self.columns
        if not len(self):
            raise ValueError(no_pair_message(max_len))

    def __getitem__(self, idx):
        return tuple(on_device(column[idx]) for column in self.columns)

    def __len__(self):
        return len(self.all_token_ids)


class BatchLoader:
    """An iterable of batches of a data set; each epoch shuffles the rows.

    dataset: an object of length N whose `columns` are NumPy arrays of N rows.
    A batch is a `Batch` of MXNet arrays; the last batch may be smaller. The
    default rng is NumPy's global generator, as in Gluon's `DataLoader`.
    """

    def __init__(self, dataset, batch_size, rng=onp.random):
        check_batch_size(batch_size)
        self.dataset, self.batch_size, self.rng = dataset, batch_size, rng

    def __len__(self):
        return -(-len(self.dataset) // self.batch_size)     # rounded up

    def __iter__(self):
        all_rows = onp.arange(len(self.dataset))
        self.rng.shuffle(all_rows)
        for start in range(0, len(all_rows), self.batch_size):
            rows = all_rows[start:start + self.batch_size]
            yield Batch(*(on_device(column[rows])
                          for column in self.dataset.columns))


def get_dataloader_workers():
    """Return the number of processes for a Gluon `DataLoader`: 0.

    The book returns 4. Here an item is read so fast that worker processes
    would cost more time than they save.
    """
    return 0


def load_data_wiki(batch_size, max_len, data_dir=None, min_freq=MIN_FREQ,
                   rng=random, shuffle_rng=onp.random):
    """Return a `BatchLoader` of WikiText-2 for pretraining, and its `Vocab`.

    data_dir: the folder of wiki.train.tokens or wikitext-2/wiki.train.tokens;
    by default `hub.wikitext2_dir` finds or fetches the text. The other
    arguments are as for `load_data`. From the same seeds of `random` and
    NumPy, the book's code makes the same vocabulary and the same examples in
    the same order.
    """
    # Checked here, too, before WikiText-2 is fetched
    check_batch_size(batch_size)
    check_max_len(max_len)
    return load_data(hub.wikitext2_dir(data_dir) / hub.TRAIN_FILE,
                     batch_size, max_len, min_freq, rng, shuffle_rng)


def load_data(path, batch_size, max_len, min_freq=MIN_FREQ, rng=random,
              shuffle_rng=onp.random):
    """Return a `BatchLoader` of a text in WikiText's format, and its `Vocab`.

    path: a UTF-8 text file, compressed or not (see texts/text_files.py). A
    line that contains ' . ' is a paragraph, and ' . ' separates its sentences.
    Other lines, such as headings, are skipped. Words that occur less than
    min_freq times become <unk>. rng shuffles the paragraphs and draws the
    examples; shuffle_rng shuffles the examples in each epoch. Raises
    FileNotFoundError for a missing file, and ValueError for a text that is not
    UTF-8 or has no examples.
    """
    check_batch_size(batch_size)
    check_max_len(max_len)
    tokenized = numbered_text.read_tokens(path)
    num_paragraphs = len(tokenized.paragraphs) - 1
    try:
        order = shuffled_paragraphs(num_paragraphs, rng)
        # `order` also sorts equally frequent words in the vocabulary
        text = NumberedText.of_tokens(tokenized, order, min_freq)
        dataset = _WikiTextDataset.of_text(text, order, max_len, rng)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from None
    return BatchLoader(dataset, batch_size, shuffle_rng), dataset.vocab
