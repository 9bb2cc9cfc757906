"""Find nvdisasm, which prints a cubin's instructions (SASS), and run it."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.profiles import linter_confinement
from kernel_lsp.process.supervisor import run, scrubbed_environment
from kernel_lsp.toolchain.tools.binaries import TOOLKIT_BIN_DIRECTORIES

NAME = "nvdisasm"
OPTIONS = ("-c", "-gi")
WHEEL_PLACES = ("nvidia/*/bin", "triton/backends/nvidia/bin")
"""Folders of wheels that have it: NVIDIA's own, and Triton's, which comes with PyTorch for CUDA."""
INSTALL = "pip install nvidia-cuda-nvdisasm, or install a CUDA toolkit"
DEADLINE_S = 30.0
MAX_OUTPUT_BYTES = 64 << 20


def find_nvdisasm(site_packages: Sequence[Path] = ()) -> Path:
    """Return the program: of the PATH, of a toolkit, or of a wheel here or in `site_packages`.

    Raises EnvironmentProblem, with the command that installs it.
    """
    own = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    wheels = [found for root in (*own, *site_packages) for place in WHEEL_PLACES for found in sorted(root.glob(place))]
    toolkits = [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = (os.environ.get("PATH", ""), *map(str, (*toolkits, *TOOLKIT_BIN_DIRECTORIES, *wheels)))
    found = shutil.which(NAME, path=os.pathsep.join(folders))
    if found is None:
        raise EnvironmentProblem(f"SASS needs {NAME}, which is not on this machine", next_step=INSTALL)
    return Path(found)


async def disassemble(cubin: bytes, program: Path, level: SandboxLevel) -> str:
    """Return the SASS of every function with its source lines. Raises EnvironmentProblem when the program fails."""
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-sass-") as made:
        file = Path(made) / "kernel.cubin"
        file.write_bytes(cubin)
        result = await run(
            [program, *OPTIONS, file],
            deadline_s=DEADLINE_S,
            directory=file.parent,
            environment=scrubbed_environment({"LC_ALL": "C"}),
            max_output_bytes=MAX_OUTPUT_BYTES,
            confinement=linter_confinement(level, (file, program.parent, program.resolve().parent)),
        )
    if result.returncode != 0 or result.timed_out:
        said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
        reason = "it did not end in time" if result.timed_out else (said[-1] if said else "no reason given")
        raise EnvironmentProblem(f"{NAME} failed: {reason}", next_step=f"update it: {INSTALL}")
    return result.stdout.decode(errors="replace")
