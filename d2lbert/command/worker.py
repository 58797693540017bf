"""Run the command of a `d2lbert launch` worker; exit at once if it fails.

    python -m d2lbert.command.worker pretrain ...
"""
import os
import sys


def worker():
    """Run a worker's command; if it fails, exit at once.

    MXNet's exit handler waits for all other workers to finish.
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
