"""Every filter flags what it is for and passes what is good: by its threshold, and on real code."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import load_settings
from kernel_lsp.core.benchmark import TaskFilters
from kernel_lsp.verify.task_filters import filter_targets, judge

GOOD: dict[str, Any] = {
    "device": "some GPU",
    "idle_modules": [],
    "is_deterministic": True,
    "outputs": [
        {
            "name": "out",
            "shape": [8, 4],
            "largest": 3.0,
            "n_elements": 32,
            "n_not_finite": 0,
            "std_along_axes": [0.5, 0.6],
            "std_over_seeds": 0.7,
        }
    ],
    "inputs": [{"name": "x", "impact": 1.0}],
    "weights": [{"name": "weight", "impact": 1.0}],
    "all_weights": 2.0,
    "eager_ms": 5.0,
    "compiler": "inductor",
    "compile_error": "",
    "backward": {"error": 1e-6, "dtype": "float32", "problem": ""},
}
PRELUDE = "import torch\nfrom torch import nn\n\n\n"


def output(**changes: Any) -> dict[str, Any]:
    return {"outputs": [{**GOOD["outputs"][0], **changes}]}


def backward(error: float | None, dtype: str = "float32") -> dict[str, Any]:
    return {"error": error, "dtype": dtype, "problem": ""}


def flagged(changes: dict[str, Any]) -> set[str]:
    return {result.filter for result in judge("c", {**GOOD, **changes}) if result.status == "flagged"}


def test_a_good_task_passes_every_filter() -> None:
    results = judge("batch_size=8", GOOD)
    assert {result.status for result in results} == {"passed"}
    assert {result.configuration for result in results} == {"batch_size=8"}
    assert len(results) == 10


@pytest.mark.parametrize(
    ("name", "bad", "edge"),
    [
        ("not-finite", output(n_not_finite=1), output(n_not_finite=0)),
        ("range", output(largest=0.01), output(largest=0.0101)),
        ("std-over-seeds", output(std_over_seeds=0.0099), output(std_over_seeds=0.01)),
        ("std-along-axis", output(std_along_axes=[0.5, 0.009]), output(std_along_axes=[0.5, None])),
        ("weights-impact", {"all_weights": 0.0}, {"all_weights": 0.02}),
        ("weights-impact", {"weights": [{"name": "bias", "impact": 0.0}]}, {"weights": [{"name": "b", "impact": 0.5}]}),
        ("inputs-impact", {"inputs": [{"name": "x", "impact": 0.001}]}, {"inputs": [{"name": "x", "impact": 0.011}]}),
        ("determinism", {"is_deterministic": False}, {"is_deterministic": True}),
        ("runs-compiled", {"compile_error": "no"}, {"compile_error": ""}),
        ("backward", {"backward": backward(2e-3)}, {"backward": backward(1e-3)}),
        ("backward", {"backward": backward(float("inf"), "bfloat16")}, {"backward": backward(0.09, "bfloat16")}),
        ("backward", {"backward": {**backward(None), "problem": "no class"}}, {"backward": backward(None)}),
        ("eager-time", {"eager_ms": 0.5}, {"eager_ms": 1.0}),
        ("eager-time", {"eager_ms": 101.0}, {"eager_ms": 99.0}),
    ],
)
def test_a_filter_flags_past_its_threshold_alone(name: str, bad: dict[str, Any], edge: dict[str, Any]) -> None:
    assert flagged(bad) == {name}
    assert flagged(edge) == set()


def test_a_flag_has_its_number_and_its_threshold() -> None:
    (result,) = [r for r in judge("c", {**GOOD, **output(largest=0.004)}) if r.status == "flagged"]
    assert (result.filter, result.number, result.threshold) == ("range", 0.004, 0.01)
    assert result.message == "every element of 'out' is within ±0.01"


def test_what_cannot_be_told_is_skipped_and_not_passed() -> None:
    facts = {**GOOD, **output(std_along_axes=[]), "all_weights": None, "weights": [], "device": "CPU"}
    skipped = {result.filter: result.message for result in judge("c", facts) if result.status == "skipped"}
    assert set(skipped) == {"std-along-axis", "weights-impact", "eager-time"}
    assert skipped["eager-time"] == "needs a GPU"


# --- below: real code


def examine(folder: Path, *texts: str) -> list[TaskFilters]:
    """The filters on KernelBench files with these texts."""
    names = []
    for number, text in enumerate(texts):
        path = folder / f"task_{number}.py"
        path.write_text(PRELUDE + text)
        names.append(path.name)
    settings = load_settings(folder, {})
    return list(asyncio.run(filter_targets(names, folder, settings)))


def model(body: str, init: str = "pass", inputs: str = "torch.randn(8, 16)") -> str:
    return f"""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def test_the_filters_find_what_real_tasks_have_wrong(tmp_path: Path) -> None:
    linear = "self.fc = nn.Linear(16, 8)"
    tasks = examine(
        tmp_path,
        model("return self.fc(x)", linear),
        model("return self.fc(x).softmax(1).sum(1)", linear),
        model("return x * 0.001"),
        model("return x + self.weight[0] * 0", "self.weight = nn.Parameter(torch.ones(3))"),
        model("return torch.zeros(8, 4) + torch.arange(4)"),
        model("return x.log()"),
        model("return x + torch.rand(())"),
        model("return self.drop(x)", "self.drop = nn.Dropout(0.5).eval()"),
        model("return x.mean(0, keepdim=True).expand(8, 16) * 5"),
        model("return x[: int(x.sum() > 1e9) + 1] * 2"),
    )
    found = [{result.filter for result in task.flagged} for task in tasks]
    assert found[0] == set()
    assert {"redundancy", "std-over-seeds", "std-along-axis", "weights-impact", "inputs-impact"} <= found[1]
    assert "range" in found[2]
    assert "weights-impact" in found[3]
    assert "inputs-impact" in found[4]
    assert "not-finite" in found[5]
    assert "determinism" in found[6]
    assert found[7] == {"redundancy"}
    assert found[8] == {"std-along-axis"}
    assert tasks[9].refused == ""


def test_a_task_that_does_not_run_is_refused_with_its_reason(tmp_path: Path) -> None:
    (task,) = examine(tmp_path, model("return x @ x"))
    assert "mat1 and mat2" in task.refused
    assert not task.is_good


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("wrong formula", "grad_output.sum(dim=0)", "grad_output.mean(dim=0)", "other gradients"),
        (
            "wrong place",
            "backward_fn = backward_fn",
            "other_fn = backward_fn",
            "no class AutogradFunction with a backward_fn",
        ),
        ("does not import", "import torch\n", "import torch_that_is_not_there\n", "No module named"),
    ],
)
def test_a_folder_with_a_bad_backward_is_flagged(
    tmp_path: Path, name: str, before: str, after: str, words: str
) -> None:
    folder = tmp_path / "linear"
    shutil.copytree(Path(__file__).parent.parent / "robust_kbench_style" / "linear", folder)
    text = (folder / "func_backward.py").read_text()
    assert before in text, name
    (folder / "func_backward.py").write_text(text.replace(before, after, 1))
    (task,) = asyncio.run(filter_targets(["linear"], tmp_path, load_settings(tmp_path, {})))
    assert {result.filter for result in task.flagged} == {"backward"}
    assert words in task.flagged[0].message


def test_a_folder_that_leaves_its_backward_to_the_kernel_is_good(tmp_path: Path) -> None:
    folder = tmp_path / "linear"
    shutil.copytree(Path(__file__).parent.parent / "robust_kbench_style" / "linear", folder)
    text = (folder / "func_backward.py").read_text()
    text = text.replace("    backward_fn = backward_fn", "    backward_fn = None", 1)
    (folder / "func_backward.py").write_text(text[: text.index("def backward_fn")] + text[text.index("class Auto") :])
    (task,) = asyncio.run(filter_targets(["linear"], tmp_path, load_settings(tmp_path, {})))
    assert task.flagged == ()
    assert task.is_good


def test_a_task_that_kills_its_process_does_not_harm_the_next(tmp_path: Path) -> None:
    linear = "self.fc = nn.Linear(16, 8)"
    deadly = model("return __import__('os')._exit(7)")
    killed, good = examine(tmp_path, deadly, model("return self.fc(x)", linear))
    assert "exit code 7" in killed.refused
    assert good.is_good


def test_every_configuration_of_a_folder_is_examined(tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent / "robust_kbench_style" / "linear"
    (task,) = asyncio.run(filter_targets([str(folder)], tmp_path, load_settings(tmp_path, {})))
    assert task.is_good
    assert len(task.configurations) == 4
    assert {r.configuration for r in task.results if r.filter == "range"} == set(task.configurations)
