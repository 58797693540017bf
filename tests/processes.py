"""What tests in processes of their own have in common."""
import os
import subprocess
import sys


def in_a_process(script, **environment):
    """What a script prints that imports what its test could import."""
    return subprocess.run(
        [sys.executable, '-c', script], check=True, timeout=120,
        stdout=subprocess.PIPE, universal_newlines=True, env=dict(
            os.environ, PYTHONPATH=os.pathsep.join(sys.path),
            **environment)).stdout
