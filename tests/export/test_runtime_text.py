"""The runtime that operators share: documented, formatted, on its own, and with an interface that has a version."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernel_lsp.core.dtype import DType
from kernel_lsp.export.python.operator import runtime_file
from kernel_lsp.export.python.runtime_text import PARTS, RUNTIME_MODULE, RUNTIME_VERSION, USE_PARTS, runtime_text
from kernel_lsp.toolchain.nvrtc.standard_headers import STANDARD_HEADERS

from .test_operator_text import check_ruff

WORKER = Path(__file__).parent.parent.parent / "kernel_lsp" / "worker" / "shipped"
VERSION_1 = {
    "Contract": "inputs results where numbers backward kept",
    "sizes": "tensor rank",
    "holds": "condition",
    "require": "name types tensors",
    "ModuleUse": "method inputs state settings training modes",
    "Operation": "schema contract steps before",
    "Run.launch": "self kernel grid block arguments numbers shared attributes",
    "CudaOperator": "module_name file kernels reference forward backward gradients same_gradients is_differentiable "
    "captured headers module given n_kept",
    "CudaOperator.__call__": "self arguments",
    "CudaOperator.use": "self original defaults report",
    "CudaOperator.use_in": "self module report",
    "CudaOperator.calls": "self",
    "sdpa_forward": "query key value is_causal scale",
    "sdpa_backward": "query key value grad is_causal scale",
    "sdpa_forward_kept": "query key value is_causal scale",
    "sdpa_backward_kept": "query key value grad out log_sums is_causal scale",
}
"""Interface that operator files of version 1 use. Another one needs another `RUNTIME_VERSION`."""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path = tmp_path_factory.mktemp("runtime") / f"{RUNTIME_MODULE}.py"
    path.write_text(runtime_file().marked_text())
    spec = importlib.util.spec_from_file_location("runtime_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operator_files_find_the_interface_of_their_version(runtime: ModuleType) -> None:
    assert (RUNTIME_VERSION, runtime.VERSION) == (1, 1)
    assert {name: parameters(runtime, name) for name in VERSION_1} == VERSION_1


def parameters(runtime: ModuleType, name: str) -> str:
    value = runtime
    for part in name.split("."):
        value = getattr(value, part)
    return " ".join(inspect.signature(value).parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [PARTS, USE_PARTS], ids=["operator file", "package"])
def test_it_is_formatted_and_has_no_lint(parts: tuple[str, ...]) -> None:
    check_ruff(runtime_text(parts), "format", "--diff")
    check_ruff(runtime_text(parts), "check", "--target-version", "py39", "--select", "E,F,I,PT,C4")


@pytest.mark.parametrize("parts", [PARTS, USE_PARTS], ids=["operator file", "package"])
def test_no_part_hides_a_name_of_another(parts: tuple[str, ...]) -> None:
    defining = (ast.FunctionDef, ast.ClassDef)
    names = Counter(node.name for node in ast.parse(runtime_text(parts)).body if isinstance(node, defining))
    assert names.most_common(1)[0][1] == 1


def test_the_parts_are_in_it_word_for_word() -> None:
    for part in PARTS:
        assert (WORKER / part).read_text().partition("\n# --- ")[2].rstrip("\n") in runtime_text()


def test_it_is_documented() -> None:
    docstring = ast.get_docstring(ast.parse(runtime_text())) or ""
    assert all(name in docstring for name in ("Contract", "CudaOperator", "ModuleUse", "calls"))


def test_it_runs_without_kernel_lsp(tmp_path: Path) -> None:
    (tmp_path / f"{RUNTIME_MODULE}.py").write_text(runtime_text())
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {RUNTIME_MODULE} as r; "
    program += "print(r.sizes(None, 2), any(name.split('.')[0] == 'kernel_lsp' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "(0, 0) False\n", done.stderr


def test_it_knows_every_dtype_and_header(runtime: ModuleType) -> None:
    assert {str(dtype): getattr(torch, dtype.torch_name) for dtype in DType} == runtime.DTYPES
    assert runtime.HEADERS == STANDARD_HEADERS


def test_a_contract_names_what_does_not_hold(runtime: ModuleType) -> None:
    def reason(x: object, n: object = 1) -> str:
        B, D = runtime.sizes(x, 2)
        where = {"D % 4 == 0": D % 4 == 0, "8 % (B - 2) == 0": runtime.holds(lambda: 8 % (B - 2) == 0)}
        contract = runtime.Contract({"x: f32[B, D]": (x, (B, D))}, {"out: f32[B]": (B,)}, where, {"n": n})
        return runtime.mismatch(contract) or next((name for name, is_met in where.items() if not is_met), "")

    assert reason(torch.ones(3, 8)) == ""
    assert reason(torch.ones(3, 6)) == "D % 4 == 0"
    assert reason(torch.ones(2, 8)) == "8 % (B - 2) == 0"
    assert reason(torch.ones(3, 8).double()) == "x is not a non-empty f32[B, D]"
    assert reason(None) == "x is not a non-empty f32[B, D]"
    assert reason(torch.ones(3, 8), "one") == "n is not a number"


@pytest.mark.parametrize(("shape", "is_refused"), [((3, 8), False), ((3, 9), True), ((2, 3, 8), True), ((8,), True)])
def test_code_of_one_size_refuses_others(runtime: ModuleType, shape: tuple[int, ...], is_refused: bool) -> None:
    expected = pytest.raises(ValueError, match=r"f was captured with x: f32\[B, 8\]") if is_refused else nullcontext()
    with expected:
        runtime.require("f", "x: f32[B, 8]", torch.empty(shape))


def test_annotations_declare_an_operation_whose_schema_is_its_name(runtime: ModuleType) -> None:
    def contract(x: torch.Tensor, n: int, eps: float) -> object: ...

    def steps(*_: object) -> object: ...

    contract.__annotations__ = {"x": "Tensor", "n": "int", "eps": "float", "return": "Contract"}
    steps.__annotations__ = {"return": "tuple[Tensor, Tensor]"}
    declared = runtime.Operation("f", contract, steps, before=("grad_out",))
    assert declared.schema("f_2") == "f_2(Tensor grad_out, Tensor x, SymInt n, float eps) -> (Tensor, Tensor)"
    whole = runtime.Operation("f(Tensor x) -> Tensor", contract, steps)
    assert (whole.name, whole.schema("f_2")) == ("f", "f_2(Tensor x) -> Tensor")


def test_a_backward_takes_what_the_forward_takes_and_gradients(runtime: ModuleType) -> None:
    def contract(x: torch.Tensor) -> object:
        return runtime.Contract({"x: f32[B, 8]": (x, (2, 8))}, {"out: f32[B]": (2,)}, {}, {}, {"B < 9": True})

    found = runtime.contract_of_backward(contract, ["x"])(torch.ones(2), torch.ones(2, 8))
    assert (runtime.mismatch(found), [*found.inputs], found.where) == (
        "",
        ["grad_out: f32[B]", "x: f32[B, 8]"],
        {"B < 9": True},
    )
    assert found.results == {"grad_x: f32[B, 8]": (2, 8)}
    other = runtime.contract_of_backward(contract, ["x"])(torch.ones(3), torch.ones(2, 8))
    assert runtime.mismatch(other) == "grad_out is not f32[B]"
