"""The names of devices, parsed in one place: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``cuda:all``, ``ssh://...``,
``ray``, ``ray://...``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl

from kernel_lsp.errors import SettingError
from kernel_lsp.process.ray_cluster import START_S, RayAddress

DEFAULT_PYTHON = "python3"
_SSH = re.compile(
    r"ssh://(?:(?P<user>[^@/:\s]+)@)?(?P<host>\[[^\]\s]+\]|[^@/:\s]+)(?::(?P<port>\d{1,5}))?(?P<python>/\S+)?"
)

_RAY = re.compile(r"ray(?:://(?P<address>(?:\[[^\]\s]+\]|[^@/:?\s]+):\d{1,5}))?(?:\?(?P<options>\S*))?")
RAY_ADDRESS = "RAY_ADDRESS"
"""Ray's own variable: ``ray`` without an address joins that cluster, as every program of Ray does."""


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

    kind: Literal["auto", "cpu", "cuda", "ssh", "ray"]
    index: int | None = 0
    remote: Remote | None = None
    ray: RayAddress | None = None

    @property
    def is_remote(self) -> bool:
        """Check whether it names GPUs that another machine may have."""
        return self.kind in ("ssh", "ray")

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
    if found := _RAY.fullmatch(name):
        return DeviceName("ray", None, ray=_ray(name, found))
    if found := _SSH.fullmatch(name):
        return DeviceName("ssh", 0, _remote(found))
    raise SettingError(
        f"there is no device '{name}'",
        next_step="use auto, cpu, cuda, cuda:N, cuda:all, ssh://user@host[:port] or ray[://host:port]",
    )


def _remote(found: re.Match[str]) -> Remote:
    """A host or user that begins with a dash would be an option of ssh."""
    parts = {name: found[name] or "" for name in ("user", "host", "port")}
    if any(part.startswith("-") for part in parts.values()) or not 0 < int(parts["port"] or 22) < 1 << 16:
        raise SettingError(f"'{found[0]}' names no machine", next_step="use ssh://user@host[:port]")
    return Remote(parts["host"].strip("[]"), parts["user"], parts["port"], found["python"] or DEFAULT_PYTHON)


def _ray(name: str, found: re.Match[str]) -> RayAddress:
    """Return the address with its options: ``?slots=N``, ``wait=SECONDS``, ``type=H100``, ``python=/path``."""
    given = dict(parse_qsl(found["options"] or "", keep_blank_values=True))
    address = f"ray://{found['address']}" if found["address"] else os.environ.get(RAY_ADDRESS, "")
    kind = given.pop("type", "")
    try:
        parsed = RayAddress(
            address,
            n_slots=int(given.pop("slots", 0)),
            wait_s=float(given.pop("wait", START_S)),
            python=given.pop("python", ""),
            resources={"num_gpus": 1, **({"accelerator_type": kind} if kind else {})},
        )
    except ValueError:
        given["slots"] = "?"
    if given or parsed.n_slots < 0:
        step = "use ray://HOST:PORT?slots=N&wait=SECONDS&type=GPU&python=PATH"
        raise SettingError(f"'{name}' has options that are not known", next_step=step)
    return parsed
