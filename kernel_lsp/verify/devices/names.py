"""The names of devices, parsed in one place: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``cuda:all``, ``ssh://...``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.errors import SettingError

DEFAULT_PYTHON = "python3"
_SSH = re.compile(
    r"ssh://(?:(?P<user>[^@/:\s]+)@)?(?P<host>\[[^\]\s]+\]|[^@/:\s]+)(?::(?P<port>\d{1,5}))?(?P<python>/\S+)?"
)


@dataclass(frozen=True)
class Remote:
    """A machine that the user's OpenSSH reaches, and its Python with torch. Empty parts are OpenSSH's to choose."""

    host: str
    user: str = ""
    port: str = ""
    python: str = DEFAULT_PYTHON

    @property
    def destination(self) -> str:
        """Return the destination as a user knows it."""
        return f"{self.user}@{self.host}" if self.user else self.host


@dataclass(frozen=True)
class DeviceName:
    """A parsed name. `index` is the GPU's among those that torch sees there; None for all of them. ``auto`` takes a GPU
    where there is one."""

    kind: Literal["auto", "cpu", "cuda", "ssh"]
    index: int | None = 0
    remote: Remote | None = None

    @property
    def is_local_gpu(self) -> bool:
        """Check whether it names a GPU of this machine, or may become one."""
        return self.kind in ("auto", "cuda")


def parse_device(name: str) -> DeviceName:
    """Return the parsed name. Raises SettingError."""
    kind, _, number = name.partition(":")
    if name in ("auto", "cpu"):
        return DeviceName("auto" if name == "auto" else "cpu")
    if kind == "cuda" and (number.isdigit() or number == "all" or name == "cuda"):
        return DeviceName("cuda", None if number == "all" else int(number or 0))
    if found := _SSH.fullmatch(name):
        return DeviceName("ssh", 0, _remote(found))
    raise SettingError(
        f"there is no device '{name}'", next_step="use auto, cpu, cuda, cuda:N, cuda:all or ssh://user@host[:port]"
    )


def _remote(found: re.Match[str]) -> Remote:
    """A host or user that begins with a dash would be an option of ssh."""
    parts = {name: found[name] or "" for name in ("user", "host", "port")}
    if any(part.startswith("-") for part in parts.values()) or not 0 < int(parts["port"] or 22) < 1 << 16:
        raise SettingError(f"'{found[0]}' names no machine", next_step="use ssh://user@host[:port]")
    return Remote(parts["host"].strip("[]"), parts["user"], parts["port"], found["python"] or DEFAULT_PYTHON)
