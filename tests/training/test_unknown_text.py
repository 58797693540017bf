"""Evaluation on a text whose words the run does not know."""
import pytest

import d2lbert as d2l
from d2lbert.training.evaluation import evaluate_run


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('known')
    text = folder / 'text.txt'
    text.write_text('The crane flew. It landed here.\n\n' * 20)
    return d2l.pretrain(
        out=folder / 'run', corpus=text, batch_size=8, max_len=32,
        num_hiddens=8, ffn_num_hiddens=8, num_layers=1, num_steps=1)


@pytest.mark.parametrize('content', [
    'qqa qqb . qqc qqd\n', 'Qqa qqb. Qqc qqd. Qqe.\n'])
def test_a_text_of_unknown_words_has_no_perplexity(run, tmp_path, content):
    (tmp_path / 'other.txt').write_text(content)
    try:
        figures = evaluate_run(run, tmp_path / 'other.txt')
    except ValueError as error:
        assert 'unknown to the vocabulary' in str(error)
    else:       # a full stop, which is known, was hidden, too
        assert figures.unknown_share < 1


def test_many_unknown_words_are_warned_of(run, tmp_path, caplog):
    (tmp_path / 'other.txt').write_text(
        'The crane saw a man. It flew up. The man landed here.\n')
    evaluate_run(run, tmp_path / 'other.txt')
    message, = [record.getMessage() for record in caplog.records
                if 'are unknown: ' in record.getMessage()]
    assert message.startswith('33% of the words of ')
