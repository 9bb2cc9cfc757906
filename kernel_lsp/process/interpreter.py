"""The interpreter that the user's code runs under: which one, and whether it has torch."""

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
    """The interpreter to run the user's code with: `option`, else the active environment's, else the first with torch.

    Raises EnvironmentProblem when the named one, or none at all, can be used.
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
    """What `find_python` will find if it has torch, for who starts it meanwhile; None where it has to look."""
    named = _named(option)
    return None if named is None else _absolute(named[0])


def site_packages(python: Path) -> tuple[Path, ...]:
    """Where the packages of an interpreter are, torch's own compiler among them; Debian has a name of its own for it.
    Nothing is run to find out."""
    patterns = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib*/python3*/dist-packages")
    return tuple(sorted(found for pattern in patterns for found in python.parent.parent.glob(pattern)))


# --- below: looking at one

_PROBE = (
    "import importlib.util as u, compileall, sys; print('torch' if u.find_spec('torch') else 'none');"
    "compileall.compile_dir(sys.argv[1], quiet=2)"
)
"""The confined worker may not write beside its files, so its bytecode is made here."""


def _named(option: Path | None) -> tuple[Path, str] | None:
    """The interpreter that the settings or the active environment name, and what names it."""
    if option is not None:
        return option, f"--python {option}"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            return Path(os.environ[variable]) / "bin" / "python", f"${variable}"
    return None


def _absolute(python: Path) -> Path:
    """Symbolic links stay: they are how environments work."""
    return Path(os.path.abspath(python.expanduser()))


async def _checked(python: Path, what: str) -> Path:
    """`python`, once it is known to be a Python with torch."""
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
    """What is wrong with an interpreter; empty when nothing is."""
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
