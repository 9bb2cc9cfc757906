"""Without a GPU the operator is PyTorch's own code, in every way that PyTorch calls an operator."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernel_lsp.worker.shipped.operator_settings import code_digest
from kernel_lsp.worker.shipped.operator_use import CapturedArguments

from .loading import load_operator
from .other_samples import (
    AWKWARD_NAMES,
    BAKED_NUMBER,
    LIBRARY_ONLY,
    LINEAR_RELU,
    MANY_RESULTS,
    ONE_GRADIENT,
    RENAMED,
    RMS_NORM,
    RMS_NORM_MODULE,
    ROW_MAX,
    TOTAL,
    Sample,
)
from .samples import RMS_NORM_CU, fresh_name, rms_norm_task

EPS = 1e-6
pytestmark = pytest.mark.filterwarnings("ignore:.*computed by PyTorch.*", "ignore:.*torch.jit.*")


def load(sample: Sample, directory: Path) -> ModuleType:
    name = fresh_name(sample.stem)
    return load_operator(sample.task(name), sample.cu_text(name), directory)


def function_of(module: ModuleType) -> Callable[..., Any]:
    """The function that users call."""
    return getattr(module, module.__name__)


def operator_of(module: ModuleType, suffix: str = "") -> Any:
    """The operator itself, as `torch.compile` sees it."""
    return getattr(torch.ops.kernel_lsp, module.__name__ + suffix).default


@pytest.fixture(scope="module")
def rms_norm(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load(RMS_NORM, tmp_path_factory.mktemp("operators"))


class RMSNorm(torch.nn.Module):
    def __init__(self, dim: int, eps: float = EPS) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.rand(dim))

    def forward(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight + shift


def by_hand(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def leaves(n_rows: int, n_columns: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n_rows * 100 + n_columns)
    x = torch.randn(n_rows, n_columns, generator=generator, dtype=dtype)
    return x.requires_grad_(), torch.rand(n_columns, generator=generator, dtype=dtype).requires_grad_()


def check_same(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Values and gradients of a function of two tensors are those of RMSNorm by hand."""
    found, expected = function(*inputs), by_hand(*inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), inputs)
    )


# --- values and gradients


@pytest.mark.parametrize("shape", [(3, 8), (1, 4), (2, 7), (5, 1)])
def test_it_computes_what_pytorch_computes(rms_norm: ModuleType, shape: tuple[int, int]) -> None:
    check_same(function_of(rms_norm), *leaves(*shape))


def test_the_operator_itself_does_too(rms_norm: ModuleType) -> None:
    check_same(lambda x, weight: operator_of(rms_norm)(x, weight, EPS), *leaves(3, 8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_keep_their_dtype(rms_norm: ModuleType, dtype: torch.dtype) -> None:
    x, weight = (leaf.detach() for leaf in leaves(2, 8, dtype))
    assert function_of(rms_norm)(x, weight).dtype == dtype
    assert operator_of(rms_norm)(x, weight, EPS).dtype == dtype


def test_the_operators_gradients_are_right_to_the_second_order(rms_norm: ModuleType) -> None:
    inputs = leaves(2, 4, torch.float64)
    operator = operator_of(rms_norm)
    assert torch.autograd.gradcheck(lambda x, weight: operator(x, weight, EPS), inputs)
    assert torch.autograd.gradgradcheck(lambda x, weight: operator(x, weight, EPS), inputs)


@pytest.mark.parametrize(
    ("sample", "inputs"),
    [
        (BAKED_NUMBER, (torch.randn(2, 3), 0.7)),
        (MANY_RESULTS, tuple(torch.randn(2, 3) for _ in range(6))),
        (LIBRARY_ONLY, (torch.randn(2, 3), torch.randn(3, 4))),
        (ONE_GRADIENT, tuple(torch.randn(5) for _ in "xyzw")),
        (RENAMED, (torch.randn(3, 5), torch.randn(5))),
    ],
    ids=lambda value: value.stem if isinstance(value, Sample) else "",
)
def test_gradients_find_their_arguments(sample: Sample, inputs: tuple[Any, ...], tmp_path: Path) -> None:
    module = load(sample, tmp_path)
    doubles = [v.double().requires_grad_() if isinstance(v, torch.Tensor) else v for v in inputs]
    assert torch.autograd.gradcheck(operator_of(module), doubles)


def test_one_gradient_of_two_inputs_is_one_tensor(tmp_path: Path) -> None:
    module = load(ONE_GRADIENT, tmp_path)
    x, y, z, w = (torch.randn(5, requires_grad=True) for _ in "xyzw")
    grad = torch.randn(5)
    of_x, of_y, of_z, of_w = torch.autograd.grad(operator_of(module)(x, y, z, w), (x, y, z, w), grad)
    assert (of_x.data_ptr(), of_w.data_ptr()) == (of_y.data_ptr(), grad.data_ptr())
    torch.testing.assert_close((of_x, of_z), (grad * z, grad * (x + y)))
    torch.library.opcheck(operator_of(module, "_backward"), (grad, *(leaf.detach() for leaf in (x, y, z, w))))


def test_accumulation_leaves_a_gradient_of_two_inputs_alone(tmp_path: Path) -> None:
    module = load(ONE_GRADIENT, tmp_path)
    x, y, z, w = (torch.randn(5, requires_grad=True) for _ in "xyzw")
    for _ in range(2):
        operator_of(module)(x, y * 2.0, z, w).backward(torch.ones(5))
    torch.testing.assert_close((x.grad, y.grad, w.grad), (2 * z, 4 * z, torch.full((5,), 2.0)))


def test_only_the_gradient_that_is_needed_is_made(rms_norm: ModuleType) -> None:
    x, weight = leaves(3, 8)
    operator_of(rms_norm)(x, weight.detach(), EPS).sum().backward()
    assert x.grad is not None
    assert weight.grad is None


def test_a_result_is_never_an_input(tmp_path: Path) -> None:
    name = fresh_name("rms_norm")
    task = rms_norm_task(name).model_copy(
        update={"reference_source": f"def {name}_reference(x, weight, eps):\n    return x.contiguous()\n"}
    )
    operator = operator_of(load_operator(task, RMS_NORM.cu_text(name), tmp_path))
    x = torch.randn(3, 8)
    assert operator(x, torch.ones(8), EPS).data_ptr() != x.data_ptr()
    torch.library.opcheck(operator, (x, torch.ones(8), EPS))


def test_a_number_that_the_reference_has_not_is_refused(rms_norm: ModuleType) -> None:
    x, weight = leaves(3, 8)
    with pytest.raises(ValueError, match="captured with eps=1e-06"):
        function_of(rms_norm)(x, weight, 1e-5)


# --- as PyTorch sees it


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_opcheck_of_the_forward(rms_norm: ModuleType, needs_gradient: bool) -> None:
    x, weight = (leaf.detach().requires_grad_(needs_gradient) for leaf in leaves(3, 8))
    torch.library.opcheck(operator_of(rms_norm), (x, weight, EPS))


def test_opcheck_of_the_backward(rms_norm: ModuleType) -> None:
    x, weight = (leaf.detach() for leaf in leaves(3, 8))
    torch.library.opcheck(operator_of(rms_norm, "_backward"), (torch.randn(3, 8), x, weight, EPS))


@pytest.mark.parametrize(
    "x",
    [torch.randn(8, 3).t(), torch.randn(2, 3, 8), torch.randn(3, 8, dtype=torch.float64), torch.randn(0, 8)],
    ids=["transposed", "another rank", "another dtype", "empty"],
)
def test_opcheck_outside_the_contract(rms_norm: ModuleType, x: torch.Tensor) -> None:
    torch.library.opcheck(operator_of(rms_norm), (x, torch.rand(8, dtype=x.dtype), EPS))


@pytest.mark.parametrize(
    ("sample", "inputs"),
    [
        (TOTAL, (torch.randn(10),)),
        (LINEAR_RELU, (torch.randn(3, 4), torch.randn(5, 4), torch.randn(5))),
        (ROW_MAX, (torch.randn(3, 5),)),
        (AWKWARD_NAMES, (torch.randn(3, 5), torch.randn(3, 5), 2, True)),
        (RMS_NORM_MODULE, (torch.randn(3, 8), torch.randn(8))),
    ],
    ids=lambda value: value.stem if isinstance(value, Sample) else "",
)
def test_opcheck_of_other_plans(sample: Sample, inputs: tuple[Any, ...], tmp_path: Path) -> None:
    module = load(sample, tmp_path)
    torch.library.opcheck(operator_of(module), inputs)
    torch.testing.assert_close(operator_of(module)(*inputs), function_of(module)(*inputs))
    if sample not in (AWKWARD_NAMES,):
        differentiable = tuple(value.requires_grad_() if isinstance(value, torch.Tensor) else value for value in inputs)
        torch.library.opcheck(operator_of(module), differentiable)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("kind", ["function", "operator"])
def test_it_compiles_whole_and_for_changing_shapes(rms_norm: ModuleType, backend: str, kind: str) -> None:
    torch._dynamo.reset()
    function, operator = function_of(rms_norm), operator_of(rms_norm)
    call = function if kind == "function" else lambda x, weight: operator(x, weight, EPS)
    compiled = torch.compile(lambda x, weight: call(x * 1.0, weight), fullgraph=True, backend=backend)
    for n_rows in (3, 5, 9):
        check_same(compiled, *leaves(n_rows, 8))


def test_fake_tensors_on_a_gpu_have_the_results_shape(rms_norm: ModuleType) -> None:
    with torch._subclasses.FakeTensorMode():
        x, weight = torch.empty(6, 8, device="cuda"), torch.empty(8, device="cuda")
        found = function_of(rms_norm)(x, weight)
        again = operator_of(rms_norm, "_backward")(x, x, weight, EPS)
    assert (found.shape, found.device.type) == ((6, 8), "cuda")
    assert [tuple(gradient.shape) for gradient in again] == [(6, 8), (8,)]


def test_autocast_changes_nothing_inside_the_operator(tmp_path: Path) -> None:
    operator = operator_of(load(LINEAR_RELU, tmp_path))
    inputs = (torch.randn(3, 4), torch.randn(5, 4), torch.randn(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert operator(*inputs).dtype == torch.float32


def test_under_autocast_the_fallback_is_autocast_as_its_code_would_be(tmp_path: Path) -> None:
    function = function_of(load(LINEAR_RELU, tmp_path))
    inputs = (torch.randn(3, 4), torch.randn(5, 4), torch.randn(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert function(*inputs).dtype == torch.bfloat16


# --- what it says


def test_it_says_once_that_pytorch_does_the_work(tmp_path: Path) -> None:
    function = function_of(load(RMS_NORM, tmp_path))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            function(torch.randn(3, 8), torch.ones(8))
    messages = [str(warning.message) for warning in said]
    assert len(messages) == 1
    assert "the tensors are on cpu" in messages[0]


def test_a_function_that_uses_it_runs_itself_where_the_kernels_cannot(tmp_path: Path) -> None:
    module = load(RMS_NORM, tmp_path)
    calls: list[Any] = []

    def original(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS, scale: float = 1.0) -> torch.Tensor:
        calls.append(eps)
        return by_hand(x, weight) * scale

    used = getattr(module, f"use_{module.__name__}")(original)
    x, weight = leaves(4, 16)
    assert torch.equal(used(x, weight, EPS), by_hand(x, weight))
    assert torch.equal(used(x, weight=weight, scale=2.0), by_hand(x, weight) * 2)
    assert torch.equal(used(x, weight), by_hand(x, weight))
    assert len(calls) == 3


def test_a_function_that_uses_it_compiles_whole(tmp_path: Path) -> None:
    module = load(RMS_NORM, tmp_path)
    use = getattr(module, f"use_{module.__name__}")
    compiled = torch.compile(lambda x, weight: use(by_hand)(x, weight) + 1, fullgraph=True, backend="eager")
    x, weight = leaves(4, 16)
    assert torch.equal(compiled(x, weight), by_hand(x, weight) + 1)


def test_an_applied_edit_compiles_whole_and_looks_at_the_code_once(tmp_path: Path) -> None:
    """The digest of the code reads files, which compiled code cannot; a call took 30 us for it."""
    name = fresh_name("rms_norm")
    task = rms_norm_task(name).model_copy(update={"code_digest": code_digest(by_hand)})
    module = load_operator(task, RMS_NORM.cu_text(name), tmp_path)
    use = getattr(module, f"use_{name}")
    compiled = torch.compile(lambda x, weight: use(by_hand)(x, weight) + 1, fullgraph=True, backend="eager")
    x, weight = leaves(4, 16)
    assert torch.equal(compiled(x, weight), by_hand(x, weight) + 1)
    assert use(by_hand) is use(by_hand)
    assert torch.equal(use(by_hand)(x, weight), by_hand(x, weight))


def test_functions_that_are_made_at_each_call_do_not_pile_up(tmp_path: Path) -> None:
    module = load(RMS_NORM, tmp_path)
    use = getattr(module, f"use_{module.__name__}")
    kept = [weakref.ref(use(lambda x, weight: by_hand(x, weight))) for _ in range(100)]
    gc.collect()
    assert sum(each() is not None for each in kept) < 20


def test_importing_it_neither_compiles_nor_reads_the_kernel(tmp_path: Path) -> None:
    name = fresh_name("rms_norm")
    load_operator(rms_norm_task(name), RMS_NORM.cu_text(name), tmp_path)
    (tmp_path / f"{name}.cu").unlink()
    program = f"import {name}, torch; print({name}.{name}(torch.ones(2, 4), torch.ones(4)).sum().item())"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("8.0") or done.stdout.startswith("7.99"), done.stderr


# --- in a module


@pytest.fixture(scope="module")
def rms_norm_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load(RMS_NORM_MODULE, tmp_path_factory.mktemp("operators"))


def use(module: ModuleType, target: torch.nn.Module) -> torch.nn.Module:
    return getattr(module, f"use_{module.__name__}")(target)


def test_a_module_keeps_its_values(rms_norm_module: ModuleType) -> None:
    changed = use(rms_norm_module, RMSNorm(8))
    x = torch.randn(3, 8)
    torch.testing.assert_close(changed(x), RMSNorm.forward(changed, x))


def test_a_call_that_was_not_captured_runs_the_modules_own_code(rms_norm_module: ModuleType) -> None:
    changed = use(rms_norm_module, RMSNorm(8))
    x = torch.randn(3, 8)
    torch.testing.assert_close(changed(x, 1.0), changed(x) + 1.0)
    torch.testing.assert_close(changed(x, shift=1.0), changed(x) + 1.0)
    torch.testing.assert_close(changed(x=x), changed(x))
    torch.testing.assert_close(changed(torch.randn(2, 3, 8)).shape, torch.Size((2, 3, 8)))


def called_with(x, size, eps=1e-6, mode="nearest", mask=None, scale=1.0):
    return x


X_AND_EPS = ("x", "eps")


@pytest.mark.parametrize(
    ("inputs", "keywords"),
    [
        (("x", (3, 3), 0.5), {"mode": "linear"}),
        (("x", [3, 3], 0.5, "linear", None, 1.0), {}),
        (("x",), {"mask": None, "size": (3, 3), "mode": "linear", "eps": 0.5}),
    ],
)
def test_arguments_as_in_the_captured_call_leave_it_to_the_kernels(inputs: tuple[Any, ...], keywords: Any) -> None:
    captured = CapturedArguments(X_AND_EPS, called_with, {"size": (3, 3), "mode": "linear"})
    assert captured.of(inputs, keywords) == ("x", 0.5)


@pytest.mark.parametrize(
    ("inputs", "keywords"),
    [
        (("x", (3, 3), 0.5), {}),  # the mode is the code's default, not the captured one
        (("x", (3, 4), 0.5, "linear"), {}),
        (("x", (3, True), 0.5, "linear"), {}),
        (("x", (3, 3), 0.5, "linear", "a mask"), {}),
        (("x", (3, 3), 0.5, "linear"), {"scale": 1}),
        (("x", (3, 3), 0.5, "linear"), {"unknown": None}),
        (("x", (3, 3), 0.5, "linear", None, 1.0, 2), {}),
        (("x",), {"mode": "linear"}),
    ],
)
def test_other_arguments_than_in_the_captured_call_are_told(inputs: tuple[Any, ...], keywords: Any) -> None:
    captured = CapturedArguments(X_AND_EPS, called_with, {"size": (3, 3), "mode": "linear"})
    assert captured.of(inputs, keywords) is None


def test_a_default_that_is_passed_by_hand_leaves_the_call_to_the_kernels(rms_norm_module: ModuleType) -> None:
    changed = use(rms_norm_module, RMSNorm(8))
    before = rms_norm_module.calls()["fallback"].copy()
    changed(torch.randn(3, 8), shift=0.0)
    changed(torch.randn(3, 8), 0.0)
    told = {reason for reason in rms_norm_module.calls()["fallback"] if reason not in before}
    assert not any("other arguments" in reason for reason in told)


def test_a_module_with_other_settings_runs_its_own_code_and_says_why_once(tmp_path: Path) -> None:
    operator = load(RMS_NORM_MODULE, tmp_path)
    module = RMSNorm(8, eps=1e-2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [use(operator, module)(torch.ones(3, 8)) for _ in range(2)]
    assert torch.equal(found[0], RMSNorm.forward(module, torch.ones(3, 8)))
    (warning,) = said
    assert "eps is 0.01, and the kernels were made for 1e-06: optimize this module, too" in str(warning.message)


def test_a_copy_of_the_module_uses_its_own_parameters(rms_norm_module: ModuleType) -> None:
    changed = use(rms_norm_module, RMSNorm(8))
    copied = copy.deepcopy(changed)
    with torch.no_grad():
        copied.weight.mul_(2.0)
    x = torch.randn(3, 8)
    torch.testing.assert_close(copied(x), changed(x) * 2.0)


def test_the_module_compiles_whole_and_trains(rms_norm_module: ModuleType) -> None:
    torch._dynamo.reset()
    changed = use(rms_norm_module, RMSNorm(8))
    compiled = torch.compile(changed, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), RMSNorm.forward(changed, x))
    compiled(x).sum().backward()
    assert changed.weight.grad is not None


def test_a_module_stays_what_it_is_and_can_be_put_back(rms_norm_module: ModuleType) -> None:
    changed = use(rms_norm_module, use(rms_norm_module, RMSNorm(8)))
    assert isinstance(changed, RMSNorm)
    assert repr(changed) == repr(RMSNorm(8))
    changed.__class__ = type(changed).__base__
    assert type(changed) is RMSNorm


def test_the_kernel_text_is_the_one_given(tmp_path: Path) -> None:
    name = fresh_name("rms_norm")
    load_operator(rms_norm_task(name), RMS_NORM.cu_text(name), tmp_path)
    assert (tmp_path / f"{name}.cu").read_text() == RMS_NORM_CU.replace("op: rms_norm", f"op: {name}")


def test_a_fallback_s_warning_is_at_the_call_of_the_user(tmp_path: Path) -> None:
    operator = load(RMS_NORM_MODULE, tmp_path)
    module = use(operator, RMSNorm(8))
    with pytest.warns(UserWarning, match="computed by PyTorch") as caught:
        module(torch.ones(3, 8))
    assert [each.filename for each in caught] == [__file__]
