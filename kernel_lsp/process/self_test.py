"""Test the sandbox: a probe, confined as each profile in turn, attempts what no profile may do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.process import probe
from kernel_lsp.process.confinement import Confinement, SandboxLevel
from kernel_lsp.process.profiles import (
    compiler_confinement,
    executor_confinement,
    foreign_confinement,
    profiler_confinement,
    worker_confinement,
)
from kernel_lsp.process.supervisor import ProcessResult, run, scrubbed_environment
from kernel_lsp.process.tree import running_now

PROBE = Path(probe.__file__)
DEADLINE_S = 30.0
N_FORKS = 24
"""Children of the fork bomb: enough to detect it, few enough to be harmless."""
FORK_BOMB = "fork bomb"
N_LOOKS, LOOK_EVERY_S = 10, 0.1
PROFILER = "profiler"
SOCKET_ATTEMPTS = ("send over UDP", "connect to a UNIX socket", "send from a socket pair", "resolve a name")
SOCKETS_NEEDED = "it talks to the program that it watches through sockets, and no code of a candidate runs on its host"
ENVIRONMENT_ATTEMPT = "read another process's environment"
COUNTERS_NEEDED = "the driver gives counters to administrators alone, who on this kernel may read others' memory"


@dataclass(frozen=True)
class Attempt:
    """One escape attempt by a child confined as `profile`. `was_denied` is the expected result; `detail` describes the
    outcome, and `why_open` why the profile cannot deny it."""

    profile: str
    what: str
    was_denied: bool
    detail: str
    why_open: str = ""


async def self_test(level: SandboxLevel) -> tuple[Attempt, ...]:
    """Run every attempt of every profile at a level. A fork bomb counts as denied when none of its processes outlives
    its group."""
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-probe-") as folder:
        root = Path(folder)
        found: list[Attempt] = []
        for name, confinement in _profiles(level, root).items():
            found += await _probe(name, confinement, root)
        return tuple(found)


def _profiles(level: SandboxLevel, root: Path) -> dict[str, Confinement]:
    """Build the profiles as in production, with a scratch folder for the probe."""
    python, scratch = Path(sys.executable), root / "scratch"
    scratch.mkdir()
    return {
        "compiler": compiler_confinement(level, (PROBE,)),
        "executor": executor_confinement(level, readable=(), writable=(scratch,)),
        "worker": worker_confinement(level, python, scratch=scratch, cache=scratch / "cache", private=(root / "home",)),
        "foreign code": foreign_confinement(
            level, python, readable=(PROBE,), scratch=scratch, may_start_programs=False
        ),
        PROFILER: profiler_confinement(level, python, scratch=scratch, needs_counters=True, private=(root / "home",)),
    }


async def _probe(profile: str, confinement: Confinement, root: Path) -> list[Attempt]:
    with _surroundings(root) as request:
        sibling = await asyncio.create_subprocess_exec("sleep", str(2 * DEADLINE_S), env={probe.KEY_VARIABLE: "secret"})
        try:
            result = await run(
                [sys.executable, "-I", "-S", PROBE, json.dumps({**request, "sibling": sibling.pid})],
                deadline_s=DEADLINE_S,
                environment=scrubbed_environment(),
                confinement=confinement,
                how="run",
            )
        finally:
            with suppress(ProcessLookupError):
                sibling.kill()
            await sibling.wait()
    return await _attempts(profile, result, root)


async def _attempts(profile: str, result: ProcessResult, root: Path) -> list[Attempt]:
    try:
        said = json.loads(result.stdout)
    except ValueError:
        problem = result.stderr.decode(errors="replace").strip()[-200:]
        return [Attempt(profile, "start", was_denied=False, detail=f"the probe did not run: {problem}")]
    if said[FORK_BOMB] == "succeeded" and await _are_gone(root):
        said[FORK_BOMB] = "denied: all of it was killed with its group"
    for pid in _survivors(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [
        Attempt(profile, what, how != "succeeded", how, _why_open(profile, what) if how == "succeeded" else "")
        for what, how in said.items()
    ]


def _why_open(profile: str, what: str) -> str:
    """Return the reason for a profiler's permitted attempts; in any other profile a success is a hole."""
    if profile != PROFILER:
        return ""
    if what in SOCKET_ATTEMPTS:
        return SOCKETS_NEEDED
    return COUNTERS_NEEDED if what == ENVIRONMENT_ATTEMPT else ""


@contextmanager
def _surroundings(root: Path) -> Iterator[dict[str, object]]:
    """Create a secret, a folder and listeners outside the probe's own folder, which it must not reach."""
    home = root / "home" / ".ssh"
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        (home / "id_ed25519").write_text("secret")
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        path, datagrams = str(root / "s"), str(root / "d")
        for address, kind in ((path, socket.SOCK_STREAM), (datagrams, socket.SOCK_DGRAM)):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            listener.bind(address)
            stack.callback(os.unlink, address)
            if kind == socket.SOCK_STREAM:
                listener.listen()
        yield {
            "secret": str(home / "id_ed25519"),
            "outside": str(root),
            "port": tcp.getsockname()[1],
            "socket": path,
            "datagrams": datagrams,
            "n_forks": N_FORKS,
        }


async def _are_gone(root: Path) -> bool:
    """Wait until no process of a killed group is left; return False on timeout."""
    for _ in range(N_LOOKS):
        if not _survivors(root):
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False


def _survivors(root: Path) -> list[int]:
    """Return the processes whose arguments name the folder."""
    found = []
    for each in running_now():
        with suppress(OSError):  # it ended during the scan
            if str(root) in Path(f"/proc/{each}/cmdline").read_text(errors="replace"):
                found.append(each)
    return found
