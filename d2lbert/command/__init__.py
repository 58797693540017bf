"""The command `d2lbert`: cli.py runs it, each sub-command has a file."""
