"""The Neovim plugin in real headless Neovims: that of the distribution, and newer ones where they are installed.

Neovim 0.11 and newer starts the server in both ways: with `setup()`, and by `vim.lsp.enable` alone.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.editors_nvim.playing import MARKS, NEOVIMS, play, workspace
from tests.server.samples import SCALE, SCALE_LINE

WAYS = [(origin, path, "setup") for origin, path in NEOVIMS.items()]
WAYS += [(origin, path, "enable") for origin, path in NEOVIMS.items() if origin == "sid"]
KERNELS = """__global__ void store(float* y) {
    y[threadIdx.x] = 1.0f;
}
__global__ void load(const float* x, float* y) {
    y[0] = x[threadIdx.x];
}
"""

pytestmark = MARKS


@pytest.fixture(scope="module", params=WAYS, ids=[f"{origin}-{way}" for origin, _, way in WAYS])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one session saw. Each step builds on those before."""
    _, neovim, way = request.param
    root = workspace(tmp_path_factory.mktemp("plugin"))
    (root / "scale.py").write_text(SCALE)
    (root / "two.cu").write_text(KERNELS)
    about = {"FILE": str(root / "scale.py"), "KERNEL": str(root / "two.cu"), "SCALE_LINE": str(SCALE_LINE + 1)}
    return play(neovim, "session.lua", root, WAY=way, **about)


def test_the_commands_are_there(seen: dict[str, Any]) -> None:
    names = ("Optimize", "Cancel", "UseNow", "Resume", "Check", "Measure", "Report", "Show", "Apply", "Discard")
    assert {f"LspKernel{name}" for name in names} <= set(seen["commands"])


def test_the_server_runs_for_the_workspace_and_finds_what_is_slow(seen: dict[str, Any]) -> None:
    assert seen["root"] == str(seen["folder"])
    assert "KL101" in seen["diagnostics"]


def test_progress_comes_as_neovim_has_it(seen: dict[str, Any]) -> None:
    if not seen["has_progress"]:
        pytest.skip(f"{seen['version']} has no LspProgress")
    assert "Optimize scale" in seen["progress"]
    assert {"begin", "report", "end"} <= set(seen["progress_kinds"])


def test_the_statusline_says_how_far_a_run_is(seen: dict[str, Any]) -> None:
    assert any("Optimize scale" in status and "%" in status for status in seen["status"])


def test_a_result_is_a_diff_split_for_each_file_before_it_is_applied(seen: dict[str, Any]) -> None:
    assert "vs eager" in seen["label"]
    assert sorted(seen["files"]) == ["__init__.py", "_kernel_runtime_3.py", "scale.cu", "scale.py", "scale.py"]
    assert seen["is_diff"]
    assert seen["before_apply"] == ""


def test_applying_writes_the_kernel_and_undo_takes_it_back(seen: dict[str, Any]) -> None:
    assert "measure first" in seen["label"]
    assert seen["after_refusal"] == ""
    assert seen["after_apply"].startswith("// kernel-lsp: 1")
    assert seen["shown"].endswith("kernels/scale.cu")
    assert "// kernel-lsp: 1" not in seen["after_undo"]


def test_a_report_is_shown(seen: dict[str, Any]) -> None:
    assert "speedup" in seen["report"]


def test_ptx_of_the_cursors_line_is_highlighted_in_a_split_that_follows(seen: dict[str, Any]) -> None:
    store, load = ("\n".join(lines) for lines in seen["code"])
    assert "st.global" in store
    assert "ld.global" not in store
    assert "ld.global" in load


def test_a_job_is_cancelled_and_without_one_that_is_said(seen: dict[str, Any]) -> None:
    assert seen["cancelled"] == "cancelled"
    assert "kernel-lsp: there is no job to cancel" in seen["messages"]


def test_there_is_nothing_to_use_before_a_kernel_is_verified(seen: dict[str, Any]) -> None:
    assert "kernel-lsp: no run has a verified kernel yet" in seen["messages"]


def test_checkhealth_and_help_answer(seen: dict[str, Any]) -> None:
    assert f"Neovim {seen['version']}" in seen["health"]
    assert "1 server runs for" in seen["health"]
    assert seen["help"] == "LspKernelOptimize"
