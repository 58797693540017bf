"""`d2lbert run`: execute pages of the book, unchanged."""
import importlib
from pathlib import Path

from d2lbert.machine.arguments import (
    UsageError,
    check_out,
    failures_of,
    writing,
)

#: Modules that a Jupyter kernel needs; packages have the same names.
LIBRARIES = 'nbformat', 'jupyter_client', 'ipykernel'


def add(commands):
    """Add this sub-command to the parser."""
    page = commands.add_parser(
        'run', help="run pages of the book, unchanged",
        description='Execute notebooks of the book, or the MXNet cells of '
        'its Markdown sources, of any edition and unchanged: "from d2l '
        'import mxnet as d2l" and "import d2l" give d2lbert there. Print '
        'what the cells print, and stop at the first error. Each page has a '
        'Python process of its own, which works in the folder of the page.')
    add = page.add_argument
    add('files', nargs='+', metavar='FILE', help='a page: a notebook '
        '(.ipynb) or a source (.md)')
    add('--out', metavar='FILE.ipynb|FOLDER', help='write the executed page '
        'as a notebook; of several pages, into a folder')
    add('--force', action='store_true', help='replace notebooks that are '
        'there; a page itself is never replaced')
    add('--compare', action='store_true', help='put each output that the '
        'file has printed beside the output now; a .md file of the living '
        'edition has its outputs in outputs/mxnet/')
    page.set_defaults(run=run)


def run(args):
    """Run the pages; returns the exit status."""
    _require_libraries()
    from d2lbert.book.execution import run_page
    from d2lbert.book.pages import read_page
    outs = _check_outs(args.files, args.out, args.force)
    pages = [read_page(file) for file in args.files]
    if args.compare:
        _check_printed(pages)
    for k, (page, out) in enumerate(zip(pages, outs)):
        if len(pages) > 1:
            print(*[''] * bool(k), f'{page.path}:', sep='\n', flush=True)
        run_page(page, args.compare)
        if out is not None:
            _write(page.notebook, out, args.force)
    return 0


def _require_libraries():
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f'pages run in a Jupyter kernel, and {name} cannot be '
                f"imported ({error}): pip install '.[notebook]', or pip "
                'install nbformat ipykernel') from None


def _check_outs(files, out, force):
    """The path of the notebook to write for each page, or None."""
    if out is None:
        return [None] * len(files)
    folder = Path(out)      # or a file, for one page
    if len(files) == 1:
        outs = [folder]
    elif folder.exists() and not folder.is_dir():
        raise ValueError(f'--out {out} is a file: {len(files)} pages need a '
                         'folder')
    else:
        outs = [folder / (Path(file).stem + '.ipynb') for file in files]
    for k, path in enumerate(outs):
        if path in outs[:k]:
            raise UsageError(f'{files[outs.index(path)]} and {files[k]} '
                             f'would both be written to {path}: run one of '
                             'them alone')
        for file in files:
            if path.exists() and Path(file).exists() and path.samefile(file):
                raise ValueError(f'--out {path} is the page itself: choose '
                                 'another name')
        if len(files) > 1 and not folder.exists():
            check_out(folder, force, path.name)     # created later
        else:
            check_out(path, force, Path(files[0]).stem + '.ipynb')
        if path.suffix != '.ipynb':
            raise UsageError(f'--out {path} does not end in .ipynb: name a '
                             'notebook')
    return outs


def _check_printed(pages):
    for page in pages:
        if not any(lines is not None for lines in page.printed):
            raise ValueError(
                f'{page.path} has no outputs to compare with: take an '
                'executed notebook, or a source of the living edition in '
                'its checkout, with outputs/mxnet/')


def _write(notebook, out, force):
    import nbformat
    with failures_of('--out', out, 'written'):
        out.parent.mkdir(exist_ok=True)
    with writing(out, force) as part:
        with open(part, 'w', encoding='utf-8') as f:
            nbformat.write(notebook, f)
