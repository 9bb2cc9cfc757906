"""`kernel-lsp profile` as a user runs it, without a GPU."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands import run

PROFILES = Path(__file__).parent.parent / "verify" / "profiles"
KERNEL = str(PROFILES / "slow_transpose.cu")


def test_without_a_gpu_the_executor_profiles(tmp_path: Path) -> None:
    ran = run(tmp_path, "profile", KERNEL, "--device", "cpu", "--json")
    assert ran.status == 0
    report = ran.json
    assert (report["schema_version"], report["kind"], report["device"]) == (1, "executor", "H200")
    assert [kernel["kernel"] for kernel in report["kernels"]] == ["scale<256>", "transpose_tiles"]
    assert all(kernel["time_us"] is None for kernel in report["kernels"])
    assert report["time_us"] > 5 * report["floor_us"] > 0
    assert report["advice"][0]["line"] in (20, 21)
    statuses = {tool["tool"]: tool["status"] for tool in report["tools"]}
    assert statuses["ncu"] == statuses["compute-sanitizer"] == "not asked"
    lines = {line["line"]: line for line in report["kernels"][0]["lines"]}
    assert lines[21]["n_sectors"] == 8 * lines[21]["n_sectors_needed"]


def test_the_profile_reads_as_text(tmp_path: Path) -> None:
    ran = run(tmp_path, "profile", KERNEL, "--device", "cpu")
    assert ran.status == 0
    assert "times the speed of light" in ran.stdout
    assert "1. Let neighbouring threads access neighbouring elements (line" in ran.stdout
    assert "ncu: not asked (needs a GPU)" in ran.stdout
    hot = Path(KERNEL).read_text().splitlines()[20].strip()
    (beside,) = [line for line in ran.stdout.splitlines() if line.endswith(f"line   21 | {hot}")]
    assert beside.lstrip().split("% |")[0].isdigit(), "the share stands beside its line"


def test_a_kernel_without_a_plan_is_no_failed_build(tmp_path: Path) -> None:
    (tmp_path / "zero.cu").write_text("__global__ void zero(float* x) { x[threadIdx.x] = 0.0f; }\n")
    ran = run(tmp_path, "profile", "zero.cu", "--device", "cpu")
    assert ran.status == 2
    assert "zero.cu: unsupported: no launch plan" in ran.stdout
    assert "next: kernel-lsp plan zero.cu --write" in ran.stdout
    estimated = run(tmp_path, "estimate", "zero.cu")
    assert estimated.status == 2
    assert "note: no estimate: no launch plan" in estimated.stdout
    assert "incorrect" not in estimated.stdout


def test_a_kernel_that_does_not_build_ends_with_2(tmp_path: Path) -> None:
    broken = tmp_path / "slow_transpose.cu"
    broken.write_text(Path(KERNEL).read_text().replace("const int rows", "const nonsense rows"))
    ran = run(tmp_path, "profile", str(broken), "--task", str(PROFILES / "slow_transpose.py::slow_transpose"))
    assert ran.status == 2
    assert "build failed" in ran.stdout
    assert "nonsense" in ran.stdout
