"""Commands in this process, and the statuses they end with."""
from d2lbert.command.cli import main


def status_of(argv):
    """The exit status of a command, whoever ends it."""
    try:
        return main([str(part) for part in argv])
    except SystemExit as ended:     # argparse ends it itself
        return ended.code


def refusal(capsys, *argv):
    """(exit status, line) of a command that can only say why it cannot."""
    capsys.readouterr()
    status = status_of(argv)
    out, err = capsys.readouterr()
    assert status in (1, 2) and out == '' and err.count('\n') == 1, (
        status, out, err)
    assert err.startswith((f'd2lbert {argv[0]}: ', 'd2lbert: ')), err
    return status, err
