"""The command `d2lbert`. cli.py runs it, and each sub-command has a file."""
