"""The tabs of the book, which name the frameworks of a cell.

A cell's first line names its tabs: `#@tab mxnet`, `# @tab mxnet, pytorch`
or `%%tab all`. A cell without such a line is for every framework; in old
editions, which write MXNet's cells without it, it is for MXNet.
"""
import re

TAB = 'mxnet'
_MARK = re.compile(r'\s*(?:#\s*@tab|%%tab)\s+(.+)')


def tabs_of(code):
    """A list of the tabs in the first line of a cell, or None."""
    first = next(filter(str.strip, code.split('\n')), '')
    match = _MARK.match(first)
    return match and split_tabs(match.group(1))


def split_tabs(text):
    """Split a text such as 'mxnet, pytorch' into names."""
    return re.findall(r'\w+', text)


def is_ours(tabs):
    """True if MXNet is among the tabs; None means all tabs."""
    return tabs is None or TAB in tabs or 'all' in tabs


class Tabs:
    """The object `tab` of pages that run `%load_ext d2lbook.tab`."""

    def interact_select(self, *frameworks):
        """Raise ValueError if the page has no MXNet tab."""
        names = _flat(frameworks)
        if not is_ours(names):
            raise ValueError('this page has no MXNet code, only code for '
                             + ', '.join(names))

    def selected(self, *frameworks):
        """True if MXNet is among the frameworks."""
        return is_ours(_flat(frameworks))


def _flat(frameworks):
    return [name for group in frameworks
            for name in ([group] if isinstance(group, str) else group)]


tab = Tabs()
