"""Addresses of the processes of a job: hosts, ports, sockets."""
import contextlib
import os
import secrets
import socket
from pathlib import Path

from d2lbert.machine.arguments import UsageError

#: The name of this machine in a list of hosts.
LOCAL = 'localhost'
#: The folder in which MXNet puts the sockets of a job on one machine.
SOCKETS = '/tmp'


def read_hosts(hosts):
    """A list of hosts from --hosts: a,b,c or a file with one on each line.

    None gives this machine.
    """
    if hosts is None:
        return [LOCAL]
    if os.path.isfile(hosts):
        lines = Path(hosts).read_text(encoding='utf-8').splitlines()
        found = [line.split('#')[0].strip() for line in lines]
    elif os.sep in hosts:
        raise ValueError(f'--hosts {hosts}: there is no such file')
    else:
        found = [host.strip() for host in hosts.split(',')]
    found = [host for host in found if host]
    for host in found:
        if host.startswith('-') or len(host.split()) > 1:
            raise UsageError(f'--hosts {hosts}: {host!r} is not the name of '
                             'a host')
    if not found:
        raise UsageError(f'--hosts {hosts!r} names no host: give a,b or a '
                         'file with a host on each line')
    return found


def root_address(root_uri, hosts):
    """The IP address of this machine that the hosts can reach.

    The scheduler listens there; ps-lite needs an address, not a name.
    """
    if root_uri is not None:
        try:
            return socket.gethostbyname(root_uri)
        except OSError as error:
            raise ValueError(f'--root-uri {root_uri} is not an address '
                             f'({error.strerror})') from None
    remote = [host for host in hosts if host != LOCAL]
    if not remote:
        return '127.0.0.1'
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends no packet; it only looks up the route
            probe.connect((remote[0].rpartition('@')[2], 9))
        except OSError as error:
            raise ValueError(
                f'there is no route from here to {remote[0]} '
                f'({error.strerror}): give --root-uri, the address at which '
                'the hosts can reach this machine') from None
        return probe.getsockname()[0]


def free_port(root, port):
    """Return `port` if the scheduler can use it, or a free port for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((root, port))
        except OSError as error:
            raise ValueError(
                f'the scheduler cannot listen at {root}:{port} '
                f'({error.strerror}): give another --port or --root-uri'
            ) from None
        return probe.getsockname()[1]


def reserve_socket():
    """Create a file with an unused name, which a socket will replace.

    Returns its path. MXNet wants a number, its port, as the name. ZeroMQ
    overwrites any file of that name, so no other process may use it.
    """
    while True:
        path = Path(SOCKETS, str(100_000 + secrets.randbelow(10 ** 9)))
        with contextlib.suppress(FileExistsError):
            path.touch(mode=0o600, exist_ok=False)
            return path
