"""Tries, as a confined child, what a confined child must not be able to do. Standard library only.

    probe.py REQUEST

REQUEST is JSON: ``{"secret": path, "outside": folder, "port": n, "socket": path, "datagrams": path, "sibling": pid,
"n_forks": n}``. It prints ``{attempt: "denied: why" | "succeeded"}`` and does no harm where it succeeds. Children
that it could start stay, asleep.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Callable

KEY_VARIABLE = "KERNEL_LSP_PROBE_API_KEY"
PTRACE_SEIZE = 0x4206  # <linux/ptrace.h>
PTRACE_DETACH = 17
TIMEOUT_S = 2.0
SLEEP_S = 300


def main() -> None:
    request = json.loads(sys.argv[1])
    print(json.dumps({name: _outcome(attempt, request) for name, attempt in ATTEMPTS.items()}), flush=True)


def _outcome(attempt: Callable[[dict], None], request: dict) -> str:
    try:
        attempt(request)
    except (OSError, KeyError) as problem:
        return f"denied: {problem}"
    return "succeeded"


def _read_secret(request: dict) -> None:
    with open(request["secret"]) as file:
        file.read()


def _read_key(request: dict) -> None:
    os.environ[KEY_VARIABLE]


def _read_environment_of_sibling(request: dict) -> None:
    with open(f"/proc/{request['sibling']}/environ", "rb") as file:
        file.read()


def _write_outside(request: dict) -> None:
    with open(os.path.join(request["outside"], "written"), "w") as file:
        file.write("x")


def _connect_tcp(request: dict) -> None:
    socket.create_connection(("127.0.0.1", request["port"]), TIMEOUT_S).close()


def _send_udp(request: dict) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", request["port"]))


def _connect_unix(request: dict) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(request["socket"])


def _send_through_pair(request: dict) -> None:
    """Send through a datagram socket pair, whose ends can address any socket without connecting."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", request["datagrams"])


def _resolve_name(request: dict) -> None:
    """Start a name resolution. Whether a name server exists is irrelevant."""
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC).close()
    socket.getaddrinfo("localhost", 80)


def _trace_sibling(request: dict) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, request["sibling"], None, None) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    libc.ptrace(PTRACE_DETACH, request["sibling"], None, None)


def _signal_sibling(request: dict) -> None:
    os.kill(request["sibling"], 0)


def _fork_bomb(request: dict) -> None:
    """Start the requested number of children, each of which tries to leave the group."""
    for _ in range(request["n_forks"]):
        if os.fork() == 0:
            try:
                os.closerange(0, 3)  # the reader of our output waits until every copy of the pipe is closed
                os.setsid()
                time.sleep(SLEEP_S)
            finally:
                os._exit(0)


ATTEMPTS = {
    "read a secret file": _read_secret,
    "read an API key": _read_key,
    "read another process's environment": _read_environment_of_sibling,
    "write outside": _write_outside,
    "connect over TCP": _connect_tcp,
    "send over UDP": _send_udp,
    "connect to a UNIX socket": _connect_unix,
    "send from a socket pair": _send_through_pair,
    "resolve a name": _resolve_name,
    "trace another process": _trace_sibling,
    "signal another process": _signal_sibling,
    "fork bomb": _fork_bomb,
}


if __name__ == "__main__":
    main()
