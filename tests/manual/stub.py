"""`d2lbert/__init__.pyi`: the public names, for editors and type checkers.

An editor reads text and runs nothing, so it sees neither the settings of
`pretrain` and `finetune` nor the `__all__` of names.py. This writes both
out; `python tests/manual/blocks.py` calls it, and a test fails where the
file has another text.
"""
import inspect
import os
import re
import sys
import typing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / 'd2lbert' / '__init__.pyi'

HEAD = '''"""{document}"""
# Written by tests/manual/blocks.py from names.py and the settings
import os
import pathlib
from typing import (
    Any,
    Callable,
    Iterable,
    List,
    Literal,
    Optional,
    Sequence,
    Union,
)

'''

#: Functions whose signature is computed.
WRITTEN_OUT = 'pretrain', 'finetune'


def text():
    """The text of the stub."""
    import d2lbert
    from d2lbert import names
    listed = re.findall(r'^from (d2lbert\S*) import (\([^)]*\)|[^\n]*)',
                        (ROOT / 'd2lbert' / 'names.py').read_text('utf-8'),
                        re.MULTILINE)
    lines = [HEAD.format(document=d2lbert.__doc__)]
    for module, found in listed:
        lines += [f'from {module} import {name} as {name}\n'
                  for name in re.findall(r'\w+', found)
                  if name not in WRITTEN_OUT]
    lines.append('\n__version__: str\nPathLike = Union[str, os.PathLike]\n')
    lines += [_function(name, getattr(names, name)) for name in WRITTEN_OUT]
    return ''.join(lines)


def _function(name, function):
    """The definition of a function, with its docstring."""
    signature, lines, is_named = inspect.signature(function), [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_named:
            lines.append('    *,\n')
            is_named = True
        lines.append(f'    {parameter.name}: {hint(parameter.annotation)} = '
                     f'{parameter.default!r},\n')
    document = inspect.getdoc(function).replace('\n', '\n    ')
    document = re.sub(r' +\n', '\n', document).rstrip()
    return (f'\ndef {name}(\n{"".join(lines)}) -> '
            f'{hint(signature.return_annotation)}:\n'
            f'    """{document}\n    """\n')


def hint(kind):
    """A type as it is written, alike in all versions of Python."""
    if kind is type(None):
        return 'None'
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is None:
        return ('Any' if kind is typing.Any else kind.__name__
                if kind.__module__ == 'builtins'
                else f'{kind.__module__.partition(".")[0]}.{kind.__name__}')
    if origin is typing.Union:
        found = [hint(one) for one in of if one is not type(None)]
        if {str, os.PathLike} <= set(of):
            found = ['PathLike', *(one for one in found if one not in (
                'str', 'os.PathLike'))]
        inner = (found[0] if len(found) == 1
                 else f'Union[{", ".join(found)}]')
        return f'Optional[{inner}]' if type(None) in of else inner
    if origin is typing.Literal:
        return f'Literal[{", ".join(map(repr, of))}]'
    name = {list: 'List'}.get(origin, origin.__name__)
    if name == 'Callable':
        *arguments, result = of
        inside = ', '.join(map(hint, arguments[0]))
        return f'Callable[[{inside}], {hint(result)}]'
    named = [hint(one) for one in of if not isinstance(one, typing.TypeVar)]
    return f'{name}[{", ".join(named)}]' if named else name


if __name__ == '__main__':
    sys.path.insert(0, str(ROOT))
    STUB.write_text(text(), 'utf-8')
