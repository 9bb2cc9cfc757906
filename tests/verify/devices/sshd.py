"""A real sshd on the loopback address, with keys and a configuration of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.process.ssh import Machine
from tests.verify.gpu.harness import FAKE

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or ""
START_S = 20.0


@dataclass(frozen=True)
class Sshd:
    """A running sshd. `folder` has its keys; what it starts has its temporary folder in `left`."""

    folder: Path
    port: int

    @property
    def left(self) -> Path:
        return self.folder / "left"

    @property
    def ssh(self) -> Path:
        """Return a program that is ssh with the user's configuration."""
        return self.folder / "ssh"

    def machine(self, python: Path | str = "", *, ssh: Path | None = None, port: int = 0) -> Machine:
        """Return the machine, by default with a GPU that is made of Python."""
        chosen = str(python or self.python(f'exec {sys.executable} {FAKE} "$1"'))
        return Machine("127.0.0.1", port=str(port or self.port), python=chosen, ssh=str(ssh or self.ssh))

    def python(self, for_worker: str, name: str = "fake") -> Path:
        """Return an interpreter that runs the worker by this shell command, and all else as usual."""
        text = f'#!/bin/sh\ncase "$1" in */__main__.py) {for_worker};; esac\nexec {sys.executable} "$@"\n'
        return script(self.folder / f"python-{name}", text)

    def ssh_with(self, name: str, **options: str) -> Path:
        """Return another program that is ssh, with other options."""
        given = {"UserKnownHostsFile": self.folder / "known", "IdentityFile": self.folder / "user", **options}
        config = self.folder / f"config-{name}"
        config.write_text("".join(f"{key} {value}\n" for key, value in given.items()) + "IdentitiesOnly yes\n")
        return script(self.folder / name, f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')

    def is_clean(self, within_s: float = 15.0) -> bool:
        """Check that no file is left, waiting for processes that are ending."""
        end = time.monotonic() + within_s
        while any(self.left.iterdir()) and time.monotonic() < end:
            time.sleep(0.1)
        return not any(self.left.iterdir())


@contextmanager
def running(folder: Path) -> Iterator[Sshd]:
    """Run sshd until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "left").mkdir(parents=True)
    for name in ("host", "user", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    shutil.copy(folder / "user.pub", folder / "authorized")
    options = {"Port": port, "ListenAddress": "127.0.0.1", "HostKey": folder / "host", "PidFile": "none"}
    options |= {"AuthorizedKeysFile": folder / "authorized", "StrictModes": "no", "UsePAM": "no"}
    options |= {"PasswordAuthentication": "no", "SetEnv": f"TMPDIR={folder / 'left'}", "MaxStartups": "100"}
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in options.items()))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=(folder / "log").open("wb"))
    found = Sshd(folder, port)
    found.ssh_with("ssh")
    try:
        _wait_for(port)
        yield found
    finally:
        daemon.terminate()
        daemon.wait()


def script(path: Path, text: str) -> Path:
    """Write a program."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError("sshd did not start")
