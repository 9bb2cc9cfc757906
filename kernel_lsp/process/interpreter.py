"""Find the Python interpreter for the user's code, and check that it has torch."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.supervisor import run
from kernel_lsp.process.worker_client import WORKER_PROGRAM

PROBE_DEADLINE_S = 30.0


async def find_python(option: Path | None) -> Path:
    """Return the interpreter for the user's code: `option`, else the active environment's, else the first with torch.

    Raises EnvironmentProblem when it, or every candidate, is unusable.
    """
    named = _named(option)
    if named is not None:
        return await _checked(*named)
    on_path = shutil.which("python3")
    for python in dict.fromkeys([on_path or sys.executable, sys.executable]):
        if await _probe(Path(python)) == "":
            return Path(python)
    return await _checked(Path(sys.executable), "this interpreter")


def named_python(option: Path | None) -> Path | None:
    """Return the interpreter that `find_python` will return if it has torch, so that it can be started early; None
    where it must search."""
    named = _named(option)
    return None if named is None else _absolute(named[0])


def site_packages(python: Path) -> tuple[Path, ...]:
    """Return the package folders of an interpreter, found without running it. Debian uses a different folder name."""
    patterns = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib*/python3*/dist-packages")
    return tuple(sorted(found for pattern in patterns for found in python.parent.parent.glob(pattern)))


_PROBE = (
    "import importlib.util as u, compileall, sys; print('torch' if u.find_spec('torch') else 'none');"
    "compileall.compile_dir(sys.argv[1], quiet=2)"
)
"""Compiles the worker's bytecode too, since the confined worker may not write next to its files."""


def _named(option: Path | None) -> tuple[Path, str] | None:
    """Return the interpreter named by the settings or the active environment, and the source of the name."""
    if option is not None:
        return option, f"--python {option}"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            return Path(os.environ[variable]) / "bin" / "python", f"${variable}"
    return None


def _absolute(python: Path) -> Path:
    """Return an absolute path without resolving symbolic links, which virtual environments depend on."""
    return Path(os.path.abspath(python.expanduser()))


async def _checked(python: Path, what: str) -> Path:
    """Return `python` after checking that it is a Python with torch."""
    python = _absolute(python)
    problem = await _probe(python)
    if not problem:
        return python
    has_no_torch = problem == "has no torch"
    raise EnvironmentProblem(
        f"{what}: {python} {problem}",
        file=str(python),
        next_step=f"run `{python} -m pip install torch`, or name another interpreter with --python"
        if has_no_torch
        else "name a Python interpreter that has torch with --python",
    )


async def _probe(python: Path) -> str:
    """Return the interpreter's problem; empty if usable."""
    if not python.exists():
        return "does not exist"
    if python.is_dir() or not os.access(python, os.X_OK):
        return "is not a program"
    try:
        result = await run([python, "-c", _PROBE, str(WORKER_PROGRAM.parent)], deadline_s=PROBE_DEADLINE_S)
    except OSError as error:
        return f"cannot be started ({error.strerror})"
    said = result.stdout.strip()
    if result.timed_out or result.returncode != 0 or said not in (b"torch", b"none"):
        return "is not a Python interpreter"
    return "" if said == b"torch" else "has no torch"
