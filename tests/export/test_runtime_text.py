"""The runtime that operators share: documented, formatted, on its own, and with an interface that has a version."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import prune

from kernel_lsp.core.dtype import DType
from kernel_lsp.export.python.operator import runtime_file
from kernel_lsp.export.python.runtime_text import PARTS, RUNTIME_MODULE, RUNTIME_VERSION, USE_PARTS, runtime_text
from kernel_lsp.toolchain.nvrtc.standard_headers import STANDARD_HEADERS

from .test_operator_text import check_ruff

WORKER = Path(__file__).parent.parent.parent / "kernel_lsp" / "worker" / "shipped"
VERSION_3 = {
    "LaunchPlan": "file function where backward_where renamed kernels numbers",
    "captured_with": "plan",
    "require": "name types tensors",
    "ModuleUse": "method inputs state settings training modes code tied updates counters graphs",
    "CudaOperator": "plan reference is_differentiable captured constants structures headers module returns no_grad "
    "code",
    "CudaOperator.__call__": "self arguments",
    "CudaOperator.use": "self original defaults report",
    "CudaOperator.use_in": "self module report",
    "CudaOperator.calls": "self",
}
"""Interface that operator files of version 3 use. Another one needs another `RUNTIME_VERSION`."""
FORWARD = """
// Any prose.
// kernel-lsp: 1
// task: model.py::f
// Prose: of one kernel.
// op: f(x:f32[B, 8], flag: bool, n: int, eps: float)   // a comment, with (
//     -> (out: f32 [B], at: i64[B]);
// where: 8 // n * n == 8
// keeps: squares: f32[B, 8], cubes: f32[B, 8]
// fill: out = 0
// launch[B > 1]: ns::rows<Pair<float, int>, flag and B > 2, 256>
//     <<<dim3(B // 1, 2), 128, 64>>>(x, out, B * 8, ceil_div(B, 2), eps); // in rows
//     cluster=2 max_shared=1
// scratch: a: f32[B, 4], F: bf16[B, ceil_div(B, 2)]
// library: aten::mm(x, x) -> (at)
"""
BACKWARD = """// op: f_backward(grad_out: f32[B], squares: f32[B, 8], x: f32[B, 8]) -> (grad_x: f32[B, 8])
// where: B < 9
// launch: rows_backward<<<B, 256>>>(grad_out, squares, x, grad_x)
"""


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
    assert (RUNTIME_VERSION, runtime.VERSION) == (3, 3)
    assert {name: parameters(runtime, name) for name in VERSION_3} == VERSION_3


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
    assert all(name in docstring for name in ("CudaOperator", "ModuleUse", "calls"))


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
        contract = runtime.Contract({"x: f32[B, D]": (x, (B, D))}, {"out: f32[B]": (B,)}, where, {"n: int": n})
        return runtime.mismatch(contract) or next((name for name, is_met in where.items() if not is_met), "")

    assert reason(torch.ones(3, 8)) == ""
    assert reason(torch.ones(3, 6)) == "D % 4 == 0"
    assert reason(torch.ones(2, 8)) == "8 % (B - 2) == 0"
    assert reason(torch.ones(3, 8).double()) == "x is not a non-empty f32[B, D]"
    assert reason(None) == "x is not a non-empty f32[B, D]"
    assert reason(torch.ones(3, 8), "one") == "n is not of type int"
    assert reason(torch.ones(3, 8), 1.5) == "n is not of type int"


@pytest.mark.parametrize(("shape", "is_refused"), [((3, 8), False), ((3, 9), True), ((2, 3, 8), True), ((8,), True)])
def test_code_of_one_size_refuses_others(runtime: ModuleType, shape: tuple[int, ...], is_refused: bool) -> None:
    expected = pytest.raises(ValueError, match=r"f was captured with x: f32\[B, 8\]") if is_refused else nullcontext()
    with expected:
        runtime.require("f", "x: f32[B, 8]", torch.empty(shape))


def test_code_of_one_size_takes_tensors_of_no_dims(runtime: ModuleType) -> None:
    runtime.require("f", "x: f32[B, 8]; scale: f32[]", torch.empty(3, 8), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"f was captured with scale: f32\[\]"):
        runtime.require("f", "scale: f32[]", torch.ones(1))


def f(x: Tensor, flag: bool, n: int, eps: float) -> Tensor: ...  # type: ignore[empty-body]


def plan_of(runtime: ModuleType, folder: Path, text: str = FORWARD + BACKWARD, **options: Any) -> Any:
    (folder / "f.cu").write_text(text)
    return runtime.LaunchPlan(str(folder / "f.py"), f, renamed={"F": "F_"}, **options)


def test_a_plan_declares_its_operations(runtime: ModuleType, tmp_path: Path) -> None:
    plan = plan_of(runtime, tmp_path)
    forward, backward = plan.forward, plan.backward
    assert plan.problem == ""
    assert forward.schema() == "(Tensor x, bool flag, SymInt n, float eps) -> (Tensor, Tensor, Tensor)"
    assert backward.schema().startswith("(Tensor grad_out, Tensor squares, Tensor x, bool flag, SymInt n, float eps)")
    assert forward.scratch == {"cubes": "f32[B, 8]", "a": "f32[B, 4]", "F_": "bf16[B, ceil_div(B, 2)]"}
    assert (forward.kernels, backward.kernels) == ([], ["rows_backward"])
    assert (backward.given(), backward.argument_of("grad_x")) == ([2], "x")


def test_a_plan_launches_as_it_says(runtime: ModuleType, tmp_path: Path) -> None:
    run = Launches()
    x = torch.ones(8, 8)
    steps = plan_of(runtime, tmp_path).forward.run
    out, at, squares = steps(run, x, True, 2, 0.5)
    ((kernel, grid, block, given, types), attributes), *others = run.launches
    assert (kernel, grid, block) == ("ns::rows<Pair<float, int>, true, 256>", (8, 2), 128)
    assert (attributes, others) == ({"shared": 64, "cluster": 2, "max_shared": 1}, [])
    assert given[0] is x
    assert given[1] is out
    assert (given[2:], types) == ((64, 4, 0.5), "int, int, float")
    assert (out.tolist(), squares.shape) == ([0.0] * 8, (8, 8))
    assert torch.equal(at, x @ x)
    run.launches.clear()
    steps(run, torch.ones(1, 1), True, 2, 0.5)
    assert not run.launches


class Launches:
    def __init__(self) -> None:
        self.launches: list[Any] = []

    def launch(self, *arguments: object, **attributes: object) -> None:
        self.launches.append((arguments, attributes))


def test_fused_attention_is_the_runtimes(runtime: ModuleType, tmp_path: Path) -> None:
    plan = plan_of(runtime, tmp_path, FORWARD.replace("aten::mm(x, x)", "sdpa::forward(x, x, x, true, none)"))
    plan.forward.run.__globals__["sdpa_forward"] = lambda *given: torch.tensor(
        len(given[:3]) if given[3:] == (True, None) else 0
    )
    assert plan.forward.run(Launches(), torch.ones(1, 8), True, 2, 0.5)[1] == 3


@pytest.mark.parametrize("key", ["ns::rows", "f 2"])
def test_an_operator_states_what_the_kernels_own_code_decides(runtime: ModuleType, tmp_path: Path, key: str) -> None:
    run = Launches()
    stated = {"kernels": {key: "rows<>"}, "numbers": {key: "long long, int, double"}}
    plan_of(runtime, tmp_path, **stated).forward.run(run, torch.ones(8, 8), True, 2, 0.5)
    (kernel, *_, types), _ = run.launches[0]
    assert (kernel, types) == ("rows<>", "long long, int, double")


def test_a_backward_takes_gradients_and_what_was_kept(runtime: ModuleType, tmp_path: Path) -> None:
    where, more = ("eps == 0.5", "B == 2"), ("B == 2",)
    contract = plan_of(runtime, tmp_path, where=where, backward_where=more).backward.contract
    given = (torch.ones(2, 8), torch.ones(2, 8), True, 2, 0.5)
    found = contract(torch.ones(2), *given)
    assert [*found.inputs] == ["grad_out: f32[B]", "squares: f32[B, 8]", "x: f32[B, 8]"]
    assert [*found.where] == ["eps == 0.5", "B == 2", "B < 9", "B * 8 <= 2130706432"]
    assert (runtime.mismatch(found), {*found.where.values()}) == ("", {True})
    assert found.results == {"grad_x: f32[B, 8]": (2, 8)}
    assert runtime.mismatch(contract(torch.ones(3), *given)) == "squares is not f32[B, 8]"


def test_a_condition_that_divides_by_zero_does_not_hold(runtime: ModuleType, tmp_path: Path) -> None:
    contract = plan_of(runtime, tmp_path).forward.contract
    assert [contract(torch.ones(2, 8), True, n, 0.5).where["8 // n * n == 8"] for n in (2, 3, 0)] == [
        True,
        False,
        False,
    ]


def test_truth_values_are_the_plans(runtime: ModuleType, tmp_path: Path) -> None:
    """Python's `and` returns an operand."""
    run, text = Launches(), FORWARD.replace("B * 8,", "(n and B) + true,")
    plan_of(runtime, tmp_path, text).forward.run(run, torch.ones(8, 8), True, 7, 0.5)
    assert run.launches[0][0][3][2] == 2


@pytest.mark.parametrize(
    "expression",
    [
        *("open(1)", "x.data", "x .data", "[B][0].real", "(B)(1)", '"" == 1', "B if B else 1; 1", "x__y", "Q > 0"),
        *("B if B else 1", "[B for B in [1]]", "(yield)", "B[0]", "min > 0", "min(B, key=B)", "-" * 20_000 + "B"),
    ],
)
def test_only_expressions_of_plans_run(runtime: ModuleType, tmp_path: Path, expression: str) -> None:
    """The file's comments are no code to a reviewer."""
    plan = plan_of(runtime, tmp_path, FORWARD.replace("8 // n * n == 8", expression))
    assert "f.cu has another launch plan" in plan.problem


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fill: out", "fill: open(1) or out"),
        ("at: i64[B]", "at: i64[B], (open(1), at)[1].x: f32[B]"),
        ("ns::rows<", "ns::rows{open(1)}<"),
        ("-> (at)", "-> (open(1).at)"),
        ("B * 8,", "Q * 8,"),
        ("[B, 8], flag", "[run, 8], flag"),
        ("x:f32[B, 8], ", ""),
    ],
)
def test_only_names_of_plans_run(runtime: ModuleType, tmp_path: Path, old: str, new: str) -> None:
    assert old in FORWARD
    assert "f.cu has another launch plan" in plan_of(runtime, tmp_path, FORWARD.replace(old, new)).problem


@pytest.mark.parametrize(
    ("line", "number"),
    [("// keeps", 10), ("// launch[", 12), ("// library", 16), ("//\n// Launch: in rows.\n// fill", 13)],
)
def test_a_plan_that_is_cut_off_launches_nothing(runtime: ModuleType, tmp_path: Path, line: str, number: int) -> None:
    """An empty line ends a plan: the kernels would run without the lines below."""
    cut = FORWARD.replace(f"// {line.rpartition('// ')[2]}", f"\n{line}")
    assert f"line {number} is not read, since the plan ends at" in plan_of(runtime, tmp_path, cut).problem


def test_prose_below_a_plan_is_none_of_it(runtime: ModuleType, tmp_path: Path) -> None:
    assert plan_of(runtime, tmp_path, f"{FORWARD}\n// launch: in rows\nvoid f();\n// fill: x = 0").problem == ""


@pytest.mark.parametrize("name", ["min", "max", "bool", "true", "__B"])
def test_a_dim_may_have_any_name(runtime: ModuleType, tmp_path: Path, name: str) -> None:
    run, text = Launches(), re.sub(r"\bB\b", name, FORWARD).replace(f"{name} * 8,", f"max({name}, 1),")
    plan_of(runtime, tmp_path, text).forward.run(run, torch.ones(8, 8), True, 2, 0.5)
    assert run.launches[0][0][3][2:] == (8, 4, 0.5)


@pytest.mark.parametrize("name", ["ceil_div", "mm"])
def test_a_dim_with_the_name_of_a_function_is_renamed_alone(runtime: ModuleType, tmp_path: Path, name: str) -> None:
    """The operator's file has these names from the runtime, so that its plan has others for the dims."""
    (tmp_path / "f.cu").write_text(re.sub(r"\bB\b", name, FORWARD))
    plan = runtime.LaunchPlan(str(tmp_path / "f.py"), f, renamed={name: f"{name}_"})
    assert plan.problem == ""
    run = Launches()
    plan.forward.run(run, torch.ones(8, 8), True, 2, 0.5)
    assert run.launches[0][0][3][2:] == (64, 4, 0.5)


def test_code_below_a_plan_has_its_sizes(runtime: ModuleType, tmp_path: Path) -> None:
    code = runtime.captured_with(plan_of(runtime, tmp_path))(lambda x, flag, n, eps: x.sum())
    assert code(torch.ones(3, 8), True, 2, 0.5) == 24
    with pytest.raises(ValueError, match=r"f was captured with x: f32\[B, 8\]"):
        code(torch.ones(3, 9), True, 2, 0.5)


class Block(torch.nn.Module):
    def __init__(self, act: torch.nn.Module, scale: float = 2.0, scales: Any = (1.0, 2.0), none: Any = None) -> None:
        super().__init__()
        self.act, self.config, self.scales, self.none = act, {"scale": scale}, scales, none

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


def hooked(module: Block) -> Block:
    module.act.register_forward_hook(lambda *given: given[-1] * 2)
    return module


def pruned() -> torch.nn.Module:
    block = Block(torch.nn.Linear(2, 2))
    prune.l1_unstructured(block.act, "weight", 0.5)
    return block


def test_what_makes_a_captured_weight_is_no_hook_to_the_kernels(runtime: ModuleType) -> None:
    """Old weight norms and pruning are hooks before a call, and the graph has what they compute."""
    code = {"Block.forward": "", "Linear": ("act",)}
    captured = runtime.ModuleUse("forward", ["x"], ["act.weight_orig", "act.weight_mask"], code=code)
    assert captured.why_not(pruned()) == ""
    plain = runtime.ModuleUse("forward", ["x"], ["act.weight"], code=code)
    assert plain.why_not(pruned()).startswith("act has hooks")


def test_settings_are_compared_by_value(runtime: ModuleType) -> None:
    use = runtime.ModuleUse("forward", ["x"], [], {"scales": 2.0})
    block = Block(torch.nn.Tanh(), scales=torch.ones(1).numpy()[0] * 2)
    assert use.why_not(block) == ""
    many = runtime.ModuleUse("forward", ["x"], [], {"scales": (1.0,)})
    assert many.why_not(Block(torch.nn.Tanh(), scales=[torch.ones(2)])).startswith("scales is tensors")
    dtype = runtime.ModuleUse("forward", ["x"], [], {"scales": "torch.float16"})
    assert dtype.why_not(Block(torch.nn.Tanh(), scales=torch.float16)) == ""
    assert dtype.why_not(Block(torch.nn.Tanh(), scales=torch.float32)).startswith("scales is torch.float32")


class Other(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Block(torch.nn.Tanh()), ""),
        (Block(torch.nn.Tanh(), scales=[1.0, 2.0]), ""),
        (Block(torch.nn.Sigmoid()), "act is Sigmoid, and the kernels were made for Tanh: optimize"),
        (Other(torch.nn.Tanh()), "this is Other.forward, and the kernels were made for Block.forward: optimize"),
        (Block(torch.nn.Tanh(), scale=3.0), "config.scale is 3.0"),
        (Block(torch.nn.Tanh(), scales=(1.0, 3.0)), "scales is (1.0, 3.0)"),
        (Block(torch.nn.Tanh(), none=1), "none is 1"),
        (hooked(Block(torch.nn.Tanh())), "act has hooks, which kernels do not call"),
    ],
)
def test_a_module_that_holds_something_else_is_pytorchs(runtime: ModuleType, module: Any, says: str) -> None:
    settings = {"config.scale": 2.0, "scales": (1.0, 2.0), "none": None}
    use = runtime.ModuleUse("forward", ["x"], [], settings, code={"Block.forward": "", "Tanh": "act"})
    why = use.why_never(type(module)) or use.why_not(module)
    assert why.startswith(says)
    assert bool(why) is bool(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "f.cu cannot be read: No such file"),
        ("__global__ void f() {}", "it has none"),
        (FORWARD.replace("f(x:f32[B, 8]", "f(x:f32[B, 8], y: f32[B]"), "f takes y"),
        (FORWARD.replace("f32 [B]", "f33 [B]"), "f33"),
    ],
)
def test_without_a_plan_pytorch_computes(runtime: ModuleType, tmp_path: Path, text: str | None, says: str) -> None:
    plan = runtime.LaunchPlan(str(tmp_path / "f.py"), f) if text is None else plan_of(runtime, tmp_path, text)
    assert says in plan.problem
    operator = runtime.CudaOperator(plan, reference=lambda x, flag, n, eps: x + n)
    with pytest.warns(UserWarning, match="computed by PyTorch, not by its CUDA kernels: f.cu"):
        assert operator(torch.ones(2), True, 2, 0.5).tolist() == [3, 3]
    assert [*operator.calls()["fallback"]] == [plan.problem]
