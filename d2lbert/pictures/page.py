"""One HTML file that holds what it shows: markup, style, program, data."""
import base64
import hashlib
import html
import json
import re
from pathlib import Path

import numpy as onp

from d2lbert.machine.files import write_text

#: The parts of the page, in the order in which they are joined.
STYLES = 'page.css',
PROGRAMS = ('page.js', 'heads.js', 'lines.js', 'attention.js', 'masks.js',
            'neighbours.js', 'senses.js', 'training.js')

#: Weights of a page that are kept in 16 bits each; of more, in 8.
FINE = 300_000

#: Weights of a page at most: base size and 512 tokens.
MOST = 40_000_000

#: What a script of JSON may not hold as it is: it would end there, or
#: begin a comment.
_ESCAPES = {ord(c): f'\\u{ord(c):04x}' for c in '<>&\u2028\u2029'}


class Page:
    """A page that shows what a model learnt.

    html: its text. In a notebook it is shown as the outcome of a cell.
    """

    def __init__(self, data):
        self.html = joined(data)

    def save(self, path, force=False):
        """Write the page as a file, whole or not at all.

        Raises FileExistsError where there is one, unless `force`.
        """
        path = Path(path)
        if path.is_file() and not force:
            raise FileExistsError(f'{path} exists already: choose another '
                                  'name, or give force=True to replace it')
        write_text(path, self.html)

    def _repr_html_(self):
        return ('<iframe title="What a model learnt" style="width: 100%; '
                'height: 820px; border: 1px solid #8888" sandbox='
                '"allow-scripts" srcdoc="'
                f'{html.escape(self.html)}"></iframe>')

    def __repr__(self):
        return f'<Page of {len(self.html):,} characters: save(path) writes it>'


def joined(data):
    """The text of the page that shows `data`, which JSON can hold."""
    here = Path(__file__).resolve().parent

    def read(name):
        return (here / name).read_text('utf-8')
    program = "'use strict';\n" + '\n'.join(map(read, PROGRAMS))
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest())
    parts = dict(title=html.escape(data['title']), program=program,
                 style='\n'.join(map(read, STYLES)), data=escaped(data),
                 digest=digest.decode())
    # In one go: what is put in is never looked at again
    return re.sub(r'\{\{(\w+)\}\}', lambda match: parts[match.group(1)],
                  read('page.html'))


def escaped(data):
    """JSON that may stand in a script of HTML, whatever its strings are."""
    text = json.dumps(_readable(data), ensure_ascii=False,
                      separators=(',', ':'), allow_nan=False)
    return text.translate(_ESCAPES)


def _readable(data):
    """The same with each string as UTF-8 can have it: names of files may be
    no text."""
    if isinstance(data, str):
        return data.encode('utf-8', 'backslashreplace').decode()
    if isinstance(data, dict):
        return {_readable(key): _readable(value)
                for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_readable(value) for value in data]
    return data


def packed(weights, bits):
    """Attention weights (..., T, T) as base64 of whole numbers.

    Their square roots, which leave small ones room, with the largest of each
    row as the largest number of so many bits. A weight is the share of its
    number's square in those of its row, so that rows sum to one again. 16
    bits are little-endian.
    """
    most = weights.max(axis=-1, keepdims=True)
    top = (1 << bits) - 1
    numbers = onp.rint(onp.sqrt(weights / onp.maximum(most, 1e-30)) * top)
    numbers = numbers.astype('<u2' if bits == 16 else 'uint8')
    return base64.b64encode(numbers.tobytes()).decode()
