"""BERT's relatives through the whole house: learnt, kept, asked, sent on."""
import json
from pathlib import Path

import numpy as onp
import pytest
from safetensors.numpy import load_file

import d2lbert as d2l
from d2lbert.pretrained.families.family import FAMILIES
from d2lbert.pretrained.folders import (
    labels_of,
    load_finetuned_folder,
)
from d2lbert.pretrained.tensor_files import PretrainedError
from d2lbert.training import load
from d2lbert.training.load import export_run as export_model
from d2lbert.training.load import import_run

FIXTURES = Path(__file__).parents[1] / 'pretrained' / 'fixtures'
NAMES = ['roberta-0', 'camembert-0', 'distilbert-0', 'albert-2', 'flaubert-1']
PAIR = 'the crane is late', 'it left'


@pytest.mark.parametrize('name', NAMES)
def test_a_relative_learns_pairs_and_goes_out_as_its_class(name, data,
                                                           tmp_path):
    out = d2l.finetune(task='rte', data=str(data['rte']), num_epochs=1,
                       model=str(FIXTURES / name), batch_size=20, lr=1e-2,
                       max_len=11, seed=1, out=tmp_path / 'run')
    figures = json.loads((out / 'config.json').read_text())['figures']
    assert d2l.evaluate_finetuned(out)._asdict() == figures
    load.export_run(out, tmp_path / 'folder')
    config = json.loads((tmp_path / 'folder' / 'config.json').read_text())
    family = FAMILIES[name.partition('-')[0]]
    assert config['model_type'] == family.model_type
    assert config['architectures'] == [family.finetuned['classify']]
    assert sorted(config['label2id']) == ['entailment', 'not_entailment']
    # Whatever its class, the tokenizer there gives what the model reads
    names = json.loads((tmp_path / 'folder' / 'tokenizer_config.json'
                        ).read_text())['model_input_names']
    has_segments = config.get('type_vocab_size', 0) > 1
    assert names == ['input_ids', *['token_type_ids'] * has_segments,
                     'attention_mask']
    said = [d2l.predict(*d2l.load_finetuned(folder), *map(lambda text: [text],
                                                          PAIR))
            for folder in (out, tmp_path / 'folder')]
    assert said[0] == said[1]
    # The loaded weights differ from the initial ones: it has learnt
    before = load_file(str(FIXTURES / name / 'model.safetensors'))
    after = load_file(str(tmp_path / 'folder' / 'model.safetensors'))
    assert any((before[key] != after[key]).any() for key in before
               if key in after)


@pytest.mark.parametrize('name', NAMES)
def test_a_relative_comes_in_as_a_run_and_goes_out_again(name, tmp_path,
                                                         capsys):
    import_run(FIXTURES / name, tmp_path / 'run')
    export_model(tmp_path / 'run', tmp_path / 'folder')
    before, after = (load_file(str(folder / 'model.safetensors'))
                     for folder in (FIXTURES / name, tmp_path / 'folder'))
    assert set(before) == set(after)
    mask = '<mask>'
    answers = []
    for folder in FIXTURES / name, tmp_path / 'run', tmp_path / 'folder':
        net, tokenizer = d2l.load_model(folder)
        answers.append((
            d2l.fill_mask(net, tokenizer, f'the {mask} left', top=3),
            d2l.encode(net, tokenizer, [PAIR, 'it']).tolist()))
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0][0][0]) == 3 and 'lacks' not in capsys.readouterr(
        ).err


def test_a_net_of_other_pieces_keeps_its_files_in_a_run(tmp_path):
    tokenizer = d2l.WordPiece.load(FIXTURES / 'tokens' / 'phobert')
    net = d2l.BERTModel(
        len(tokenizer), 8, 8, 2, 1, 0.0, 20, embedding_norm=True,
        tie_embeddings=True, num_segments=1, activation='gelu',
        family='roberta', heads=('mlm',), mlm_activation='gelu')
    net.initialize()
    d2l.save_pretrained(net, tokenizer, tmp_path / 'folder')
    import_run(tmp_path / 'folder', tmp_path / 'run')
    export_model(tmp_path / 'run', tmp_path / 'again')
    for folder in 'folder', 'run', 'again':
        assert (tmp_path / folder / 'bpe.codes').read_bytes() == (
            FIXTURES / 'tokens' / 'phobert' / 'bpe.codes').read_bytes()
        assert not (tmp_path / folder / 'tokenizer.json').exists()
    first, last = (d2l.encode(*d2l.load_model(tmp_path / folder), [PAIR])
                   for folder in ('folder', 'again'))
    assert onp.array_equal(first, last)


@pytest.mark.parametrize('change, said', [
    (dict(architectures=['RobertaModel']), 'has no head that scores'),
    (dict(id2label={'1': 'a', '2': 'b'}), 'id2label in config.json must'),
    (dict(problem_type='multi_label_classification'), 'several labels at'),
    (dict(problem_type='regression'), 'several numbers at'),
    (dict(id2label={'0': 'a', '1': 'b'}), 'classifier.out_proj.weight')])
def test_a_head_that_cannot_be_asked_is_refused(change, said, tmp_path):
    for path in (FIXTURES / 'roberta-0-classify').iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / 'config.json').read_text())
    (tmp_path / 'config.json').write_text(json.dumps({**config, **change}))
    with pytest.raises(PretrainedError, match=said):
        load_finetuned_folder(tmp_path)


def test_more_than_ten_labels_keep_their_order():
    names = tuple(f'label {k}' for k in range(23))
    # As JSON sorts what it has as names: 0, 1, 10, 11, ...
    found = {str(k): names[k] for k in sorted(range(23), key=str)}
    assert labels_of(dict(id2label=found)) == names
