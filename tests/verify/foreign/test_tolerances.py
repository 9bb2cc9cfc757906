"""Tolerances of other benchmarks, and kernels that are correct at the sizes of their task alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.config import ToleranceName, load_settings
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, Verdict
from kernel_lsp.process.case_files import Rounding
from kernel_lsp.verify.foreign.check_foreign import NO_KERNEL, contract_of
from kernel_lsp.verify.foreign.foreign_cases import describe_tolerance, judge_elementwise
from kernel_lsp.verify.foreign.process import ForeignProcess
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.session.check_kernel import check_kernel

TASK = """
import torch


# kernel-lsp: x=f32[8, 16]
def scale(x):
    return x * 2.0
"""
TOTAL = """
import torch


# kernel-lsp: x=f32[8, 16]
def scale(x):
    return x.sum()
"""
RELU = TASK.replace("x * 2.0", "torch.relu(x)")
WITHOUT_TAIL = (
    "n, y = x.numel() // 4 * 4, torch.zeros_like(x); y.view(-1)[:n] = torch.relu(x.reshape(-1)[:n]); return y"
)
CASE = CaseResult(operation="f", family="normal", shapes={}, n_blocks=0, n_blocks_run=0, errors=())


def kernel(body: str) -> str:
    return f"import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {body}\n"


def check(folder: Path, body: str, task: str = TASK, **settings: str) -> Verdict:
    (folder / "model.py").write_text(task)
    (folder / "new.py").write_text(kernel(body))
    overrides = {"device": "cpu", "cache_directory": folder / "cache", **settings}
    return asyncio.run(check_kernel(folder / "new.py", "model.py::scale", folder, load_settings(folder, overrides)))


def is_within(name: ToleranceName, error: float, tmp_path: Path, dtype: DType = DType.F32) -> bool:
    """Return whether 1 + error passes for 1."""
    tensor = BoundTensor(name="out", dtype=dtype, shape=(4,), role="output")
    exact, stored = np.ones(4), np.float16 if dtype is DType.F16 else np.float32
    (exact + np.array([0, 0, error, 0])).astype(stored).tofile(tmp_path / "out.bin")
    expected = Expectation("out", dtype, exact, None, Rounding(4, 2.0, 1e-7, 1e-7, 1e-7, 1e-7))
    return isinstance(judge_elementwise(CASE, [(tensor, tmp_path / "out.bin")], [expected], name), CaseResult)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [("torch", 1e-5, 2e-5), ("kernelbench", 1.8e-4, 3e-4), ("robust-kbench", 1.8e-3, 3e-3)],
)
def test_a_tolerance_allows_what_its_benchmark_does(
    name: ToleranceName, allowed: float, refused: float, tmp_path: Path
) -> None:
    assert is_within(name, allowed, tmp_path)
    assert not is_within(name, refused, tmp_path)


def test_sixteen_bits_have_a_tolerance_of_their_own(tmp_path: Path) -> None:
    assert is_within("torch", 1e-3, tmp_path, DType.F16)
    assert is_within("kernelbench", 1e-2, tmp_path, DType.F16)
    assert not is_within("torch", 4e-3, tmp_path, DType.F16)


def test_a_nan_passes_under_no_tolerance(tmp_path: Path) -> None:
    assert not is_within("robust-kbench", float("nan"), tmp_path)


def test_a_kernel_of_tf32_s_accuracy_passes_where_its_benchmark_would_let_it(tmp_path: Path) -> None:
    body = "return x * 2.0 * (1 + 3e-4)"
    strict = check(tmp_path, body)
    loose = check(tmp_path, body, tolerance="robust-kbench")
    assert (strict.outcome.kind, strict.tolerance) == ("mismatch", "strict")
    assert (loose.outcome.kind, loose.tolerance) == ("correct", "robust-kbench")
    assert any("robust-kbench" in note for note in loose.notes)


def test_a_kernel_that_fails_at_other_widths_is_correct_for_its_task(tmp_path: Path) -> None:
    verdict = check(tmp_path, "return x * (2.0 if x.shape[1] % 4 == 0 else 3.0)")
    assert verdict.is_correct
    (finding,) = [found for found in verdict.findings if found.code == "not-general"]
    assert finding.severity == "warning"
    assert "% 4 == 0`" in finding.message


def test_a_tail_that_is_right_by_chance_in_one_draw_is_found_in_another(tmp_path: Path) -> None:
    verdict = check(tmp_path, WITHOUT_TAIL, RELU)
    assert verdict.is_correct
    (finding,) = [found for found in verdict.findings if found.code == "not-general"]
    assert "% 4 == 0`" in finding.message


def test_a_kernel_that_refuses_other_sizes_is_correct_for_its_task(tmp_path: Path) -> None:
    """And nothing of it is its own: PyTorch computes what it returns."""
    verdict = check(tmp_path, "assert x.shape[1] == 16; return x * 2.0")
    assert verdict.is_correct
    assert {"not-general", "no-own-kernel"} <= {found.code for found in verdict.findings}
    assert NO_KERNEL in verdict.notes


@pytest.mark.parametrize(
    "error",
    [
        "x.view(-1).as_strided((x.numel() + 8,), (1,))[x.numel():].zero_()",
        "(_ for _ in ()).throw(RuntimeError('CU' + 'DA error: misaligned address'))",
    ],
    ids=["out of bounds", "misaligned"],
)
def test_a_memory_error_at_other_widths_is_the_contract_s(error: str, tmp_path: Path) -> None:
    """Vectors of four in rows that no four divides: a published RMS norm was called crashed."""
    verdict = check(tmp_path, f"y = x * 2.0; x.shape[1] == 16 or {error}; return y")
    assert verdict.is_correct
    (finding,) = [found for found in verdict.findings if found.code == "not-general"]
    assert "% 4 == 0`" in finding.message


def test_a_kernel_that_loses_the_gpu_is_not_said_to_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own kernels were counted at the sizes of the task, before it lost the GPU at others."""
    ask = ForeignProcess.ask

    async def counted(self: ForeignProcess, command: str, arguments: dict[str, object], *, deadline_s: float) -> object:
        answer = await ask(self, command, arguments, deadline_s=deadline_s)
        return {**answer, "n_own_calls": 3} if command == "look_again" and isinstance(answer, dict) else answer

    monkeypatch.setattr(ForeignProcess, "ask", counted)
    error = "(_ for _ in ()).throw(RuntimeError('CU' + 'DA error: misaligned address'))"
    verdict = check(tmp_path, f"y = x * 2.0; x.shape[1] == 16 or {error}; return y")
    assert {found.code for found in verdict.findings} == {"not-general"}
    assert NO_KERNEL not in verdict.notes


@pytest.mark.parametrize(
    ("misdeed", "said"),
    [
        ("x.zero_()", "it changed its inputs"),
        ("torch.os.abort()", "its process ended"),
    ],
    ids=["changed inputs", "ended process"],
)
def test_a_kernel_that_breaks_more_than_its_result_at_other_sizes_fails(
    misdeed: str, said: str, tmp_path: Path
) -> None:
    verdict = check(tmp_path, f"y = x * 2.0; x.shape[1] == 16 or {misdeed}; return y")
    assert verdict.outcome.kind == "crashed"
    assert verdict.outcome.message.startswith(f"at sizes that the task does not name: {said}")


def test_a_result_of_shape_1_for_a_scalar_is_named(tmp_path: Path) -> None:
    verdict = check(tmp_path, "return x.sum().reshape(1)", TOTAL)
    assert verdict.outcome.kind == "mismatch"
    assert "has the shape [1], and the task's is []" in verdict.outcome.message


@pytest.mark.parametrize(
    ("named", "failed", "contract"),
    [
        ({"B": 64, "D": 256}, {"B": 5, "D": 35}, "D % 4 == 0"),
        ({"B": 64, "D": 256}, {"B": 64, "D": 36}, "D % 8 == 0"),
        ({"B": 64, "D": 250}, {"B": 64, "D": 35}, "D % 2 == 0"),
        ({"B": 64, "D": 7}, {"B": 64, "D": 35}, "D == 7"),
    ],
)
def test_the_contract_holds_for_the_task_and_not_for_what_failed(
    named: dict[str, int], failed: dict[str, int], contract: str
) -> None:
    assert contract_of([named], [failed]) == contract


@pytest.mark.parametrize("name", ["strict", "torch", "kernelbench", "robust-kbench"])
def test_a_verdict_names_its_tolerance(name: ToleranceName) -> None:
    assert describe_tolerance(name).startswith(name)


def test_one_check_gives_the_verdict_under_each_tolerance_and_strict_decides(tmp_path: Path) -> None:
    verdict = check(tmp_path, "return x * 2.0 * (1 + 5e-5)", tolerance="all")
    assert (verdict.outcome.kind, verdict.tolerance) == ("mismatch", "strict")
    found = {name: text == "correct" for name, text in verdict.by_tolerance.items()}
    assert found == {"strict": False, "torch": False, "kernelbench": True, "robust-kbench": True}
    assert "exceed the tolerance torch" in verdict.by_tolerance["torch"]


def test_another_shape_is_incorrect_under_each_tolerance(tmp_path: Path) -> None:
    verdict = check(tmp_path, "return (x * 2.0)[0]", tolerance="all")
    assert len(set(verdict.by_tolerance.values())) == 1
    assert "correct" not in verdict.by_tolerance.values()
