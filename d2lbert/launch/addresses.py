"""Where the processes of a job find each other: hosts, ports, sockets."""
import contextlib
import os
import secrets
import socket
from pathlib import Path

from d2lbert.machine.arguments import UsageError

#: This machine, among hosts.
LOCAL = 'localhost'
#: The folder in which MXNet puts the sockets of a job that needs no network.
SOCKETS = '/tmp'


def read_hosts(hosts):
    """The hosts that --hosts names: a,b,c or a file with one on each line."""
    if hosts is None:
        return [LOCAL]
    if os.path.isfile(hosts):
        lines = Path(hosts).read_text(encoding='utf-8').splitlines()
        found = [line.split('#')[0].strip() for line in lines]
    elif os.sep in hosts:
        raise ValueError(f'--hosts: there is no file {hosts}')
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
    """The IP address of this machine at which the hosts find the scheduler.

    ps-lite listens at an address, not at a name.
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
            # No packet is sent: this only looks up the way
            probe.connect((remote[0].rpartition('@')[2], 9))
        except OSError as error:
            raise ValueError(
                f'the way from here to {remote[0]} is not known '
                f"({error.strerror}): give --root-uri, this machine's "
                'address as the hosts see it') from None
        return probe.getsockname()[0]


def free_port(root, port):
    """`port`, if the scheduler can have it; a free one for 0."""
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
    """The path of a new file whose place a process's socket will take.

    Its name is a number, which is MXNet's idea of a port. ZeroMQ replaces
    what has the name of a socket, so nobody else may be using that.
    """
    while True:
        path = Path(SOCKETS, str(100_000 + secrets.randbelow(10 ** 9)))
        with contextlib.suppress(FileExistsError):
            path.touch(mode=0o600, exist_ok=False)
            return path
