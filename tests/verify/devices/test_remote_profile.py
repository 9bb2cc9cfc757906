"""`kernel-lsp profile --device ssh://`: the tools of that machine profile, else events time, and the report names its
GPU."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.process.remote import RemoteWorker
from kernel_lsp.verify.profile.tool_machine import RemoteTools, ToolCommand
from kernel_lsp.verify.session.session import gpu_of_estimates
from tests.verify.gpu.harness import FAKE

from .rows import FIXTURES
from .sshd import Sshd, script
from .test_bad_input import TASK, command, on_path

PROFILES = Path(__file__).parents[1] / "profiles"
RECORDED = PROFILES / "recorded"
KERNEL = """// kernel-lsp: 1
// task: task.py::f
// op: f(x: f32[N]) -> (out: f32[N])
// launch: f<<<ceil_div(N, 256), 256>>>(x, out, N)
__global__ void f(const float* __restrict__ x, float* __restrict__ out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] + 1.0f;
}
"""
VERSION = 'case "$1" in --version) echo "version 2025.3.1"; exit 0;; esac\n'
NEEDS_ITS_PROGRAM = f"""for last; do :; done
{sys.executable} - "$last" <<'P' || exit 1
import json, os, sys
request = json.load(open(sys.argv[1]))
files = os.environ["KERNEL_LSP_FILES"]
paths = [*request["codes"], *(entry["path"] for entry in request["inputs"])]
sys.exit(any(not os.path.getsize(files + path) for path in paths))
P
"""
"""Fails unless the program's request, code and inputs are where the worker's files are."""
NCU = f"""#!/bin/sh
{VERSION}case "$*" in
  *--export*) {NEEDS_ITS_PROGRAM}while [ "$1" != --export ]; do shift; done
    grep -aohE '[0-9a-f]+[.]cu' "$(dirname "$last")"/code-0 | head -1 > "$2" ;;
  *raw*) [ -f "$2" ] && cat {RECORDED}/ncu_raw.csv ;;
  *) sed "s#slow_transpose[.]cu#$(cat "$2")#" {RECORDED}/ncu_source.csv ;;
esac
"""
"""Prints lines of the file that the code names, as the real one does."""
SANITIZER = f"""#!/bin/sh
{VERSION}{NEEDS_ITS_PROGRAM}while [ "$1" != --tool ]; do shift; done; tool=$2
while [ "$1" != --save ]; do shift; done; cp {RECORDED}/$tool.xml "$2"; exit 86
"""
REFUSES = f"#!/bin/sh\n{VERSION}echo '==ERROR== ERR_NVGPUCTRPERM - no permission' >&2; exit 1\n"


TIDY = f"""#!/bin/sh
{VERSION}for kernel; do case "$kernel" in *.cu) break;; esac; done
echo "$kernel:6:13: warning: narrowing conversion from 'unsigned int' to 'int' [bugprone-narrowing-conversions]"
"""
MODEL = """import re, sys
kernel = max(re.findall(r"```cuda\\n(.*?)```", sys.stdin.read(), re.S), key=len)
print("NAME: again\\nTHOUGHT: as it was\\nCODE:\\n```cuda\\n" + kernel + "\\n// again\\n```")
"""
"""Proposes the kernel that it was shown."""
PROFILE_COLUMNS = ("NCU_Profile", "Torch_Profile", "Clang_Tidy", "Sanitizer")


def device_with(sshd: Sshd, folder: Path, name: str, **tools: str) -> str:
    """Return the name of a device on a machine with these tools and a GPU that is made of Python."""
    there = folder / "there"
    there.mkdir()
    for tool, text in tools.items():
        script(there / tool.replace("_", "-"), text)
    gpu = 'KERNEL_LSP_TEST_GPU="NVIDIA L4"' if name == "events" else ""
    events = f"KERNEL_LSP_TEST_EVENTS={RECORDED}/kineto_events.json" if tools.get("ncu") == NCU else ""
    python = sshd.python(f'{gpu} {events} PATH={there}:$PATH exec {sys.executable} {FAKE} "$1"', name)
    return f"ssh://127.0.0.1:{sshd.port}{python}"


def profile(sshd: Sshd, folder: Path, name: str, kernel: str, **tools: str) -> dict[str, Any]:
    """Return the profile of a kernel on such a machine."""
    device = device_with(sshd, folder, name, **tools)
    ran = command(folder, "profile", kernel, "--device", device, "--json", PATH=on_path(sshd, name))
    assert ran.returncode == 0, ran.stderr
    assert sshd.is_clean()
    return dict(json.loads(ran.stdout))


def runs(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {run["tool"]: run for run in report["tools"]}


def test_events_time_the_launches_where_that_machine_has_no_profiler(sshd: Sshd, tmp_path: Path) -> None:
    """The executor's estimate for this machine's target GPU stood there, to somebody who had named another GPU."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "f.cu").write_text(KERNEL)
    report = profile(sshd, tmp_path, "events", "f.cu")
    (kernel,) = report["kernels"]
    assert (report["kind"], report["device"]) == ("events", "L4 on 127.0.0.1")
    assert kernel["time_us"] == report["time_us"] > 0
    assert [line["line"] for line in kernel["lines"] if line["n_sectors"]] == [7]
    found = runs(report)
    assert found["CUDA events"]["status"] == "ran"
    assert found["ncu"]["reason"] == "ncu is not installed on 127.0.0.1"
    assert found["compute-sanitizer"]["status"] == "absent"


def test_the_tools_of_that_machine_profile(sshd: Sshd, tmp_path: Path) -> None:
    """Nsight Compute and the sanitizers print what they printed on an H200. They find the program's files there."""
    for name in ("slow_transpose.cu", "slow_transpose.py"):
        shutil.copy(PROFILES / name, tmp_path)
    report = profile(sshd, tmp_path, "tools", "slow_transpose.cu", ncu=NCU, compute_sanitizer=SANITIZER)
    assert (report["kind"], report["device"]) == ("measured", "H200 on 127.0.0.1")
    assert [kernel["kernel"] for kernel in report["kernels"]] == ["scale<256>", "transpose_tiles"]
    assert sum(kernel["time_us"] for kernel in report["kernels"]) == report["time_us"]
    assert {line["line"]: line["stall"] for line in report["kernels"][0]["lines"]}[21] == "global memory"
    found = runs(report)
    assert (found["ncu"]["status"], found["ncu"]["version"]) == ("ran", "2025.3.1")
    assert found["ncu"]["sandbox"] == "that of the GPU's worker"
    assert found["compute-sanitizer racecheck"]["status"] == "ran"
    assert {finding["source"] for finding in report["findings"]} >= {"compute-sanitizer"}
    assert "CUDA events" not in found
    assert found["torch profiler"]["status"] == "ran"
    assert "vectorized_elementwise_kernel" in report["eager"][1]["name"]


def test_every_profiler_column_of_a_dataset_is_filled(sshd: Sshd, tmp_path: Path) -> None:
    """From a search to the Parquet file, by tools that print what the real ones printed."""
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "model.py").write_text(MODEL)
    model = f"command:{sys.executable} {tmp_path / 'model.py'}"
    searched = command(
        *(tmp_path, "optimize", "task.py::f", "--device", "cpu", "--model", model),
        *("--generations", "1", "--proposals", "2"),
    )
    assert searched.returncode == 0, searched.stderr
    here, device = tmp_path / "here", device_with(sshd, tmp_path, "dataset", ncu=NCU, compute_sanitizer=SANITIZER)
    here.mkdir()
    script(here / "clang-tidy", TIDY)
    options = ["--format", "parquet", "--out", "dataset", "--profile", "--device", device]
    exported = command(tmp_path, "export", "all", *options, PATH=f"{here}:{on_path(sshd, 'dataset')}")
    assert exported.returncode == 0, exported.stderr
    paths = (tmp_path / "dataset" / "kernels").iterdir()
    rows = [row for path in paths for row in parquet.read_table(path).to_pylist() if row["Correct"]]
    assert rows
    for row in rows:
        found = {name: json.loads(row[name]) for name in PROFILE_COLUMNS}
        assert found["NCU_Profile"][0]["time_us"] > 1.0
        assert found["NCU_Profile"][0]["l2_busy"] > 0.5
        assert "vectorized_elementwise_kernel" in found["Torch_Profile"][1]["name"]
        assert {each["code"] for each in found["Sanitizer"]} >= {"invalid-access", "race"}
        assert [each["line"] for each in found["Clang_Tidy"]] == [6]
    empty = (
        (tmp_path / "dataset" / "README.md").read_text().split("without a value in any row: ")[1].split(". Times")[0]
    )
    assert not set(PROFILE_COLUMNS) & set(empty.split(", "))
    assert sshd.is_clean()


def test_a_profiler_without_permission_leaves_the_other_tools(sshd: Sshd, tmp_path: Path) -> None:
    """Without counters, nothing but the executor's count was in the report: sanitizers ran nowhere."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "f.cu").write_text(KERNEL)
    report = profile(sshd, tmp_path, "refused", "f.cu", ncu=REFUSES, compute_sanitizer=SANITIZER)
    found = runs(report)
    assert report["kind"] == "events"
    assert "ERR_NVGPUCTRPERM" in found["ncu"]["reason"]
    assert found["compute-sanitizer memcheck"]["status"] == "ran"
    assert found["torch profiler"]["reason"] == "torch sees no such GPU"


@pytest.mark.parametrize("kind", ["ssh", "ray"])
async def test_tools_run_at_once_with_their_files(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """In the folder of the worker there; in a cluster within that machine's sandbox."""
    (given := tmp_path / "given").write_text("read")
    report = tmp_path / "tool" / "report"
    fixture = request.getfixturevalue(FIXTURES[kind])
    async with RemoteWorker(fixture.machine() if kind == "ssh" else fixture.slot(0)) as worker:
        tools = RemoteTools(worker, "there")
        shell, absent = await tools.find(("sh", "no-such-tool"))
        assert (shell.place, absent.path) == ("there", None)
        assert shell.path is not None
        text = f'cat "$KERNEL_LSP_FILES{given}"; echo words >&2; echo written > "$0"; exit 7'
        reads = ToolCommand([shell.path, "-c", text, report], report, is_fetched=True)
        waits = ToolCommand([shell.path, "-c", "sleep 60"])
        ran, slow = await tools.run([reads, waits], report.parent, deadline_s=5.0, files=[given])
    assert (ran.process.returncode, ran.process.stdout, ran.process.stderr) == (7, b"read", b"words\n")
    assert (ran.has_report, report.read_text()) == (True, "written\n")
    assert slow.process.timed_out
    assert not ran.process.timed_out


def test_estimates_are_for_a_remote_gpu_that_is_known_unless_a_target_is_named() -> None:
    """They were for the H200 of the settings' default, on whatever GPU the candidate ran."""
    assert gpu_of_estimates(Settings(), "NVIDIA L4").name == "L4"
    assert gpu_of_estimates(Settings(target_gpu="H100 SXM"), "NVIDIA L4").name == "H100 SXM"
    assert gpu_of_estimates(Settings(), "Fake GPU").name == Settings().target_gpu


def test_a_machine_out_of_reach_is_named(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "f.cu").write_text(KERNEL)
    ran = command(tmp_path, "profile", "f.cu", "--device", "ssh://127.0.0.1:1")
    assert ran.returncode == 2
    assert "refuses connections" in ran.stderr
    assert "Traceback" not in ran.stderr
