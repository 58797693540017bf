"""Windows over contexts and labels of words, against slow second ways."""
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as onp
import pytest
from prose import squad, tagged, write

from d2lbert.finetuning.batches import (
    IGNORED,
    Guess,
    Window,
    answer_windows,
    best_answers,
    labels_of_tokens,
    values_of_words,
)
from d2lbert.finetuning.metrics import exact_match, normalized
from d2lbert.finetuning.tasks.formats import Answer, read_squad
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords, WordPiece
from d2lbert.text import Vocab

pytest.importorskip('tokenizers')

#: A tokenizer, and transformers' windows of the texts in ASKED, as
#: tests/pretrained/record.py wrote them.
FIXTURE = Path(__file__).parent / 'fixtures' / 'windows'
ASKED = [list(column) for column in zip(*(
    (paragraph['qas'][0]['question'], paragraph['context']
     + ' Zoë saw unbelievable 東京 cafés … 🙂.' * (k % 5))
    for k, paragraph in enumerate(squad(20)['data'][0]['paragraphs'])))]
ORACLE = '''
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
found = []
for q, c in zip(*json.load(sys.stdin)):
    e = tokenizer(q, c, truncation='only_second', max_length=48, stride=10,
                  padding=False, return_overflowing_tokens=True,
                  return_offsets_mapping=True)
    found.append([e.input_ids, e.token_type_ids, [
        [span for span, s in zip(e.offset_mapping[k], e.sequence_ids(k))
         if s == 1] for k in range(len(e.input_ids))]])
print(json.dumps(found))
'''


@pytest.fixture(scope='module')
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp('squad') / 'train.json'
    return read_squad(write(path, json.dumps(squad(40, impossible=.2))))


@pytest.fixture(scope='module', params=['pieces', 'words'])
def tokenizer(request, questions, tmp_path_factory):
    texts = questions.questions + questions.contexts
    if request.param == 'words':
        return WholeWords(Vocab([text.split() for text in texts], min_freq=3,
                                reserved_tokens=['<pad>', '<mask>', '<cls>',
                                                 '<sep>']))
    path = tmp_path_factory.mktemp('text') / 'text'
    return WordPiece.train(write(path, '\n'.join(texts)), 90)


def by_hand(tokenizer, question, context, max_len, stride, max_question):
    """[(ids, segments, first context piece)]: as published, piece by piece.
    """
    q = tokenizer.encode(question).ids[1:-1][:max_question]
    c = tokenizer.encode(context).ids[1:-1]
    room = max_len - len(q) - 3
    found, begin = [], 0
    while True:
        some = c[begin:begin + room]
        found.append((
            [tokenizer.cls_id, *q, tokenizer.sep_id, *some,
             tokenizer.sep_id], [0] * (len(q) + 2) + [1] * (len(some) + 1),
            begin))
        if begin + room >= len(c):
            return found
        begin += min(stride, room)


@pytest.mark.parametrize('max_len, stride, max_question', [
    (384, 128, 64), (40, 9, 64), (24, 100, 5), (17, 1, 3)])
def test_windows_are_those_of_the_published_code(
        tokenizer, questions, max_len, stride, max_question):
    windows = answer_windows(tokenizer, questions.questions,
                             questions.contexts, None, max_len, stride,
                             max_question)
    k = 0
    for number, (question, context) in enumerate(zip(
            questions.questions, questions.contexts)):
        encoded = tokenizer.encode(context)
        expected = by_hand(tokenizer, question, context, max_len, stride,
                           max_question)
        some = windows[k:k + len(expected)]
        k += len(expected)
        for window, (ids, segments, begin) in zip(some, expected):
            assert window.question_index == number and window.target is None
            assert (window.ids, window.segments) == (ids, segments)
            assert len(window.ids) <= max_len
            assert window.context_begin == segments.index(1)
            count = len(window.offsets)
            assert [tuple(span) for span in window.offsets.tolist()] == [
                tuple(span) for span in
                encoded.offsets[1 + begin:1 + begin + count]]
            assert count == segments.count(1) - 1
        # Each piece is central in one window, in the one that shows most
        for piece in range(len(encoded.ids) - 2):
            shown = [(min(piece - begin, begin + len(w.offsets) - 1 - piece)
                      + .01 * len(w.offsets)
                      if begin <= piece < begin + len(w.offsets) else -1)
                     for w, (_, _, begin) in zip(some, expected)]
            best = max(range(len(some)), key=shown.__getitem__)
            assert [j for j, (w, (_, _, begin)) in enumerate(zip(
                some, expected)) if begin <= piece < begin + len(w.offsets)
                and w.is_central[piece - begin]] == [best]
    assert k == len(windows)


def asked_of(python, folder):
    """Windows of transformers, [[ids, segments, offsets], ...]."""
    done = subprocess.run(
        [python, '-c', ORACLE, str(folder)], input=json.dumps(ASKED),
        stdout=subprocess.PIPE, encoding='utf-8', check=True,
        env=dict(os.environ, HF_HUB_OFFLINE='1', USE_TORCH='0'))
    return json.loads(done.stdout)


def record(python, place):
    """Write the tokenizer and the answers of `FIXTURE`."""
    shutil.rmtree(FIXTURE, ignore_errors=True)
    texts = write(place / 'texts', '\n'.join(sum(ASKED, [])))
    WordPiece.train(texts, 200).save(FIXTURE)
    (FIXTURE / 'answers.json').write_text(
        json.dumps(asked_of(python, FIXTURE)) + '\n')


def check_windows(theirs):
    tokenizer = WordPiece.load(FIXTURE)
    several = 0
    for question, context, expected in zip(*ASKED, theirs):
        # Theirs overlap by 10; ours start a stride apart
        room = 48 - 1 - len(tokenizer.encode(question).ids)
        ours = answer_windows(tokenizer, [question], [context], None, 48,
                              room - 10)
        assert expected == [[w.ids for w in ours], [w.segments for w in ours],
                            [w.offsets.tolist() for w in ours]]
        several += len(ours) > 1
    assert several > 5


def test_windows_and_offsets_are_those_of_transformers():
    check_windows(json.loads((FIXTURE / 'answers.json').read_text()))


def test_windows_and_offsets_are_those_of_this_transformers(peers_python):
    check_windows(asked_of(peers_python, FIXTURE))


def scores_of(windows):
    """Scores that are highest where the targets are."""
    begins, ends = ([onp.zeros(len(w.ids)) for w in windows] for _ in 'be')
    for window, begin, end in zip(windows, begins, ends):
        begin[window.target[0]] += 9
        end[window.target[1]] += 9
    return begins, ends


@pytest.mark.parametrize('max_len, stride', [(384, 128), (40, 12)])
def test_answers_go_to_places_and_come_back(tokenizer, questions, max_len,
                                            stride):
    windows = answer_windows(tokenizer, questions.questions,
                             questions.contexts, questions.answers, max_len,
                             stride)
    for window in windows:
        answers = questions.answers[window.question_index]
        shown = answers and (
            window.offsets[0, 0] <= answers[0].begin
            and answers[0].end <= window.offsets[-1, 1])
        assert (window.target != (0, 0)) == bool(shown)
        if shown:
            begin, end = (t - window.context_begin for t in window.target)
            # WholeWords' last word may carry more than the answer's end
            assert window.offsets[begin, 0] == answers[0].begin
            assert window.offsets[end, 1] == answers[0].end
        else:
            assert window.target == (0, 0)
    guesses = best_answers(windows, *scores_of(windows), questions.contexts,
                           null=True, threshold=-1e-3)
    assert exact_match(questions.answers, [g.text for g in guesses]) == 1
    for guess, context, answers in zip(guesses, questions.contexts,
                                       questions.answers):
        assert guess.text == context[guess.begin:guess.end]
        assert normalized(guess.text) == (
            normalized(answers[0].text) if answers else '')


def test_answers_within_words_widen_to_whole_pieces():
    tokenizer = WholeWords(Vocab([['a']], reserved_tokens=[
        '<pad>', '<mask>', '<cls>', '<sep>']))
    context = 'in 1984-85 they won  a lot'
    for answer, expected in (
            (Answer('1984', 3), '1984-85'), (Answer('85 th', 8),
                                             '1984-85 they'),
            (Answer('lot', 23), 'lot'), (Answer(context, 0), context)):
        window, = answer_windows(tokenizer, ['q'], [context], [[answer]])
        begin, end = (k - window.context_begin for k in window.target)
        assert context[window.offsets[begin, 0]:window.offsets[end, 1]] == (
            expected)
    for unknown in (Answer('x', None), Answer(' ', 20)):
        window, = answer_windows(tokenizer, ['q'], [context], [[unknown]])
        assert window.target is None
    # The first that has a place counts
    window, = answer_windows(tokenizer, ['q'], [context], [
        [Answer('x', None), Answer('lot', 23)]])
    assert window.target == (8, 8)


def test_the_best_span_is_that_of_all_spans():
    rng = random.Random(0)
    draw = onp.random.RandomState(0).normal
    contexts = ['abcdefghij' * 3] * 20
    windows, begins, ends = [], [], []
    for k in range(20):
        central = onp.array([rng.randrange(3) for _ in range(9)])
        for j in range(3):
            offsets = onp.stack([onp.arange(9) + 4 * j,
                                 onp.arange(9) + 4 * j + 1], 1)
            windows.append(Window(k, [0] * 14, [0] * 14, 4, offsets,
                                  central == j, None))
            begins.append(draw(size=16))    # longer than the window: padding
            ends.append(draw(size=16))
    for max_answer in (1, 4, 30):
        for threshold in (-2, 0, 1.5):
            guesses = best_answers(windows, begins, ends, contexts,
                                   max_answer, True, threshold)
            always = best_answers(windows, begins, ends, contexts,
                                  max_answer)
            for k in range(20):
                some = [(w, b, e) for w, b, e in zip(windows, begins, ends)
                        if w.question_index == k]
                none = min(b[0] + e[0] for _, b, e in some)
                score, begin, end = max(
                    (b[4 + i] + e[4 + j], w.offsets[i, 0], w.offsets[j, 1])
                    for w, b, e in some for i in range(9) if w.is_central[i]
                    for j in range(i, min(9, i + max_answer)))
                expected = Guess(contexts[k][begin:end], begin, end, score,
                                 none)
                assert always[k] == expected
                if none > score + threshold:
                    expected = Guess('', 0, 0, score, none)
                assert guesses[k] == expected


def test_there_is_an_answer_to_a_context_without_words(tokenizer):
    windows = answer_windows(tokenizer, ['what ?', 'b'], ['', ' \n'],
                             [[], []], 12)
    assert [w.target for w in windows] == [(0, 0), (0, 0)]
    zeros = [onp.zeros(12)] * 2
    for null in (False, True):
        assert [g.text for g in best_answers(windows, zeros, zeros,
                                             ['', ' \n'], null=null)] == [
            '', '']


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    with pytest.raises(ValueError, match='max_len 5 leaves no place for the '
                       'context beside 3 special tokens and a question of 2'):
        answer_windows(tokenizer, ['anna in'], ['a'], max_len=5,
                       max_question=2)
    for keywords in (dict(stride=0), dict(max_question=0)):
        with pytest.raises(ValueError, match='must be at least 1'):
            answer_windows(tokenizer, ['a'], ['a'], **keywords)


# Words' tags

def test_a_word_s_label_is_at_its_first_token(tokenizer):
    for sentence in tagged(30):
        words = [word for word, _ in sentence]
        labels = list(range(len(words)))
        for max_len in (None, 9):
            encoded = tokenizer.encode_words(words, max_len=max_len)
            placed = labels_of_tokens(encoded, labels)
            assert len(placed) == len(encoded.ids)
            assert [k for k in placed if k != IGNORED] == labels[
                :1 + max(w for w in encoded.words if w is not None)]
            for label, span, word in zip(placed, encoded.offsets,
                                         encoded.words):
                if word is None or span[0]:
                    assert label == IGNORED     # special, or within a word
                else:
                    assert label == word
            back = values_of_words(encoded, placed, len(words), -7)
            seen = sum(k != IGNORED for k in placed)
            assert back == labels[:seen] + [-7] * (len(words) - seen)


def test_words_without_a_piece_have_the_default(questions):
    tokenizer = WordPiece.of_counts({'a': 5, 'b': 5}, 10)
    words = ['a', '\u200d', 'bb', '']
    encoded = tokenizer.encode_words(words)
    assert set(encoded.words) == {None, 0, 2}
    placed = labels_of_tokens(encoded, [3, 4, 5, 6])
    assert [k for k in placed if k != IGNORED] == [3, 5]
    assert values_of_words(encoded, placed, 4, 0) == [3, 0, 5, 0]
