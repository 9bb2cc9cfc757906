"""A proposal in turns. The models here are scripts: these tests prove plumbing, not models."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.evolve.agent.multi_turn import N_TURNS, ToolCall, read_tool
from kernel_lsp.evolve.run.request import ModelChoices
from tests.evolve.world import Ran, World, reply
from tests.scripted_model import ScriptedModel

CHOICES = ModelChoices(early_stop="off", strategy="agent")


async def work(folder: Path, *turns: str) -> tuple[Ran, list[str]]:
    """One agent with these turns, then done; what it was told before each turn."""
    model = ScriptedModel([*turns, *["TOOL: done"] * N_TURNS])
    ran = await World(folder, 1, 1, CHOICES).search(model)
    return ran, [request.messages[-1].content for request in model.requests]


async def test_it_is_told_what_is_wrong_and_goes_on(tmp_path: Path) -> None:
    ran, told = await work(tmp_path, reply(9, "BROKEN"), reply(9, "WRONG"), reply(9))
    assert "identifier undefined" in told[1]
    assert "3 of 35 elements wrong" in told[2]
    assert told[3].startswith("It is right. It takes 9 us.")
    assert [round_.outcome for round_ in ran.proposals[0].rounds] == ["build_failed", "mismatch", "correct"]


async def test_its_best_kernel_counts_not_its_last(tmp_path: Path) -> None:
    ran, _ = await work(tmp_path, reply(9), reply(5), reply(7), reply(3, "CRASH"))
    assert ran.result.winner is not None
    assert "T=5" in ran.result.winner.text
    assert ran.proposals[0].time_us == 5


async def test_it_asks_tools(tmp_path: Path) -> None:
    _, told = await work(
        tmp_path, "TOOL: profile", reply(9), "TOOL: profile", "TOOL: explain KL201", "TOOL: explain X9"
    )
    assert "no right kernel to profile" in told[1]
    assert "bound by memory" in told[3]
    assert told[4].startswith("KL201")
    assert "has no page" in told[5]


async def test_its_turns_end(tmp_path: Path) -> None:
    _, told = await work(tmp_path, *[reply(n, "WRONG") for n in range(30)])
    assert len(told) == N_TURNS


async def test_it_ends_when_the_form_is_never_kept(tmp_path: Path) -> None:
    ran, told = await work(tmp_path, "prose", "more prose", "still prose")
    assert ran.proposals[0].end == "unreadable"
    assert len(told) == 3


async def test_the_same_kernel_twice_is_said_so(tmp_path: Path) -> None:
    _, told = await work(tmp_path, reply(9), reply(9))
    assert "handed in this very kernel before" in told[2]


async def test_giving_up_without_a_kernel_is_an_end(tmp_path: Path) -> None:
    ran, _ = await work(tmp_path)
    assert ran.proposals[0].message == "it gave up"
    assert ran.result.winner is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TOOL: profile\n", ToolCall("profile", "")),
        ("TOOL: explain KL201", ToolCall("explain", "KL201")),
        ("TOOL: done", ToolCall("done", "")),
        ("TOOL: rm -rf /", None),
        ("TOOL: profile\nand then", None),
        (reply(1), None),
    ],
)
def test_a_tool_is_asked_by_one_line_alone(text: str, expected: ToolCall | None) -> None:
    assert read_tool(text) == expected
