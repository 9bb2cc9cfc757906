"""The GPU proof's parts that a CPU reaches: its inputs, its budgets, what it catches, what it writes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from .samples import text_of

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
INPUTS = "x=f32[6, 8], weight=f32[8], eps=1e-6"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def proof() -> ModuleType:
    return load("gpu_operator")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load("prepare_operators").write_all(tmp_path_factory.mktemp("prepared"))[1]


@pytest.fixture(scope="module")
def operator(proof: ModuleType, prepared: Path) -> object:
    return proof.Operator(prepared, INPUTS, "cpu")


def test_without_options_the_operator_is_written_first(proof: ModuleType, tmp_path: Path) -> None:
    assert proof.Operator(Path(proof.prepared(str(tmp_path))), INPUTS, "cpu").name == "rms_norm"


def test_every_check_passes_or_says_that_it_needs_a_gpu(proof: ModuleType, operator: object) -> None:
    for name in ("forward against fp64", "backward against fp64", "strided inputs", "outside the contract"):
        assert proof.run_check(name, proof.CHECKS[name], operator).outcome == "passed"
    for name in ("another stream", "a CUDA graph", "several threads", "the worker's GPU commands"):
        assert proof.run_check(name, proof.CHECKS[name], operator).outcome == "skipped"


@pytest.mark.parametrize("name", ["forward against fp64", "strided inputs", "unaligned inputs"])
def test_a_wrong_forward_is_caught(
    proof: ModuleType, operator: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = operator.forward  # type: ignore[attr-defined]
    monkeypatch.setattr(operator, "forward", lambda *inputs: right(*inputs) * 1.001)
    assert proof.run_check(name, proof.CHECKS[name], operator).outcome == "failed"


def test_a_wrong_gradient_is_caught(proof: ModuleType, operator: object, monkeypatch: pytest.MonkeyPatch) -> None:
    right = operator.forward  # type: ignore[attr-defined]

    def without_weight(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return right(x, weight.detach() + 0 * weight, eps)

    monkeypatch.setattr(operator, "forward", without_weight)
    outcome = proof.run_check("backward", proof.check_backward, operator)
    assert (outcome.outcome, "relative L2 error" in outcome.detail) == ("failed", True)


def test_a_small_error_of_our_own_is_within_the_budget(proof: ModuleType) -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    eager = exact.float()
    assert proof.check_near_exact((eager,), (eager,), (exact,), 2.0) == pytest.approx(1.0)
    with pytest.raises(AssertionError):
        proof.check_near_exact((eager * (1 + 1e-5),), (eager,), (exact,), 2.0)
    with pytest.raises(AssertionError):
        proof.check_near_exact((eager * torch.nan,), (eager,), (exact,), 2.0)


def test_inputs_are_read_from_text(proof: ModuleType) -> None:
    specs = proof.parse_inputs("x=f32[64, 128], targets = i64[64] < 10, eps=1e-6, n=3, causal=True, s=bf16[]")
    assert [(spec.name, spec.dtype, spec.shape, spec.below, spec.number) for spec in specs] == [
        ("x", "f32", (64, 128), 2, None),
        ("targets", "i64", (64,), 10, None),
        ("eps", "", (), 2, 1e-6),
        ("n", "", (), 2, 3),
        ("causal", "", (), 2, True),
        ("s", "bf16", (), 2, None),
    ]


@pytest.mark.parametrize("text", ["x", "x=f33[2]", "x=f32[2", "=f32[2]"])
def test_text_that_is_no_input_is_refused(proof: ModuleType, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        proof.parse_inputs(text)


def test_the_result_says_where_and_when(proof: ModuleType, tmp_path: Path) -> None:
    report = proof.Report("rms_norm", INPUTS, [proof.Check("one", "passed")], {})
    content = json.loads(proof.write_results([report], "cpu", tmp_path).read_text())
    assert {"gpu", "driver", "torch_version", "date", "method", "operators"} <= content.keys()
    assert content["operators"][0]["checks"][0]["outcome"] == "passed"


def test_the_operator_needs_no_more_than_it_says(prepared: Path) -> None:
    assert "kernel_lsp." not in text_of_imports(prepared)


def text_of_imports(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if line.startswith(("import", "from")))


def test_the_sample_is_the_kernel_of_the_tests() -> None:
    preparing = load("prepare_operators")
    assert "rms_norm_backward" in text_of(preparing.rms_norm_task(), preparing.KERNEL.read_text())
