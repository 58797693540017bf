"""The book's tabs: which framework each cell of a page is for.

A cell's first line names its tabs: `#@tab mxnet`, `# @tab mxnet, pytorch`
or `%%tab all`. A cell without such a line is for every framework; in old
editions, which write MXNet's cells without it, it is for MXNet.
"""
import re

TAB = 'mxnet'
_MARK = re.compile(r'\s*(?:#\s*@tab|%%tab)\s+(.+)')


def tabs_of(code):
    """The tabs that a cell's first line names, or None without any."""
    first = next(filter(str.strip, code.split('\n')), '')
    match = _MARK.match(first)
    return match and split_tabs(match.group(1))


def split_tabs(text):
    """The names in a list of tabs, as 'mxnet, pytorch'."""
    return re.findall(r'\w+', text)


def is_ours(tabs):
    """True if MXNet is among the tabs; None is every tab."""
    return tabs is None or TAB in tabs or 'all' in tabs


class Tabs:
    """The name `tab` that pages get from `%load_ext d2lbook.tab`."""

    def interact_select(self, *frameworks):
        """Check that the page has an MXNet tab; there is nothing to click."""
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
