"""Word pieces against transformers, and against what the files say."""
import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from d2lbert.pretrained import pieces
from d2lbert.pretrained.wordpiece import Encoded, WholeWords, WordPiece
from d2lbert.text import RESERVED, Vocab

pytest.importorskip('tokenizers')

HARD = json.loads(Path(__file__).with_name('hard_cases.json').read_text())

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
    if 'D2LBERT_WEIGHTS' not in os.environ or not folder.is_dir():
        pytest.skip(f'D2LBERT_WEIGHTS names no folder with {request.param}/')
    return folder


def ask(script, *arguments):
    """What a script prints as JSON where transformers is installed."""
    python = os.environ.get('D2LBERT_PEERS')
    if not python:
        pytest.skip('D2LBERT_PEERS names no Python with transformers')
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
    (alone, both), errors = ask(TEXTS, folder,
                                Path(__file__).with_name('hard_cases.json'))
    assert [as_lists(e) for e in tokenizer.encode_batch(HARD)] == alone
    assert [as_lists(e) for e in tokenizer.encode_batch(
        HARD, HARD[7:] + HARD[:7], 19)] == both
    return errors


def test_hard_cases_are_as_in_transformers(released):
    assert_as_transformers(WordPiece.load(released), released)


def test_lists_of_words_are_as_in_transformers(released):
    words = ['The', 'cranes', 'unbelievably', '[SEP]', "don't", '中文', 'end']
    encoded = WordPiece.load(released).encode_words(words, max_len=9)
    (ids, numbers), _ = ask(WORDS, released, json.dumps(words))
    assert (encoded.ids, encoded.words) == (ids, numbers)


def test_wikitext_is_as_in_transformers(released, wiki_dir):
    path = wiki_dir / 'wiki.valid.tokens'
    expected, _ = ask(LINES, released, path)
    lines = path.read_text('utf-8').split('\n')
    assert [hashlib.md5(str(e.ids).encode()).hexdigest() for e in
            WordPiece.load(released).encode_batch(lines)] == expected


@pytest.mark.parametrize('options', [
    dict(lowercase=True), dict(lowercase=False),
    dict(lowercase=True, strip_accents=False),
    dict(lowercase=False, strip_accents=True)])
def test_what_is_saved_is_what_transformers_reads(tmp_path, options):
    text = tmp_path / 'text.txt'
    text.write_text(TEXT + '\n'.join(map(repr, HARD)), 'utf-8')
    tokenizer = WordPiece.train(text, 900, **options)
    tokenizer.save(tmp_path)
    assert not assert_as_transformers(tokenizer, tmp_path)
    for name in ('tokenizer.json', '', 'vocab.txt'):
        again = WordPiece.load(tmp_path / name)
        assert again.encode_batch(HARD) == tokenizer.encode_batch(HARD)
        assert (len(again), again.max_len) == (len(tokenizer), 512)
