"""``kernel-lsp serve``: the language server on stdin and stdout."""

from __future__ import annotations

import os
import sys

from kernel_lsp.server.protocol.handshake import Connection, Left, shake_hands

EXIT_OK, EXIT_UNASKED = 0, 1


def serve() -> int:
    """Serve one client until `exit` or disconnection; return the exit status that the protocol requires."""
    connection = _connect()
    try:
        initialized = shake_hands(connection)
    except (BrokenPipeError, KeyboardInterrupt):
        return EXIT_UNASKED
    if isinstance(initialized, Left):
        return EXIT_UNASKED
    from kernel_lsp.server.server_loop import run  # heavy import, deferred until the client has its answer

    return run(connection, initialized)


def _connect() -> Connection:
    """Reserve stdout for the protocol: output of any library goes to stderr."""
    stdout = os.dup(sys.stdout.fileno())
    os.set_inheritable(stdout, False)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    stdin = os.dup(sys.stdin.fileno())
    os.set_inheritable(stdin, False)
    return Connection(stdin, stdout)
