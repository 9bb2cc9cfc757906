"""A package is built, installed and used: here without a GPU, so that PyTorch computes behind the compiled operator."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kernel_lsp.config import default_cache_directory
from kernel_lsp.export.package.project import SOURCES
from kernel_lsp.toolchain.nvrtc.build_cache import content_key

from .other_samples import LINEAR_RELU, RMS_NORM
from .packages import written

BUILD_DEADLINE_S = 400
PIP = [sys.executable, "-m", "pip", "--quiet"]
OFFLINE = ["--no-deps", "--no-index"]
STUB = "c10/cuda/impl/cuda_cmake_macros.h"
"""A header that PyTorch's CPU builds leave out."""

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.timeout(2 * BUILD_DEADLINE_S),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds `source`, `wheels` and `site`."""
    pytest.importorskip("torch")
    folder: Path = tmp_path_factory.mktemp("package")
    written(RMS_NORM, folder / "source")
    shutil.copytree(kept_wheels(folder / "source"), folder / "wheels")
    wheel = next((folder / "wheels").iterdir())
    run([*PIP, "install", *OFFLINE, "--target", "site", str(wheel)], folder)
    return folder


def kept_wheels(source: Path) -> Path:
    """The folder with the wheel of these sources. It is kept by content: building takes a minute or more."""
    import torch

    texts = [f"{path.relative_to(source)}\0{path.read_text()}" for path in sorted(source.rglob("*")) if path.is_file()]
    compiler = run(["g++", "--version"], source).splitlines()[0]
    key = content_key(*texts, torch.__version__, sys.version, compiler)
    kept = default_cache_directory() / "package-wheels" / key
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as made:
            command = [*PIP, "wheel", "--no-build-isolation", *OFFLINE, "-w", f"{made}/wheels", "."]
            run(command, source)
            with contextlib.suppress(OSError):  # another run was first
                os.rename(f"{made}/wheels", kept)
    return kept


def run(command: list[str], directory: Path, **environment: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def run_installed(installed: Path, text: str) -> str:
    return run([sys.executable, "-c", text], installed, PYTHONPATH=str(installed / "site")).strip()


def test_its_own_tests_pass(installed: Path) -> None:
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "source/tests"]
    assert "18 passed" in run(pytest_, installed, PYTHONPATH=str(installed / "site"))


def test_it_needs_nothing_of_ours(installed: Path) -> None:
    text = "import sys, rms_norm_cuda; print([name for name in sys.modules if name.startswith('kernel_lsp')])"
    assert run_installed(installed, text) == "[]"


def test_on_a_cpu_it_says_once_who_computes(installed: Path) -> None:
    text = (
        "import torch, warnings, rms_norm_cuda\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    for _ in range(3): rms_norm_cuda.rms_norm(torch.ones(2, 4), torch.ones(4))\n"
        "print(*(each.message for each in said))"
    )
    expected = "rms_norm: computed by PyTorch, not by its CUDA kernels: the tensors are on cpu"
    assert run_installed(installed, text) == expected


def test_it_has_no_python_symbols(installed: Path) -> None:
    library = next((installed / "site" / "rms_norm_cuda").glob("_C*.so"))
    assert b"PyInit_" not in library.read_bytes()


def test_a_second_derivative_is_right(installed: Path) -> None:
    text = (
        "import torch, rms_norm_cuda, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "x, w = (torch.randn(*s, dtype=torch.double, requires_grad=True) for s in ((3, 4), (4,)))\n"
        "print(torch.autograd.gradgradcheck(lambda x, w: rms_norm_cuda.rms_norm(x, w), (x, w)))"
    )
    assert run_installed(installed, text) == "True"


def test_its_wheel_is_for_every_python(installed: Path) -> None:
    assert [path.name.split("-")[2:4] for path in (installed / "wheels").iterdir()] == [["cp39", "abi3"]]


def test_the_source_distribution_holds_the_kernels(installed: Path) -> None:
    run([sys.executable, "setup.py", "--quiet", "sdist", "-d", str(installed / "dist")], installed / "source")
    archive = next((installed / "dist").iterdir())
    assert "csrc/rms_norm.cu" in run(["tar", "tzf", str(archive)], installed)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA headers")
def test_the_cuda_half_compiles(tmp_path: Path) -> None:
    import torch
    from torch.utils.cpp_extension import include_paths

    written(LINEAR_RELU, tmp_path)
    stub = tmp_path / "stub" / STUB
    stub.parent.mkdir(parents=True)
    stub.write_text("#pragma once\n")
    nvcc = Path(
        run(["sh", "-c", "nvcc --dryrun x.cu 2>&1 | sed -n 's/.*TOP=//p'"], tmp_path).strip() or "/usr/local/cuda"
    )
    includes = [f"-I{path}" for path in (stub.parents[3], nvcc / "include", SOURCES, *include_paths())]
    standard = "-std=c++20" if torch.__version__ >= "2.13" else "-std=c++17"
    command = ["g++", standard, "-fsyntax-only", "-DWITH_KERNELS=1", *includes, "csrc/operator.cpp"]
    run(command, tmp_path)
