"""`d2lbert completion`: scripts that complete the command line in shells."""
import argparse
import re
import shlex
from typing import NamedTuple

#: Words in the metavar of a flag whose value is a file or a folder.
PATHS = re.compile('FILE|DIR|FOLDER|RUN|PATH')


class Flag(NamedTuple):
    """A flag of a sub-command, for completion."""

    names: list         # for example ['-q', '--quiet']
    help: str           # its first clause
    takes: bool         # True if a value follows
    choices: list       # values to offer; [] if there is no list
    is_path: bool       # True if files and folders are offered

    @classmethod
    def of(cls, action):
        """The flag, or the positional argument, of an argparse action."""
        found = action.choices or getattr(action, 'offered', ())
        metavar = action.metavar or ''
        return cls(list(action.option_strings),
                   _first_clause(action.help), action.nargs != 0,
                   list(map(str, found)), bool(PATHS.search(metavar)))


def _first_clause(text):
    """The help of a flag up to its first mark, without a default."""
    text = re.split(r'[;:(]|, (?=or |which )', text or '')[0]
    return ' '.join(text.replace('%%', '%').split())


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'completion', help='complete the command line in a shell',
        description='Print a script with which a shell completes commands, '
        'flags and their values. For example, put this line into ~/.bashrc: '
        'eval "$(d2lbert completion bash)"; into ~/.zshrc, after compinit: '
        'eval "$(d2lbert completion zsh)"; into '
        '~/.config/fish/config.fish: d2lbert completion fish | source.')
    parser.add_argument('shell', choices=list(SCRIPTS), metavar='SHELL',
                        help='bash, zsh or fish')
    parser.set_defaults(run=lambda args: run(args, commands))


def run(args, commands):
    """Print the script; returns the exit status.

    commands: the argparse action with all sub-commands.
    """
    helps = {action.dest: action.help
             for action in commands._choices_actions}
    print(SCRIPTS[args.shell]({
        name: (helps[name], [
            Flag.of(action) for action in parser._actions
            if action.help != argparse.SUPPRESS])
        for name, parser in commands.choices.items()}), end='')
    return 0


def _words(flags):
    return [name for flag in flags for name in flag.names]


def bash(commands):
    """A script for bash; commands: {name: (help, list of `Flag`s)}."""
    lines = []
    for name, (_, flags) in commands.items():
        lines += [f'        {name})',
                  f"            flags='{' '.join(_words(flags))}'",
                  '            case $flag in']
        for flag in flags:
            if flag.names and flag.takes and not flag.is_path:
                lines.append(f"                {'|'.join(flag.names)}) "
                             f"values='{' '.join(flag.choices)}'; "
                             'is_path= ;;')
        lines += ['            esac']
        # The choices of the first positional argument that has some
        lines += [f"            words='{' '.join(flag.choices)}' ;;"
                  for flag in flags if not flag.names and flag.choices][:1]
        if not lines[-1].endswith(';;'):
            lines.append('            ;;')
    takes = sorted({name for _, flags in commands.values()
                    for flag in flags if flag.takes for name in flag.names})
    return f'''\
# Completion of d2lbert for bash, written by: d2lbert completion bash
_d2lbert() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD-1]}}
    local command=${{COMP_WORDS[1]}} flags= values= words= is_path=1
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{' '.join(commands)} --help --version' \\
            -- "$word"))
        return
    fi
    case $command in
{chr(10).join(lines)}
    esac
    case " {' '.join(takes)} " in
        *" $flag "*)
            # The value of a flag
            if [ -n "$is_path" ]; then
                compopt -o filenames
                COMPREPLY=($(compgen -f -- "$word"))
            else
                COMPREPLY=($(compgen -W "$values" -- "$word"))
            fi
            return ;;
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$word"))
    elif [ -n "$words" ]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    else
        compopt -o filenames
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -F _d2lbert d2lbert
'''


def zsh(commands):
    """A script for zsh; the argument as for `bash`."""
    described = '\n'.join(
        f'        {shlex.quote(f"{name}:{help}")}'
        for name, (help, _) in commands.items())
    cases = []
    for name, (_, flags) in commands.items():
        # zsh takes one specification for all positional arguments
        positional = [flag for flag in flags if not flag.names]
        flags = [flag for flag in flags if flag.names] + positional[:1]
        specs = [spec for flag in flags for spec in _zsh_specs(flag)]
        cases.append(f'        {name})\n            _arguments '
                     + ' \\\n                '.join(specs) + ' ;;')
    return f'''\
#compdef d2lbert
# Completion of d2lbert for zsh, written by: d2lbert completion zsh
_d2lbert() {{
    local -a commands
    commands=(
{described}
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
{chr(10).join(cases)}
    esac
}}
compdef _d2lbert d2lbert
'''


def _zsh_specs(flag):
    """The arguments of zsh's `_arguments` for a flag."""
    values = (f'({" ".join(flag.choices)})' if flag.choices
              else '_files' if flag.is_path else '')
    if not flag.names:
        yield shlex.quote(f'*:argument:{values or "_files"}')
        return
    text = re.sub(r'([][:\\])', r'\\\1', flag.help)
    for name in flag.names:
        value = f':{name.lstrip("-")}:{values}' if flag.takes else ''
        yield shlex.quote(f'*{name}[{text}]{value}')


def fish(commands):
    """A script for fish; the argument as for `bash`."""
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
                     f'{name} -d {_fish(help)}')
        for flag in flags:
            line = ('complete -c d2lbert -n '
                    f"'__fish_seen_subcommand_from {name}'")
            if not flag.names and not flag.choices:
                continue        # fish offers files by default
            for word in flag.names:
                line += (f' -l {word[2:]}' if word.startswith('--')
                         else f' -s {word[1:]}')
            if flag.names:
                line += f' -d {_fish(flag.help)}'
            if flag.takes and flag.names:
                line += ' -r' if flag.is_path else ' -x'
            elif not flag.names:
                line += ' -f'
            if flag.choices:
                line += f' -a {_fish(" ".join(flag.choices))}'
            lines.append(line)
    return '\n'.join(lines) + '\n'


def _fish(text):
    return "'" + text.replace('\\', '\\\\').replace("'", "\\'") + "'"


SCRIPTS = {'bash': bash, 'zsh': zsh, 'fish': fish}
