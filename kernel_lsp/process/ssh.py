"""A machine that the user's own OpenSSH reaches, as a place for workers."""

from __future__ import annotations

import os

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.channel import Stream
from kernel_lsp.process.remote import LOADER, Link, Place
from kernel_lsp.process.supervisor import _start, scrubbed_environment

SSH_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "8",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "2",
    "LogLevel": "ERROR",
}
"""No question is asked, and a connection that has died is noticed within 15 s. All else is the user's configuration."""
SSH_VARIABLES = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "USER", "LOGNAME", "KRB5CCNAME", "XDG_RUNTIME_DIR")
NOT_FOUND, SSH_FAILED = 127, 255
"""Exit statuses of a shell that finds no program, and of ssh itself; others are the remote program's."""
HINTS = (
    ("IDENTIFICATION HAS CHANGED", "its host key has changed", "ask its administrator, then `ssh-keygen -R` its name"),
    ("Host key verification failed", "its host key is not known", "connect once with `{}` and accept its key"),
    (
        "Permission denied",
        "it accepts none of your keys",
        "make `{}` work without a password (ssh-copy-id)",
    ),
    ("Could not resolve", "its name is not known", "correct the name, or add it to ~/.ssh/config"),
    (
        "Connection refused",
        "it refuses connections on that port",
        "start its server, or give its port: ssh://HOST:PORT",
    ),
    ("timed out", "it does not answer", "check that it is on and that the network lets you through"),
    ("No route to host", "it cannot be reached", "check that it is on and that the network lets you through"),
)
"""Words of ssh, the fault in short, and the next step. A changed key also fails verification, so it comes first."""


class Machine(Place):
    """A machine that ssh reaches. `port` and `user` may be empty: the user's configuration has them."""

    def __init__(self, host: str, *, user: str = "", port: str = "", python: str = "python3", ssh: str = "ssh") -> None:
        super().__init__(f"{user}@{host}" if user else host)
        self.python = python
        self._command = [ssh, "-T", *(f"-o{key}={value}" for key, value in SSH_OPTIONS.items())]
        self._command += [*(["-p", port] if port else []), "--", self.name]
        self._login = f"ssh -p {port} {self.name}" if port else f"ssh {self.name}"

    def command(self) -> list[str]:
        """Return the command that runs the loader there."""
        return [*self._command, f"exec {_quoted(self.python)} -c '{LOADER}' relay exec"]

    async def open(self, link: Link) -> Stream:
        """Start ssh."""
        extra = {name: os.environ[name] for name in SSH_VARIABLES if name in os.environ}
        try:
            process = await _start(self.command(), scrubbed_environment(extra), None)
        except OSError as error:
            raise EnvironmentProblem(f"ssh cannot be started ({error.strerror})", next_step="install OpenSSH") from None
        assert process.stdin is not None
        assert process.stdout is not None
        link.drain(process)
        return Stream(process.stdout, process.stdin, process)

    def problem(self, returncode: int, stderr: str) -> EnvironmentProblem:
        """Return ssh's error in short."""
        last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), f"status {returncode}")
        for words, what, next_step in HINTS:
            if words in stderr:
                return EnvironmentProblem(f"{self.name}: {what}", next_step=next_step.format(self._login))
        if returncode != SSH_FAILED:
            is_missing = returncode == NOT_FOUND
            fault = f" has no program {self.python}" if is_missing else f": {self.python} ended at once ({last[:200]})"
            step = f"name its Python with torch: ssh://{self.name}/path/to/python"
            return EnvironmentProblem(self.name + fault, next_step=step)
        return EnvironmentProblem(f"{self.name}: {last[:200]}", next_step=f"make `{self._login}` work")

    def silence(self) -> EnvironmentProblem:
        """Return the error of a host that accepts the connection and does not reply."""
        return EnvironmentProblem(f"{self.name} does not answer", next_step=f"make `{self._login}` work at once")


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
