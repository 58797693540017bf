"""Byte pair encodings from original files, by the library `tokenizers`.

RoBERTa (byte level), HerBERT and FlauBERT (characters) have vocab.json and
merges.txt. PhoBERT has vocab.txt and bpe.codes. Source: Sennrich et al. 2016.
"""
from pathlib import Path
from typing import Any, NamedTuple

from d2lbert.machine.terminal import warn
from d2lbert.pretrained.tokenizers.word_pieces import (
    TokenizerError,
    by_number,
    library,
    read_json,
)

VOCAB, VOCAB_JSON, MERGES, CODES = (
    'vocab.txt', 'vocab.json', 'merges.txt', 'bpe.codes')

#: The end of the last piece of a word in encodings of characters.
END = '</w>'


class Read(NamedTuple):
    """A tokenizer that was read from its files."""

    tokenizer: Any          # of the library
    special: dict           # {role: token}
    tokens: Any = None      # tokens of the model; others become <unk>
    files: Any = None       # {name: text}, to be saved again


def has_files(folder):
    """True if a folder has the files of a byte pair encoding."""
    return any((Path(folder) / name).is_file() for name in (VOCAB_JSON,
                                                            CODES))


def read(folder, config, special_of):
    """Read the byte pair encoding in a folder: a `Read`.

    config: the settings of the tokenizer; special_of(vocab, config, path)
    returns its special tokens. Raises `TokenizerError`.
    """
    folder = Path(folder)
    first, second = ((VOCAB, CODES) if (folder / CODES).is_file()
                     else (VOCAB_JSON, MERGES))
    for name, other in (first, second), (second, first):
        if not (folder / name).is_file():
            raise TokenizerError(f'{folder} has {other} but no {name}: fetch '
                                 'this file, or tokenizer.json')
    if second == CODES:
        return _phobert(folder, config, special_of)
    vocab = read_json(folder / VOCAB_JSON)
    if not all(type(idx) is int and idx >= 0 for idx in vocab.values()):
        raise TokenizerError(f'{folder / VOCAB_JSON} is damaged: it must map '
                             'tokens to their ids; fetch it again')
    by_number(vocab, folder / VOCAB_JSON)
    if not any(token.endswith(END) for token in vocab):
        return _roberta(folder, vocab, config, special_of)
    if '<special1>' in vocab:
        return _flaubert(folder, vocab, config, special_of)
    return _herbert(folder, vocab, config, special_of)


def _roberta(folder, vocab, config, special_of):
    """Byte-level pairs; a blank belongs to the word after it."""
    t, path = library(), folder / VOCAB_JSON
    special = special_of(vocab, config, path)
    prefix = config.get('add_prefix_space') is True
    trims = config.get('trim_offsets') is not False
    tokenizer = _construct(path, vocab, _pairs(folder / MERGES))
    tokenizer.pre_tokenizer = t.pre_tokenizers.ByteLevel(
        add_prefix_space=prefix)
    tokenizer.decoder = t.decoders.ByteLevel()
    # The mask replaces a word with the blank before it
    tokenizer.add_special_tokens([
        t.AddedToken(token, lstrip=role == 'mask', normalized=False)
        for role, token in special.items()])
    tokenizer.post_processor = t.processors.RobertaProcessing(
        *_ends(special, vocab), trims, prefix)
    return Read(tokenizer, special)


def _herbert(folder, vocab, config, special_of):
    """Pairs of characters in words, split as in BERT but cased."""
    t, path = library(), folder / VOCAB_JSON
    special = special_of(vocab, config, path)
    tokenizer = _construct(path, vocab, _pairs(folder / MERGES),
                      unk_token=special['unk'], end_of_word_suffix=END)
    tokenizer.normalizer = t.normalizers.BertNormalizer(
        lowercase=False, strip_accents=False, clean_text=True,
        handle_chinese_chars=True)
    tokenizer.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = t.decoders.BPEDecoder(suffix=END)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.BertProcessing(
        *_ends(special, vocab))
    return Read(tokenizer, special)


def _flaubert(folder, vocab, config, special_of):
    """Pairs of characters in words between white space."""
    t, path = library(), folder / VOCAB_JSON
    # Texts begin with <s>, although cls_token may be another token
    special = special_of(vocab, {'mask_token': '<special1>', **config,
                                 'cls_token': config.get('bos_token', '<s>')},
                         path)
    tokens = by_number(vocab, path)
    merges = _pairs(folder / MERGES)
    tokenizer = _construct(path, _with_merges(vocab, merges), merges,
                      unk_token=special['unk'], end_of_word_suffix=END)
    normalizers = [t.normalizers.Replace('``', '"'),
                   t.normalizers.Replace("''", '"'), t.normalizers.NFC()]
    if config.get('do_lowercase') is True:
        normalizers.append(t.normalizers.Lowercase())
    tokenizer.normalizer = t.normalizers.Sequence(normalizers)
    tokenizer.pre_tokenizer = _blank_splitter()
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.BertProcessing(
        *_ends(special, vocab))
    warn(f'{folder}: words are split at blanks, but FlauBERT was trained on '
         'text of the Moses tokenizer: give it such text (the library '
         'sacremoses makes it)')
    return Read(tokenizer, special, tokens, _texts(
        folder, VOCAB_JSON, MERGES))


def _phobert(folder, config, special_of):
    """Pairs of characters in segmented Vietnamese words: `h@@ ọc_sinh`."""
    t, path = library(), folder / VOCAB
    # Special tokens come before the tokens in the file
    vocab = {token: idx for idx, token in enumerate(
        config.get(f'{role}_token', token) for role, token in (
            ('bos', '<s>'), ('pad', '<pad>'), ('eos', '</s>'),
            ('unk', '<unk>')))}
    special_first = list(vocab)
    for number, line in enumerate(_lines(path), 1):
        token, blank, _ = line.strip().rpartition(' ')
        if not blank:
            raise TokenizerError(f'{path}, line {number}: expected a token, '
                                 'a blank and a count')
        vocab[token] = len(vocab)
    mask = config.get('mask_token', '<mask>')
    vocab.setdefault(mask, len(vocab))
    special = special_of(vocab, config, path)
    tokens = by_number(vocab, path)
    # In PhoBERT's files @@ ends pieces within a word; here END ends the
    # last piece of a word
    ours = {token if token in special_first or token == mask
            else token[:-2] if token.endswith('@@') and len(token) > 2
            else token + END: idx for token, idx in vocab.items()}
    merges = _pairs(folder / CODES)
    tokenizer = _construct(path, _with_merges(ours, merges), merges,
                      unk_token=special['unk'], end_of_word_suffix=END)
    # A line end belongs to the word before it
    tokenizer.pre_tokenizer = _blank_splitter('\n?')
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.RobertaProcessing(
        *_ends(special, vocab), False, False)
    return Read(tokenizer, special, tokens, _texts(folder, VOCAB, CODES))


def _construct(path, vocab, merges, **keywords):
    """Construct the library's tokenizer with these merges."""
    t = library()
    try:
        return t.Tokenizer(t.models.BPE(vocab, merges, **keywords))
    except Exception as error:      # the library raises no specific one
        raise TokenizerError(f'{path} and its pairs do not belong together '
                             f'({error}): fetch both files again'
                             ) from None


def _blank_splitter(more=''):
    """The pre-tokenizer that splits at white space, as str.split does.

    more: a regular expression of what else ends a part.
    """
    t = library()
    return t.pre_tokenizers.Split(t.Regex(f'[^\\s\x1c-\x1f]+{more}'),
                                  'removed', invert=True)


def _with_merges(vocab, merges):
    """The vocabulary with all parts and results of merges added.

    Added tokens have ids after all others.
    """
    found = dict(vocab)
    beyond = 1 + max(found.values())
    for pair in merges:
        for token in (*pair, ''.join(pair)):
            if token not in found:
                found[token] = beyond
                beyond += 1
    return found


def _pairs(path):
    """Read merges in their order: a pair in each line, and maybe a count."""
    found = []
    for number, line in enumerate(_lines(path), 1):
        if number == 1 and line.startswith('#version'):
            continue
        pair = tuple(line.split()[:2])
        if len(pair) < 2:
            raise TokenizerError(f'{path}, line {number}: expected two '
                                 'pieces with a blank between them')
        found.append(pair)
    return found


def _lines(path):
    try:
        text = path.read_text('utf-8')
    except UnicodeDecodeError as error:
        raise TokenizerError(f'{path} is damaged: not UTF-8 at byte '
                             f'{error.start}; fetch it again') from None
    lines = text.split('\n')
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _texts(folder, *names):
    """The content of some files: {name: text}."""
    return {name: (folder / name).read_text('utf-8') for name in names}


def _ends(special, vocab):
    """The tokens after and before a text, each with its id."""
    return tuple((special[role], vocab[special[role]])
                 for role in ('sep', 'cls'))
