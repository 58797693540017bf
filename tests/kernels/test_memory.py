"""Memory that runs out within compiled code raises an exception in Python."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOLD = {'no memory left for an operator',
        'no memory left for the words of a text',
        'no memory left for a step of Adam',
        'std: :bad_alloc'}      # of MXNet, before it calls an operator


@pytest.mark.skipif(sys.platform != 'linux', reason='preloads a library')
def test_no_allocation_that_fails_ends_the_process(fused, compiler, tmp_path):
    scarce = tmp_path / 'scarce.so'
    command = (os.environ.get('CXX') or 'g++').split()
    subprocess.run([*command, '-shared', '-fPIC', '-O1', '-std=c++17',
                    str(HERE / 'scarce.cc'), '-o', str(scarce), '-ldl'],
                   check=True)
    done = subprocess.run(
        [sys.executable, str(HERE / 'scarce.py'), str(scarce)],
        env=dict(os.environ, LD_PRELOAD=str(scarce), OMP_NUM_THREADS='2',
                 MXNET_ENGINE_TYPE='NaiveEngine',
                 PYTHONPATH=os.pathsep.join(sys.path)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8')
    assert done.returncode == 0, done.stderr
    lines = [line.split('\t') for line in done.stdout.splitlines()
             if line.count('\t') == 2]
    raised = {(precision, name): json.loads(counts)
              for precision, name, counts in lines}
    assert {'adam', 'texts', 'attention_qkv'} <= {name for _, name in raised}
    for counts in raised.values():
        assert counts and set(counts) <= TOLD
