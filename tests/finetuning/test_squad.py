"""SQuAD's JSON: its content, and errors for other content."""
import copy
import json

import pytest
from prose import squad, write, write_squad

from d2lbert.finetuning.tasks.catalog import TaskError, read_task
from d2lbert.finetuning.tasks.formats import Answer, read_squad

V1 = {'version': '1.1', 'data': [
    {'title': 'T', 'paragraphs': [
        {'context': 'Zoë met 李 in Oslo.', 'qas': [
            {'id': 'a', 'question': 'Where?', 'answers': [
                {'text': 'Oslo', 'answer_start': 13},
                {'text': 'in Oslo', 'answer_start': 10}]},
            {'id': 7, 'question': 'Whom?', 'answers': [
                {'text': '李', 'answer_start': 8}]}]},
        {'context': 'x', 'qas': []}]}]}
V2 = {'version': 'v2.0', 'data': [{'paragraphs': [
    {'context': 'one two', 'qas': [
        {'id': 'a', 'question': 'Q', 'is_impossible': False,
         'answers': [{'text': 'two', 'answer_start': 4}]},
        {'id': 'b', 'question': 'R', 'is_impossible': True, 'answers': [],
         'plausible_answers': [{'text': 'one', 'answer_start': 0}]}]}]}]}


def read(tmp_path, content):
    return read_squad(write(tmp_path / 'x.json', content if isinstance(
        content, (str, bytes)) else json.dumps(content)))


def test_both_versions_are_read(tmp_path):
    found = read(tmp_path, V1)
    assert found.questions == ['Where?', 'Whom?']
    assert found.contexts == ['Zoë met 李 in Oslo.'] * 2
    assert found.answers == [[Answer('Oslo', 13), Answer('in Oslo', 10)],
                             [Answer('李', 8)]]
    assert found.ids == ['a', '7']
    assert (found.impossible, found.skipped) == (False, 0)
    assert found.answers[0][0].end == 17
    found = read(tmp_path, V2)
    assert found.answers == [[Answer('two', 4)], []] and found.impossible


def test_files_without_answers_can_be_asked(tmp_path):
    bare = copy.deepcopy(V1)
    for qa in bare['data'][0]['paragraphs'][0]['qas']:
        del qa['answers']
    assert read(tmp_path, bare).answers is None
    bare['data'][0]['paragraphs'][0]['qas'][0]['answers'] = []
    with pytest.raises(TaskError, match="question '7' has no 'answers', and"):
        read(tmp_path, bare)


def test_answers_that_are_not_in_their_place_are_counted(tmp_path, capsys):
    moved = copy.deepcopy(V1)
    a, b = moved['data'][0]['paragraphs'][0]['qas']
    a['answers'][0]['answer_start'] = 12
    b['answers'][0]['answer_start'] = -1
    found = read(tmp_path, moved)
    assert found.answers == [[Answer('Oslo', None), Answer('in Oslo', 10)],
                             [Answer('李', None)]]
    assert found.skipped == 1 and found.answers[1][0].end is None
    assert capsys.readouterr().err == (
        f'{found.path}: the answers of 1 questions are not at their places '
        'in the text; these questions are not trained on\n')


def changed(change, whole=V1):
    whole = copy.deepcopy(whole)
    change(whole, whole['data'][0]['paragraphs'][0])
    return whole


@pytest.mark.parametrize('content, words', [
    ('{"data": [', r'x.json, line 1: no JSON \(Expecting value at column 11'),
    ('{\n"data": x}', 'line 2: no JSON'),
    ('<html>', 'line 1: no JSON'),
    ('[' * 100000, 'nested too deeply'),
    ('[]', "the file has no list 'data'"),
    ('3', "the file has no list 'data'"),
    ('{"data": []}', 'has no questions'),
    ('{"data": [5]}', 'data 1 is no object'),
    ('', 'is empty'),
    (b'{"data": "\xff"}', 'line 1: byte 11'),
    (changed(lambda w, p: w['data'].append({})),
     "data 2 has no list 'paragraphs'"),
    (changed(lambda w, p: p.pop('context')),
     "paragraphs 1 of data 1 has no text 'context'"),
    (changed(lambda w, p: p['qas'][1].pop('question')),
     "qas 2 of paragraphs 1 of data 1 has no text 'question'"),
    (changed(lambda w, p: p['qas'][1].update(id=True)), "no text 'id'"),
    (changed(lambda w, p: p['qas'][1].update(id='a')),
     "two questions with the id 'a'"),
    (changed(lambda w, p: p['qas'][0].update(answers={})),
     "qas 1 of .* has no list 'answers'"),
    (changed(lambda w, p: p['qas'][0]['answers'][1].update(
        answer_start='10')),
     "answers 2 of qas 1 of .* has no number 'answer_start'"),
    (changed(lambda w, p: p.update(context='half \ud83d')),
     r"the 'context' of .* has half of a character, '\\ud83d'"),
])
def test_damage_is_named_with_its_place(tmp_path, content, words):
    with pytest.raises(ValueError, match=words) as error:
        read(tmp_path, content)
    assert 'x.json' in str(error.value) and '\n' not in str(error.value)


def test_the_files_of_a_folder_are_found(tmp_path):
    write_squad(tmp_path / 'train-v2.0.json', num=9, impossible=.5)
    write_squad(tmp_path / 'dev.json', num=4, seed=1)
    train, dev = (read_task('span', tmp_path, part)
                  for part in ('train', 'dev'))
    assert len(train.ids) == 9 and train.impossible and [] in train.answers
    assert len(dev.ids) == 4 and not dev.impossible
    assert all(some[0].begin is not None for some in dev.answers)
    assert squad(9, impossible=.5) == json.loads(
        (tmp_path / 'train-v2.0.json').read_text())
