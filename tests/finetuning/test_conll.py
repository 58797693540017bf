"""Words in columns with their tags."""
import pytest
from prose import conll, tagged, write

from d2lbert.finetuning.metrics import entities
from d2lbert.finetuning.tasks.catalog import read_task
from d2lbert.finetuning.tasks.formats import read_conll
from d2lbert.finetuning.tasks.tables import Columns, TaskError

CONLL_2003 = '''\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German\tJJ\tI-NP\tI-MISC
call NN I-NP O
. . O O
-DOCSTART- -X- O O
Peter NNP I-NP I-PER\r
Blackburn NNP I-NP I-PER

\x20\t

# CD O B-PER
'''


def test_columns_sentences_and_documents_are_told_apart(tmp_path):
    path = write(tmp_path / 'eng.train', CONLL_2003)
    found = read_conll(path)
    assert found.words == [['EU', 'rejects', 'German', 'call', '.'],
                           ['Peter', 'Blackburn'], ['#']]
    assert found.labels_names == ('B-PER', 'I-MISC', 'I-ORG', 'I-PER', 'O')
    assert found.tags == [['I-ORG', 'O', 'I-MISC', 'O', 'O'],
                          ['I-PER', 'I-PER'], ['B-PER']]
    assert found.labels == [[2, 4, 1, 4, 4], [3, 3], [0]]
    assert [entities(tags) for tags in found.tags] == [
        [('ORG', 0, 1), ('MISC', 2, 3)], [('PER', 0, 2)], [('PER', 0, 1)]]
    assert found == read_task('tag', tmp_path) == read_task(
        'tag', path, columns='text=0,label=3')


def test_other_columns_are_chosen_by_number(tmp_path):
    # A no-break space is a letter of a word
    path = write(tmp_path / 'x.tsv', '1\tNew\xa0Lagos\tB-LOC\n2 is O\n')
    found = read_task('tag', path, columns='text=1,label=2')
    assert found.words == [['New\xa0Lagos', 'is']]
    assert found.tags == [['B-LOC', 'O']]
    found_words = read_conll(path, tag_column=0, word_column=-1).words
    assert found_words == [['B-LOC', 'O']]
    assert read_conll(path, tag_column=None, word_column=1)[:3] == (
        found.words, None, None)


def test_the_training_part_has_all_tags(tmp_path):
    path = write(tmp_path / 'x', 'a O\nb B-X\n')
    names = ('O', 'I-X', 'B-X')
    found = read_conll(path, names=names)
    assert found.labels == [[0, 2]] and found.labels_names == names
    with pytest.raises(TaskError, match="x, line 2: the tag is 'B-X'; "
                       "expected one of 'O', 'I-X'"):
        read_conll(path, names=names[:2])


@pytest.mark.parametrize('content, keywords, words', [
    ('a O\nb\n', {}, 'line 2: 1 columns where the lines before have 2'),
    ('a O\n\nb x O\n', {}, 'line 3: 3 columns where the lines before have 2'),
    ('a\n', {}, 'line 1: 1 columns; expected words in column 0 and tags in '
     'the last column, counted from 0: give'),
    ('a b\n', dict(tag_column=2), 'line 1: 2 columns; .* tags in column 2'),
    ('a b\n', dict(word_column=1), 'words in column 1 and tags in the last'),
    ('a b\n', dict(tag_column=0), 'column 0 cannot be both words and tags'),
    ('\n-DOCSTART- O\n', {}, 'has no words'),
    ('', {}, 'is empty'),
    (b'a\xff O\n', {}, 'line 1: byte 2'),
])
def test_invalid_columns_are_reported(tmp_path, content, keywords, words):
    with pytest.raises(ValueError, match=words):
        read_conll(write(tmp_path / 'x', content), **keywords)


@pytest.mark.parametrize('columns, part, words', [
    ('text=word,label=tag', 'train', 'has the numbers of two columns'),
    (Columns(0, label='tag'), 'train', 'has the numbers of two columns'),
    ('0,1,2', 'train', 'has the numbers of two columns'),
    ('text=0', 'train', '--columns has no label, which part train needs'),
])
def test_columns_of_words_go_by_number(tmp_path, columns, part, words):
    path = write(tmp_path / 'x', 'a O\n')
    with pytest.raises(TaskError, match=words):
        read_task('tag', path, part, columns)


def test_made_up_sentences_come_back(tmp_path):
    sentences = tagged(50)
    conll(tmp_path / 'train.txt', sentences)
    found = read_task('tag', tmp_path)
    assert [list(zip(*both)) for both in zip(found.words, found.tags)] == (
        sentences)
    assert read_task('tag', tmp_path / 'train.txt', 'test',
                     'text=0').tags is None
