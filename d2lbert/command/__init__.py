"""The command `d2lbert`, one file for each sub-command."""
