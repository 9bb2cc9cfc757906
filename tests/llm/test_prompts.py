"""Every prompt as it is sent, beside a snapshot of it; and what a workspace may change.

A snapshot that differs shows what a change of a template does to every prompt. After reading it:
`UPDATE_SNAPSHOTS=1 pytest tests/llm/test_prompts.py`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.errors import UserError
from kernel_lsp.evolve.propose.population import KernelText
from kernel_lsp.evolve.run.task_text import TaskText
from kernel_lsp.llm.prompts import PROMPTS_FOLDER, Prompts

SNAPSHOTS = Path(__file__).parent / "snapshots"
TASK = TaskText(
    name="scale",
    reference="def scale_reference(x):\n    return x * 2.0",
    signatures=(
        "scale(x: f32[B, D]) -> (out: f32[B, D])",
        "scale_backward(grad_out: f32[B, D]) -> (grad_x: f32[B, D])",
    ),
    sizes="B = 64, D = 256",
    configurations=("x [1, 256]",),
    gpu="H200: 132 multiprocessors, 4.30 TB/s",
    floor="Nothing can be faster than 3 us (compulsory memory traffic, or arithmetic).",
)
SLOW = KernelText("slow", "20 us (estimated)", "one thread does it all", "// kernel-lsp: 1\nslow code")
FAST = KernelText("fast", "10 us (measured)", "", "// kernel-lsp: 1\nfast code")
JUDGED = {"task": TASK, "plan": "// the plan", "code": "the code", "compiler": "it compiles", "checks": "right"}
INPUTS: dict[str, dict[str, Any]] = {
    "translate": {"task": TASK, "kernels": [SLOW], "related": [FAST]},
    "improve": {"task": TASK, "kernels": [SLOW, FAST], "related": [], "hint": "a hint", "feedback": "a profile"},
    "edit": {"task": TASK, "kernels": [SLOW], "base": FAST, "hint": "a hint", "feedback": "a profile"},
    "crossover": {"task": TASK, "kernels": [SLOW, FAST], "hint": "", "feedback": "a profile"},
    "agent": {"task": TASK, "kernels": [SLOW], "related": [], "n_turns": 12},
    "repair": {"task": TASK, "attempt": "the attempt", "problem": "the problem"},
    "reformat": {"problem": "no NAME", "reply": "some prose", "is_edit": True},
    "judge_compilation": JUDGED,
    "judge_memory": JUDGED,
    "judge_numerics": JUDGED,
    "judge_baseline": {"code": "the code"},
    "compose_task": {
        "operators": ["nn.Conv2d(in_channels: int)", "add of two tensors"],
        "n_operators": 5,
        "structure": "residual",
        "low": 4096,
        "high": 262144,
    },
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "prompts").mkdir()
    return tmp_path


def override(workspace: Path, name: str, old: str, new: str) -> Prompts:
    text = (PROMPTS_FOLDER / f"{name}.jinja").read_text()
    assert old in text
    (workspace / "prompts" / f"{name}.jinja").write_text(text.replace(old, new))
    return Prompts(workspace)


@pytest.mark.parametrize("name", INPUTS)
def test_a_rendered_prompt_is_as_its_snapshot(name: str, workspace: Path) -> None:
    (workspace / "rules.md").write_text("Use no atomics.")
    prompt = Prompts(workspace).render(name, INPUTS[name])
    text = "".join(f"=== {message.role}\n{message.content}\n" for message in prompt.messages)
    file = SNAPSHOTS / f"{name}.md"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file} differs: read the difference, then set UPDATE_SNAPSHOTS=1"


def test_every_prompt_has_a_snapshot() -> None:
    assert set(Prompts().names()) == set(INPUTS)


def test_the_users_rules_are_in_every_prompt_that_writes_a_kernel(workspace: Path) -> None:
    (workspace / "rules.md").write_text("Use no atomics.")
    for name in ("translate", "improve", "edit", "crossover", "repair", "agent"):
        assert "Use no atomics." in Prompts(workspace).render(name, INPUTS[name]).messages[0].content


def test_a_workspace_overrides_one_prompt_and_leaves_the_others(workspace: Path) -> None:
    prompts = override(workspace, "repair", "You correct", "You mend")
    assert prompts.render("repair", INPUTS["repair"]).messages[0].content.startswith("You mend")
    assert prompts.render("edit", INPUTS["edit"]) == Prompts().render("edit", INPUTS["edit"])


def test_an_overridden_part_changes_every_prompt_that_includes_it(workspace: Path) -> None:
    prompts = override(workspace, "_reply", "NAME:", "TITLE:")
    assert "TITLE:" in prompts.render("translate", INPUTS["translate"]).messages[1].content
    assert (
        prompts.render("translate", INPUTS["translate"]).hash != Prompts().render("translate", INPUTS["translate"]).hash
    )


def test_the_hash_is_of_the_template_and_not_of_what_is_filled_in() -> None:
    one = Prompts().render("repair", INPUTS["repair"])
    two = Prompts().render("repair", {**INPUTS["repair"], "problem": "another"})
    assert one.hash == two.hash
    assert one.messages != two.messages


def test_what_is_filled_in_is_no_template() -> None:
    prompt = Prompts().render("repair", {**INPUTS["repair"], "attempt": "{{ task.name }}{% include 'x' %}"})
    assert "{{ task.name }}{% include 'x' %}" in prompt.messages[1].content


def test_a_missing_or_unknown_input_is_an_error() -> None:
    with pytest.raises(UserError, match="differ in: problem"):
        Prompts().render("repair", {"task": TASK, "attempt": ""})
    with pytest.raises(UserError, match="differ in: more"):
        Prompts().render("repair", {**INPUTS["repair"], "more": 1})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("---\nname: repair", "name: repair", "front matter"),
        ("version: 1", "version: one", "front matter lacks"),
        ("name: repair", "name: other", "names it 'other'"),
        ("inputs: task, attempt, problem, rules", "inputs: task, attempt, rules", "differ in: problem"),
        ("{{ problem }}", "{{ problm }}", "differ in: problem, problm"),
        ("{{ problem }}", "{{ problem", "expected token"),
        ("{{ problem }}", "{{ problem.no_such }}", "has no attribute 'no_such'"),
        ("--- user ---", "", "--- user ---"),
        ('{% include "_task.jinja" %}', '{% include "_none.jinja" %}', "_none"),
    ],
)
def test_a_broken_override_names_its_file(workspace: Path, old: str, new: str, message: str) -> None:
    prompts = override(workspace, "repair", old, new)
    with pytest.raises(UserError, match=message) as caught:
        prompts.render("repair", INPUTS["repair"])
    assert caught.value.file is not None
    assert caught.value.file.endswith(".jinja")


def test_an_override_cannot_reach_out_of_its_sandbox(workspace: Path) -> None:
    escape = "{{ problem.__class__.__mro__[1].__subclasses__() }}"
    prompts = override(workspace, "repair", "{{ problem }}", escape)
    with pytest.raises(UserError):
        prompts.render("repair", INPUTS["repair"])


def test_rules_that_are_too_long_are_refused(workspace: Path) -> None:
    (workspace / "rules.md").write_text("x" * 30_000)
    with pytest.raises(UserError, match="30000 characters"):
        Prompts(workspace)


def test_prompts_are_part_of_the_package() -> None:
    assert PROMPTS_FOLDER.parent.name == "kernel_lsp"
    assert (PROMPTS_FOLDER / "hints.toml").is_file()


def test_a_folder_without_prompts_uses_ours(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "prompts", ignore_errors=True)
    assert Prompts(tmp_path).names() == Prompts().names()
