"""Models compose tasks and judge baselines: what a reply may contain, whom a synthesis asks, and what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest

from kernel_lsp.config import load_settings
from kernel_lsp.errors import EnvironmentProblem, RepliesAwaited
from kernel_lsp.llm.patience import Ledger, Pace, PatientModel
from kernel_lsp.llm.prompts import Prompts
from kernel_lsp.llm.request import ModelFailed, ModelRequest
from kernel_lsp.synthesize.admission import NotAdmitted, admit, without_docstring
from kernel_lsp.synthesize.models import NotComposed, TaskModels, open_task_models
from kernel_lsp.synthesize.request import SynthesisFolder, SynthesisRequest
from kernel_lsp.synthesize.run import Synthesis, synthesize
from tests.scripted_model import Answer, ScriptedModel
from tests.synthesize.test_drawing import catalogue

__all__ = ["catalogue"]  # a fixture

TASK = '''"""An activation behind a norm."""
import torch
from torch import nn
import torch.nn.functional as F

ROWS, D = 64, 256


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(8, D)
        self.scale = nn.Parameter(torch.randn(D))

    def forward(self, x):
        h = self.norm(x).view(ROWS, D)
        return F.gelu(h) * self.scale


def get_inputs():
    return [torch.randn(ROWS, D)]


def get_init_inputs():
    return []
'''
KNOWN = ("nn.GroupNorm", "F.gelu", "torch.amax", "F.relu", "torch.log")
CHANGES = [
    ("import torch\n", "import os\nimport torch\n", "`import os` is not allowed"),
    ("return F.gelu(h)", "return open(h)", "the name open is not allowed"),
    ("return F.gelu(h)", "return torch.load(h)", "torch.load is no operator"),
    ("return F.gelu(h)", "return torch.ops.load_library(h)", "torch.ops"),
    ("return F.gelu(h)", "return h.__class__(h)", "the attribute __class__"),
    ("return F.gelu(h)", "return h.numpy(h)", "the attribute numpy"),
    ("return F.gelu(h)", "return [F.gelu(e) for e in h][0]", "ListComp is not allowed"),
    ("ROWS, D = 64, 256", "ROWS, D = 64, torch.zeros(1).item()", "runs when the file is imported"),
    ("    def __init__", "    @torch.no_grad()\n    def __init__", "not allowed|runs when"),
    ("def get_init_inputs():\n    return []\n", "", "it must define get_inputs and get_init_inputs"),
    ("F.gelu(h) *", "F.gelu(h + 1) + F.gelu(h) + F.gelu(x) *", "uses 8 operators, and 1 to 5"),
    ("class Model", "class Other", "one class, Model"),
    ("ROWS, D", "torch, D", "the name torch is not allowed"),
    ("def forward", "def for ward", "it is no Python"),
]


def test_a_task_of_known_operators_is_admitted_with_their_names() -> None:
    assert admit(TASK, KNOWN, 5) == ("nn.GroupNorm", "F.gelu", "mul")
    assert admit(TASK.replace("F.gelu(h)", "torch.relu(h).amax(1, keepdim=True)"), KNOWN, 5)[1:] == (
        *("torch.relu", "torch.amax", "mul"),
    )
    joined = TASK.replace("F.gelu(h) * self.scale", "torch.cat([h[:, : D // 2 + 1], h], dim=1)")
    assert admit(joined, KNOWN, 5) == ("nn.GroupNorm", "torch.cat")
    assert without_docstring(TASK).startswith("import torch\n")


@pytest.mark.parametrize(("old", "new", "problem"), CHANGES)
def test_what_no_task_needs_is_refused(old: str, new: str, problem: str) -> None:
    assert old in TASK
    with pytest.raises(NotAdmitted, match=problem):
        admit(TASK.replace(old, new), KNOWN, 5)


def replied(text: str) -> str:
    return f"NAME: task\nTHOUGHT: such\nCODE:\n```python\n{text}```"


def models(answer: Callable[[ModelRequest], Answer], folder: Path) -> tuple[TaskModels, ScriptedModel]:
    scripted = ScriptedModel(answer, name="scripted")
    patient = [PatientModel(scripted, Ledger(None), Pace())]
    return TaskModels(patient, patient, Prompts(), load_settings(folder, {})), scripted


async def run(folder: Path, catalogue: dict[str, str], n_tasks: int, models: TaskModels | None) -> Synthesis:
    (folder / "operators.json").write_text(Path(catalogue["path"]).read_text())
    request, settings = SynthesisRequest(seed=3, scale="cpu", models=("scripted",)), load_settings(folder, {})
    return await synthesize(n_tasks, request, SynthesisFolder(folder), settings, 1, lambda _: None, models)


async def test_every_second_task_is_a_models_and_its_opinion_drops_baselines(
    catalogue: dict[str, str], tmp_path: Path
) -> None:
    def answer(request: ModelRequest) -> str:
        if request.purpose == "judge":
            return f"PROBABILITY: {0.1 if 'Conv2d' in request.messages[-1].content else 0.9}"
        huge = TASK.replace("ROWS, D = 64", "ROWS, D = 64000000")
        return replied({1: TASK, 5: huge}.get(request.sample, TASK.replace("import torch\n", "import os\n")))

    own, scripted = models(answer, tmp_path)
    found = await run(tmp_path, catalogue, 5, own)
    by_index = {each.index: each for each in (*found.accepted, *found.dropped)}
    assert (by_index[1].proposer, by_index[1].operators) == ("scripted", ("nn.GroupNorm", "F.gelu", "mul"))
    assert by_index[1].shapes == ((64, 256),)
    refused = [each for each in found.dropped if "import os" in each.reason]
    assert {(each.proposer, each.dropped_by) for each in refused} == {("scripted", "composed")}
    assert by_index[5].dropped_by == "traced", "before any of its tensors exists"
    assert "16384000000 elements" in by_index[5].reason
    assert {each.opinion for each in found.accepted} == {0.9}
    unfair = [each for each in found.dropped if each.dropped_by == "opinion"]
    assert all("Conv2d" in each.text and each.opinion == 0.1 for each in unfair)
    rows = {row["index"]: row for row in pyarrow.parquet.read_table(tmp_path / "index.parquet").to_pylist()}
    composed = next(request for request in scripted.requests if request.purpose == "propose" and request.sample == 1)
    assert rows[1]["request_key"] == composed.key
    assert (rows[1]["n_flops"], rows[1]["judges"]) == (None, ["scripted"])
    n_asked = len(scripted.requests)
    again = await run(tmp_path, catalogue, 5, own)
    assert [each.index for each in again.accepted] == [each.index for each in found.accepted]
    assert len(scripted.requests) == n_asked, "a resumed synthesis asks nothing twice"


async def test_a_reply_that_never_comes_holds_up_no_finished_synthesis(
    catalogue: dict[str, str], tmp_path: Path
) -> None:
    own, scripted = models(lambda _: "prose", tmp_path)
    scripted._delay_s = 3600.0
    own.n_at_once = 2
    own._judges = ()
    async with asyncio.timeout(200.0):
        found = await run(tmp_path, catalogue, 1, own)
    assert [each.proposer for each in found.accepted] == ["rules"]
    assert not list((tmp_path / ".drafts").iterdir())


async def test_an_opinion_that_cannot_be_read_drops_nothing(tmp_path: Path) -> None:
    own, _ = models(lambda _: "perhaps", tmp_path)
    opinion = await own.opinion(TASK)
    assert opinion is None
    assert own.is_fair(opinion)


async def test_a_model_that_will_not_answer_ends_the_command_and_keeps_what_is_done(
    catalogue: dict[str, str], tmp_path: Path
) -> None:
    """The error is the model's own, not a group of those that ran side by side."""
    own, _ = models(lambda _: ModelFailed(model="m", cause="budget", message="no more"), tmp_path)
    with pytest.raises(EnvironmentProblem, match="no more"):
        await run(tmp_path, catalogue, 3, own)
    assert (tmp_path / "journal.jsonl").read_text().startswith('{"seed":3')


async def test_a_reply_that_a_person_has_not_written_ends_the_command_as_awaited(tmp_path: Path) -> None:
    own, _ = models(lambda _: ModelFailed(model="manual", cause="awaited", message="no reply"), tmp_path)
    with pytest.raises(RepliesAwaited, match="no reply"):
        await own.opinion(TASK)


async def test_a_providers_fault_drops_the_task_alone(tmp_path: Path) -> None:
    own, _ = models(lambda _: ModelFailed(model="m", cause="refused", message="no"), tmp_path)
    request = SynthesisRequest(seed=3, scale="cpu")
    with pytest.raises(NotComposed, match="m: no"):
        await own.compose(request, 1, {}, ("torch.add",), "sequence")


def test_models_are_opened_by_purpose(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {})
    assert open_task_models((), settings, tmp_path) is None
    judge = open_task_models(("judge=manual",), settings, tmp_path)
    assert judge is not None
    assert not any(judge.composes(index) for index in range(4))
    both = open_task_models(("manual",), settings, tmp_path)
    assert both is not None
    assert [both.composes(index) for index in range(4)] == [False, True, False, True]


async def test_the_catalogues_signatures_are_in_the_prompt(tmp_path: Path) -> None:
    own, scripted = models(lambda _: "prose", tmp_path)
    signatures = {"torch.amax": "torch.amax(input: Tensor, dim)"}
    with pytest.raises(NotComposed):
        await own.compose(SynthesisRequest(seed=3, scale="cpu"), 1, signatures, ("torch.amax", "sub"), "residual")
    prompt = scripted.requests[0].messages[-1].content
    assert "- torch.amax(input: Tensor, dim)\n- sub of two tensors\n" in prompt
    assert "Structure: residual." in prompt
