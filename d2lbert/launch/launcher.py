"""Start the processes of a job on MXNet's parameter server.

`launch` starts a scheduler, servers and workers, on this machine or over
ssh, each under a guard (`guard.py`). Workers compute gradients on their
parts of the data, and servers add them up. The scheduler tells each process
the addresses of the others. If a process fails, all are ended.
"""
import collections
import os
import shlex
import sys

from d2lbert.launch.addresses import (
    LOCAL,
    SOCKETS,
    free_port,
    reserve_socket,
    root_address,
)
from d2lbert.launch.processes import Job, LaunchError  # noqa: F401
from d2lbert.machine.arguments import UsageError

#: ssh gives up on an unreachable host after 10 s, on a lost one after 15 s.
SSH = ('ssh -o BatchMode=yes -o ConnectTimeout=10 '
       '-o ServerAliveInterval=5 -o ServerAliveCountMax=3')
#: The program of the scheduler and the servers, as arguments of Python.
#: MXNet starts its own server at its import if DMLC_ROLE is set, so the
#: program removes it first. `import d2lbert` is quick under the name of the
#: command, so the program takes that name.
ROLE = ('-c', '''\
import os, sys
role = os.environ.pop('DMLC_ROLE')
sys.argv[0] = 'd2lbert'
from d2lbert.launch.launcher import serve
serve(role)
''')


def launch(worker, workers=2, servers=1, hosts=(LOCAL,), port=0,
           root_uri=None, ssh=SSH, remote_python=sys.executable, role=ROLE):
    """Run `workers` processes of Python with the arguments `worker`.

    role: the arguments for the scheduler and the servers. The output of
    worker 0 is printed as it comes. The lines of all other processes go to
    standard error, each with the name of its process. Returns when all
    workers have succeeded; raises `LaunchError` when a process fails, after
    all have been ended.

    Processes on this machine alone communicate through sockets that other
    users cannot open. With other hosts, or with a `port` or `root_uri`, they
    use TCP.
    """
    for name, count in (('--workers', workers), ('--servers', servers)):
        if count < 1:
            raise UsageError(f'{name} must be 1 or more, not {count}')
    if not 0 <= port < 2 ** 16:
        raise UsageError(f'--port must be 0 to 65535, not {port}')
    env = dict(DMLC_NUM_WORKER=str(workers), DMLC_NUM_SERVER=str(servers),
               D2LBERT_NUM_WORKERS=str(workers))
    host_of = [hosts[i % len(hosts)] for i in range(max(workers, servers))]
    sharing = collections.Counter(host_of[:workers])
    address = root_address(root_uri, hosts)
    if (set(hosts) == {LOCAL} and not port and root_uri is None
            and os.access(SOCKETS, os.W_OK)):
        job = Job(None, shlex.split(ssh), remote_python,
                  [reserve_socket() for _ in range(1 + servers + workers)])
        port = job.sockets[0].name
        env.update(DMLC_LOCAL='1', DMLC_NODE_HOST=address)
    else:
        port = free_port(address, port)
        job = Job((address, port), shlex.split(ssh), remote_python)
    env.update(DMLC_PS_ROOT_URI=address, DMLC_PS_ROOT_PORT=str(port))
    try:
        job.start('scheduler', LOCAL, role, dict(env, DMLC_ROLE='scheduler'))
        for i, host in enumerate(host_of[:servers]):
            job.start(f'server {i}', host, role,
                      dict(env, DMLC_ROLE='server'))
        for i, host in enumerate(host_of[:workers]):
            job.start(f'worker {i}', host, worker,
                      dict(env, DMLC_ROLE='worker', D2LBERT_RANK=str(i)),
                      sharing[host])
        job.watch()
    except KeyboardInterrupt:
        job.interrupt()
        raise
    finally:
        job.end()


def serve(role):
    """Run as the scheduler or a server until the job ends.

    role: 'scheduler' or 'server'. MXNet's own server unpickles, and so
    executes, an optimizer that anyone sends to its port. The workers of this
    package never send one, so this server refuses it and exits.
    """
    try:
        # With DMLC_ROLE set, this import would start MXNet's own server
        from d2lbert.machine.backend import mx
    except ImportError as error:
        sys.exit(f'd2lbert launch: {error}')

    class Server(mx.kvstore.KVStoreServer):
        def _controller(self):
            def refuse(*_):
                print('an optimizer was sent to this server, which only adds '
                      'gradients up: give gluon.Trainer '
                      'update_on_kvstore=False', file=sys.stderr, flush=True)
                os._exit(1)
            return refuse
    os.environ['DMLC_ROLE'] = role
    Server(mx.kv.create('dist')).run()
