"""On a GPU the operator makes the launches of its plan. The GPU here is a driver in Python: see `fake_driver`."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from .fake_driver import STREAM, FakeDriver, Launch, floats, install
from .loading import load_operator
from .other_samples import (
    BAKED_NUMBER,
    CONSTANT_SHAPE,
    INTEGER,
    LIBRARY_ONLY,
    LINEAR_RELU,
    RMS_NORM,
    ROW_MAX,
    TOTAL,
    Sample,
)
from .samples import fresh_name

EPS = 1e-6
POINTER, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_float
N_ROWS_PER_SUM = 264
pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available.*")


def forward_rows(launch: Launch) -> None:
    x_at, weight_at, out_at, n_columns, eps = launch.arguments
    x, weight = floats(x_at, launch.grid[0], n_columns), floats(weight_at, n_columns)
    floats(out_at, launch.grid[0], n_columns)[:] = x / np.sqrt((x * x).mean(1, keepdims=True) + eps) * weight


def backward_rows(launch: Launch) -> None:
    gradient_at, x_at, weight_at, grad_x_at, partial_at, n_rows, n_columns, eps = launch.arguments
    gradient, x = floats(gradient_at, n_rows, n_columns), floats(x_at, n_rows, n_columns)
    scale = 1 / np.sqrt((x * x).mean(1, keepdims=True) + eps)
    weighted = gradient * floats(weight_at, n_columns)
    pull = (weighted * x).mean(1, keepdims=True) * scale**3
    floats(grad_x_at, n_rows, n_columns)[:] = weighted * scale - x * pull
    partial = floats(partial_at, launch.grid[0], n_columns)
    partial[:] = 0
    for row in range(n_rows):
        partial[row % launch.grid[0]] += (gradient * x * scale)[row]


def sum_columns(launch: Launch) -> None:
    partial_at, sums_at, n_rows, n_columns = launch.arguments
    floats(sums_at, n_columns)[:] = floats(partial_at, n_rows, n_columns).sum(0)


def rms_norm_driver() -> FakeDriver:
    return FakeDriver(
        {
            "rms_norm_rows<256>": [POINTER] * 3 + [INT, FLOAT],
            "rms_norm_backward_rows<256>": [POINTER] * 5 + [INT, INT, FLOAT],
            "sum_columns": [POINTER, POINTER, INT, INT],
        },
        {
            "rms_norm_rows<256>": forward_rows,
            "rms_norm_backward_rows<256>": backward_rows,
            "sum_columns": sum_columns,
        },
    )


def load(sample: Sample, driver: FakeDriver, directory: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = fresh_name(sample.stem)
    module = load_operator(sample.task(name), sample.cu_text(name), directory)
    install(monkeypatch, module, driver)
    return module


@pytest.fixture
def driver() -> FakeDriver:
    return rms_norm_driver()


@pytest.fixture
def operator(driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(RMS_NORM, driver, tmp_path, monkeypatch)


def call(operator: ModuleType, *arguments: object, suffix: str = "") -> object:
    """One call as the dispatcher makes it for tensors on a GPU."""
    own = operator.OPERATOR
    return own.on_gpu(own.backward if suffix else own.forward, *arguments)


def reference(operator: ModuleType, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return getattr(operator, f"{operator.__name__}_reference")(x, weight, EPS)


def check_forward(operator: ModuleType, x: torch.Tensor, weight: torch.Tensor) -> None:
    torch.testing.assert_close(call(operator, x, weight, EPS), reference(operator, x, weight))


# --- RMSNorm: one launch forward, two backward


def test_the_forward_launches_what_the_plan_says(operator: ModuleType, driver: FakeDriver) -> None:
    check_forward(operator, torch.randn(5, 8), torch.rand(8))
    (launch,) = driver.launches
    assert (launch.grid, launch.block, launch.stream) == ((5, 1, 1), (256, 1, 1), STREAM)
    assert launch.arguments[3] == 8
    assert launch.arguments[4] == pytest.approx(EPS)


def test_the_backward_takes_its_steps_in_order(operator: ModuleType, driver: FakeDriver) -> None:
    x, weight, gradient = torch.randn(300, 8), torch.rand(8), torch.randn(300, 8)
    found = call(operator, gradient, x, weight, EPS, suffix="_backward")
    leaves = (x.requires_grad_(), weight.requires_grad_())
    expected = torch.autograd.grad(reference(operator, *leaves), leaves, gradient)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)  # sums of 300 rows, in another order
    assert [launch.kernel for launch in driver.launches] == ["rms_norm_backward_rows<256>", "sum_columns"]
    assert driver.launches[0].grid == (N_ROWS_PER_SUM, 1, 1)


def test_inputs_of_the_same_kind_are_bound_once(operator: ModuleType) -> None:
    for _ in range(3):
        check_forward(operator, torch.randn(5, 8), torch.rand(8))
    assert len(operator.OPERATOR.forward.bound.by_inputs) == 1


@pytest.mark.parametrize("shape", [(1, 4), (2, 8), (3, 1024), (17, 12)])
def test_every_shape_gets_its_own_launches(operator: ModuleType, shape: tuple[int, int]) -> None:
    check_forward(operator, torch.randn(6, 8), torch.rand(8))
    check_forward(operator, torch.randn(*shape), torch.rand(shape[1]))


def test_strided_inputs_are_made_contiguous(operator: ModuleType) -> None:
    check_forward(operator, torch.randn(8, 5).t(), torch.rand(16)[::2])


def test_an_unaligned_input_is_copied_to_where_vectors_can_be_loaded(operator: ModuleType, driver: FakeDriver) -> None:
    check_forward(operator, torch.randn(41)[1:].view(5, 8), torch.rand(9)[1:])
    assert all(address % 16 == 0 for address in driver.launches[0].arguments[:2])


def test_threads_do_not_share_the_addresses_of_a_launch(operator: ModuleType) -> None:
    held: list[object] = []

    def work() -> None:
        check_forward(operator, torch.randn(5, 8), torch.rand(8))
        held.extend(operator.OPERATOR.forward.bound.by_inputs.values())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, held))) == 4


@pytest.mark.parametrize(
    ("x", "weight", "why"),
    [
        (torch.randn(5, 6), torch.rand(6), "D % 4 == 0 does not hold"),
        (torch.randn(5, 8).double(), torch.rand(8).double(), "x is not a non-empty f32"),
        (torch.randn(2, 5, 8), torch.rand(8), "x is not a non-empty f32"),
        (torch.randn(5, 8), torch.rand(1), "weight is not f32"),
        (torch.randn(0, 8), torch.rand(8), "x is not a non-empty f32"),
    ],
    ids=["where", "dtype", "rank", "dim", "empty"],
)
def test_outside_the_contract_pytorch_computes_and_says_why(
    operator: ModuleType, driver: FakeDriver, x: torch.Tensor, weight: torch.Tensor, why: str
) -> None:
    with pytest.warns(UserWarning, match=why):
        check_forward(operator, x, weight)
    assert not driver.launches


def test_a_tensor_that_32_bits_do_not_count_is_outside_the_contract(operator: ModuleType, driver: FakeDriver) -> None:
    vast = torch.zeros(1, 1).expand(1 << 29, 4)
    outside = operator.OPERATOR.why_not
    assert outside((vast, torch.rand(4), EPS)) == "B * D <= 2130706432 does not hold"
    assert outside((vast[: 1 << 28], torch.rand(4), EPS)) == ""


def test_a_grid_that_no_gpu_takes_is_computed_by_pytorch(
    operator: ModuleType, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator._runtime, "MAX_GRID_X", 4)
    with pytest.warns(UserWarning, match="a grid of"):
        check_forward(operator, torch.randn(5, 8), torch.rand(8))
    assert not driver.launches


def test_a_machine_without_compiler_computes_by_pytorch(operator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler() -> None:
        raise operator._runtime.CudaError("no NVRTC with its headers found")

    monkeypatch.setattr(operator.OPERATOR, "library", no_compiler)
    with pytest.warns(UserWarning, match="no NVRTC"):
        check_forward(operator, torch.randn(5, 8), torch.rand(8))


def test_a_launch_that_the_driver_refuses_raises_its_error(operator: ModuleType, driver: FakeDriver) -> None:
    driver.status = 1
    with pytest.raises(RuntimeError, match=r"cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE \(1\)"):
        call(operator, torch.randn(5, 8), torch.rand(8), EPS)


# --- other plans


def test_a_fill_comes_before_the_launch_and_a_result_may_have_no_dims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_up(launch: Launch) -> None:
        floats(launch.arguments[1], 1)[:] += floats(launch.arguments[0], launch.arguments[2]).sum()

    driver = FakeDriver({"add_up": [POINTER, POINTER, LONG]}, {"add_up": add_up})
    operator = load(TOTAL, driver, tmp_path, monkeypatch)
    x = torch.randn(1000)
    torch.testing.assert_close(call(operator, x), x.sum())
    assert driver.launches[0].grid == (4, 1, 1)


def test_a_library_step_feeds_the_launch_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bias_relu(launch: Launch) -> None:
        product, bias, out, count, n_columns = launch.arguments
        values = floats(product, count // n_columns, n_columns) + floats(bias, n_columns)
        floats(out, count // n_columns, n_columns)[:] = np.maximum(values, 0)

    driver = FakeDriver({"bias_relu": [POINTER, POINTER, POINTER, INT, INT]}, {"bias_relu": bias_relu})
    operator = load(LINEAR_RELU, driver, tmp_path, monkeypatch)
    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    torch.testing.assert_close(call(operator, x, weight, bias), torch.relu(x @ weight.t() + bias))


def test_a_library_step_can_be_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = load(LIBRARY_ONLY, FakeDriver({}), tmp_path, monkeypatch)
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(call(operator, a, b), a @ b)


def test_a_library_step_can_follow_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(launch: Launch) -> None:
        a, turned, n_rows, n_columns = launch.arguments
        floats(turned, n_columns, n_rows)[:] = floats(a, n_rows, n_columns).T

    driver = FakeDriver({"turn": [POINTER, POINTER, INT, INT]}, {"turn": turn})
    operator = load(LIBRARY_ONLY, driver, tmp_path, monkeypatch)
    a, b, gradient = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    torch.testing.assert_close(call(operator, gradient, a, b, suffix="_backward"), a.t() @ gradient)


@pytest.mark.parametrize(("n_columns", "kernel"), [(5, "short_rows<5>"), (33, "long_rows")])
def test_conditions_choose_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_columns: int, kernel: str
) -> None:
    types = {"short_rows<5>": [POINTER] * 3, "long_rows": [POINTER] * 3 + [INT]}
    driver = FakeDriver(types)
    operator = load(ROW_MAX, driver, tmp_path, monkeypatch)
    values, indices = call(operator, torch.randn((n_columns - 1) * 2, n_columns))  # type: ignore[misc]
    assert [launch.kernel for launch in driver.launches] == [kernel]
    assert (values.dtype, indices.dtype) == (torch.float32, torch.int64)
    if kernel == "long_rows":
        assert driver.launches[0].shared_bytes == n_columns * 4
        assert driver.launches[0].attributes == {operator._runtime.LAUNCH_ATTRIBUTE_CLUSTER: (2, 1, 1)}


def test_a_condition_that_divides_by_zero_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = load(ROW_MAX, FakeDriver({}), tmp_path, monkeypatch)
    with pytest.warns(UserWarning, match="does not hold"):
        call(operator, torch.randn(4, 1))


def test_integer_scratch_is_filled_and_shapes_may_be_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look_up(launch: Launch) -> None:
        seen.extend((ctypes.c_int * 4).from_address(launch.arguments[3]))

    name = "look_up<true, __nv_bfloat16>"
    driver = FakeDriver({name: [POINTER] * 4 + [FLOAT]}, {name: look_up})
    operator = load(CONSTANT_SHAPE, driver, tmp_path, monkeypatch)
    out = call(operator, torch.arange(3), torch.randn(100, 64).bfloat16(), 0.5)
    assert (out.shape, out.dtype) == ((3, 64), torch.bfloat16)  # type: ignore[attr-defined]
    assert seen == [-1] * 4
    with pytest.warns(UserWarning, match="table is not"), pytest.raises(ValueError, match="captured with table"):
        call(operator, torch.arange(3), torch.randn(99, 64).bfloat16(), 0.5)


def test_a_number_that_no_launch_is_given_has_one_value_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver({"divide": [POINTER, POINTER, INT]})
    operator = load(BAKED_NUMBER, driver, tmp_path, monkeypatch)
    call(operator, torch.randn(2, 3), 0.7)
    with (
        pytest.warns(UserWarning, match="temperature == 0.7 does not hold"),
        pytest.raises(ValueError, match="captured with"),
    ):
        call(operator, torch.randn(2, 3), 0.5)
    assert len(driver.launches) == 1


@pytest.mark.filterwarnings("ignore:.*computed by PyTorch.*")
@pytest.mark.parametrize("other", [2.5, 2.0, None])
def test_a_number_of_another_type_runs_the_original(
    other: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch refuses a float for an integer argument of an operator; 2.0 is equal to the 2 of the call before."""
    driver = FakeDriver({"times": [POINTER, POINTER, INT, INT]})
    module = load(INTEGER, driver, tmp_path, monkeypatch)
    used = getattr(module, f"use_{module.__name__}")(lambda x, n: x * (n or 1))
    x = torch.ones(4, 8)
    call(module, x, 2)
    assert torch.equal(used(x, other), x * (other or 1))
    assert len(driver.launches) == 1
    assert module.calls()["fallback"] == {"n is not of type int: record a run with such inputs, and optimize again": 1}


def times(x: torch.Tensor, n: int = 3) -> torch.Tensor:
    return x * n


def times_masked(x: torch.Tensor, mask: torch.Tensor | None = None, n: int = 3) -> torch.Tensor:
    return x * n if mask is None else x * mask


@pytest.mark.filterwarnings("ignore:.*computed by PyTorch.*")
@pytest.mark.parametrize(
    ("original", "inputs", "n_launched"),
    [
        (times, (), 3),
        (times, (2,), 2),
        (times_masked, (), 3),
        (times_masked, (5,), None),
        (times_masked, (None, 2), 2),
    ],
)
def test_a_use_has_the_defaults_and_the_positions_of_the_code_that_it_replaces(
    original: Any, inputs: tuple[Any, ...], n_launched: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator was captured with n=2: that is no default, and a second argument is not always n."""
    module = load(INTEGER, FakeDriver({"times": [POINTER, POINTER, INT, INT]}), tmp_path, monkeypatch)
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module.OPERATOR, "call", lambda x, n: called.append((x, n)) or x)
    monkeypatch.setattr(module.OPERATOR, "outside", lambda _: "")
    x = torch.ones(4, 8)
    result = getattr(module, f"use_{module.__name__}")(original)(x, *inputs)
    assert [n for _, n in called] == ([] if n_launched is None else [n_launched])
    assert n_launched is not None or torch.equal(result, original(x, *inputs))
