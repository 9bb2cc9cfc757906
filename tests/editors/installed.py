"""Find the editors that tests can drive, and the environment that they start in.

`scripts/install_editors.sh` puts newer ones than the distribution's below ``$KERNEL_LSP_EDITORS/newer``.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

EDITORS = Path(os.environ.get("KERNEL_LSP_EDITORS", "/opt/kernel-lsp-editors"))
STEP_S, SESSION_S = 600, 1800
"""Upper bounds in seconds of a step and of a session, for machines with other work: each step waits for a state."""
NOT_OURS = ("KERNEL_LSP_", "VIRTUAL_ENV", "VIM", "NVIM", "HELIX_RUNTIME")


def programs(name: str) -> dict[str, str]:
    """Return the paths of every installed editor of this name, by origin; the distribution's first."""
    found = {"distribution": shutil.which(name) or ""}
    found |= {path.parent.parent.name: str(path) for path in sorted(EDITORS.glob(f"newer/*/bin/{name}"))}
    return {origin: path for origin, path in found.items() if path}


def environment(home: Path) -> dict[str, str]:
    """Return this process's environment without our settings; the editor keeps its state, configuration and data in
    `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    places = {name: str(home / name.lower()) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    # The cache stays where it is: compiled kernels are found again there.
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return {**kept, **places, "XDG_CACHE_HOME": cache, "PYTHON": sys.executable}


def environment_of_the_server(home: Path) -> dict[str, str]:
    """Return the same with the server's virtual environment active: editors find `kernel-lsp` there."""
    prefix = Path(sys.executable).parent
    search = os.pathsep.join((str(prefix), os.environ.get("PATH", "")))
    return {**environment(home), "VIRTUAL_ENV": str(prefix.parent), "PATH": search}


def crowding() -> float:
    """Return the processes that want a processor, per processor; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
