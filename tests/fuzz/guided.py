"""Damaged files for one reader, guided by the lines that they reach.

    python tests/fuzz/guided.py TARGET CORPUS [-runs=N] [-seed=N] ...

Needs `atheris` (Google's fuzzer for Python, with libFuzzer's options). The
folder CORPUS keeps the inputs that reach new lines. An input is one of the
target's files; --file names another one than the first. What is no sentence
for the user ends the run and is written to a file `crash-...`.
"""
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

with atheris.instrument_imports(include=['d2lbert']):
    import fuzz
    import targets


def run(argv):
    """Fuzz; libFuzzer ends the process."""
    file = next((argument[len('--file='):] for argument in argv
                 if argument.startswith('--file=')), None)
    name, corpus, *options = [argument for argument in argv
                              if not argument.startswith('--')]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    with tempfile.TemporaryDirectory(prefix='d2lbert-fuzz-') as base:
        os.environ['D2LBERT_CACHE'] = str(Path(base, 'cache'))
        paths = targets.files_of(name, Path(base, name))
        path = next(path for path in paths if file in (None, path.name))
        os.makedirs(corpus, exist_ok=True)
        whole = path.read_bytes()
        Path(corpus, f'valid-{path.name}').write_bytes(whole)

        def read(data):
            path.write_bytes(data)
            try:
                targets.TARGETS[name].read(Path(base, name))
                if targets.has_lost_its_digest(path, data, whole):
                    raise AssertionError('damaged weights are taken')
            except Exception as error:
                if not fuzz.is_allowed(error):
                    raise
        atheris.Setup([sys.argv[0], corpus, f'-timeout={fuzz.SECONDS}',
                       f'-malloc_limit_mb={fuzz.MEGABYTES}',
                       '-rss_limit_mb=8192', *options], read)
        atheris.Fuzz()


if __name__ == '__main__':
    run(sys.argv[1:])
