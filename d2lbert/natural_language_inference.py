"""Data set and net of the page "Natural Language Inference: Fine-Tuning BERT".

`read_snli` is from the page "Natural Language Inference and the Dataset".

In shapes, letters are numbers. N: examples of a data set. B: examples of a
batch. T: tokens of a row (max_len). H: hidden units.
"""
from pathlib import Path

import numpy as onp

from d2lbert import hub
from d2lbert.bert import BERTModel
from d2lbert.devices import try_all_gpus
from d2lbert.machine.backend import gluon, nn
from d2lbert.machine.files import read_json
from d2lbert.nn.layers import Dense, load_parameters
from d2lbert.nn.packed import encode_first_tokens
from d2lbert.text import CLS, PAD, RESERVED, SEP, UNK, Vocab, tokenize
from d2lbert.texts.examples import check_max_len, truncate_pair
from d2lbert.texts.numbered_text import concat_ranges, tree_words

#: The labels of SNLI; the index of a label is its class.
SNLI_LABELS = 'entailment', 'contradiction', 'neutral'

#: {archive: (num_hiddens, ffn_num_hiddens, num_heads, num_layers)}.
SIZES = {'bert.small': (256, 512, 4, 2), 'bert.base': (768, 3072, 12, 12)}


def read_snli(data_dir, is_train):
    """Return premises, hypotheses and labels (0 to 2): three lists of N.

    Reads snli_1.0_train.txt or snli_1.0_test.txt in `data_dir`. If annotators
    disagreed, a pair has no label and is left out. Sentences are parse trees
    without their brackets, so blanks separate words from punctuation marks.
    Raises FileNotFoundError for a missing file, ValueError for a labelled line
    without two trees or for a file that is not UTF-8.
    """
    path = Path(data_dir, f'snli_1.0_{"train" if is_train else "test"}.txt')
    class_indices = {label: k for k, label in enumerate(SNLI_LABELS)}
    premises, hypotheses, labels = [], [], []
    try:
        with open(path, encoding='utf-8') as file:
            for line_number, line in enumerate(file, 1):
                label, *trees = line.rstrip('\n').split('\t', 3)[:3]
                if line_number == 1 or label not in class_indices:
                    continue    # the header, or '-' for a disagreement
                if len(trees) < 2:
                    raise ValueError(
                        f'{path}, line {line_number}: expected a label and '
                        'two sentences, separated by tabs, but found '
                        f'{1 + len(trees)} columns: fetch SNLI again')
                premises.append(tree_words(trees[0]))
                hypotheses.append(tree_words(trees[1]))
                labels.append(class_indices[label])
    except FileNotFoundError:
        raise FileNotFoundError(
            f'{data_dir} has no {path.name}: data_dir must be the folder '
            "snli_1.0 of the archive that download_extract('SNLI') fetches"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f'{path} is not UTF-8 ({error.reason}): fetch '
                         'SNLI again') from None
    return premises, hypotheses, labels


def load_pretrained_model(pretrained_model, num_hiddens=None,
                          ffn_num_hiddens=None, num_heads=None,
                          num_layers=None, dropout=0.1, max_len=512,
                          devices=None, *, num_blks=None):
    """Load the book's own pretrained BERT; return (bert, vocab).

    pretrained_model: 'bert.small', 'bert.base', or the name of another archive
    in DATA_HUB, for which all four sizes must be given: num_hiddens,
    ffn_num_hiddens, num_heads and num_layers. `num_layers` and `num_blks` are
    two names of one argument. An archive holds vocab.json (a list of tokens)
    and pretrained.params (parameters under the book's names). devices: None
    means `try_all_gpus()`. Raises HubError if the archive cannot be fetched,
    and ValueError if its files are damaged or do not have these sizes.
    """
    if num_layers is not None and num_blks is not None:
        raise TypeError('num_layers and num_blks are one argument: give one')
    given_sizes = (num_hiddens, ffn_num_hiddens, num_heads,
                   num_layers if num_blks is None else num_blks)
    known_sizes = SIZES.get(pretrained_model, (None, None, None, None))
    sizes = [known if given is None else given
             for given, known in zip(given_sizes, known_sizes)]
    if None in sizes:
        raise ValueError(f'the sizes of {pretrained_model!r} are not known '
                         'here: give num_hiddens, ffn_num_hiddens, num_heads '
                         'and num_layers')
    folder = Path(hub.download_extract(pretrained_model))
    vocab = _read_vocab(folder / 'vocab.json')
    bert = BERTModel(len(vocab), *sizes, dropout, max_len)
    params_path = folder / 'pretrained.params'
    if not params_path.is_file():
        raise ValueError(f'the archive of {pretrained_model} has no '
                         f'{params_path.name}')
    try:
        load_parameters(bert, params_path, devices or try_all_gpus())
    except (ValueError, OSError) as error:
        raise ValueError(
            f'{params_path} does not hold the parameters of a model of these '
            f'sizes ({", ".join(map(str, sizes))}; max_len {max_len}): '
            f'{error}') from None
    bert.vocab = vocab
    return bert, vocab


def _read_vocab(path):
    try:
        tokens = read_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f'{path} cannot be read: {error}') from None
    is_token_list = isinstance(tokens, list) and all(
        isinstance(token, str) for token in tokens)
    if not is_token_list or tokens[:1] != [UNK]:
        raise ValueError(f'{path} must hold a list of tokens that begins '
                         f'with {UNK}')
    vocab = Vocab()
    vocab.idx_to_token = tokens
    vocab.token_to_idx = {token: idx for idx, token in enumerate(tokens)}
    missing = [token for token in RESERVED
               if token not in vocab.token_to_idx]
    if missing:
        raise ValueError(f'{path} lacks {", ".join(missing)}')
    return vocab


class SNLIBERTDataset(gluon.data.Dataset):
    """Pairs of sentences as BERT reads them, truncated to max_len tokens.

    dataset: premises, hypotheses and labels, as `read_snli` returns them.
    vocab: the `Vocab` from `load_pretrained_model`. Sentences are lower-cased
    and split at white space. While a pair is too long, the last word of its
    longer sentence is removed. Attributes, NumPy arrays: all_token_ids (N, T)
    int32, all_segments (N, T) int32, valid_lens (N,) float32, labels (N,)
    float32. An item is ((token ids, segments, valid length), label).
    """

    def __init__(self, dataset, max_len, vocab=None):
        check_max_len(max_len)
        premises, hypotheses, labels = dataset
        if not len(premises) == len(hypotheses) == len(labels):
            raise ValueError(f'{len(premises)} premises, {len(hypotheses)} '
                             f'hypotheses and {len(labels)} labels: expected '
                             'the same number of each')
        if vocab is None:
            raise ValueError('vocab is missing: give the vocabulary that '
                             'load_pretrained_model returns')
        self.vocab, self.max_len = vocab, max_len
        self.labels = onp.array(labels, 'float32')
        (self.all_token_ids, self.all_segments,
         self.valid_lens) = self._inputs(_Sentences(premises, vocab),
                                         _Sentences(hypotheses, vocab))
        print(f'read {len(self)} examples')

    def _inputs(self, premises, hypotheses):
        """Return token ids, segments and valid lengths of two `_Sentences`."""
        # 3: <cls> and two <sep>. odd_to_first=True as in the book
        p_lens, h_lens = truncate_pair(premises.lens, hypotheses.lens,
                                       self.max_len - 3, odd_to_first=True)
        valid_lens = p_lens + h_lens + 3
        shape = len(valid_lens), self.max_len
        token_ids = onp.full(shape, self.vocab[PAD], 'int32')
        token_ids[:, 0] = self.vocab[CLS]
        rows, first_seps = onp.arange(len(valid_lens)), p_lens + 1
        token_ids[rows, first_seps] = self.vocab[SEP]
        token_ids[rows, valid_lens - 1] = self.vocab[SEP]
        premises.write_to(token_ids, p_lens, begins=onp.ones_like(p_lens))
        hypotheses.write_to(token_ids, h_lens, begins=first_seps + 1)
        positions = onp.arange(self.max_len)
        is_segment_1 = ((positions > first_seps[:, None])
                        & (positions < valid_lens[:, None]))
        return (token_ids, is_segment_1.astype('int32'),
                valid_lens.astype('float32'))

    def __getitem__(self, idx):
        return (self.all_token_ids[idx], self.all_segments[idx],
                self.valid_lens[idx]), self.labels[idx]

    def __len__(self):
        return len(self.labels)


class _Sentences:
    """N sentences as token ids; lens (N,): the number of words of each."""

    def __init__(self, sentences, vocab):
        id_of, unk = vocab.token_to_idx.get, vocab.unk
        tokenized = tokenize([sentence.lower() for sentence in sentences])
        self.lens = onp.array([len(words) for words in tokenized], 'int64')
        self._word_ids = onp.fromiter(
            (id_of(word, unk) for words in tokenized for word in words),
            'int32', self.lens.sum())

    def write_to(self, token_ids, kept_lens, begins):
        """Write the first kept_lens[i] words of each sentence i.

        They go to row i of token_ids (N, T), from position begins[i] on.
        """
        # For each word, its sentence and its index within the sentence
        rows = onp.repeat(onp.arange(len(self.lens)), self.lens)
        offsets = concat_ranges(0, self.lens)
        is_kept = offsets < kept_lens[rows]
        kept_rows, kept_offsets = rows[is_kept], offsets[is_kept]
        token_ids[kept_rows, begins[kept_rows] + kept_offsets] = (
            self._word_ids[is_kept])


class BERTClassifier(nn.Block):
    """The encoder and hidden layer of a BERT, and a head for three classes.

    bert: a `BERTModel`, whose layers are used, not copied.
    """

    def __init__(self, bert):
        super().__init__()
        if bert.hidden is None:
            raise ValueError('BERTClassifier needs a model with `hidden`: '
                             "positional must be 'learnable', and heads "
                             "must include 'pooler'")
        self.encoder = bert.encoder
        self.hidden = bert.hidden
        self.output = Dense(len(SNLI_LABELS), in_units=bert.hidden._units)

    def forward(self, inputs):
        """Return the scores of the three classes, (B, 3).

        inputs: tokens (B, T), segments (B, T) and valid lengths (B,).
        """
        tokens_X, segments_X, valid_lens_x = inputs
        cls_X = encode_first_tokens(self.encoder, tokens_X, segments_X,
                                    valid_lens_x)       # (B, H)
        return self.output(self.hidden(cls_X))
