"""Several machines: MXNet's own parameter server, started and watched over.

`launch` starts a scheduler, servers and workers, on this machine or over
ssh, each under a guard (`guard.py`). Workers compute gradients on their own
parts of the data, servers add them up, and the scheduler introduces all to
each other. When one of them fails, all end, and nothing stays behind.
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

#: Gives up on an unreachable host after 10 s, on one that is lost after 15 s.
SSH = ('ssh -o BatchMode=yes -o ConnectTimeout=10 '
       '-o ServerAliveInterval=5 -o ServerAliveCountMax=3')
#: What the scheduler and the servers run. MXNet serves as soon as it is
#: imported, if DMLC_ROLE says so, and then unpickles what it is sent. The
#: name in argv is that of the command, for which `import d2lbert` is quick.
ROLE = ('-c', '''\
import os, sys
role = os.environ.pop('DMLC_ROLE')
sys.argv[0] = 'd2lbert'
from d2lbert.launch.server import serve
serve(role)
''')


def launch(worker, workers=2, servers=1, hosts=(LOCAL,), port=0,
           root_uri=None, ssh=SSH, remote_python=sys.executable, role=ROLE):
    """Run `workers` processes of Python with the arguments `worker`.

    role: the arguments for the scheduler and the servers. What worker 0
    prints is printed as it comes; the lines of all others go to standard
    error, each behind a name. Returns when all workers have ended well, and
    raises `LaunchError` when a process fails. No process is left then.

    Where all are here, and neither `port` nor `root_uri` is given, they
    speak through sockets that other users cannot open, else over TCP.
    """
    for name, count in (('--workers', workers), ('--servers', servers)):
        if count < 1:
            raise UsageError(f'{name} must be 1 or more, not {count}')
    if not 0 <= port < 2 ** 16:
        raise UsageError(f'--port must be 0 to 65535, not {port}')
    env = dict(DMLC_NUM_WORKER=str(workers), DMLC_NUM_SERVER=str(servers),
               D2LBERT_NUM_WORKERS=str(workers))
    places = [hosts[i % len(hosts)] for i in range(max(workers, servers))]
    sharing = collections.Counter(places[:workers])
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
        for i, host in enumerate(places[:servers]):
            job.start(f'server {i}', host, role,
                      dict(env, DMLC_ROLE='server'))
        for i, host in enumerate(places[:workers]):
            job.start(f'worker {i}', host, worker,
                      dict(env, DMLC_ROLE='worker', D2LBERT_RANK=str(i)),
                      sharing[host])
        job.watch()
    except KeyboardInterrupt:
        job.interrupt()
        raise
    finally:
        job.end()
