"""The operator file reads like a colleague's, needs nothing of ours, and says what it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import TaskTensor, TensorType
from kernel_lsp.errors import PlanError, TargetError
from kernel_lsp.export.python.operator import write_operator
from kernel_lsp.export.python.python_text import LINE_LENGTH
from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE
from kernel_lsp.source.call_sites import is_offered, takes_more
from tests.generate.harness import plan_text
from tests.worker.capturing import tensor as sized

from .other_samples import RMS_NORM, RMS_NORM_MODULE, SAMPLES, Sample
from .samples import (
    RMS_NORM_CU,
    VERIFICATION,
    fresh_name,
    plan_of,
    rms_norm_cu,
    rms_norm_task,
    scalar,
    task,
    tensor,
    text_of,
)

MAX_LINES = 120
"""Maximum lines of an operator file, which a reviewer reads from top to bottom."""
BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(128), nn.LayerNorm(128)
        self.qkv, self.proj = nn.Linear(128, 384), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, 4, 32).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x))))
"""


@pytest.fixture(params=SAMPLES, ids=lambda sample: sample.stem)
def text(request: pytest.FixtureRequest) -> str:
    sample: Sample = request.param
    return text_of(sample.task(sample.stem), sample.cu_text(sample.stem))


def test_it_is_python(text: str) -> None:
    compile(text, "operator.py", "exec")


def test_it_is_formatted(text: str) -> None:
    check_ruff(text, "format", "--diff")


def test_it_has_no_lint(text: str) -> None:
    check_ruff(text, "check", "--target-version", "py311", "--select", "E,F,I,SIM,PT,C4,RUF100")


def test_it_imports_only_the_standard_library_and_torch(text: str) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported - {""} <= {*sys.stdlib_module_names, "torch", RUNTIME_MODULE}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_reviewer_reads_it_in_120_lines(sample: Sample) -> None:
    text = text_of(sample.task(sample.stem), sample.cu_text(sample.stem))
    assert len(text.splitlines()) < MAX_LINES, text


def test_a_reviewer_reads_any_number_of_launches_in_120_lines() -> None:
    """Check the operator of a transformer block, whose plan alone fills 120 lines."""
    program = plan_text(BLOCK, inputs=[sized("x", 4, 64, 128)], symbol="Block", backward=True)
    cu_text = program.render({})
    text = text_of(program.task, cu_text)
    assert cu_text.count("// launch: ") >= 20
    assert len(text.splitlines()) <= MAX_LINES, text
    assert "plan at the top of block.cu" in text
    check_ruff(text, "format", "--diff")


def test_every_function_is_annotated(text: str) -> None:
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    bare = [
        f.name
        for f in functions
        if f.returns is None or any(a.annotation is None for a in f.args.args if a.arg != "self")
    ]
    assert not bare


def test_the_docstring_says_where_it_is_from_and_how_it_was_verified() -> None:
    docstring = ast.get_docstring(ast.parse(text_of(rms_norm_task(), RMS_NORM_CU))) or ""
    assert "model.py::rms_norm" in docstring
    assert VERIFICATION in docstring


def test_words_of_the_verification_cannot_end_the_docstring() -> None:
    task_ = rms_norm_task().model_copy(update={"target": 'C:\\new\\"""model.py::rms_norm'})
    compile(text_of(task_, RMS_NORM_CU), "operator.py", "exec")


def test_headers_that_the_kernels_include_are_given_to_the_compiler() -> None:
    headers = "#include <cmath>\n#include <cassert>\n#include <cuda_fp16.h>\n"
    text = text_of(rms_norm_task(), RMS_NORM_CU.replace("\ntemplate", f"\n{headers}template", 1))
    assert '"cassert": _runtime.HEADERS["cassert"]' in text
    assert '"cuda_fp16.h": ' not in text
    check_ruff(text, "format", "--diff")
    check_ruff(text, "check", "--target-version", "py311", "--select", "E,F,I,SIM,PT,C4,RUF100")


def test_a_function_is_used_with_itself_as_the_fallback() -> None:
    text = text_of(rms_norm_task(), RMS_NORM_CU)
    assert "def use_rms_norm(original: Callable[..., Any], report: bool = False) -> Callable[..., Any]:" in text
    assert '__all__ = ["calls", "rms_norm", "use_rms_norm"]' in text


def test_a_parameter_is_looked_up_where_the_module_has_it() -> None:
    assert 'state=("fc.0.weight",)' in _text_of("linear_relu")


def test_an_operator_of_code_that_draws_stands_for_no_call(tmp_path: Path) -> None:
    """No call gives what the code draws: a use_NAME left each to PyTorch, as one with other arguments."""
    for sample in (RMS_NORM, RMS_NORM_MODULE):
        name = fresh_name("rms_norm")
        task = sample.task(name)
        draws = task.model_copy(update={"draws": (task.arguments[0].name,)})
        for each, is_used in ((task, True), (draws, False)):
            text = sample.cu_text(name)
            write_operator(each, text, plan_of(text), tmp_path, verification=VERIFICATION)
            assert (is_offered(tmp_path, name), takes_more(tmp_path, name)) == (is_used, not is_used)


def test_a_plan_for_another_task_is_refused() -> None:
    other = task("rms_norm", (tensor("y", "B", "D"),), "return y")
    check_refused(other, RMS_NORM_CU, PlanError, "'x'")


def test_a_plan_that_launches_no_kernel_of_the_file_is_refused() -> None:
    check_refused(rms_norm_task(), RMS_NORM_CU.replace("rms_norm_rows<256><<<", "other<256><<<"), PlanError, "other")


def test_a_task_without_tensors_is_refused() -> None:
    numbers = task("rms_norm", (scalar("eps", 1e-6),), "return eps")
    check_refused(numbers, RMS_NORM_CU, (PlanError, TargetError), "rms_norm")


def test_a_written_operator_is_the_text_below_its_marker(tmp_path: Path) -> None:
    cu_text = rms_norm_cu()
    kernel, path, *_ = write_operator(rms_norm_task(), cu_text, plan_of(cu_text), tmp_path, verification=VERIFICATION)
    assert kernel.read_text() == cu_text
    assert path.read_text().partition("\n")[2] == text_of(rms_norm_task(), cu_text)


def _text_of(stem: str) -> str:
    sample = next(sample for sample in SAMPLES if sample.stem == stem)
    return text_of(sample.task(stem), sample.cu_text(stem))


def check_refused(task_: object, cu_text: str, error: object, mentions: str) -> None:
    with pytest.raises(error) as raised:  # type: ignore[call-overload]
        text_of(task_, cu_text)  # type: ignore[arg-type]
    assert mentions in str(raised.value)


def check_ruff(text: str, command: str, *options: str) -> None:
    arguments = ["--isolated", "--no-cache", "--line-length", str(LINE_LENGTH), "--stdin-filename", "operator.py", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", command, *options, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dim_that_the_target_holds_is_a_condition() -> None:
    """The kernels were never tried at another size."""
    open_ = text_of(rms_norm_task("rms_norm"), rms_norm_cu("rms_norm"))
    held = rms_norm_task("rms_norm")
    types = tuple(TensorType(dtype=DType.F32, shape=shape) for shape in (("B", "320"), ("320",)))
    graph = held.forward.model_copy(update={"inputs": ("x", "weight"), "input_types": types})
    held = held.model_copy(update={"forward": graph})
    assert "D == 320" in text_of(held, rms_norm_cu("rms_norm"))
    assert "320" not in open_


def test_code_that_was_captured_for_one_size_refuses_others() -> None:
    """Check that what it computes with that size is a number in it."""
    held = rms_norm_task("rms_norm")
    x, *others = held.arguments
    assert isinstance(x, TaskTensor)
    x = x.model_copy(update={"type": TensorType(dtype=DType.F32, shape=("B", "320"))})
    text = text_of(held.model_copy(update={"arguments": (x, *others)}), rms_norm_cu("rms_norm"))
    reference = text[text.index("def rms_norm_reference") :]
    assert 'types = "x: f32[B, 320]' in reference
    assert '_runtime.require("rms_norm", types, x' in reference
