"""Run `d2lbert run`: execute pages of the book, unchanged."""
import importlib
from pathlib import Path

from d2lbert.machine.arguments import (
    UsageError,
    check_out,
    failures_of,
    writing,
)


def add(commands):
    """Add this sub-command to the parser."""
    parser = commands.add_parser(
        'run', help="run pages of the book, unchanged",
        description='Execute notebooks of the book, or the MXNet cells of '
        'its Markdown sources, of any edition and unchanged. In a page, '
        '"from d2l import mxnet as d2l" and "import d2l" import d2lbert. '
        'Print what the cells print, and stop at the first error. Each page '
        'runs in a Python process of its own, in the folder of the page.')
    add = parser.add_argument
    add('files', nargs='+', metavar='FILE', help='a page: a notebook '
        '(.ipynb) or a source (.md)')
    add('--out', metavar='FILE.ipynb|FOLDER', help='write the executed page '
        'as a notebook; several pages, into a folder')
    add('--force', action='store_true', help='replace notebooks that exist '
        'at --out; a page itself is never replaced')
    add('--compare', action='store_true', help='compare each new '
        'output with the output that the page stores, and print both if they '
        'differ; a .md file of the living edition has its outputs in '
        'outputs/mxnet/')
    parser.set_defaults(run=run)


def run(args):
    """Run the pages; returns the exit status."""
    _check_kernel_modules()
    from d2lbert.book.execution import run_page
    from d2lbert.book.pages import read_page
    out_paths = _output_paths(args.files, args.out, args.force)
    pages = [read_page(file) for file in args.files]
    if args.compare:
        _check_stored_outputs(pages)
    for k, (page, out_path) in enumerate(zip(pages, out_paths)):
        if len(pages) > 1:
            heading = f'{page.path}:'
            print(f'\n{heading}' if k else heading, flush=True)
        run_page(page, args.compare)
        if out_path is not None:
            _write_notebook(page.notebook, out_path, args.force)
    return 0


def _check_kernel_modules():
    for name in 'nbformat', 'jupyter_client', 'ipykernel':
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f'pages run in a Jupyter kernel, and {name} cannot be '
                f"imported ({error}): pip install '.[notebook]', or pip "
                'install nbformat ipykernel') from None


def _output_paths(files, out, force):
    """Return the path of each page's notebook, or None without --out.

    Raises an error if a notebook must not be written to its path.
    """
    if out is None:
        return [None] * len(files)
    target = Path(out)    # the notebook of one page, or a folder for several
    if len(files) == 1:
        paths = [target]
    elif target.exists() and not target.is_dir():
        raise ValueError(f'--out {out} is a file: {len(files)} pages need a '
                         'folder')
    else:
        paths = [target / (Path(file).stem + '.ipynb') for file in files]
    for k, path in enumerate(paths):
        if path in paths[:k]:
            raise UsageError(f'{files[paths.index(path)]} and {files[k]} '
                             f'would both be written to {path}: run one of '
                             'them alone')
        for file in files:
            if path.exists() and Path(file).exists() and path.samefile(file):
                raise ValueError(f'--out {path} is a page to run: choose '
                                 'another name')
        if len(files) > 1 and not target.exists():
            # `_write_notebook` creates the folder `target`: check its parent
            check_out(target, force, example=path.name)
        else:
            check_out(path, force, example=Path(files[0]).stem + '.ipynb')
        if path.suffix != '.ipynb':
            raise UsageError(f'--out {path} does not end in .ipynb: name a '
                             'notebook')
    return paths


def _check_stored_outputs(pages):
    for page in pages:
        if all(lines is None for lines in page.stored_lines):
            raise ValueError(
                f'{page.path} has no outputs to compare with: name an '
                'executed notebook, or a source in a checkout of the living '
                'edition, whose outputs are in outputs/mxnet/')


def _write_notebook(notebook, path, force):
    import nbformat
    with failures_of('--out', path, 'written'):
        path.parent.mkdir(exist_ok=True)
    with writing(path, force) as temporary:
        with open(temporary, 'w', encoding='utf-8') as file:
            nbformat.write(notebook, file)
