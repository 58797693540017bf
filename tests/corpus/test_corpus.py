"""open_corpus: what it is given, and what of that is in the fingerprint."""
import gzip
import io
import json
import os
import sys
import threading
import types
from pathlib import Path

import pytest
from texts import VALID, book_words, known, words_of, write

from d2lbert.corpus import corpus, stored_text, text_reader, text_store
from d2lbert.corpus.corpus import open_corpus
from d2lbert.text import RESERVED, Vocab


@pytest.mark.parametrize('module, name', [
    (stored_text, 'CHUNK_TOKENS'), (text_store, 'VERSION'),
    (corpus, 'EXAMPLES_VERSION'),
    (text_reader, 'MAX_WORDS')])
def test_the_fingerprint_depends_on_all_drawing_rules(
        wiki, module, name, monkeypatch):
    first = open_corpus(wiki, progress=False)
    monkeypatch.setattr(module, name, getattr(module, name) + 1)
    assert open_corpus(wiki, progress=False).fingerprint != first.fingerprint


def test_progress_is_for_terminals_and_can_be_left_out(wiki, capsys,
                                                       monkeypatch):
    open_corpus(wiki, min_freq=3)
    assert capsys.readouterr().err == ''
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    open_corpus(wiki, min_freq=2, progress=False)
    assert capsys.readouterr().err == ''
    open_corpus(wiki)
    assert 'cutting' in capsys.readouterr().err


def test_a_vocabulary_can_be_given(wiki):
    vocab = Vocab([['w3', 'w1', 'é']], 0, RESERVED)
    vocab.save('vocab.txt')
    by_path = open_corpus(wiki, vocab='vocab.txt', progress=False)
    by_object = open_corpus(wiki, vocab=vocab, progress=False)
    assert by_path.vocab.idx_to_token == vocab.idx_to_token
    assert by_object.fingerprint == by_path.fingerprint
    paragraphs = book_words(wiki.read_text(encoding='utf-8').split('\n'))
    assert words_of(by_path.train) == known(paragraphs, vocab)


def test_held_out_files_are_numbered_by_the_training_vocabulary(wiki):
    valid = write('valid.txt', 'w1 strange . W2\n\nw1 . é .')
    text = open_corpus(wiki, valid_paths=[valid], progress=False)
    assert text.vocab.idx_to_token == open_corpus(
        wiki, progress=False).vocab.idx_to_token
    vocab = text.vocab
    assert words_of(text.valid) == known(
        [[['w1', 'strange'], ['w2']], [['w1'], ['é', '.']]], vocab)


def test_a_file_is_not_both_trained_on_and_held_out(wiki):
    twin = write('twin.gz', gzip.compress(wiki.read_bytes()))
    with pytest.raises(ValueError, match='twin.gz.*wiki.tokens.*same conten'):
        open_corpus(wiki, valid_paths=twin, progress=False)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere.txt is no file'):
        open_corpus('nowhere.txt')
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match='empty is a folder without files'):
        open_corpus(tmp_path / 'empty')
    with pytest.raises(ValueError, match='name at least one'):
        open_corpus([])
    with pytest.raises(FileNotFoundError, match='nothing.txt is no file'):
        open_corpus(write('a', VALID), vocab='nothing.txt')


def test_folders_pipes_and_standard_input_are_read_as_files(tmp_path,
                                                            monkeypatch):
    parts = VALID[:len(VALID) // 2 + 1].rsplit(b'\n\n', 1)[0], VALID
    (tmp_path / 'in' / 'below').mkdir(parents=True)
    (tmp_path / 'in' / '.hidden').write_bytes(b'\xff')
    (tmp_path / 'in' / 'b.txt').write_bytes(parts[0])
    (tmp_path / 'in' / 'below' / 'c.gz').write_bytes(gzip.compress(parts[1]))
    wanted = open_corpus([tmp_path / 'in' / 'b.txt',
                          tmp_path / 'in' / 'below' / 'c.gz'], progress=False)
    found = open_corpus(tmp_path / 'in', progress=False)
    assert found.fingerprint == wanted.fingerprint
    wanted = open_corpus(write('a', VALID), progress=False)
    monkeypatch.setattr('sys.stdin', types.SimpleNamespace(
        buffer=io.BytesIO(gzip.compress(VALID))))
    assert open_corpus('-', progress=False).fingerprint == wanted.fingerprint
    os.mkfifo('pipe')
    thread = threading.Thread(target=Path('pipe').write_bytes, args=[VALID])
    thread.start()
    found = open_corpus('pipe', progress=False)
    thread.join()
    assert found.fingerprint == wanted.fingerprint


def test_the_text_of_json_lines_is_the_text_of_their_field():
    texts = ['a . b\n\nc . d', 'e \u00f6 . f \U0001f426']
    data = ''.join(json.dumps(dict(id=k, body=text)) + '\r\n'
                   for k, text in enumerate(texts))
    wanted = open_corpus(write('a', '\n\n'.join(texts).encode()),
                         min_freq=1, progress=False)
    path = write('x.jsonl', ('\ufeff' + data).encode())
    found = open_corpus(path, text_field='body', min_freq=1, progress=False)
    assert words_of(found.train) == words_of(wanted.train)
    with pytest.raises(ValueError, match=r"x.jsonl holds JSON, .*'body'"):
        open_corpus(path, progress=False)
    with pytest.raises(ValueError, match="line 1 has no text in a field 'id'"):
        open_corpus(path, text_field='id', progress=False)
    with pytest.raises(ValueError, match='a does not hold JSON lines'):
        open_corpus('a', text_field='body', progress=False)


@pytest.mark.parametrize('settings, message', [
    (dict(split='words'), "split='words' is unknown: expected 'auto' or"),
    (dict(valid_share=1.0), 'valid_share=1.0 is wrong'),
    (dict(valid_share=-.1), 'valid_share=-0.1 is wrong'),
    (dict(valid_share=0.9), 'leaves nothing to train on'),
    (dict(valid_share=0.1, valid_paths='b'), 'both choose the held-out text'),
    (dict(max_vocab=5), 'max_vocab=5 leaves no room'),
])
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        open_corpus(write('a', VALID), progress=False, **settings)


def test_a_vocabulary_without_the_reserved_tokens_is_refused():
    path = write('a', VALID)
    write('words.txt', '<unk>\n<pad>\nthe\n')
    with pytest.raises(ValueError, match="words.txt, line 3:.*'<mask>'"):
        open_corpus(path, vocab='words.txt')
    with pytest.raises(ValueError, match="token 1 .*'<pad>', not 'the'"):
        open_corpus(path, vocab=Vocab([['the']]))
    with pytest.raises(ValueError, match="token 1 .*'<pad>', not nothing"):
        open_corpus(path, vocab=Vocab())
