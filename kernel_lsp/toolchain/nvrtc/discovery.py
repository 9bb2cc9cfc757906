"""Locate the CUDA compiler: NVRTC and its headers.

The first location with both is used, in the order of `find_toolchain`. Nothing is loaded: file names and one `#define`
give the versions.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import EnvironmentProblem

MINIMUM_VERSION = (12, 0)
"""Minimum CUDA version: earlier NVRTC files are named differently, and their `-default-device` fails with
`cuda/std`."""
INSTALL_COMMAND = "pip install 'kernel_lsp[cuda]'"
TOOLKIT_PARENT = Path("/usr/local")
LIBRARY_DIRECTORIES = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
INCLUDE_DIRECTORIES = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")
WHEEL_PARTS_LIBRARY = ("cu13/lib", "cuda_nvrtc/lib")
WHEEL_PARTS_INCLUDE = (("cu13/include",), ("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"))
NEEDED_HEADER = "cuda_fp16.h"
VERSION_HEADER = "cuda_runtime_api.h"
VERSION_HEADER_CHARACTERS = 64 << 10


class Toolchain(Noun):
    """A CUDA compiler with its headers. `version` is ``major.minor`` of both. `passed_over` lists the locations
    rejected before, with reasons."""

    nvrtc: Path
    builtins: Path
    include_directories: tuple[Path, ...]
    version: str
    origin: str
    passed_over: tuple[str, ...] = ()


def find_toolchain(
    explicit: Path | None = None,
    *,
    user_site_packages: Sequence[Path] = (),
    toolkit_parent: Path = TOOLKIT_PARENT,
) -> Toolchain:
    """Find the compiler: only `explicit` (a toolkit's root) when given; else $CUDA_HOME and $CUDA_PATH, the toolkit of
    the nvcc on PATH, /usr/local/cuda*, the wheels of this interpreter, the wheels in `user_site_packages` (torch's
    own).

    Raises EnvironmentProblem when there is none, with the command that installs one.
    """
    if explicit is not None:
        return _only(_Place(f"setting cuda_directory ({explicit})", _toolkit_libraries(explicit), _includes(explicit)))
    passed_over: list[str] = []
    for place in _places(user_site_packages, toolkit_parent):
        found = _inspect(place)
        if isinstance(found, Toolchain):
            return found.model_copy(update={"passed_over": tuple(passed_over)})
        passed_over.append(f"{place.origin}: {found}")
    looked = "".join(f"\n  {line}" for line in passed_over)
    raise EnvironmentProblem(f"no CUDA compiler (NVRTC) found{looked}", next_step=INSTALL_COMMAND)


class _Place:
    """A possible location of a toolchain. `include_sets` are alternatives."""

    def __init__(self, origin: str, libraries: Iterable[Path], include_sets: Iterable[tuple[Path, ...]]) -> None:
        self.origin = origin
        self.libraries = tuple(libraries)
        self.include_sets = tuple(include_sets)


def _only(place: _Place) -> Toolchain:
    found = _inspect(place)
    if isinstance(found, Toolchain):
        return found
    raise EnvironmentProblem(f"{place.origin}: {found}", next_step=f"correct the setting, or {INSTALL_COMMAND}")


def _places(user_site_packages: Sequence[Path], toolkit_parent: Path) -> Iterator[_Place]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield _toolkit(f"${variable} ({root})", Path(root))
    if nvcc := shutil.which("nvcc"):
        root_of_nvcc = Path(nvcc).resolve().parent.parent
        yield _toolkit(f"the toolkit of {nvcc}", root_of_nvcc)
    for root_path in sorted(toolkit_parent.glob("cuda*"), key=_toolkit_order):
        yield _toolkit(str(root_path), root_path)
    for directory in _own_site_packages():
        if (directory / "nvidia").is_dir():
            yield _wheels("PyPI wheels", directory / "nvidia")
    for directory in user_site_packages:
        if (directory / "nvidia").is_dir():
            yield _wheels(f"PyPI wheels in {directory}", directory / "nvidia")


def _toolkit_order(root: Path) -> tuple[bool, tuple[int, ...]]:
    """Order toolkits: `/usr/local/cuda`, the administrator's choice, then the newest first."""
    return (root.name != "cuda", tuple(-int(part) for part in re.findall(r"\d+", root.name)))


def _own_site_packages() -> list[Path]:
    texts = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if sys.flags.no_user_site == 0 and site.ENABLE_USER_SITE:
        texts.append(site.getusersitepackages())
    return [Path(text) for text in dict.fromkeys(texts)]


def _toolkit(origin: str, root: Path) -> _Place:
    return _Place(origin, _toolkit_libraries(root), _includes(root))


def _toolkit_libraries(root: Path) -> list[Path]:
    return [root / part for part in LIBRARY_DIRECTORIES]


def _includes(root: Path) -> list[tuple[Path, ...]]:
    return [(root / part,) for part in INCLUDE_DIRECTORIES]


def _wheels(origin: str, nvidia: Path) -> _Place:
    includes = [tuple(nvidia / part for part in parts) for parts in WHEEL_PARTS_INCLUDE]
    return _Place(origin, [nvidia / part for part in WHEEL_PARTS_LIBRARY], includes)


def _inspect(place: _Place) -> Toolchain | str:
    """Return the toolchain at a location, or the reason why there is none."""
    libraries = [found for directory in place.libraries if (found := _nvrtc_in(directory))]
    if not libraries:
        return "has no libnvrtc with its builtins"
    nvrtc, builtins, version = libraries[0]
    if version < MINIMUM_VERSION:
        return f"NVRTC {_dotted(version)} is older than {_dotted(MINIMUM_VERSION)}"
    reason = f"has no {NEEDED_HEADER}"
    for candidates in place.include_sets:
        header_version = _header_version(candidates)
        if header_version is None:
            continue
        if header_version == version:
            return Toolchain(
                nvrtc=nvrtc,
                builtins=builtins,
                include_directories=_with_cccl(candidates),
                version=_dotted(version),
                origin=place.origin,
            )
        reason = (
            f"mixes versions: NVRTC {_dotted(version)} with headers of CUDA {_dotted(header_version)}; "
            "install both from one CUDA release"
        )
    return reason


def _nvrtc_in(directory: Path) -> tuple[Path, Path, tuple[int, int]] | None:
    """Return NVRTC, its builtins, and their version. The builtins' file name has major and minor, NVRTC's only the
    major."""
    by_version: dict[tuple[int, int], Path] = {}
    for path in directory.glob("libnvrtc-builtins.so.*"):
        if match := re.fullmatch(r"libnvrtc-builtins\.so\.(\d+)\.(\d+)", path.name):
            by_version[int(match[1]), int(match[2])] = path
    for version in sorted(by_version, reverse=True):
        nvrtc = directory / f"libnvrtc.so.{version[0]}"
        if nvrtc.exists():
            return nvrtc, by_version[version], version
    return None


def _header_version(directories: Sequence[Path]) -> tuple[int, int] | None:
    if not any((directory / NEEDED_HEADER).is_file() for directory in directories):
        return None
    for directory in directories:
        header = directory / VERSION_HEADER
        if header.is_file():
            text = header.read_text(errors="replace")[:VERSION_HEADER_CHARACTERS]
            if match := re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text):
                return int(match[1]) // 1000, int(match[1]) % 1000 // 10
    return None


def _with_cccl(directories: Sequence[Path]) -> tuple[Path, ...]:
    """Add CCCL's folder; CUDA 13 keeps cub, thrust and cuda/std one level down."""
    present = [directory for directory in directories if directory.is_dir()]
    return tuple(present + [nested for directory in present if (nested := directory / "cccl").is_dir()])


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
