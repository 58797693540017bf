"""The C++ compiler of this machine."""
import os
import shutil
import subprocess

#: Seconds after which a compiler that prints no version counts as missing.
PATIENCE = 30


def find_compiler():
    """Return the command of the C++ compiler, a list, and its version line.

    The environment variable CXX names it; without CXX it is g++ or c++.
    Raises LookupError, with the names that were tried, if none works.
    """
    names = [os.environ['CXX']] if os.environ.get('CXX') else ['g++', 'c++']
    for name in names:
        command = name.split()  # CXX may hold a launcher: 'ccache g++'
        path = command and shutil.which(command[0])
        if not path:
            continue
        try:
            # A path, and descriptors left open, let Python 3.8 start this
            # without a fork; after one the tokenizers library warns
            done = subprocess.run(
                [*command, '--version'], executable=path, close_fds=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = done.stdout.decode(errors='replace').strip().splitlines()
        if done.returncode == 0 and lines:
            return command, lines[0]
    raise LookupError(' or '.join(names))
