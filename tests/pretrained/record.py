"""Write fixtures/: small models and their outputs in other libraries.

    cd tests/pretrained
    export D2LBERT_PEERS=PYTHON
    export PYTHONPATH=.:..:../finetuning:../objectives:../pictures
    python record.py [PART]

PYTHON has torch, transformers, sentence-transformers, scikit-learn and
scipy. PART is a key of PARTS; the default is all parts. All weights are
seeded. versions.json has the versions of the libraries.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import peers
import relatives
import seq2seq
import tokens
from closeness import FIXTURES, WRITTEN, load

from d2lbert.machine.backend import mx
from d2lbert.pretrained.folders import save_pretrained

VERSIONS = ('import json, scipy, sentence_transformers, sklearn, torch, '
            'transformers; print(json.dumps({m.__name__: m.__version__ for m '
            'in (scipy, sentence_transformers, sklearn, torch, transformers)})'
            ')')


#: Run a program for each four arguments, because imports take longest.
EACH = '''
import sys
program, *rest = sys.argv[1:]
for k in range(0, len(rest), 4):
    sys.argv[1:] = rest[k:k + 4]
    exec(program)
'''


def ask(*arguments, cwd=None):
    """Run D2LBERT_PEERS with these arguments and return its output."""
    return subprocess.run(
        [os.environ['D2LBERT_PEERS'], *map(str, arguments)], check=True,
        cwd=cwd, stdout=subprocess.PIPE, encoding='utf-8',
        env=dict(os.environ, HF_HUB_OFFLINE='1', PYTHONPATH='')).stdout


def replaced(place, made):
    """Replace the folders in `place` by the new ones in `made`."""
    place.mkdir(exist_ok=True)
    for folder in made.iterdir():
        quiet(folder)
        shutil.rmtree(place / folder.name, ignore_errors=True)
        shutil.move(str(folder), str(place / folder.name))


def quiet(folder):
    """Check that loading gave no messages, and remove their file."""
    if (folder / 'peers.json').is_file():
        said = json.loads((folder / 'peers.json').read_text())
        assert said['said'] == [], (folder, said['said'])
        if 'tokens' not in said:
            (folder / 'peers.json').unlink()


def theirs(place):
    """Make random models of each family and shape in transformers."""
    ask(relatives.__file__, 'small', place / 'made', 7)
    ask(seq2seq.__file__, 'small', place / 'made', 5)
    replaced(FIXTURES, place / 'made')
    (place / 'bert').mkdir()
    ask(peers.__file__, 'make', place / 'bert')
    ask(peers.__file__, 'score', *(place / 'bert').iterdir())
    replaced(FIXTURES / 'bert', place / 'bert')


def ours(place):
    """Save models here, and record their outputs in transformers."""
    import test_bart
    import test_families
    import test_from_runs
    import test_peers
    mx.random.seed(1)
    by_script = {script: {} for script in (relatives, seq2seq, peers)}
    for name in test_families.EACH:
        for kind in 'tag', 'span':
            by_script[relatives][f'{name}-{kind}'] = (
                test_families.with_head(FIXTURES / name, kind))
    for name, settings in test_from_runs.RELATIVES.items():
        net = test_from_runs.net_of(**settings)
        by_script[relatives][name] = net, net.vocab.tokenizer
    by_script[seq2seq]['bart-span'] = test_families.with_head(
        FIXTURES / 'bart-1', 'span')
    test_bart.train(place / 'run', place / 'trained')
    by_script[seq2seq]['bart-trained'] = load(place / 'trained')
    by_script[peers] = test_peers.models_of_ours(place)
    for script, models in by_script.items():
        for name, model in models.items():
            save_pretrained(*model, place / 'made' / name)
        ask(script.__file__, 'score', *(place / 'made' / name
                                        for name in models))
    replaced(WRITTEN, place / 'made')


def vectors(place):
    """Record vectors of sentence-transformers and the folders it saves."""
    import sentences
    import test_sentence_folders as tests
    found = FIXTURES / 'sentences'
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir()
    texts = place / 'texts.json'
    texts.write_text(json.dumps(tests.PEER_TEXTS))
    rest = []
    for name, files in tests.PEER_FILES.items():
        folder = sentences.write_folder(place / name, files)
        rest += [folder, texts, found / f'{name}.npy', found / name]
    ask('-c', EACH, tests.ORACLE, *rest, cwd=place)
    for name in tests.PEER_FILES:
        (found / name / 'README.md').unlink()


def answers(place):
    """Record ids of texts, and metrics."""
    import test_metrics
    import test_wordpiece
    found = {}
    for name, options in test_wordpiece.OPTIONS.items():
        test_wordpiece.learnt(place, options).save(place / name)
        found[name] = json.loads(ask(
            '-c', test_wordpiece.TEXTS, place / name,
            Path(__file__).with_name('hard_cases.json')))
    (FIXTURES / 'wordpiece.json').write_text(json.dumps(found), 'utf-8')
    (place / 'cases.json').write_text(json.dumps(test_metrics.cases()))
    found = ask('-c', test_metrics.ORACLE, place / 'cases.json')
    test_metrics.FIXTURE.write_text(found, 'utf-8')


def tokenizers(place):
    """Make tokenizers of the families, and record their ids of texts."""
    texts = FIXTURES / 'tokens' / 'texts.json'
    ask(tokens.__file__, 'make', place, texts)
    replaced(FIXTURES / 'tokens', place)


def elsewhere(place):
    """Record what the tests of other rooms compare with.

    These are fine-tuned nets, windows of texts, losses and attention.
    """
    import test_inside
    import test_teaching
    import test_there
    import test_windows
    for module in test_there, test_windows, test_teaching, test_inside:
        module.record(os.environ['D2LBERT_PEERS'], place)


PARTS = {part.__name__: part
         for part in (theirs, ours, vectors, answers, tokenizers, elsewhere)}


def main(names):
    for name in names or PARTS:
        with tempfile.TemporaryDirectory() as place:
            PARTS[name](Path(place))
    versions = json.loads(ask('-c', VERSIONS))
    (FIXTURES / 'versions.json').write_text(json.dumps(versions, indent=1)
                                            + '\n')


if __name__ == '__main__':
    main(sys.argv[1:])
