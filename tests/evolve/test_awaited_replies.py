"""A search whose model is a person stops when it can do nothing without a reply, and goes on with what came later."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.cli.console import EXIT_INTERRUPTED, run_to_exit_status
from kernel_lsp.errors import RepliesAwaited
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ModelRecords
from kernel_lsp.evolve.run.request import ModelChoices, SeedKernel
from kernel_lsp.llm.manual import ManualModel
from tests.evolve.world import Ran, World, kernel, reply


def world(folder: Path, n_generations: int = 1) -> World:
    choices = ModelChoices(early_stop="off", repair_rounds=1, islands=1)
    seed = SeedKernel(name="scale.cu", text=kernel(100.0))
    return World(folder, n_generations, n_proposals=3, choices=choices, seed_kernels=(seed,))


def person(folder: Path) -> ManualModel:
    """Answer by files, in the absence of the model while the search runs."""
    return ManualModel(folder / "prompts", wait_s=0.0, poll_s=0.001)


def unanswered(folder: Path) -> list[Path]:
    prompts = sorted((folder / "prompts").glob("*.prompt.md"))
    replies = [prompt.with_name(prompt.name.replace(".prompt.", ".reply.")) for prompt in prompts]
    return [path for path in replies if not path.exists()]


async def stopped(it: World, folder: Path) -> str:
    with pytest.raises(RepliesAwaited) as raised:
        await it.search(person(folder))
    return raised.value.message


def answer_all(folder: Path, *times_us: float) -> None:
    """With whole files."""
    for path, time_us in zip(unanswered(folder), times_us, strict=True):
        path.write_text(reply(time_us))


async def test_a_search_without_replies_asks_all_that_it_may_and_stops(tmp_path: Path) -> None:
    assert "3 prompts" in await stopped(world(tmp_path), tmp_path)
    assert len(unanswered(tmp_path)) == 3


async def test_with_its_replies_it_goes_on_to_its_end(tmp_path: Path) -> None:
    it = world(tmp_path)
    await stopped(it, tmp_path)
    answer_all(tmp_path, 40.0, 30.0, 20.0)
    ran = await _until_over(it, tmp_path)
    assert len(ran.proposals) == 3
    assert "x as fast as the given kernel (100 us)" in ran.result.reason


async def test_what_has_its_reply_is_evaluated_before_the_search_stops(tmp_path: Path) -> None:
    it = world(tmp_path)
    await stopped(it, tmp_path)
    rewrite = next(path for path in unanswered(tmp_path) if not _asks_for_edits(path))
    rewrite.write_text(reply(40.0))
    n_before = len(it.device.asked)
    await stopped(it, tmp_path)
    assert len(it.device.asked) == n_before + 1


async def test_no_missing_reply_is_recorded_as_one(tmp_path: Path) -> None:
    it = world(tmp_path)
    await stopped(it, tmp_path)
    assert it.run_id is not None
    with Archive(tmp_path) as archive:
        records = ModelRecords(archive, it.run_id)
        assert records.replies() == []
        assert records.proposals() == []


async def test_a_later_generation_waits_for_the_replies_that_it_builds_on(tmp_path: Path) -> None:
    it = world(tmp_path, n_generations=2)
    await stopped(it, tmp_path)
    assert len(unanswered(tmp_path)) == 3


def test_the_command_says_that_the_run_can_be_resumed() -> None:
    async def main() -> int:
        raise RepliesAwaited("replies to 3 prompts are awaited")

    assert run_to_exit_status(main()) == EXIT_INTERRUPTED


def _asks_for_edits(reply_path: Path) -> bool:
    return "SEARCH" in reply_path.with_name(reply_path.name.replace(".reply.", ".prompt.")).read_text()


async def _until_over(it: World, folder: Path) -> Ran:
    """Prompts that came meanwhile get kernels of their own."""
    for number in range(10):
        try:
            return await it.search(person(folder))
        except RepliesAwaited:
            answer_all(folder, *(10.0 + 3 * number + place for place in range(len(unanswered(folder)))))
    raise AssertionError("it never ends")
