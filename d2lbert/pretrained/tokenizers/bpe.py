"""Byte pair encodings of others, by the library `tokenizers`.

Read from the files that their own programs wrote: vocab.json with
merges.txt, of RoBERTa (pairs of bytes), HerBERT and FlauBERT (of letters),
and PhoBERT's vocab.txt with bpe.codes. Source: Sennrich et al. 2016.
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

#: How the last piece of a word ends where pairs are of letters.
END = '</w>'


class Read(NamedTuple):
    """What the files of a tokenizer say."""

    tokenizer: Any          # of the library
    special: dict           # {role: token}
    tokens: Any = None      # those that the model knows; others are <unk>
    files: Any = None       # {name: text}, as they are written again


def is_of_pairs(folder):
    """Whether a folder without tokenizer.json has such files."""
    return any((Path(folder) / name).is_file() for name in (VOCAB_JSON,
                                                            CODES))


def read(folder, config, special_of):
    """The `Read` of a folder; config: what it says of its tokenizer.

    special_of(vocab, config, path) gives the special tokens. Raises
    `TokenizerError`.
    """
    folder = Path(folder)
    first, second = ((VOCAB, CODES) if (folder / CODES).is_file()
                     else (VOCAB_JSON, MERGES))
    for name, other in (first, second), (second, first):
        if not (folder / name).is_file():
            raise TokenizerError(f'{folder} has {other} and no {name}, which '
                                 'belongs to it: fetch it, or tokenizer.json')
    if second == CODES:
        return _phobert(folder, config, special_of)
    vocab = read_json(folder / VOCAB_JSON)
    if not all(type(idx) is int and idx >= 0 for idx in vocab.values()):
        raise TokenizerError(f'{folder / VOCAB_JSON} is damaged: it must give '
                             'each token its number; fetch it again')
    by_number(vocab, folder / VOCAB_JSON)
    if not any(token.endswith(END) for token in vocab):
        return _roberta(folder, vocab, config, special_of)
    if '<special1>' in vocab:
        return _flaubert(folder, vocab, config, special_of)
    return _herbert(folder, vocab, config, special_of)


def _roberta(folder, vocab, config, special_of):
    """Pairs of bytes; a blank belongs to the word that follows it."""
    t, path = library(), folder / VOCAB_JSON
    special = special_of(vocab, config, path)
    prefix = config.get('add_prefix_space') is True
    trims = config.get('trim_offsets') is not False
    tokenizer = _made(path, vocab, _pairs(folder / MERGES))
    tokenizer.pre_tokenizer = t.pre_tokenizers.ByteLevel(
        add_prefix_space=prefix)
    tokenizer.decoder = t.decoders.ByteLevel()
    # The mask stands for a word with the blank before it
    tokenizer.add_special_tokens([
        t.AddedToken(token, lstrip=role == 'mask', normalized=False)
        for role, token in special.items()])
    tokenizer.post_processor = t.processors.RobertaProcessing(
        *_ends(special, vocab), trims, prefix)
    return Read(tokenizer, special)


def _herbert(folder, vocab, config, special_of):
    """Pairs of letters in words as BERT cuts them, with their capitals."""
    t, path = library(), folder / VOCAB_JSON
    special = special_of(vocab, config, path)
    tokenizer = _made(path, vocab, _pairs(folder / MERGES),
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
    """Pairs of letters in words that blanks part."""
    t, path = library(), folder / VOCAB_JSON
    # Its texts begin with <s>, whatever is called its cls token
    special = special_of(vocab, {'mask_token': '<special1>', **config,
                                 'cls_token': config.get('bos_token', '<s>')},
                         path)
    tokens = by_number(vocab, path)
    merges = _pairs(folder / MERGES)
    tokenizer = _made(path, _with_all(vocab, merges), merges,
                      unk_token=special['unk'], end_of_word_suffix=END)
    normalizers = [t.normalizers.Replace('``', '"'),
                   t.normalizers.Replace("''", '"'), t.normalizers.NFC()]
    if config.get('do_lowercase') is True:
        normalizers.append(t.normalizers.Lowercase())
    tokenizer.normalizer = t.normalizers.Sequence(normalizers)
    tokenizer.pre_tokenizer = _blanks_part()
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.BertProcessing(
        *_ends(special, vocab))
    warn(f'{folder}: words are taken as blanks part them; FlauBERT learnt '
         'from text that the tokenizer of Moses had cut (the library '
         'sacremoses has it): give it such text')
    return Read(tokenizer, special, tokens, _texts(
        folder, VOCAB_JSON, MERGES))


def _phobert(folder, config, special_of):
    """Pairs of letters in Vietnamese words, cut before: `h@@ ọc_sinh`."""
    t, path = library(), folder / VOCAB
    vocab = {token: idx for idx, token in enumerate(
        config.get(f'{role}_token', token) for role, token in (
            ('bos', '<s>'), ('pad', '<pad>'), ('eos', '</s>'),
            ('unk', '<unk>')))}
    first = list(vocab)
    for number, line in enumerate(_lines(path), 1):
        token, blank, _ = line.strip().rpartition(' ')
        if not blank:
            raise TokenizerError(f'{path}, line {number}: expected a token, '
                                 'a blank and how often it occurs')
        vocab[token] = len(vocab)
    mask = config.get('mask_token', '<mask>')
    vocab.setdefault(mask, len(vocab))
    special = special_of(vocab, config, path)
    tokens = by_number(vocab, path)
    # There @@ ends what goes on; here END what does not
    ours = {token if token in first or token == mask else token[:-2]
            if token.endswith('@@') and len(token) > 2 else token + END: idx
            for token, idx in vocab.items()}
    merges = _pairs(folder / CODES)
    tokenizer = _made(path, _with_all(ours, merges), merges,
                      unk_token=special['unk'], end_of_word_suffix=END)
    # A line's end belongs to the word before it
    tokenizer.pre_tokenizer = _blanks_part('\n?')
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.post_processor = t.processors.RobertaProcessing(
        *_ends(special, vocab), False, False)
    return Read(tokenizer, special, tokens, _texts(folder, VOCAB, CODES))


def _made(path, vocab, merges, **keywords):
    """A tokenizer of the library that joins pairs."""
    t = library()
    try:
        return t.Tokenizer(t.models.BPE(vocab, merges, **keywords))
    except Exception as error:      # the library raises no other
        raise TokenizerError(f'{path} and the pairs beside it do not belong '
                             f'together ({error}): fetch both again'
                             ) from None


def _blanks_part(more=''):
    """What splits a text into words; blanks are those of Python."""
    t = library()
    return t.pre_tokenizers.Split(t.Regex(f'[^\\s\x1c-\x1f]+{more}'),
                                  'removed', invert=True)


def _with_all(vocab, merges):
    """A vocabulary with all that pairs are made of, and make.

    What is new has numbers beyond those of the others.
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
    """What is joined, in this order: a pair a line, and perhaps a count."""
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
    return {name: (folder / name).read_text('utf-8') for name in names}


def _ends(special, vocab):
    """The tokens behind and before a text, with their numbers."""
    return tuple((special[role], vocab[special[role]])
                 for role in ('sep', 'cls'))
