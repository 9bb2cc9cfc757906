"""An operator whose backward takes what its forward kept: on the fake GPU of `fake_driver`, and as PyTorch sees it."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernel_lsp.export.python.operator_text import OperatorText
from kernel_lsp.plan.parser import parse_or_raise

from .fake_driver import FakeDriver, Launch, floats, install
from .loading import load_operator
from .other_samples import Sample
from .samples import fresh_name, task, tensor

POINTER, INT = ctypes.c_void_p, ctypes.c_int
EPS = 1e-6
NORM = Sample(
    "kept_norm",
    lambda name: task(
        name,
        (tensor("x", "B", "D"), tensor("weight", "D")),
        "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, x.sum(-1)",
    ),
    """// kernel-lsp: 1
// op: NAME(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D], total: f32[B])
// keeps: scale: f32[B], unused: f32[B]
// launch: rows<<<B, 256>>>(x, weight, out, total, scale, unused, D)
// op: NAME_backward(grad_out: f32[B, D], grad_total: f32[B], x: f32[B, D], weight: f32[D], total: f32[B],
//     scale: f32[B]) -> (grad_x: f32[B, D])
// launch: gradients<<<B, 256>>>(grad_out, grad_total, x, weight, total, scale, grad_x, D)

__global__ void rows(const float* x, const float* weight, float* out, float* total, float* scale, float* unused,
                     int D) {}
__global__ void gradients(const float* grad_out, const float* grad_total, const float* x, const float* weight,
                          const float* total, const float* scale, float* grad_x, int D) {}
""",
)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*CUDA is not available.*", "ignore:.*computed by PyTorch.*", "ignore:.*torch.jit.*"
)


def rows(launch: Launch) -> None:
    x_at, weight_at, out_at, total_at, scale_at, unused_at, n_columns = launch.arguments
    n_rows = launch.grid[0]
    x = floats(x_at, n_rows, n_columns)
    scale = 1 / np.sqrt((x * x).mean(1) + EPS)
    floats(scale_at, n_rows)[:] = scale
    floats(unused_at, n_rows)[:] = 0
    floats(total_at, n_rows)[:] = x.sum(1)
    floats(out_at, n_rows, n_columns)[:] = x * scale[:, None] * floats(weight_at, n_columns)


def gradients(launch: Launch) -> None:
    """Take the scale from memory alone: a wrong one gives a wrong gradient."""
    grad_out_at, grad_total_at, x_at, weight_at, total_at, scale_at, grad_x_at, n_columns = launch.arguments
    n_rows = launch.grid[0]
    x, scale = floats(x_at, n_rows, n_columns), floats(scale_at, n_rows)[:, None]
    assert np.allclose(floats(total_at, n_rows), x.sum(1), atol=1e-5)
    weighted = floats(grad_out_at, n_rows, n_columns) * floats(weight_at, n_columns)
    pull = (weighted * x).mean(1, keepdims=True) * scale**3
    floats(grad_x_at, n_rows, n_columns)[:] = weighted * scale - x * pull + floats(grad_total_at, n_rows)[:, None]


@pytest.fixture
def driver() -> FakeDriver:
    types = {"rows": [POINTER] * 6 + [INT], "gradients": [POINTER] * 7 + [INT]}
    return FakeDriver(types, {"rows": rows, "gradients": gradients})


@pytest.fixture
def norm(tmp_path: Path) -> ModuleType:
    """The operator on this machine, where PyTorch computes."""
    name = fresh_name(NORM.stem)
    return load_operator(NORM.task(name), NORM.cu_text(name), tmp_path)


@pytest.fixture
def on_gpu(norm: ModuleType, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The operator whose kernels run: the dispatcher's key for a GPU is not among those of host memory."""
    install(monkeypatch, norm, driver)
    own = norm.OPERATOR

    def on_host(operation: Any) -> Any:
        return lambda *arguments: own.on_gpu(operation, *arguments)

    name = norm.__name__
    own._registry.impl(name, on_host(own.forward), "CPU")
    own._registry.impl(f"{name}_backward", on_host(own.backward), "CPU")
    return norm


def function_of(module: ModuleType) -> Any:
    return getattr(module, module.__name__)


def by_hand(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight, x.sum(-1)


def leaves(n_rows: int = 3, n_columns: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n_rows)
    x = torch.randn(n_rows, n_columns, generator=generator).requires_grad_()
    return x, torch.rand(n_columns, generator=generator)


def check_same(function: Any, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Values and gradients are PyTorch's: of both results, and of either alone."""
    for scale in ((1.0, 0.0), (0.0, 1.0), (0.5, 2.0)):
        found, expected = function(x, weight), by_hand(x, weight)
        torch.testing.assert_close(tuple(found), expected)
        losses = [
            sum(w * each.sin().sum() for w, each in zip(scale, some, strict=True) if w) for some in (found, expected)
        ]
        torch.testing.assert_close(*(torch.autograd.grad(loss, x) for loss in losses))


def launched(driver: FakeDriver) -> list[str]:
    return [launch.kernel for launch in driver.launches]


# --- on a GPU


def test_the_backward_gets_what_the_forward_kept(on_gpu: ModuleType, driver: FakeDriver) -> None:
    check_same(function_of(on_gpu), *leaves())
    assert launched(driver) == ["rows", "gradients"] * 3
    assert on_gpu.calls()["fallback"] == {}


def test_a_graph_that_is_retained_keeps_it(on_gpu: ModuleType, driver: FakeDriver) -> None:
    x, weight = leaves()
    out = function_of(on_gpu)(x, weight)[0].square().sum()
    found = [torch.autograd.grad(out, x, retain_graph=True)[0] for _ in range(2)]
    torch.testing.assert_close(*found)
    assert launched(driver) == ["rows", "gradients", "gradients"]


def test_two_calls_keep_their_own(on_gpu: ModuleType) -> None:
    function, (x, weight), (y, _) = function_of(on_gpu), leaves(3), leaves(4)
    first, second = function(x, weight)[0], function(y, weight)[0]
    for out, leaf in ((first, x), (second, y)):
        (found,) = torch.autograd.grad(out.square().sum(), leaf)
        (expected,) = torch.autograd.grad(by_hand(leaf, weight)[0].square().sum(), leaf)
        torch.testing.assert_close(found, expected)


def test_the_caller_gets_the_results_alone(on_gpu: ModuleType, driver: FakeDriver) -> None:
    x, weight = leaves()
    with torch.no_grad():
        found = function_of(on_gpu)(x, weight)
    assert [tuple(each.shape) for each in found] == [(3, 8), (3,)]
    assert launched(driver) == ["rows"]


def test_what_a_backward_does_not_take_is_scratch(on_gpu: ModuleType) -> None:
    found = getattr(torch.ops.kernel_lsp, on_gpu.__name__).default(*leaves())
    assert len(found) == 3
    assert [each.requires_grad for each in found] == [True, True, False]


def test_a_second_derivative_is_pytorchs(on_gpu: ModuleType) -> None:
    x, weight = leaves()
    found, expected = (function(x, weight)[0].pow(3).sum() for function in (function_of(on_gpu), by_hand))
    first, theirs = (torch.autograd.grad(value, x, create_graph=True)[0] for value in (found, expected))
    torch.testing.assert_close(first, theirs)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x), torch.autograd.grad(theirs.sum(), x))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_hands_it_over(on_gpu: ModuleType, driver: FakeDriver, backend: str) -> None:
    torch._dynamo.reset()
    function = function_of(on_gpu)
    compiled = torch.compile(lambda x, weight: function(x * 1.0, weight), fullgraph=True, backend=backend)
    for n_rows in (3, 5):
        check_same(compiled, *leaves(n_rows))
    assert set(launched(driver)) == {"rows", "gradients"}
    assert on_gpu.calls()["fallback"] == {}


def test_a_forward_by_pytorch_has_its_gradients_by_pytorch(
    on_gpu: ModuleType, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was kept then, whether or not the backward could be launched."""
    library = on_gpu.OPERATOR.library

    def no_compiler() -> None:
        raise on_gpu._runtime.CudaError("no NVRTC with its headers found")

    function, (x, weight) = function_of(on_gpu), leaves()
    monkeypatch.setattr(on_gpu.OPERATOR, "library", no_compiler)
    out = function(x, weight)[0]
    monkeypatch.setattr(on_gpu.OPERATOR, "library", library)
    (found,) = torch.autograd.grad(out.square().sum(), x)
    (expected,) = torch.autograd.grad(by_hand(x, weight)[0].square().sum(), x)
    torch.testing.assert_close(found, expected)
    assert launched(driver) == []


# --- without a GPU


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_opcheck_of_the_forward(norm: ModuleType, needs_gradient: bool) -> None:
    x, weight = leaves()
    operator = getattr(torch.ops.kernel_lsp, norm.__name__).default
    torch.library.opcheck(operator, (x.detach().requires_grad_(needs_gradient), weight))


def test_opcheck_of_the_backward(norm: ModuleType) -> None:
    x, weight = (leaf.detach() for leaf in leaves())
    operator = getattr(torch.ops.kernel_lsp, f"{norm.__name__}_backward").default
    torch.library.opcheck(operator, (torch.randn(3, 8), torch.randn(3), torch.rand(3), torch.rand(3), x, weight))


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (0, 8)], ids=["inside", "another rank", "empty"])
def test_opcheck_in_and_outside_the_contract(norm: ModuleType, shape: tuple[int, ...]) -> None:
    operator = getattr(torch.ops.kernel_lsp, norm.__name__).default
    torch.library.opcheck(operator, (torch.randn(*shape), torch.rand(8)))


def test_pytorch_computes_both_where_there_is_no_gpu(norm: ModuleType) -> None:
    check_same(function_of(norm), *leaves())
    operator = getattr(torch.ops.kernel_lsp, norm.__name__).default
    check_same(lambda x, weight: operator(x, weight)[:2], *leaves())


def test_a_copy_of_the_operator_is_the_operator(norm: ModuleType) -> None:
    assert copy.deepcopy(norm.OPERATOR) is norm.OPERATOR


@pytest.mark.parametrize("kept", ["scale: f32[B]", "total: f32[B]"])
def test_a_number_in_what_the_forward_kept_is_not_fixed_for_the_backward(kept: str) -> None:
    plan = parse_or_raise(
        "// kernel-lsp: 1\n// op: n(x: f32[B, D], eps: float) -> (out: f32[B, D])\n// keeps: scale: f32[B]\n"
        "// launch: rows<<<B, 256>>>(x, out, scale, D, eps)\n"
        f"// op: n_backward(grad_out: f32[B, D], x: f32[B, D], {kept}, eps: float) -> (grad_x: f32[B, D])\n"
        f"// launch: gradients<<<B, 256>>>(grad_out, x, {kept[:5]}, grad_x, D)\n\n"
        "__global__ void rows(const float* x, float* out, float* scale, int D, float eps) {}\n"
        "__global__ void gradients(const float* g, const float* x, const float* kept, float* grad_x, int D) {}\n",
        "n.cu",
    )
    graph = SimpleNamespace(numbers={"eps"})
    text: Any = SimpleNamespace(plan=plan, task=SimpleNamespace(graphs=(graph, graph)))
    assert OperatorText._is_taken(text, "eps") is kept.startswith("scale")
