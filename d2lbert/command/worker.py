"""Run the command of a worker, a process that `d2lbert launch` starts.

    python -m d2lbert.command.worker pretrain ...
"""
import os
import sys


def worker():
    """Run the command line; if it fails, exit without exit handlers.

    MXNet's exit handler would wait until all other workers have finished.
    """
    try:
        from d2lbert.command.cli import main
    except KeyboardInterrupt:
        os._exit(130)
    # Write whole lines, so that the lines of several workers do not mix
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
