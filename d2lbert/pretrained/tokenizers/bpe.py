"""This module loads byte pair encodings (BPE) from their original files.

A merge is a pair of tokens that BPE replaces by one token. RoBERTa, HerBERT
and FlauBERT have vocab.json and merges.txt. PhoBERT has vocab.txt and
bpe.codes. RoBERTa merges bytes, and the others merge characters. Source:
Sennrich et al. 2016.
"""
from pathlib import Path
from typing import Any, NamedTuple

from d2lbert.machine.terminal import warn
from d2lbert.pretrained.tokenizers.encoded import configured_token
from d2lbert.pretrained.tokenizers.word_pieces import (
    TokenizerError,
    library,
    read_json,
    tokens_by_id,
)

VOCAB, VOCAB_JSON, MERGES, CODES = (
    'vocab.txt', 'vocab.json', 'merges.txt', 'bpe.codes')

#: The suffix of tokens that end a word, in models that merge characters.
WORD_END = '</w>'


class LoadedBPE(NamedTuple):
    """A byte pair encoding: arguments of `WordPiece` in tokenizer.py."""

    tokenizer: Any
    special: dict
    tokens: Any = None
    files: Any = None


def has_files(folder):
    return any((Path(folder) / name).is_file()
               for name in (VOCAB_JSON, CODES))


def load(folder, config, special_of):
    """Load the byte pair encoding in a folder: a `LoadedBPE`.

    config: as `tokenizer._read_config` returns it. special_of: the function
    `tokenizer._special_tokens`, as an argument because tokenizer.py imports
    this module. Raises `TokenizerError` if a file is missing or damaged.
    """
    folder = Path(folder)
    vocab_name, merges_name = ((VOCAB, CODES) if (folder / CODES).is_file()
                               else (VOCAB_JSON, MERGES))
    for name, other in ((vocab_name, merges_name), (merges_name, vocab_name)):
        if not (folder / name).is_file():
            raise TokenizerError(f'{folder} has {other} but no {name}: fetch '
                                 'this file, or tokenizer.json')
    if merges_name == CODES:
        return _phobert(folder, config, special_of)
    vocab = read_json(folder / VOCAB_JSON)
    if not all(type(idx) is int and idx >= 0 for idx in vocab.values()):
        raise TokenizerError(f'{folder / VOCAB_JSON} is damaged: it must map '
                             'tokens to their ids; fetch it again')
    # Raises TokenizerError for ids that are too large
    tokens_by_id(vocab, folder / VOCAB_JSON)
    merges_bytes = not any(token.endswith(WORD_END) for token in vocab)
    if merges_bytes:
        return _roberta(folder, vocab, config, special_of)
    if '<special1>' in vocab:
        return _flaubert(folder, vocab, config, special_of)
    return _herbert(folder, vocab, config, special_of)


def _roberta(folder, vocab, config, special_of):
    """Load RoBERTa: BPE merges bytes; a space belongs to the next word."""
    t, path = library(), folder / VOCAB_JSON
    special = special_of(vocab, config, path)
    add_space = config.get('add_prefix_space') is True
    trim_offsets = config.get('trim_offsets') is not False
    tokenizer = _bpe_tokenizer(vocab, _read_merges(folder / MERGES), path)
    tokenizer.pre_tokenizer = t.pre_tokenizers.ByteLevel(
        add_prefix_space=add_space)
    tokenizer.decoder = t.decoders.ByteLevel()
    # The mask token also replaces the space before a masked word
    tokenizer.add_special_tokens([
        t.AddedToken(token, lstrip=role == 'mask', normalized=False)
        for role, token in special.items()])
    tokenizer.post_processor = t.processors.RobertaProcessing(
        *_sep_and_cls(special, vocab), trim_offsets, add_space)
    return LoadedBPE(tokenizer, special)


def _herbert(folder, vocab, config, special_of):
    """Load HerBERT: words as in the cased BERT; BPE merges characters."""
    t, path = library(), folder / VOCAB_JSON
    special = special_of(vocab, config, path)
    tokenizer = _bpe_tokenizer(
        vocab, _read_merges(folder / MERGES), path, unk_token=special['unk'],
        end_of_word_suffix=WORD_END)
    tokenizer.normalizer = t.normalizers.BertNormalizer(
        lowercase=False, strip_accents=False, clean_text=True,
        handle_chinese_chars=True)
    tokenizer.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = t.decoders.BPEDecoder(suffix=WORD_END)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.BertProcessing(
        *_sep_and_cls(special, vocab))
    return LoadedBPE(tokenizer, special)


def _flaubert(folder, vocab, config, special_of):
    """Load FlauBERT: words between white space; BPE merges characters."""
    t, path = library(), folder / VOCAB_JSON
    # FlauBERT puts bos_token before a text, and does not use cls_token
    special = special_of(vocab, {'mask_token': '<special1>', **config,
                                 'cls_token': config.get('bos_token', '<s>')},
                         path)
    tokens = tokens_by_id(vocab, path)
    merges = _read_merges(folder / MERGES)
    tokenizer = _bpe_tokenizer(
        _with_merges(vocab, merges), merges, path, unk_token=special['unk'],
        end_of_word_suffix=WORD_END)
    normalizers = [t.normalizers.Replace('``', '"'),
                   t.normalizers.Replace("''", '"'), t.normalizers.NFC()]
    if config.get('do_lowercase') is True:
        normalizers.append(t.normalizers.Lowercase())
    tokenizer.normalizer = t.normalizers.Sequence(normalizers)
    tokenizer.pre_tokenizer = _space_splitter()
    tokenizer.decoder = t.decoders.BPEDecoder(suffix=WORD_END)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.BertProcessing(
        *_sep_and_cls(special, vocab))
    warn(f'{folder}: words are split at blanks, but FlauBERT was trained on '
         'text of the Moses tokenizer: give it such text (the library '
         'sacremoses makes it)')
    return LoadedBPE(tokenizer, special, tokens,
                     _read_files(folder, VOCAB_JSON, MERGES))


def _phobert(folder, config, special_of):
    """Load PhoBERT: words between white space; BPE merges characters."""
    t, path = library(), folder / VOCAB
    # These four tokens have the first ids, but are not in vocab.txt
    first_tokens = [configured_token(config, role, default)
                    for role, default in (('bos', '<s>'), ('pad', '<pad>'),
                                          ('eos', '</s>'), ('unk', '<unk>'))]
    vocab = {token: idx for idx, token in enumerate(first_tokens)}
    for number, line in enumerate(_read_lines(path), 1):
        token, blank, _count = line.strip().rpartition(' ')
        if not blank:
            raise TokenizerError(f'{path}, line {number}: expected a token, '
                                 'a blank and a count')
        vocab[token] = len(vocab)
    mask = configured_token(config, 'mask', '<mask>')
    vocab.setdefault(mask, len(vocab))
    special = special_of(vocab, config, path)
    tokens = tokens_by_id(vocab, path)
    merges = _read_merges(folder / CODES)
    library_vocab = {
        token if token in (*first_tokens, mask) else _library_form(token): idx
        for token, idx in vocab.items()}
    tokenizer = _bpe_tokenizer(
        _with_merges(library_vocab, merges), merges, path,
        unk_token=special['unk'], end_of_word_suffix=WORD_END)
    # In PhoBERT a line feed belongs to the word before it
    tokenizer.pre_tokenizer = _space_splitter('\n?')
    tokenizer.decoder = t.decoders.BPEDecoder(suffix=WORD_END)
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.RobertaProcessing(
        *_sep_and_cls(special, vocab), trim_offsets=False,
        add_prefix_space=False)
    return LoadedBPE(tokenizer, special, tokens,
                     _read_files(folder, VOCAB, CODES))


def _library_form(token):
    """Convert a token of PhoBERT's vocab.txt to the library's form.

    PhoBERT marks tokens within a word, such as h@@. The library marks tokens
    that end a word, by WORD_END.
    """
    if token.endswith('@@') and len(token) > 2:
        return token[:-2]
    return token + WORD_END


def _bpe_tokenizer(vocab, merges, vocab_path, **options):
    t = library()
    try:
        return t.Tokenizer(t.models.BPE(vocab, merges, **options))
    except Exception as error:      # the library raises a bare Exception
        raise TokenizerError(f'{vocab_path} and the merges do not belong '
                             f'together ({error}): fetch both files again'
                             ) from None


def _space_splitter(kept_space=''):
    """Make the pre-tokenizer that splits at white space, as str.split does.

    kept_space: a regular expression for the white space that remains part of
    the word before it.
    """
    t = library()
    # str.split also splits at \x1c to \x1f, which \s does not match here
    return t.pre_tokenizers.Split(t.Regex(f'[^\\s\x1c-\x1f]+{kept_space}'),
                                  'removed', invert=True)


def _with_merges(vocab, merges):
    """Add the tokens of all merges to a copy: the library requires them."""
    extended = dict(vocab)
    next_id = 1 + max(extended.values())
    for pair in merges:
        for token in (*pair, ''.join(pair)):
            if token not in extended:
                extended[token] = next_id
                next_id += 1
    return extended


def _read_merges(path):
    """Read pairs of tokens; a line may have a count after its pair."""
    merges = []
    for number, line in enumerate(_read_lines(path), 1):
        if number == 1 and line.startswith('#version'):
            continue
        pair = tuple(line.split()[:2])
        if len(pair) < 2:
            raise TokenizerError(f'{path}, line {number}: expected two '
                                 'tokens with a blank between them')
        merges.append(pair)
    return merges


def _read_lines(path):
    """The lines of a UTF-8 file, without blank lines at the end."""
    try:
        text = path.read_text('utf-8')
    except UnicodeDecodeError as error:
        raise TokenizerError(f'{path} is damaged: not UTF-8 at byte '
                             f'{error.start}; fetch it again') from None
    lines = text.split('\n')
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _read_files(folder, *names):
    return {name: (folder / name).read_text('utf-8') for name in names}


def _sep_and_cls(special, vocab):
    """The tokens after and before a text: ((token, id), (token, id))."""
    return tuple((special[role], vocab[special[role]])
                 for role in ('sep', 'cls'))
