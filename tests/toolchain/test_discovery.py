"""Discovery, over directories that look like toolkits."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.toolchain.nvrtc import discovery
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, no nvcc and no wheels, until a test adds them."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(discovery, "_own_site_packages", lambda: [])


def make_toolkit(root: Path, *, nvrtc: str = "13.0", headers: str = "13.0") -> Path:
    """A directory with the files that discovery looks at."""
    major, minor = (int(part) for part in headers.split("."))
    (root / "lib64").mkdir(parents=True)
    (root / "include" / "cccl").mkdir(parents=True)
    (root / "lib64" / f"libnvrtc.so.{nvrtc.split('.')[0]}").touch()
    (root / "lib64" / f"libnvrtc-builtins.so.{nvrtc}").touch()
    (root / "include" / "cuda_fp16.h").touch()
    (root / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {major * 1000 + minor * 10}\n")
    return root


def check(parent: Path, *, origin: str, version: str = "13.0") -> None:
    found = find_toolchain(toolkit_parent=parent)
    assert (found.origin, found.version) == (origin, version)


def test_a_machine_with_nothing_gets_the_command_that_installs_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem) as problem:
        find_toolchain(toolkit_parent=tmp_path)
    assert problem.value.next_step == "pip install 'kernel_lsp[cuda]'"


def test_a_toolkit_in_usr_local_is_found(tmp_path: Path) -> None:
    root = make_toolkit(tmp_path / "cuda-13.0")
    check(tmp_path, origin=str(root))


def test_plain_cuda_comes_before_a_newer_numbered_one(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda-13.1", nvrtc="13.1", headers="13.1")
    root = make_toolkit(tmp_path / "cuda")
    check(tmp_path, origin=str(root))


def test_of_numbered_toolkits_the_newest_is_taken(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda-12.9", nvrtc="12.9", headers="12.9")
    newest = make_toolkit(tmp_path / "cuda-12.10", nvrtc="12.10", headers="12.10")
    check(tmp_path, origin=str(newest), version="12.10")


def test_cuda_home_comes_before_usr_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_toolkit(tmp_path / "cuda")
    home = make_toolkit(tmp_path / "elsewhere", nvrtc="12.8", headers="12.8")
    monkeypatch.setenv("CUDA_HOME", str(home))
    check(tmp_path, origin=f"$CUDA_HOME ({home})", version="12.8")


def test_the_toolkit_of_nvcc_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_toolkit(tmp_path / "toolkit")
    (root / "bin").mkdir()
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(root / "bin"))
    check(tmp_path, origin=f"the toolkit of {nvcc}")


def test_a_toolkit_without_nvrtc_is_passed_over_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "cuda" / "include").mkdir(parents=True)
    make_toolkit(tmp_path / "cuda-13.0")
    found = find_toolchain(toolkit_parent=tmp_path)
    assert found.passed_over == (f"{tmp_path / 'cuda'}: has no libnvrtc with its builtins",)


def test_nvrtc_and_headers_of_different_releases_are_refused(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda", nvrtc="13.0", headers="12.8")
    with pytest.raises(EnvironmentProblem, match=r"mixes versions: NVRTC 13\.0 with headers of CUDA 12\.8"):
        find_toolchain(toolkit_parent=tmp_path)


def test_an_nvrtc_without_its_builtins_is_refused(tmp_path: Path) -> None:
    root = make_toolkit(tmp_path / "cuda")
    (root / "lib64" / "libnvrtc-builtins.so.13.0").unlink()
    with pytest.raises(EnvironmentProblem, match="no libnvrtc with its builtins"):
        find_toolchain(toolkit_parent=tmp_path)


def test_a_compiler_that_is_too_old_is_refused(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda", nvrtc="11.8", headers="11.8")
    with pytest.raises(EnvironmentProblem, match=r"older than 12\.0"):
        find_toolchain(toolkit_parent=tmp_path)


def test_an_explicit_directory_is_the_only_one_looked_at(tmp_path: Path) -> None:
    make_toolkit(tmp_path / "cuda")
    with pytest.raises(EnvironmentProblem, match="setting cuda_directory"):
        find_toolchain(tmp_path / "wrong", toolkit_parent=tmp_path)


def test_an_explicit_directory_is_used(tmp_path: Path) -> None:
    root = make_toolkit(tmp_path / "mine")
    assert find_toolchain(root, toolkit_parent=tmp_path).include_directories == (
        root / "include",
        root / "include" / "cccl",
    )


def test_the_wheels_of_the_users_interpreter_are_the_last_resort(tmp_path: Path) -> None:
    part = tmp_path / "site-packages" / "nvidia"
    make_toolkit(part / "made")
    (part / "made" / "lib64").rename(part / "made" / "lib")
    (part / "made").rename(part / "cu13")
    found = find_toolchain(user_site_packages=[tmp_path / "site-packages"], toolkit_parent=tmp_path)
    assert found.origin == f"PyPI wheels in {tmp_path / 'site-packages'}"


def test_wheels_of_cuda_12_keep_library_and_headers_apart(tmp_path: Path) -> None:
    nvidia = tmp_path / "site-packages" / "nvidia"
    made = make_toolkit(tmp_path / "made", nvrtc="12.8", headers="12.8")
    (nvidia / "cuda_nvrtc").mkdir(parents=True)
    (nvidia / "cuda_runtime").mkdir()
    (made / "lib64").rename(nvidia / "cuda_nvrtc" / "lib")
    (made / "include").rename(nvidia / "cuda_runtime" / "include")
    found = find_toolchain(user_site_packages=[tmp_path / "site-packages"], toolkit_parent=tmp_path)
    assert found.version == "12.8"
