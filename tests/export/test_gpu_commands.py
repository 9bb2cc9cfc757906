"""The worker's GPU commands, against a driver in Python: see `fake_driver`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kernel_lsp.plan.binding import bind
from kernel_lsp.source.cuda import kernel_signatures

from .fake_driver import FakeDriver, Launch, floats
from .samples import plan_of

CU_TEXT = """// kernel-lsp: 1
// op: shift(x: f32[N], by: float) -> (out: f32[N])
// scratch: product: f32[N], counts: i32[N]
// fill: counts = 3
// launch: add<<<ceil_div(N, 256), 256>>>(x, out, N, by)

__global__ void add(const float* x, float* out, int N, float by) {}
"""
LIBRARY_TEXT = """// kernel-lsp: 1
// op: multiply(a: f32[M, K], b: f32[K, N]) -> (out: f32[M, N])
// library: aten::mm(a, b) -> (out)
"""
WORKER = "kernel_lsp.worker"
PARTS = ("shipped.cuda_runtime", "gpu.run", "gpu.check_commands", "gpu.device")
TYPES = {"add": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_float]}


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    return importlib.import_module(f"{WORKER}.gpu.check_commands")


@pytest.fixture
def files(gpu: ModuleType) -> ModuleType:
    return importlib.import_module(f"{WORKER}.files")


@pytest.fixture
def driver(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Host memory stands for the device's."""
    fake = FakeDriver(TYPES)
    part = {name: importlib.import_module(f"{WORKER}.{name}") for name in PARTS}
    monkeypatch.setattr(part["shipped.cuda_runtime"], "_driver", fake)
    monkeypatch.setattr(part["gpu.run"], "current_stream", lambda index: 0)
    monkeypatch.setattr(part["gpu.run"], "on", lambda index: torch.device("cpu"))
    part["gpu.run"].inputs_on.cache_clear()
    monkeypatch.setattr(part["gpu.check_commands"], "_SESSIONS", {})
    monkeypatch.setattr(part["gpu.check_commands"], "on_device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(part["gpu.device"], "synchronize", lambda device: None)
    monkeypatch.setattr(part["gpu.device"], "wait", lambda device, at_most_s: None)
    monkeypatch.setattr(part["gpu.device"], "total_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(part["gpu.check_commands"], "load_candidate", lambda *_: candidate(fake, part["gpu.run"]))
    monkeypatch.setattr(part["gpu.device"], "unload_module", lambda module: None)
    monkeypatch.setitem(part["gpu.run"].LOADED, "candidate", candidate(fake, part["gpu.run"]))
    return fake


def candidate(fake: FakeDriver, gpu_run: ModuleType) -> Any:
    return gpu_run.Candidate({"add": fake.handle("add")}, 0)


def add(launch: Launch) -> None:
    x, out, n, by = launch.arguments
    floats(out, n)[:] = floats(x, n) + by


def run(
    gpu: ModuleType,
    files: ModuleType,
    folder: Path,
    text: str = CU_TEXT,
    scalars: dict[str, float] | None = None,
    **inputs: torch.Tensor,
) -> dict[str, Any]:
    """The answer of `check` for the only operation of a `.cu` text."""
    operation = plan_of(text).forward
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
    bound = bind(operation, shapes, scalars or {}, kernel_signatures(text)).model_dump(mode="json")
    entries = [files.write_tensor(str(folder / name), name, tensor) for name, tensor in inputs.items()]
    request = {"candidate": "candidate", "case": "case", "operation": bound, "inputs": entries}
    outputs, again = {"out": str(folder / "out")}, {"out": str(folder / "again")}
    return gpu.handle_check({**request, "outputs": outputs, "again": again})


def check_ran(files: ModuleType, answer: dict[str, Any], expected: torch.Tensor) -> None:
    assert (answer["status"], answer["changed_inputs"], answer["overrun"]) == ("ran", [], [])
    torch.testing.assert_close(files.read_tensor(answer["outputs"][0]), expected, equal_nan=True)


def test_an_operation_runs_from_files_to_files(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    driver.kernels["add"] = add
    x = torch.randn(1000)
    check_ran(files, run(gpu, files, tmp_path, scalars={"by": 0.5}, x=x), x + 0.5)
    assert driver.launches[0].grid == (4, 1, 1)


def test_an_input_that_the_operation_does_not_take_is_left_alone(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    """A case has all that PyTorch's own gradient takes."""
    driver.kernels["add"] = add
    x = torch.randn(1000)
    check_ran(files, run(gpu, files, tmp_path, scalars={"by": 0.5}, x=x, unused=torch.ones(3)), x + 0.5)


@pytest.mark.parametrize(("total_bytes", "n_reads"), [(1 << 30, 2), (1 << 20, 3)])
def test_inputs_stay_on_a_device_that_has_room_for_them(
    gpu: ModuleType,
    files: ModuleType,
    driver: FakeDriver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    total_bytes: int,
    n_reads: int,
) -> None:
    driver.kernels["add"] = add
    inputs, reads = importlib.import_module(f"{WORKER}.gpu.run"), []
    monkeypatch.setattr(inputs, "LEAST_RUN_BYTES", 0)
    monkeypatch.setattr(importlib.import_module(f"{WORKER}.gpu.device"), "total_bytes", lambda device: total_bytes)
    monkeypatch.setattr(inputs, "read_tensor", lambda *a: reads.append(a[0]["path"]) or files.read_tensor(*a))
    for name, n in (("large", 20_000), ("small", 8), ("large", 20_000)):
        x = torch.arange(float(n))
        check_ran(files, run(gpu, files, tmp_path / name, scalars={"by": 0.5}, x=x), x + 0.5)
    assert len(reads) == n_reads


def test_what_no_kernel_writes_is_poison_and_differs_the_second_time(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    answer = run(gpu, files, tmp_path, scalars={"by": 0.5}, x=torch.randn(10))
    check_ran(files, answer, torch.full((10,), math.nan))
    assert answer["spread"] == {"out": {"relative_l2": math.inf, "max": math.inf}}
    assert not files.read_tensor(answer["again"][0]).isnan().any()


def test_results_that_differ_between_two_runs_are_told_with_their_spread(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    driver.kernels["add"] = drifting()
    answer = run(gpu, files, tmp_path, scalars={"by": 0.0}, x=torch.ones(4))
    assert answer["spread"]["out"] == {"relative_l2": 0.5, "max": 1.0}
    torch.testing.assert_close(files.read_tensor(answer["again"][0]), 3 * torch.ones(4))


def drifting() -> Callable[[Launch], None]:
    """Adds how often it was called."""
    calls: list[int] = []

    def kernel(launch: Launch) -> None:
        add(launch)
        calls.append(0)
        _, out, n, _ = launch.arguments
        floats(out, n)[:] += len(calls)

    return kernel


def test_one_who_remembers_results_by_address_is_found(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    """Cases of the same shapes come to the same addresses with other content."""
    known: dict[int, np.ndarray] = {}

    def memoizing(launch: Launch) -> None:
        x, out, n, by = launch.arguments
        floats(out, n)[:] = known.setdefault(x, floats(x, n) + by)

    driver.kernels["add"] = memoizing
    for folder, x in ((tmp_path / "one", torch.ones(4)), (tmp_path / "two", 5 * torch.ones(4))):
        answer = run(gpu, files, folder, scalars={"by": 0.0}, x=x)
    torch.testing.assert_close(files.read_tensor(answer["outputs"][0]), torch.ones(4))


def test_a_fresh_module_must_give_the_same_bytes(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    driver.kernels["add"] = add
    run(gpu, files, tmp_path, scalars={"by": 0.5}, x=torch.randn(10))
    recheck = {"candidate": "candidate", "seed": 1}
    assert gpu.handle_recheck(recheck) == {"status": "ran", "n_cases": 1, "differs": []}
    driver.kernels["add"] = drifting()
    assert gpu.handle_recheck(recheck)["differs"] == ["case"]


def test_a_library_step_gives_the_result(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    check_ran(files, run(gpu, files, tmp_path, LIBRARY_TEXT, a=a, b=b), a @ b)


def misbehave(kind: str) -> Callable[[Launch], None]:
    def kernel(launch: Launch) -> None:
        x, out, n, _ = launch.arguments
        if kind == "input":
            floats(x, n)[0] += 1
        else:
            floats(out - 4 if kind == "before" else out + 4 * n, 1)[:] = np.float32(1)

    return kernel


@pytest.mark.parametrize(
    ("kind", "changed", "overrun"), [("input", ["x"], []), ("before", [], ["out"]), ("after", [], ["out"])]
)
def test_writes_where_none_may_be_are_reported(
    gpu: ModuleType,
    files: ModuleType,
    driver: FakeDriver,
    tmp_path: Path,
    kind: str,
    changed: list[str],
    overrun: list[str],
) -> None:
    driver.kernels["add"] = misbehave(kind)
    answer = run(gpu, files, tmp_path, scalars={"by": 0.5}, x=torch.randn(10))
    assert (answer["changed_inputs"], answer["overrun"]) == (changed, overrun)


def test_a_nan_in_an_input_is_no_change(gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path) -> None:
    driver.kernels["add"] = add
    x = torch.tensor([math.nan, 1.0, -0.0])
    check_ran(files, run(gpu, files, tmp_path, scalars={"by": 1.0}, x=x), x + 1.0)


def test_a_launch_that_fails_is_a_crash(gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path) -> None:
    driver.status = 700
    answer = run(gpu, files, tmp_path, scalars={"by": 0.5}, x=torch.randn(10))
    assert answer["status"] == "crashed"
    assert "cuLaunchKernelEx" in answer["message"]


def test_a_machine_without_a_gpu_is_told_what_to_do(gpu: ModuleType) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    load = importlib.import_module(f"{WORKER}.gpu.run").handle_load
    with pytest.raises(Exception, match="no CUDA device 0") as raised:
        load({"candidate": "c", "kernels": [], "text": "", "file_name": "k.cu"})
    assert raised.value.next_step  # type: ignore[attr-defined]


def test_a_candidate_that_was_not_loaded_is_our_fault(gpu: ModuleType) -> None:
    with pytest.raises(Exception, match="not loaded"):
        gpu.handle_check({"candidate": "unknown"})


def test_inputs_may_begin_off_a_page(gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path) -> None:
    gpu_run = importlib.import_module(f"{WORKER}.gpu.run")
    operation = bind(plan_of(CU_TEXT).forward, {"x": (5,)}, {"by": 1.0}, kernel_signatures(CU_TEXT))
    x = torch.arange(5.0)
    run = gpu_run.BoundRun(candidate(driver, gpu_run), operation.model_dump(mode="json"), {"x": x}, offsets={"x": 16})
    for each in (run, run.fresh()):
        buffer = each._buffers["x"]
        assert each.tensors["x"].data_ptr() == buffer.data_ptr() + gpu_run.GUARD_BYTES
        assert buffer.storage_offset() == 16
        assert torch.equal(each.tensors["x"], x)
        assert each._buffers["out"].storage_offset() == 0
        assert each.overrun() == []


def test_a_run_is_freed_at_once_when_nothing_uses_it(gpu: ModuleType, driver: FakeDriver) -> None:
    """Without Python's collector of cycles, until whose turn runs of gigabytes would stay on the device."""
    gpu_run = importlib.import_module(f"{WORKER}.gpu.run")
    operation = bind(plan_of(CU_TEXT).forward, {"x": (5,)}, {"by": 1.0}, kernel_signatures(CU_TEXT))
    run = gpu_run.BoundRun(candidate(driver, gpu_run), operation.model_dump(mode="json"), {"x": torch.arange(5.0)})
    run()
    runs = [weakref.ref(run), weakref.ref(other := run.fresh()), weakref.ref(shared := run.sharing())]
    gc.disable()
    try:
        del run, other, shared
        assert [each() for each in runs] == [None] * 3
    finally:
        gc.enable()


def test_a_nan_of_ones_that_was_written_is_told_from_poison(
    gpu: ModuleType, files: ModuleType, driver: FakeDriver, tmp_path: Path
) -> None:
    """The other half, which nobody writes, stays poison."""

    def half(launch: Launch) -> None:
        out, n = launch.arguments[1], launch.arguments[2]
        floats(out, n // 2).view("int32")[:] = -1

    driver.kernels["add"] = half
    answer = run(gpu, files, tmp_path, scalars={"by": 0.5}, x=torch.randn(1000))
    bits = files.read_tensor(answer["outputs"][0]).view(torch.int32)
    assert bits[:500].unique().tolist() == [0x7FFFFFFF]
    assert bits[500:].unique().tolist() == [-1]
