"""Find the programs that build a torch extension: a C++ compiler, nm, and nvcc for CUDA code."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.process.supervisor import run
from kernel_lsp.toolchain.tools.binaries import find_tools

CXX_NAMES = ("g++", "c++", "clang++")
VERSION_DEADLINE_S = 10.0
LIBRARY_FOLDERS = ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib")
INCLUDE_FOLDERS = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")
STATIC_STUBS = "-static-global-template-stub"


class ExtensionTools(Noun):
    """Paths of the compilers. `version` distinguishes builds of different compilers. `nvcc` is None without a toolkit.
    `shared_stubs` are nvcc's flags that let other object files launch instances of a template kernel: since CUDA 13
    these are local to their file by default."""

    cxx: Path
    nm: Path
    nvcc: Path | None
    version: str
    cuda_includes: tuple[Path, ...] = ()
    cuda_libraries: tuple[Path, ...] = ()
    shared_stubs: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[Path, ...]:
        """Folders of the compilers' own files outside the system."""
        own = [path.parent for path in (self.cxx, self.nm, self.nvcc) if path is not None]
        return (*own, *self.cuda_includes, *self.cuda_libraries)


async def find_extension_tools() -> ExtensionTools:
    """Find the tools of this machine. Raises EnvironmentProblem without a C++ compiler."""
    cxx = next(
        (path for name in (os.environ.get("CXX", ""), *CXX_NAMES) if name and (path := shutil.which(name))), None
    )
    nm = shutil.which("nm")
    if cxx is None or nm is None:
        raise EnvironmentProblem(
            "there is no C++ compiler here to build a torch extension with", next_step="install g++ (with binutils)"
        )
    said = await run([cxx, "--version"], deadline_s=VERSION_DEADLINE_S)
    (nvcc,) = await find_tools(["nvcc"])
    root = await _toolkit_root(nvcc.path) if nvcc.path is not None else None
    return ExtensionTools(
        cxx=Path(cxx),
        nm=Path(nm),
        nvcc=nvcc.path,
        version=f"{said.stdout.decode(errors='replace').splitlines()[:1]} nvcc {nvcc.version}",
        cuda_includes=_present(root, INCLUDE_FOLDERS),
        cuda_libraries=_present(root, LIBRARY_FOLDERS),
        shared_stubs=await _shared_stubs(nvcc.path) if nvcc.path is not None else (),
    )


# --- below


async def _shared_stubs(nvcc: Path) -> tuple[str, ...]:
    """Return nvcc's flags for shared stubs; older versions have none and need none."""
    said = await run([nvcc, "--help"], deadline_s=VERSION_DEADLINE_S)
    return (f"{STATIC_STUBS}=false",) if STATIC_STUBS.encode() in said.stdout else ()


async def _toolkit_root(nvcc: Path) -> Path:
    """Return nvcc's own toolkit root, since the program on the path may be a script or a link."""
    said = await run([nvcc, "--dryrun", "-c", "none.cu"], deadline_s=VERSION_DEADLINE_S)
    text = (said.stdout + said.stderr).decode(errors="replace")
    top = next((line.split("TOP=", 1)[1] for line in text.splitlines() if "TOP=" in line), "")
    return Path(os.path.realpath(top.strip())) if top else nvcc.resolve().parent.parent


def _present(root: Path | None, folders: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(root / folder for folder in folders if root is not None and (root / folder).is_dir())
