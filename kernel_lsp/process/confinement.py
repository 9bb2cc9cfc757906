"""Rights of child processes: levels and rights as data, and the command that makes a child drop all others.

`confine.py` drops the rights in the child itself. `profiles.py` lists the rights of each kind of program.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kernel_lsp.errors import SettingError
from kernel_lsp.process import seccomp

if TYPE_CHECKING:  # it imports asyncio: half of the processor time of `confined_worker.py`
    from kernel_lsp.process.task_limit import TaskGroup

LAUNCHER = Path(__file__).with_name("confine.py")
MAX_OPEN_FILES = 4096
MAX_FILE_BYTES = 64 << 30
"""Maximum bytes of one file written by a worker or an executor, which exchange tensors as files."""
MAX_TASKS = 4096
"""Maximum processes and threads of the user, or of one child of root (`task_limit`). torch alone starts several threads
per core."""

BWRAP_DEADLINE_S = 10.0
"""Timeout of the bwrap probe in seconds: creating namespaces and an empty program takes some milliseconds."""


class SandboxLevel(StrEnum):
    """Sandbox levels, weakest first. Each includes the one before it."""

    NONE = "none"
    LIMITS = "limits"
    LANDLOCK = "landlock"
    LANDLOCK_SECCOMP = "landlock+seccomp"
    BWRAP = "bwrap"


@dataclass(frozen=True)
class Support:
    """The strongest level of this machine without other programs, and the reasons for missing levels."""

    level: SandboxLevel
    has_bwrap: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Confinement:
    """Rights of one child. Paths are files, or folders with everything below them.

    `listable` may be listed but not read; `devices` allow ioctl as well. Without `may_start_programs` there is neither
    fork nor exec: the process stays a Python interpreter that runs one program.
    """

    level: SandboxLevel
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    listable: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    may_start_programs: bool = False
    may_listen: bool = False
    """May open UNIX sockets for others to connect to. Its own sockets cannot connect."""
    max_file_bytes: int = MAX_FILE_BYTES
    max_memory_bytes: int = 0
    """Limit of its own writable memory in bytes; 0 for no limit."""
    max_tasks: int = MAX_TASKS
    has_network: bool = True
    """False for an empty network namespace, where one can be created. Profiles with a system-call filter need none:
    their sockets cannot connect."""
    kept_capabilities: int = 0
    """Mask of root's capabilities to keep, in addition to file access."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables to set in the child, in addition to the allowed ones."""


How = Literal["run", "module", "exec"]
"""A file or a module in the Python interpreter at the start of the command, or another program."""


def sandbox_level(setting: str) -> SandboxLevel:
    """Return the level of a setting: ``auto`` is the strongest without other programs, ``off`` is none.

    Raises SettingError when this machine lacks the requested level.
    """
    found = support()
    if setting == "auto":
        return found.level
    if setting == "off":
        return SandboxLevel.NONE
    wanted = SandboxLevel(setting)
    order = list(SandboxLevel)
    if wanted is SandboxLevel.BWRAP and not found.has_bwrap:
        raise SettingError("sandbox = bwrap: there is no bwrap here", next_step="install bubblewrap, or use auto")
    if wanted is SandboxLevel.BWRAP and (problem := _bwrap_problem()):
        raise SettingError(
            f"sandbox = bwrap: {problem}", next_step="let this user make namespaces (see bwrap's manual), or use auto"
        )
    if wanted is not SandboxLevel.BWRAP and order.index(wanted) > order.index(found.level):
        raise SettingError(
            f"sandbox = {setting}: {'; '.join(found.reasons)}", next_step="use auto, which takes what there is"
        )
    return wanted


@functools.cache
def support() -> Support:
    """Detect the sandbox layers of this machine's kernel, once, without starting a program."""
    has_bwrap = shutil.which("bwrap") is not None
    if sys.platform != "linux":
        return Support(SandboxLevel.NONE, has_bwrap, (f"{sys.platform} has none of the layers",))
    reasons, version = [], landlock_version()
    if version == 0:
        reasons.append("the kernel has no Landlock (Linux 5.13 and later, when it is switched on)")
    has_seccomp = _has_seccomp()
    if not has_seccomp:
        reasons.append(f"no system-call filter for {platform.machine()} here")
    if version and has_seccomp:
        return Support(SandboxLevel.LANDLOCK_SECCOMP, has_bwrap)
    return Support(SandboxLevel.LANDLOCK if version else SandboxLevel.LIMITS, has_bwrap, tuple(reasons))


@functools.cache
def _bwrap_problem() -> str:
    """Return bwrap's error when it cannot create its namespaces, as in many containers; empty on success."""
    command = [*_bwrap(Confinement(SandboxLevel.BWRAP)), "true"]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=BWRAP_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"bwrap had not begun after {BWRAP_DEADLINE_S:g} s"
    said = ended.stderr.decode(errors="replace").strip() or f"bwrap ended with status {ended.returncode}"
    return said if ended.returncode else ""


@functools.cache
def landlock_version() -> int:
    """Return the Landlock version of the kernel; 0 when it is missing or disabled."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION))


def confined_command(
    command: Sequence[str | Path],
    how: How,
    confinement: Confinement | None,
    group: TaskGroup | None = None,
    *,
    parent: int = 0,
) -> list[str]:
    """Return the command line that runs `command` confined; unchanged without a confinement or at the level ``none``.

    For ``run`` and ``module`` the command starts with the interpreter and its flags, then the file or module. Missing
    writable folders are created. The child joins the `group`, and dies with the process `parent`, by default this
    one. A child that cannot be confined exits with `confine.EXIT_NOT_CONFINED` and an error on stderr. Raises
    FileNotFoundError for a missing program.
    """
    words = [str(word) for word in command]
    if confinement is None or confinement.level is SandboxLevel.NONE:
        return _unconfined(words, how)
    if how == "exec" and shutil.which(words[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])
    for folder in confinement.writable:
        folder.mkdir(parents=True, exist_ok=True)
    n_own = _n_interpreter_words(words) if how != "exec" else 0
    interpreter = words[:n_own] or [sys.executable, "-I", "-S"]
    launched = [
        *interpreter,
        str(LAUNCHER),
        json.dumps(_spec(confinement, group, parent or os.getpid())),
        how,
        *words[n_own:],
    ]
    return [*_bwrap(confinement), *launched] if confinement.level is SandboxLevel.BWRAP else launched


_CREATE_RULESET, _GET_VERSION = 444, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_CHANGES = 0x1FF0
"""Rights to remove and create files and folders of every kind."""
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_ALWAYS_WRITABLE = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")


def _handled(version: int) -> int:
    """Return every file right that this version knows: rights handled but not granted are denied."""
    rights = _READING | _WRITE_FILE | _CHANGES
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        rights |= right if version >= since else 0
    return rights


def _rules(confinement: Confinement, version: int) -> Iterator[tuple[str, int]]:
    """Build the rules; rights unknown to the kernel are masked out."""
    known = _handled(version)
    writing = (known & ~_IOCTL) & ~_EXECUTE
    groups = (
        (confinement.readable, _READING),
        (confinement.listable, _READ_DIR),
        (confinement.writable, writing | (_EXECUTE if confinement.may_start_programs else 0)),
        (confinement.devices, _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL),
        (tuple(map(Path, _ALWAYS_WRITABLE)), _READ_FILE | _WRITE_FILE | _IOCTL),
    )
    for paths, rights in groups:
        yield from ((_resolved(path), rights & known) for path in paths)


def _resolved(path: Path) -> str:
    """Resolve symbolic links, except those to the process itself, which must refer to the child."""
    return str(path) if path.parts[:3] == ("/", "proc", "self") else os.path.realpath(path)


def _spec(confinement: Confinement, group: TaskGroup | None, parent: int) -> dict[str, object]:
    version = landlock_version() if confinement.level not in (SandboxLevel.NONE, SandboxLevel.LIMITS) else 0
    has_filter = confinement.level in (SandboxLevel.LANDLOCK_SECCOMP, SandboxLevel.BWRAP)
    return {
        "parent": 0 if confinement.level is SandboxLevel.BWRAP else parent,
        "limits": _limits(confinement),
        "fs": _handled(version) if version else 0,
        "net": 3 if version >= 4 and confinement.has_network else 0,
        "scoped": 3 if version >= 6 else 0,
        "rules": list(_rules(confinement, version)) if version else [],
        "filter": _filter(confinement.may_start_programs, confinement.may_listen)
        if has_filter and _has_seccomp()
        else "",
        "group": "" if group is None else str(group.procs),
        "network": confinement.has_network,
        "keeps": confinement.kept_capabilities,
    }


def _limits(confinement: Confinement) -> list[tuple[int, int]]:
    memory = [(resource.RLIMIT_DATA, confinement.max_memory_bytes)] if confinement.max_memory_bytes else []
    return [
        *memory,
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, confinement.max_file_bytes),
        (resource.RLIMIT_NPROC, confinement.max_tasks),
    ]


@functools.cache
def _filter(may_start_programs: bool, may_listen: bool) -> str:
    machine = platform.machine()
    return seccomp.filter_program(machine, may_start_programs=may_start_programs, may_listen=may_listen).hex()


@functools.cache
def _has_seccomp() -> bool:
    """Return True when the kernel supports filters and the architecture's system calls are known."""
    if sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES:
        return False
    allow, action_available = ctypes.c_uint32(0x7FFF0000), 2  # <linux/seccomp.h>
    numbers = {"x86_64": 317, "aarch64": 277}
    return ctypes.CDLL(None).syscall(numbers[platform.machine()], action_available, 0, ctypes.byref(allow)) == 0


def _n_interpreter_words(words: Sequence[str]) -> int:
    """Count the interpreter and its flags, none of which takes a value here."""
    return next((n for n, word in enumerate(words) if n > 0 and not word.startswith("-")), len(words))


def _unconfined(words: list[str], how: How) -> list[str]:
    n_own = _n_interpreter_words(words)
    return [*words[:n_own], "-m", *words[n_own:]] if how == "module" else words


def _bwrap(confinement: Confinement) -> list[str]:
    """Build a bwrap command with its own namespaces: no network, no other processes, a read-only machine. Landlock,
    inside, restricts reading."""
    binds = [word for path in confinement.writable if path.exists() for word in ("--bind", str(path), str(path))]
    return [
        *("bwrap", "--die-with-parent", "--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", *binds, "--"),
    ]
