"""The entry point of the command `d2lbert` and of `python -m d2lbert`."""
import sys

from d2lbert.command.cli import main, parser  # noqa: F401

if __name__ == '__main__':
    sys.exit(main())
