"""Commands on a device that cannot be used end with status 2 and one line, which names the fault and the next step.

`test_ssh` has the words of each fault; here is one before a worker is there, one in the worker, and one of Ray.
"""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernel_lsp.process.ray_cluster import SETTINGS

from .sshd import Sshd
from .test_ray import MISMATCH

MAX_S = 20.0
"""Seconds of a command on an idle machine; a loaded one takes several times as long to start."""
LONG_S = 250
"""Seconds of a capture that nobody waits for."""
TASK = "import torch\n\n# kernel-lsp: x=f32[64]\ndef f(x):\n    return x + 1\n"
RAY = f"""import types
__version__ = "2.60.0"
def init(**_):
    raise RuntimeError({MISMATCH!r})
def shutdown():
    pass
"""
"""A Ray whose version differs from the cluster's, as far as the bridge can tell."""
EMPTY_SETTINGS = bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
"""The frame with which a server of HTTP/2 opens a connection (RFC 9113, 3.4)."""


def optimize(folder: Path, device: str, text: str = TASK, **environment: str) -> tuple[int, list[str], float]:
    """Return the status, the lines of stderr and the seconds of a command."""
    (folder / "task.py").write_text(text)
    started = time.monotonic()
    ended = command(folder, "optimize", "task.py::f", "--device", device, **environment)
    return ended.returncode, [line for line in ended.stderr.splitlines() if line.strip()], time.monotonic() - started


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": os.getcwd(), **environment}
    line = [sys.executable, "-m", "kernel_lsp", *arguments]
    return subprocess.run(line, cwd=folder, env=given, capture_output=True, text=True, timeout=280)


def on_path(sshd: Sshd, name: str, **options: str) -> str:
    """Return a PATH whose ssh has the tests' configuration."""
    folder = sshd.folder / f"path-{name}"
    folder.mkdir()
    (folder / "ssh").symlink_to(sshd.ssh_with(f"config-of-{name}", **options))
    return f"{folder}:{os.environ['PATH']}"


@contextmanager
def silent_server() -> Iterator[int]:
    """Yield a port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def grpc_server() -> Iterator[int]:
    """Yield a port that opens each connection as a gRPC server does, and says no more."""

    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(EMPTY_SETTINGS)
            self.request.recv(1 << 16)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def check(found: tuple[int, list[str], float], words: str) -> None:
    status, lines, elapsed_s = found
    assert status == 2, lines
    faults = [line for line in lines if words in line]
    assert len(faults) == 1, lines
    assert not any("Traceback" in line for line in lines)
    assert elapsed_s < MAX_S * max(1.0, os.getloadavg()[0])


def test_a_host_that_never_answers(sshd: Sshd, tmp_path: Path) -> None:
    with silent_server() as port:
        path = on_path(sshd, "silent")
        check(optimize(tmp_path, f"ssh://127.0.0.1:{port}", PATH=path), "127.0.0.1")


def test_a_machine_out_of_reach_is_named_before_a_long_capture_ends(tmp_path: Path) -> None:
    slow = f"import time\n\ntime.sleep({LONG_S})\n{TASK}"
    found = optimize(tmp_path, "ssh://127.0.0.1:1", slow)
    check(found, "refuses connections")
    assert found[2] < LONG_S


def test_a_python_without_torch(sshd: Sshd, tmp_path: Path) -> None:
    python = sshd.python(f'exec {sys.executable} -S -I "$@"', "no-torch-there")
    device = f"ssh://127.0.0.1:{sshd.port}{python}"
    check(optimize(tmp_path, device, PATH=on_path(sshd, "torch")), "cannot import torch")
    assert sshd.is_clean()


def test_another_version_of_ray(tmp_path: Path) -> None:
    (tmp_path / "packages" / "ray").mkdir(parents=True)
    (tmp_path / "packages" / "ray" / "__init__.py").write_text(RAY)
    with grpc_server() as port:
        packages = f"{tmp_path / 'packages'}:{os.getcwd()}"
        found = optimize(tmp_path, f"ray://127.0.0.1:{port}", PYTHONPATH=packages)
    check(found, "has another version: Ray: 2.9.0, Python: 3.11.9 there, Ray: 2.60.0, Python: 3.11.7 here")
