"""What each worker of `d2lbert launch` runs: the command, left if it fails.

    python -m d2lbert.command.worker pretrain ...
"""
import os
import sys


def worker():
    """Run a worker's command; if it fails, leave at once.

    MXNet's own way out of Python waits for all other workers to finish.
    """
    try:
        from d2lbert.command.cli import main
    except KeyboardInterrupt:
        os._exit(130)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    try:
        status = main()
    except SystemExit as error:
        status = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == '__main__':
    worker()
