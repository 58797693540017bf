"""Run `d2lbert completion`: write a completion script for a shell.

An argument `commands` is {name of a sub-command: (help text, its `Flag`s)}.
"""
import argparse
import re
import shlex
from typing import NamedTuple

#: The metavar of a flag contains one of these words if its value is a path.
PATH_METAVAR = re.compile('FILE|DIR|FOLDER|RUN|PATH')


class Flag(NamedTuple):
    """A flag or a positional argument of a sub-command."""

    names: list         # for example ['-q', '--quiet']; [] if positional
    help: str           # the first clause of the help text
    takes_value: bool
    choices: list       # strings to complete the value with, or []
    is_path: bool       # True to complete the value with paths

    @classmethod
    def from_action(cls, action):
        return cls(names=list(action.option_strings),
                   help=_first_clause(action.help),
                   takes_value=action.nargs != 0,
                   choices=list(map(str, action.choices or ())),
                   is_path=bool(PATH_METAVAR.search(action.metavar or '')))


def _first_clause(text):
    """Return the first clause of a help text, without '(default: ...)'."""
    text = re.split(r'[;:(]|, (?=or |which )', text or '')[0]
    return ' '.join(text.replace('%%', '%').split())


def add(subparsers):
    """Add this sub-command to the parser."""
    parser = subparsers.add_parser(
        'completion', help='complete the command line in a shell',
        description='Print a script with which a shell completes commands, '
        'flags and their values. For example, put this line into ~/.bashrc: '
        'eval "$(d2lbert completion bash)"; into ~/.zshrc, after compinit: '
        'eval "$(d2lbert completion zsh)"; into '
        '~/.config/fish/config.fish: d2lbert completion fish | source.')
    parser.add_argument('shell', choices=list(SCRIPTS), metavar='SHELL',
                        help='bash, zsh or fish')
    parser.set_defaults(run=lambda args: run(args, subparsers))


def run(args, subparsers):
    """Print the script; returns the exit status."""
    helps = {action.dest: action.help
             for action in subparsers._choices_actions}
    commands = {}
    for name, parser in subparsers.choices.items():
        flags = [Flag.from_action(action) for action in parser._actions
                 if action.help != argparse.SUPPRESS]
        commands[name] = helps[name], flags
    print(SCRIPTS[args.shell](commands), end='')
    return 0


def _names_of(flags):
    return [name for flag in flags for name in flag.names]


def bash_script(commands):
    """Return the script for bash; `mapfile` keeps a name with blanks whole."""
    case_lines = []
    for name, (_, flags) in commands.items():
        case_lines += [f'        {name})',
                       f"            flags='{' '.join(_names_of(flags))}'",
                       '            case $prev in']
        for flag in flags:
            if flag.names and flag.takes_value and not flag.is_path:
                case_lines.append(
                    f"                {'|'.join(flag.names)}) prev_choices="
                    f"'{' '.join(flag.choices)}'; prev_is_path= ;;")
        case_lines.append('            esac')
        choices = next((flag.choices for flag in flags
                        if not flag.names and flag.choices), None)
        assignment = f"choices='{' '.join(choices)}' " if choices else ''
        case_lines.append(f'            {assignment};;')
    value_flag_names = set()
    for _, flags in commands.values():
        value_flag_names.update(_names_of(
            flag for flag in flags if flag.takes_value))
    cases = '\n'.join(case_lines)
    return f'''\
# Completion of d2lbert for bash, written by: d2lbert completion bash
_d2lbert() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    local command=${{COMP_WORDS[1]}} flags= choices=
    local prev_choices= prev_is_path=1
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{' '.join(commands)} --help --version' \\
            -- "$word"))
        return
    fi
    case $command in
{cases}
    esac
    case " {' '.join(sorted(value_flag_names))} " in
        *" $prev "*)
            if [ -n "$prev_is_path" ]; then
                compopt -o filenames
                mapfile -t COMPREPLY < <(compgen -f -- "$word")
            else
                COMPREPLY=($(compgen -W "$prev_choices" -- "$word"))
            fi
            return ;;
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$word"))
    elif [ -n "$choices" ]; then
        COMPREPLY=($(compgen -W "$choices" -- "$word"))
    else
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}}
complete -F _d2lbert d2lbert
'''


def zsh_script(commands):
    descriptions = '\n'.join(
        f'        {shlex.quote(f"{name}:{help}")}'
        for name, (help, _) in commands.items())
    branches = []
    for name, (_, flags) in commands.items():
        positionals = [flag for flag in flags if not flag.names]
        # The specification of the first positional argument, '*:...', applies
        # to all positional arguments
        completable = [flag for flag in flags if flag.names] + positionals[:1]
        specs = [spec for flag in completable for spec in _zsh_specs(flag)]
        branches.append(f'        {name})\n            _arguments '
                        + ' \\\n                '.join(specs) + ' ;;')
    cases = '\n'.join(branches)
    return f'''\
#compdef d2lbert
# Completion of d2lbert for zsh, written by: d2lbert completion zsh
_d2lbert() {{
    local -a commands
    commands=(
{descriptions}
    )
    if (( CURRENT == 2 )); then
        _describe -t commands command commands
        _arguments '--help[show all commands]' '--version[print the version]'
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
{cases}
    esac
}}
compdef _d2lbert d2lbert
'''


def _zsh_specs(flag):
    """Yield arguments of zsh's function `_arguments` for a `Flag`."""
    completer = '_files' if flag.is_path else ''
    if flag.choices:
        completer = f'({" ".join(flag.choices)})'
    if not flag.names:
        yield shlex.quote(f'*:argument:{completer or "_files"}')
        return
    # Escape the special characters of a help text: [ ] : \
    text = re.sub(r'([][:\\])', r'\\\1', flag.help)
    # '*' before a flag: complete it again after its first use
    for name in flag.names:
        value_spec = (f':{name.lstrip("-")}:{completer}'
                      if flag.takes_value else '')
        yield shlex.quote(f'*{name}[{text}]{value_spec}')


def fish_script(commands):
    lines = [
        '# Completion of d2lbert for fish, written by: d2lbert completion '
        'fish',
        'complete -c d2lbert -e',
        'complete -c d2lbert -n __fish_use_subcommand -f',
        'complete -c d2lbert -n __fish_use_subcommand -l help -d '
        "'show all commands'",
        'complete -c d2lbert -n __fish_use_subcommand -l version -d '
        "'print the version'"]
    for name, (help, flags) in commands.items():
        lines.append('complete -c d2lbert -n __fish_use_subcommand -a '
                     f'{name} -d {_quote_for_fish(help)}')
        # fish completes file names for a positional argument without choices
        lines += [_fish_line(name, flag) for flag in flags
                  if flag.names or flag.choices]
    return '\n'.join(lines) + '\n'


def _fish_line(command, flag):
    # The sub-command is the second word, and a later word may equal its name
    line = ("complete -c d2lbert -n "
            f"'contains -- {command} (commandline -opc)[2]'")
    # -r: a value follows; -f: complete no file names; -x: -r and -f
    if flag.names:
        for name in flag.names:
            line += (f' -l {name[2:]}' if name.startswith('--')
                     else f' -s {name[1:]}')
        line += f' -d {_quote_for_fish(flag.help)}'
        if flag.takes_value:
            line += ' -r' if flag.is_path else ' -x'
    else:
        line += ' -f'
    if flag.choices:
        line += f' -a {_quote_for_fish(" ".join(flag.choices))}'
    return line


def _quote_for_fish(text):
    return "'" + text.replace('\\', '\\\\').replace("'", "\\'") + "'"


SCRIPTS = {'bash': bash_script, 'zsh': zsh_script, 'fish': fish_script}
