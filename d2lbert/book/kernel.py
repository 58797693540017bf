"""A Jupyter kernel of this Python, in which `import d2l` gives d2lbert."""
import ast
import json
import queue
import sys
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager
from nbformat import v4

#: Seconds in which a kernel must answer for the first time.
START_SECONDS = 120

# Makes the kernel import this copy of d2lbert, not another installed one
_SET_UP = '''\
exec({code!r}, {{'path': {path!r}, 'ip': get_ipython()}})
'''
_CODE = '''\
import importlib.util, os, sys
if 'd2lbert' not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        'd2lbert', path, submodule_search_locations=[os.path.dirname(path)])
    sys.modules['d2lbert'] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules['d2lbert'])
from d2lbert import load_ipython_extension
load_ipython_extension(ip)
'''
_PLACE = ("__import__('d2lbert.book.imports', fromlist=['error_place'])"
          '.error_place()')


class KernelError(RuntimeError):
    """A kernel did not start, or ended unexpectedly."""


class _ThisPython(KernelSpecManager):
    """Kernel specs for the Python that runs d2lbert.

    It ignores the kernels that Jupyter has installed.
    """

    def get_kernel_spec(self, kernel_name):
        """The command that starts a kernel."""
        return KernelSpec(
            argv=[sys.executable, '-m', 'ipykernel_launcher', '-f',
                  '{connection_file}', '--log-level=ERROR',
                  '--HistoryManager.hist_file=:memory:'],
            display_name='Python 3', language='python')


class Outputs:
    """The outputs of one cell, collected as Jupyter does.

    displays: {identifier: outputs} of a page; later cells can update these.
    """

    def __init__(self, displays):
        self.outputs, self.execution_count = [], None
        self._displays, self._clear = displays, False

    def add(self, message):
        """Process a message of the kernel; return a new output or None."""
        kind, content = message['msg_type'], message['content']
        display = content.get('transient', {}).get('display_id')
        if kind == 'execute_input':
            self.execution_count = content['execution_count']
        elif kind == 'clear_output':
            self._clear = True
            if not content.get('wait'):
                self._clear_now()
        elif kind == 'update_display_data':
            for output in self._displays.get(display, ()):
                output.update(data=content['data'],
                              metadata=content['metadata'])
        elif kind in ('stream', 'display_data', 'execute_result', 'error'):
            self._clear_now()
            output = v4.output_from_msg(message)
            if display is not None:
                self._displays.setdefault(display, []).append(output)
            self._keep(output)
            return output
        return None

    def _clear_now(self):
        if self._clear:
            self.outputs.clear()
            self._clear = False

    def _keep(self, output):
        last = self.outputs[-1] if self.outputs else None
        if (last is not None and output.output_type == 'stream'
                and last.output_type == 'stream'
                and last.name == output.name):
            last.text += output.text
        else:
            self.outputs.append(output)


class Kernel:
    """A Jupyter kernel, a context manager that starts and ends it.

    folder: its working directory; Jupyter uses the folder of the page.
    """

    def __init__(self, folder):
        self._manager = KernelManager(kernel_spec_manager=_ThisPython())
        self._client = None
        self._folder = str(folder)

    def __enter__(self):
        self._manager.start_kernel(cwd=self._folder)
        try:
            self._client = self._manager.client()
            self._client.start_channels()
            try:
                self._client.wait_for_ready(timeout=START_SECONDS)
            except RuntimeError as error:
                raise KernelError('the Jupyter kernel does not start: '
                                  f'{error}') from None
            path = Path(__file__).resolve().parents[1] / '__init__.py'
            reply = self.execute(_SET_UP.format(code=_CODE, path=str(path)),
                                 silent=True)
            if reply['status'] != 'ok':
                raise KernelError(reply['evalue'])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._client is not None:
            self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def execute(self, code, hear=lambda message: None,
                tick=lambda: None, **options):
        """Run code; returns the execute_reply of the Jupyter protocol.

        hear: called with each message about outputs. tick: called at least
        once a second. Raises KernelError if the kernel ends.
        """
        client = self._client
        request = client.execute(code, allow_stdin=False, stop_on_error=False,
                                 **options)
        idle = False
        while not idle:
            message = self._next(client.get_iopub_msg, tick)
            if message['parent_header'].get('msg_id') == request:
                idle = (message['msg_type'] == 'status' and
                        message['content']['execution_state'] == 'idle')
                hear(message)
                tick()
        while True:
            message = self._next(client.get_shell_msg, tick)
            if message['parent_header'].get('msg_id') == request:
                return message['content']

    def _next(self, get, tick):
        """The next message of a channel; calls tick while it waits."""
        while True:
            try:
                return get(timeout=1)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise KernelError(
                        'the Python process that runs the page has ended'
                        ) from None
                tick()

    def error_place(self):
        """The lines of cells in the traceback of the last error.

        A list of [line number, function]; see `imports.error_place`.
        """
        reply = self.execute('', silent=True, store_history=False,
                             user_expressions={'place': _PLACE})
        place = reply.get('user_expressions', {}).get('place', {})
        if place.get('status') != 'ok':
            return []
        return json.loads(ast.literal_eval(place['data']['text/plain']))
