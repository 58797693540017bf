"""Word pieces, against transformers and the content of files."""
import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from d2lbert.machine import terminal
from d2lbert.pretrained.tokenizers import word_pieces
from d2lbert.pretrained.tokenizers.tokenizer import (
    MIN_CPP_TEXTS,
    WholeWords,
    WordPiece,
)
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import RESERVED, Vocab

pytest.importorskip('tokenizers')

HARD = json.loads(Path(__file__).with_name('hard_cases.json').read_text())
FIXTURES = Path(__file__).with_name('fixtures')

TEXT = '''\
 = Cranes =

 A crane is flying over the café . The cranes are flown by Ängström . <unk>
 don 't land ! 飛行 機 is an aeroplane .
'''


@pytest.fixture
def small(tmp_path):
    """A WordPiece of a few letters."""
    path = tmp_path / 'text.txt'
    path.write_text(TEXT * 3, 'utf-8')
    return WordPiece.train(path, 90)


@pytest.fixture(params=['minilm', 'tiny'])
def released(request):
    folder = Path(os.environ.get('D2LBERT_WEIGHTS', ''), request.param)
    if not folder.is_dir():
        pytest.skip(f'D2LBERT_WEIGHTS names no folder with {request.param}/')
    return folder


def ask(script, *arguments):
    """Run a script in D2LBERT_PEERS and return its JSON output."""
    python = os.environ['D2LBERT_PEERS']
    done = subprocess.run(
        [python, '-c', script, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=dict(os.environ, HF_HUB_OFFLINE='1', USE_TORCH='0'))
    assert not done.returncode, done.stderr
    return json.loads(done.stdout), done.stderr


HEAD = '''\
import hashlib, json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
'''
TEXTS = HEAD + '''\
texts = json.load(open(sys.argv[2]))
pairs = texts[7:] + texts[:7]
found = [tokenizer(texts, padding=False, return_offsets_mapping=True),
         tokenizer(texts, pairs, truncation=True, max_length=19,
                   padding=False, return_offsets_mapping=True)]
json.dump([[[e.input_ids[k], e.tokens(k), e.token_type_ids[k],
             [list(span) for span in e.offset_mapping[k]], e.word_ids(k)]
            for k in range(len(texts))] for e in found], sys.stdout)
'''
LINES = HEAD + '''\
lines = open(sys.argv[2], encoding='utf-8').read().split('\\n')
json.dump([hashlib.md5(str(ids).encode()).hexdigest() for ids in tokenizer(
    lines, truncation=False, padding=False).input_ids], sys.stdout)
'''
WORDS = HEAD + '''\
e = tokenizer(json.loads(sys.argv[2]), is_split_into_words=True,
              truncation=True, max_length=9, padding=False)
json.dump([e.input_ids, e.word_ids()], sys.stdout)
'''


def as_lists(encoded):
    return [encoded.ids, encoded.tokens, encoded.segments,
            [list(span) for span in encoded.offsets], encoded.words]


def assert_as_transformers(tokenizer, folder):
    found, errors = ask(TEXTS, folder,
                        Path(__file__).with_name('hard_cases.json'))
    assert_ids(tokenizer, *found)
    return errors


def assert_ids(tokenizer, alone, both):
    """Check the ids of the hard cases."""
    assert [as_lists(e) for e in tokenizer.encode_batch(HARD)] == alone
    assert [as_lists(e) for e in tokenizer.encode_batch(
        HARD, HARD[7:] + HARD[:7], 19)] == both


def test_hard_cases_are_as_in_transformers(peers_python, released):
    assert_as_transformers(WordPiece.load(released), released)


def test_lists_of_words_are_as_in_transformers(peers_python, released):
    words = ['The', 'cranes', 'unbelievably', '[SEP]', "don't", '中文', 'end']
    encoded = WordPiece.load(released).encode_words(words, max_len=9)
    (ids, numbers), _ = ask(WORDS, released, json.dumps(words))
    assert (encoded.ids, encoded.words) == (ids, numbers)


def test_wikitext_is_as_in_transformers(peers_python, released, wiki_dir):
    path = wiki_dir / 'wiki.valid.tokens'
    expected, _ = ask(LINES, released, path)
    lines = path.read_text('utf-8').split('\n')
    assert [hashlib.md5(str(e.ids).encode()).hexdigest() for e in
            WordPiece.load(released).encode_batch(lines)] == expected


OPTIONS = dict(lower=dict(lowercase=True), cased=dict(lowercase=False),
               accents=dict(lowercase=True, strip_accents=False),
               stripped=dict(lowercase=False, strip_accents=True))


def learnt(place, options):
    """A tokenizer, trained in the folder `place`."""
    text = place / 'text.txt'
    text.write_text(TEXT + '\n'.join(map(repr, HARD)), 'utf-8')
    return WordPiece.train(text, 900, **options)


@pytest.mark.parametrize('name', OPTIONS)
def test_ids_equal_recorded_ids_of_transformers(name, tmp_path):
    tokenizer = learnt(tmp_path, OPTIONS[name])
    answers = json.loads((FIXTURES / 'wordpiece.json').read_text('utf-8'))
    assert_ids(tokenizer, *answers[name])
    tokenizer.save(tmp_path)
    for part in ('tokenizer.json', '', 'vocab.txt'):
        again = WordPiece.load(tmp_path / part)
        assert again.encode_batch(HARD) == tokenizer.encode_batch(HARD)
        assert (len(again), again.max_len) == (len(tokenizer), 512)


@pytest.mark.parametrize('name', OPTIONS)
def test_transformers_loads_saved_tokenizers_alike(peers_python, name,
                                                   tmp_path):
    tokenizer = learnt(tmp_path, OPTIONS[name])
    tokenizer.save(tmp_path)
    assert not assert_as_transformers(tokenizer, tmp_path)
    if name == 'cased':    # vocab.txt and its settings
        (tmp_path / 'tokenizer.json').unlink()
        assert not assert_as_transformers(tokenizer, tmp_path)


# Without transformers

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


def test_training_is_the_same_in_every_process(tmp_path):
    text = tmp_path / 'text.txt'
    text.write_text(TEXT + ' '.join(HARD), 'utf-8', 'replace')
    script = ('import sys\n'
              "sys.argv[0] = 'd2lbert'\n"      # which waits for no MXNet
              'from d2lbert.pretrained.tokenizers.tokenizer import WordPiece\n'
              'print(ascii(WordPiece.train(sys.argv[1], 900).idx_to_token))')
    found = {subprocess.run(
        [sys.executable, '-c', script, str(text)], check=True, text=True,
        stdout=subprocess.PIPE, env=dict(os.environ, PYTHONHASHSEED=str(k),
                                         RAYON_NUM_THREADS=str(1 + k))
        ).stdout for k in range(3)}
    assert len(found) == 1


def test_pieces_are_special_tokens_letters_and_then_the_most_frequent(small):
    tokens = small.idx_to_token
    assert tokens[:5] == SPECIAL
    assert [small.pad_id, small.unk_id, small.cls_id, small.sep_id,
            small.mask_id] == list(range(5))
    letters = [token for token in tokens[5:] if len(token) == 1]
    more = [token for token in tokens if token.startswith('##')
            and len(token) == 3]
    assert tokens[5:5 + len(letters) + len(more)] == (
        sorted(letters) + sorted(more))
    # 'are' occurs once, in 'are', and 'an' in crane, cranes, an
    assert tokens.index('##an') < tokens.index('are')
    assert len(small) == 90 == len(small.token_to_idx)
    assert not {'A', 'Ä', 'ä', 'é', '<unk>'} & set(tokens)
    # WikiText's <unk> is not a word, and adds no letters
    assert '<' not in tokens and '飛' in tokens


def test_words_are_counted_and_rare_pairs_left_alone(monkeypatch):
    counts = {'ab': 5, 'abc': 3, 'xy': 1}
    tokens = WordPiece.of_counts(counts, 50).idx_to_token
    assert tokens[5:] == ['a', 'b', 'c', 'x', 'y', '##b', '##c', '##y',
                          'ab', 'abc']
    monkeypatch.setattr(word_pieces, 'MAX_TRAINING_WORDS', 1000)
    many = {word: count * 1000 for word, count in counts.items()}
    assert sum(text.count(' ') + 1
               for text in word_pieces._texts_of(many)) == 1000
    assert WordPiece.of_counts(many, 50).idx_to_token == [
        *tokens, 'xy']


def test_packed_and_several_files_are_read(tmp_path, small):
    half = len(TEXT) // 2
    (tmp_path / 'a.gz').write_bytes(gzip.compress((TEXT * 2).encode()))
    (tmp_path / 'b.txt').write_text(TEXT.replace('\n', '\r\n'), 'utf-8')
    again = WordPiece.train([tmp_path / 'a.gz', tmp_path / 'b.txt'], 90)
    assert half and again.idx_to_token == small.idx_to_token


def test_beyond_the_limit_the_rarest_words_are_dropped(tmp_path, monkeypatch):
    text = tmp_path / 'text.txt'
    text.write_text(' '.join(f'w{k} often' for k in range(60)))
    monkeypatch.setattr(word_pieces, 'MAX_DIFFERENT_WORDS', 20)
    text.write_text('\n'.join(f'w{k} often' for k in range(60)))
    counts = word_pieces.count_words(text)
    assert counts['often'] == 60 and len(counts) <= 20


def test_offsets_and_words_point_into_the_text(small):
    text = 'The  cranés, Ängström\tflying! zzz'
    encoded = small.encode(text)
    assert encoded.tokens == [small.idx_to_token[idx] for idx in encoded.ids]
    assert encoded.tokens[0] == '[CLS]' and encoded.tokens[-1] == '[SEP]'
    words = {}
    for (begin, end), word in zip(encoded.offsets, encoded.words):
        if word is not None:
            words[word] = words.get(word, '') + text[begin:end]
    assert list(words.values()) == ['The', 'cranés', ',', 'Ängström',
                                    'flying', '!', 'zzz']
    assert encoded.tokens[-2] == '[UNK]'


@pytest.mark.parametrize('lengths', [(0, 0), (0, 9), (9, 0), (3, 9), (9, 3),
                                     (9, 9), (9, 8), (8, 9), (5, 5), (1, 1)])
@pytest.mark.parametrize('max_len', [3, 4, 5, 8, 9, 12, 13, 40])
def test_the_longer_text_loses_its_last_pieces_first(small, lengths, max_len):
    a, b = ('a ' * lengths[0]).strip(), ('is ' * lengths[1]).strip()
    encoded = small.encode(a, b, max_len)
    counts = [encoded.segments.count(k) - 2 + k for k in range(2)]
    left = list(lengths)
    while sum(left) + 3 > max_len:      # one token at a time
        left[left[0] < left[1]] -= 1
    assert sum(counts) == sum(left) and sorted(counts) == sorted(left)
    assert len(encoded.ids) == sum(counts) + 3 <= max(max_len, 3)
    if lengths[0] != lengths[1] and abs(counts[0] - counts[1]) == 1:
        assert (counts[0] > counts[1]) == (lengths[0] > lengths[1])
    words = [(word, segment) for word, segment in zip(
        encoded.words, encoded.segments) if word is not None]
    assert words == [(k, 0) for k in range(counts[0])] + [
        (k, 1) for k in range(counts[1])]


def test_a_batch_is_its_texts_one_by_one_in_any_thread(small):
    texts = [f'crane {k} flies' * (k % 7) for k in range(60)]
    pairs = texts[::-1]
    expected = [small.encode(*both, max_len=9 + k % 3)
                for k, both in enumerate(zip(texts, pairs))]
    found, failed = {}, []

    def work(shift):
        try:
            found[shift] = small.encode_batch(texts, pairs, 9 + shift)
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for k, encoded in enumerate(expected):
        assert found[k % 3][k] == encoded
    assert small.encode_batch([]) == []
    assert small.encode_batch(iter(texts[:2])) == small.encode_batch(texts[:2])


def random_texts(rng, num_texts, tokens):
    """Texts of words, punctuation, blanks and now and then something odd."""
    odd = [*tokens, '[mask]', 'é', '鹤', '\t', '\n', '\r', '\x00', '\x1f',
           '\x7f', '\u200b', '##crane', 'x' * 101, 'y' * 100, "'" * 3]
    words = ['Crane', 'cranes', 'fly', 'FLYING', 'a', 'zyzzyva', '42', '...',
             "don't", '-', '(over)', 'under_score', ' ', '  ', '@', '#', '~']
    for _ in range(num_texts):
        text = ''.join(rng.choice(words) + rng.choice(['', ' ', ' '])
                       for _ in range(rng.randrange(12)))
        if rng.random() < .3:
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice(odd) + text[place:]
        yield text


@pytest.mark.parametrize('lowercase', [True, False])
def test_cpp_gives_the_ids_of_the_library(lowercase, tmp_path):
    path = tmp_path / 'text.txt'
    path.write_text(TEXT)
    tokenizer = WordPiece.train(path, 150, lowercase=lowercase)
    cutter = word_pieces.TextCutter.of(tokenizer.tokenizer)
    if cutter is None:
        pytest.skip('needs a C++ compiler')
    texts = list(random_texts(random.Random(7), 3000,
                              tokenizer.special.values()))
    expected = tokenizer.tokenizer.encode_batch(texts)
    num_cut = 0
    for text, ids, one in zip(texts, cutter(texts), expected):
        if ids is None:
            assert (not text.isascii() or not text.isprintable()
                    or '[' in text)
        else:
            num_cut += 1
            assert ids == one.ids, text
    assert num_cut > 2000


def test_many_texts_are_encoded_like_one(small):
    texts = list(random_texts(random.Random(8), 2 * MIN_CPP_TEXTS,
                              small.special.values()))
    fresh = WordPiece.from_json(small.to_json())
    for text, one in zip(texts, small.encode_batch(texts)):
        alone = fresh.encode(text) if len(text) % 9 == 0 else None
        library = fresh.tokenizer.encode(text)
        assert (one.ids, one.segments, one.tokens, one.offsets,
                one.words) == (library.ids, library.type_ids, library.tokens,
                               library.offsets, library.word_ids)
        assert alone is None or alone.details == one.details


def test_cpp_leaves_tokenizers_that_it_cannot_imitate(small):
    t = pytest.importorskip('tokenizers')
    assert word_pieces.TextCutter.of(word_pieces.whole_word_tokenizer(
        ['<unk>', 'a'], dict(cls='a', sep='a', unk='<unk>'))) is None
    other = t.Tokenizer.from_str(small.tokenizer.to_str())
    other.add_tokens([t.AddedToken('Café', normalized=True)])
    assert word_pieces.TextCutter.of(other) is None
    segments = t.Tokenizer.from_str(small.tokenizer.to_str())
    segments.post_processor = t.processors.TemplateProcessing(
        single='[CLS]:1 $A:1', special_tokens=[
            ('[CLS]', small.cls_id)])
    assert word_pieces.TextCutter.of(segments) is None


def test_words_of_a_list_are_numbered_by_it(small):
    encoded = small.encode_words(['Crane', '', "don't", 'is'], ['a', 'crane'])
    assert [word for word in encoded.words if word is not None][-2:] == [0, 1]
    numbers = {word for word, segment in zip(encoded.words, encoded.segments)
               if not segment}
    assert numbers == {None, 0, 2, 3}
    assert encoded.offsets[-2] == (0, 5)


# Folders

def test_a_tokenizer_goes_into_any_folder(tmp_path):
    tokenizer = WordPiece.of_counts({'a': 5, 'b': 5}, 10)
    for _ in range(2):      # the second time it exists
        tokenizer.save(tmp_path / 'new' / 'deep')
        assert len(WordPiece.load(tmp_path / 'new' / 'deep')) == len(tokenizer)


def saved(tokenizer, folder, **changes):
    """The tokenizer in a folder, its tokenizer_config.json changed."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(folder)
    path = folder / 'tokenizer_config.json'
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items()
                                if value != 'LEFT OUT'}))
    return folder


def test_settings_of_case_and_accents_come_from_the_folder(small, tmp_path):
    text = 'É Crane'
    folder = saved(small, tmp_path / 'a')
    (folder / 'tokenizer.json').unlink()

    def tokens(**changes):
        path = folder / 'tokenizer_config.json'
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, **changes}))
        loaded = WordPiece.load(folder)
        return [loaded.tokenizer.normalizer.normalize_str(text)]
    assert tokens() == ['e crane']
    assert tokens(do_lower_case=False) == ['É Crane']
    assert tokens(strip_accents=True) == ['E Crane']
    assert tokens(do_lower_case=True, strip_accents=False) == ['é crane']
    (folder / 'tokenizer_config.json').unlink()
    assert WordPiece.load(folder).encode('[MASK] Crane') == small.encode(
        '[MASK] Crane')


def test_tokenizer_config_wins_over_tokenizer_json(small, tmp_path):
    folder = saved(small, tmp_path / 'a', do_lower_case=False)
    assert not WordPiece.load(folder).tokenizer.normalizer.lowercase
    folder = saved(small, tmp_path / 'b', do_lower_case='LEFT OUT')
    assert WordPiece.load(folder).tokenizer.normalizer.lowercase


def test_padding_and_truncation_are_no_part_of_a_tokenizer(small, tmp_path):
    folder = saved(small, tmp_path / 'a')
    small.tokenizer.enable_padding(length=40)
    small.tokenizer.enable_truncation(4)
    (folder / 'tokenizer.json').write_text(small.tokenizer.to_str())
    loaded = WordPiece.load(folder)
    assert len(loaded.encode('crane').ids) < 10
    assert len(loaded.encode('is ' * 50).ids) == 52


@pytest.mark.parametrize('limit, expected', [
    (512, 512), (128.0, 128), (1e30, None), (int(1e30), None), (None, None),
    ('LEFT OUT', None), ('many', None), (True, None), (0, None)])
def test_the_limit_is_what_the_folder_says(small, tmp_path, limit, expected):
    folder = saved(small, tmp_path / 'a', model_max_length=limit)
    assert WordPiece.load(folder).max_len == expected


@pytest.mark.parametrize('way', ['config', 'map', 'dict', 'known'])
def test_special_tokens_are_those_of_the_folder(tmp_path, way):
    tokens = ['<unk>', '<s>', '</s>', '<pad>', '<mask>', 'a', '##b']
    (tmp_path / 'vocab.txt').write_text('\n'.join(tokens) + '\n')
    said = dict(unk_token='<unk>', cls_token='<s>', sep_token='</s>',
                pad_token='<pad>', mask_token='<mask>')
    if way == 'dict':
        said = {role: dict(content=token, lstrip=False)
                for role, token in said.items()}
    if way != 'known':
        (tmp_path / ('special_tokens_map.json' if way == 'map' else
                     'tokenizer_config.json')).write_text(json.dumps(said))
    loaded = WordPiece.load(tmp_path)
    assert [loaded.unk_id, loaded.cls_id, loaded.sep_id, loaded.pad_id,
            loaded.mask_id] == [0, 1, 2, 3, 4]
    assert loaded.special_ids == [0, 1, 2, 3, 4]
    assert loaded.encode('ab c <mask>', 'a').ids == [
        1, 5, 6, 0, 4, 2, 5, 2]
    loaded.save(tmp_path)
    assert WordPiece.load(tmp_path).encode('ab') == loaded.encode('ab')


def test_a_vocabulary_with_a_token_twice_is_read_as_transformers_does(
        tmp_path):
    (tmp_path / 'vocab.txt').write_text('\r\n'.join(
        [*SPECIAL, 'a', 'b', 'a', 'c']) + '\r\n\r\n')
    loaded = WordPiece.load(tmp_path)
    assert loaded.encode('a b c').ids == [2, 7, 6, 8, 3]
    assert len(loaded) == 9


@pytest.mark.parametrize('name, content, message', [
    ('tokenizer.json', b'', 'tokenizer.json is damaged, it is no JSON'),
    ('tokenizer.json', b'[]', 'it holds a list'),
    ('tokenizer.json', b'\xff\xfe', 'is damaged'),
    ('tokenizer.json', b'[' * 100000, 'is damaged'),
    ('tokenizer.json', b'{}', 'holds no tokenizer'),
    ('tokenizer.json', b'{"model": {"type": "Odd", "vocab": {}}}',
     'that the library tokenizers can read'),
    ('tokenizer.json', b'{"version": "1.0", "model": {"type": "WordPiece", '
     b'"unk_token": "[UNK]", "continuing_subword_prefix": "##", '
     b'"max_input_chars_per_word": 100, "vocab": {"a": 0}}}',
     r"has no token '\[PAD\]', which should be the pad token"),
    ('tokenizer_config.json', b'{"cls_token": "<odd>"}',
     "has no token '<odd>', which should be the cls token"),
    ('tokenizer_config.json', b'nonsense', 'tokenizer_config.json is damag'),
    ('tokenizer_config.json', b'{"do_lower_case": "yes"}',
     "do_lower_case in .* must be true or false, not 'yes'"),
    ('vocab.txt', b'', 'vocab.txt is empty'),
    ('vocab.txt', b'a\n\xff\n', 'vocab.txt, line 2: not UTF-8'),
    ('vocab.txt', b'a\nb\n', r"has no token '\[PAD\]'"),
    ('vocab.txt', None, 'holds no tokenizer: expected'),
])
def test_a_damaged_tokenizer_is_refused_in_one_sentence(small, tmp_path, name,
                                                        content, message):
    folder = saved(small, tmp_path / 'a')
    if name == 'vocab.txt':
        (folder / 'tokenizer.json').unlink()
        (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        WordPiece.load(folder)
    assert type(caught.value) is word_pieces.TokenizerError
    assert '\n' not in str(caught.value)


def test_damage_anywhere_is_refused_or_does_no_harm(small, tmp_path):
    folder = saved(small, tmp_path / 'a')
    whole = (folder / 'tokenizer.json').read_bytes()
    rng = random.Random(0)
    for k in range(150):
        damaged = bytearray(whole)
        place = rng.randrange(len(whole))
        if k % 3:
            damaged[place] = rng.randrange(32, 127)
        else:
            del damaged[place:place + rng.randrange(1, 60)]
        (folder / 'tokenizer.json').write_bytes(damaged)
        try:
            WordPiece.load(folder).encode('a crane [MASK]', 'b')
        except ValueError as error:
            assert 'tokenizer.json' in str(error)


@pytest.mark.parametrize('call, kind, message', [
    (lambda t: t.encode(b'bytes'), TypeError, 'a text must be a string'),
    (lambda t: t.encode(None), TypeError, 'a text must be a string, not None'),
    (lambda t: t.encode('a', 5), TypeError, 'a text must be a string, not 5'),
    (lambda t: t.encode_words(['a', 5]), TypeError, 'must be a string, not 5'),
    (lambda t: t.encode_words('abc d'), TypeError, 'list of words'),
    (lambda t: t.encode_batch('abc'), TypeError, 'a list of texts'),
    (lambda t: t.encode('a\udcff'), ValueError, 'is not Unicode: its '
     'character 2 comes from a byte that was not UTF-8'),
    (lambda t: t.encode('\ud83d'), ValueError, 'is not Unicode: its '
     'character 1 is one half of a surrogate pair'),
    (lambda t: t.encode_batch(['a'], ['b', 'c']), ValueError,
     '2 second texts cannot be paired with 1'),
    (lambda t: t.encode('a', max_len=1), ValueError, 'no room for the 2'),
    (lambda t: t.encode('a', 'b', max_len=2), ValueError, 'no room for the 3'),
])
@pytest.mark.parametrize('kind_of_tokenizer', ['pieces', 'words'])
def test_an_invalid_text_is_refused(small, kind_of_tokenizer, call, kind,
                                    message):
    tokenizer = small
    if kind_of_tokenizer == 'words':
        tokenizer = WholeWords(Vocab(['a'], reserved_tokens=RESERVED))
    with pytest.raises(kind, match=message):
        call(tokenizer)


@pytest.mark.parametrize('content, size, message', [
    (b'', 50, 'is empty'), (b' \n', 50, 'no word to learn pieces from'),
    (b'<unk> <unk>', 50, 'no word to learn pieces from'),
    (b'ab\n\xff', 50, 'line 2: byte 1'), (b'abc', 7, 'is too small'),
    (b'%PDF-1', 50, 'a PDF file')])
def test_a_text_without_enough_pieces_is_refused(tmp_path, content, size,
                                                 message):
    (tmp_path / 'text.txt').write_bytes(content)
    with pytest.raises(ValueError, match=message):
        WordPiece.train(tmp_path / 'text.txt', size)


@pytest.mark.parametrize('size', [2 ** 32, 2 ** 63, 2 ** 64, 10 ** 30])
def test_a_huge_vocabulary_needs_no_memory_for_its_size(size):
    counts = {'bird': 5, 'birds': 4, 'a': 3}
    assert (WordPiece.of_counts(counts, size).idx_to_token
            == WordPiece.of_counts(counts, 1000).idx_to_token)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='nothing is no file'):
        WordPiece.train(tmp_path / 'nothing', 50)
    with pytest.raises(FileNotFoundError, match='neither a folder nor'):
        WordPiece.load(tmp_path / 'nothing')


def test_without_the_library_a_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tokenizers', None)
    with pytest.raises(ImportError, match=r"pip install '\.\[pretrained\]'"):
        WordPiece.of_counts({'a': 5}, 20)


def test_the_package_imports_no_library_for_pieces():
    script = ('import sys, d2lbert as d2l; d2l.BERTModel\n'
              "print({'tokenizers', 'safetensors'} & set(sys.modules))")
    assert subprocess.run([sys.executable, '-c', script], check=True,
                          stdout=subprocess.PIPE, text=True
                          ).stdout == 'set()\n'


# Whole words

@pytest.fixture
def words():
    return WholeWords(Vocab(['a', 'crane', 'is', 'flying'],
                            reserved_tokens=RESERVED), 64)


def test_whole_words_are_those_of_the_run(words):
    encoded = words.encode('A  crane\u2009IS not\n', 'flying a')
    assert encoded.ids == [3, 5, 6, 7, 0, 4, 8, 5, 4]
    assert encoded.segments == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert encoded.details == (
        ['<cls>', 'a', 'crane', 'is', '<unk>', '<sep>', 'flying', 'a',
         '<sep>'],
        [(0, 0), (0, 1), (3, 8), (9, 11), (12, 15), (0, 0), (0, 6), (7, 8),
         (0, 0)],
        [None, 0, 1, 2, 3, None, 0, 1, None], [0, 0, 0, 0, 0, 0, 1, 1, 0])
    assert [words.pad_id, words.unk_id, words.cls_id, words.sep_id,
            words.mask_id, words.max_len, len(words)] == [1, 0, 3, 4, 2, 64,
                                                          9]
    encoded = words.encode_words(['A', 'not so', 'crane'], max_len=4)
    assert (encoded.ids, encoded.segments) == ([3, 5, 0, 4], [0] * 4)
    assert encoded.details == (
        ['<cls>', 'a', '<unk>', '<sep>'], [(0, 0), (0, 1), (0, 6), (0, 0)],
        [None, 0, 1, None], [0] * 4)


def test_whole_words_of_prose_end_at_punctuation_marks(tmp_path):
    """As `--split prose` splits them; so does what other libraries load."""
    text = "A crane, don't! 他飞<mask>. Sky"
    tokens = ['<cls>', 'a', 'crane', ',', 'don', "'", 't', '<unk>', '他',
              '<unk>', '<mask>', '.', 'sky', '<sep>']
    vocab = Vocab([[*"a crane , don ' t 他 . sky".split()]],
                      reserved_tokens=['<pad>', '<mask>', '<cls>', '<sep>'])
    words = WholeWords(vocab, max_len=40)
    found = words.encode(text)
    assert found.tokens == tokens
    assert [text[begin:end].lower() for begin, end in found.offsets[1:4]] == [
        'a', 'crane', ',']
    words.save(tmp_path)
    pieces = WordPiece.load(tmp_path)
    assert pieces.encode(text).ids == found.ids
    again = WholeWords.of(pieces)
    assert again.encode(text) == found and again.max_len == 40


@pytest.mark.parametrize('known', [["'s", '.'], ['@-@'], []])
def test_whole_words_of_other_texts_end_at_white_space(known):
    vocab = Vocab([['a', 'crane', *known]], reserved_tokens=[
        '<pad>', '<mask>', '<cls>', '<sep>'])
    assert WholeWords(vocab).encode('A crane.').tokens == [
        '<cls>', 'a', '<unk>', '<sep>']


def test_whole_words_are_read_back_as_the_same(words, tmp_path):
    words.save(tmp_path)
    again = WordPiece.load(tmp_path)
    assert Vocab.load(tmp_path / 'vocab.txt').idx_to_token == (
        words.idx_to_token)
    texts = ['A  crane\tIS not', '<mask> crane', '', 'a ' * 30,
             'crane<mask>. a<b <<mask>< <mask><mask>a']
    for max_len in (None, 5):
        assert again.encode_batch(texts, texts[::-1], max_len) == (
            words.encode_batch(texts, texts[::-1], max_len))
    assert again.mask_id == 2 and again.max_len == 64


def test_transformers_reads_whole_words(peers_python, words, tmp_path):
    words.save(tmp_path)
    texts = ['A crane is not flying', 'a\tcrane <mask>']
    (tmp_path / 'texts').write_text('\n'.join(texts))
    found, errors = ask(LINES, tmp_path, tmp_path / 'texts')
    assert not errors
    assert found == [hashlib.md5(str(e.ids).encode()).hexdigest()
                     for e in words.encode_batch(texts)]


def test_what_the_manual_shows_of_word_pieces_runs(
        small, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[2] / 'd2lbert' / 'manual'
            / 'pretraining.md')
    code, = re.findall(r'```python\n(from d2lbert import WordPiece\n.*?)```',
                       page.read_text('utf-8'), re.DOTALL)
    (tmp_path / 'more.txt.gz').write_bytes(gzip.compress(TEXT.encode()))
    small.save(tmp_path / 'folder')
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(page), 'exec'), {})
    assert "['[CLS]', 'crane" in capsys.readouterr().out
    assert WordPiece.load('other-folder').description() == small.description()


def test_another_pre_tokenizer_is_another_description(small, tmp_path):
    folder = tmp_path / 'split'
    small.save(folder)
    path = folder / 'tokenizer.json'
    found = json.loads(path.read_text('utf-8'))
    found['pre_tokenizer'] = {'type': 'WhitespaceSplit'}
    path.write_text(json.dumps(found), 'utf-8')
    other = WordPiece.load(folder)
    assert other.encode('a.a').ids != small.encode('a.a').ids
    assert other.description() != small.description()


# Long words

def test_words_above_a_hundred_letters_teach_no_piece(tmp_path):
    text = tmp_path / 'text.txt'
    words = ['crane', 'flies', 'x' * 100, 'y' * 101, 'я' * 101]
    text.write_text(' '.join(words * 3), 'utf-8')
    tokenizer = WordPiece.train(text, 60)
    letters = set(''.join(tokenizer.idx_to_token[5:]))
    assert letters == set('cranefliesx#')
    encoded = tokenizer.encode_batch(words)
    assert [row.tokens[1:-1] == ['[UNK]'] for row in encoded] == (
        [False] * 3 + [True] * 2)


@pytest.mark.parametrize('word', ['z' * 3_000_000, 'é' * 1_000_000,
                                  'a.' * 500_000])
def test_a_word_of_megabytes_takes_seconds(tmp_path, word):
    text = tmp_path / 'text.txt'
    text.write_text(f'crane flies {word} ' * 2 + 'a crane. ' * 3, 'utf-8')
    begun = time.monotonic()
    tokenizer = WordPiece.train(text, 60)
    cut = PieceVocab(tokenizer).cutter()
    ids, begins = cut(f'{word}\ncrane\n'.encode())
    assert time.monotonic() - begun < 60
    if word[1] != '.':
        assert ids[:begins[1]].tolist() == [tokenizer.unk_id]


def test_ids_far_beyond_the_tokens_are_refused(tmp_path):
    WordPiece.of_counts({'a': 1, 'b': 1}, 10, min_frequency=1).save(tmp_path)
    path = tmp_path / 'tokenizer.json'
    found = json.loads(path.read_text('utf-8'))
    found['model']['vocab']['b'] = 1 << 31
    path.write_text(json.dumps(found))
    with pytest.raises(word_pieces.TokenizerError,
                       match='7 tokens have ids up to 2147483648'):
        WordPiece.load(tmp_path)


def test_a_regular_expression_without_end_is_an_error(tmp_path, capfd):
    """The library panics; a panic is no Exception, and prints."""
    WordPiece.of_counts({'a': 1, 'b': 1}, 10, min_frequency=1).save(tmp_path)
    path = tmp_path / 'tokenizer.json'
    found = json.loads(path.read_text('utf-8'))
    found['pre_tokenizer'] = {
        'type': 'Split', 'pattern': {'Regex': '(a|aa)+$'},
        'behavior': 'Removed', 'invert': False}
    path.write_text(json.dumps(found))
    tokenizer = WordPiece.load(tmp_path)
    assert tokenizer.encode('a b').ids
    os.write(2, b'before, ')
    with pytest.raises(word_pieces.TokenizerError,
                       match='fails on this text .*retry-limit'):
        tokenizer.encode('a' * 40 + 'b')
    # In two threads of the library
    with pytest.raises(word_pieces.TokenizerError, match='retry-limit'):
        tokenizer.encode_batch(['a' * 40 + 'b'] * 3)
    os.write(2, b'after')
    assert capfd.readouterr() == ('', 'before, after')


def test_only_the_text_of_a_panic_is_lost(capfd):
    with terminal.without_panics():
        os.write(2, b'one\n\nthread 'b"'<unnamed>' (7) panicked at x.rs:1:2:\n"
                 b'message\nnote: run with `RUST_BACKTRACE=1`\ntwo\n')
        with terminal.without_panics():     # another thread holds it
            os.write(2, b'three\n')
        assert capfd.readouterr().err == ''
    assert capfd.readouterr().err == 'one\ntwo\nthree\n'


def test_a_special_token_that_shares_its_id_is_refused(tmp_path):
    WordPiece.of_counts({'a': 1, 'b': 1}, 10, min_frequency=1).save(tmp_path)
    path = tmp_path / 'tokenizer.json'
    found = json.loads(path.read_text('utf-8'))
    found['model']['vocab']['b'] = found['model']['vocab']['[PAD]']
    del found['added_tokens'][0]
    path.write_text(json.dumps(found))
    # The library's order of tokens is random
    for _ in range(10):
        with pytest.raises(word_pieces.TokenizerError,
                           match=r'tokenizer\.json is .* the id of \[PAD\]'):
            WordPiece.load(tmp_path)


def test_special_tokens_that_are_objects_may_have_any_name(tmp_path):
    tokens = ['<<u>>', '<<c>>', '<<s>>', '<<p>>', '<<m>>', 'a']
    (tmp_path / 'vocab.txt').write_text('\n'.join(tokens) + '\n')
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({
        f'{role}_token': dict(content=token, __type='AddedToken')
        for role, token in zip(('unk', 'cls', 'sep', 'pad', 'mask'), tokens)}))
    loaded = WordPiece.load(tmp_path)
    assert loaded.encode('a x <<m>>').ids == [1, 5, 0, 4, 2]
    assert loaded.pad_id == 3
