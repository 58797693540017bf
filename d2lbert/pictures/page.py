"""One HTML file with all that it shows: markup, style, program, data."""
import base64
import hashlib
import html
import json
import re
from pathlib import Path

import numpy as onp

from d2lbert.machine.files import write_text

#: The files of the page, in the order in which they are joined.
STYLES = 'page.css',
PROGRAMS = ('page.js', 'heads.js', 'lines.js', 'attention.js', 'masks.js',
            'neighbours.js', 'senses.js', 'training.js')

#: Pages of at most this many weights store 16 bits each, others 8.
FINE = 300_000

#: Weights of a page at most; BERT base has 38 million for 512 tokens.
MOST = 40_000_000

#: Characters that could end the script with the JSON, or begin a comment.
_ESCAPES = {ord(c): f'\\u{ord(c):04x}' for c in '<>&\u2028\u2029'}


class Page:
    """A page that shows what a model learnt.

    html: its text. A notebook shows it as the result of a cell.
    """

    def __init__(self, data):
        self.html = render(data)

    def save(self, path, force=False):
        """Write the page to a file, which is complete or not there at all.

        Raises FileExistsError if the file exists, unless `force`.
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


def render(data):
    """The HTML of the page for `data`, as `show.page_data` returns it."""
    here = Path(__file__).resolve().parent

    def read(name):
        return (here / name).read_text('utf-8')
    program = "'use strict';\n" + '\n'.join(map(read, PROGRAMS))
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest())
    parts = dict(title=html.escape(data['title']), program=program,
                 style='\n'.join(map(read, STYLES)), data=escape_json(data),
                 digest=digest.decode())
    # In one pass, so that {{…}} in the data stays as it is
    return re.sub(r'\{\{(\w+)\}\}', lambda match: parts[match.group(1)],
                  read('page.html'))


def escape_json(data):
    """JSON that is safe inside a script of HTML, for any strings in it."""
    text = json.dumps(_encodable(data), ensure_ascii=False,
                      separators=(',', ':'), allow_nan=False)
    return text.translate(_ESCAPES)


def _encodable(data):
    """The data with strings that UTF-8 can encode.

    Names of files may contain surrogates, which it cannot.
    """
    if isinstance(data, str):
        return data.encode('utf-8', 'backslashreplace').decode()
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value)
                for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_encodable(value) for value in data]
    return data


def quantize(weights, bits):
    """Attention weights (..., T, T), quantized, as base64.

    A number is the square root of its weight, which keeps small weights
    apart, scaled so that the largest of a row is 2 ** bits - 1. To read a
    row, square its numbers and divide them by their sum. Numbers are
    unsigned, little-endian, of 8 or 16 bits.
    """
    most = weights.max(axis=-1, keepdims=True)
    top = (1 << bits) - 1
    numbers = onp.rint(onp.sqrt(weights / onp.maximum(most, 1e-30)) * top)
    numbers = numbers.astype('<u2' if bits == 16 else 'uint8')
    return base64.b64encode(numbers.tobytes()).decode()
