"""A search with models: what overlaps, what each proposal knows, when it ends, and that it repeats itself.

The models here are scripts: these tests prove plumbing and say nothing about models.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ModelRecords
from kernel_lsp.evolve.run.request import ModelChoices
from kernel_lsp.llm.recording import Recording, ReplayModel
from kernel_lsp.llm.request import Message, ModelFailed, ModelRequest, OnText, Replied, Usage, ignore_text
from tests.canonical_record import canonical_record
from tests.evolve.world import FakeDevice, Ran, World, kernel, numbered, reply
from tests.scripted_model import Answer, ScriptedModel

FAST = ModelChoices(early_stop="off", repair_rounds=1, temperatures=(0.5,))


def choices(**changes: object) -> ModelChoices:
    return FAST.model_copy(update=changes)


def faster_each_time(request: ModelRequest) -> str:
    """A new kernel for each proposal, and a whole file where edits were asked for."""
    if request.purpose == "reformat" or request.prompt == "edit":
        return edit(request)
    return reply(1000 - request.sample)


def edit(request: ModelRequest) -> str:
    shown = request.messages[1].content
    worth = shown.split("The file to edit")[-1].split("/* ")[1].split(" */")[0]
    new = f"T={1000 - request.sample} "
    lines = [line for line in shown.split("The file to edit")[-1].splitlines() if worth in line]
    block = f"<<<<<<< SEARCH\n{lines[0]}\n=======\n{lines[0].replace(worth, new)}\n>>>>>>> REPLACE\n"
    return f"NAME: edited\nTHOUGHT: t\nCODE:\n```cuda\n{block}```\n"


class Uneven(ScriptedModel):
    """Takes longer for some proposals than for others."""

    def __init__(self, answers: object, delays_s: list[float]) -> None:
        super().__init__(answers)  # type: ignore[arg-type]
        self._delays_s = delays_s

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        await asyncio.sleep(self._delays_s[request.sample % len(self._delays_s)])
        return await super().reply(request, on_text)


def record_of(world: World) -> str:
    assert world.run_id is not None
    with Archive(world.folder) as archive:
        return canonical_record(archive, world.run_id)


# --- the straight way


async def test_the_fastest_right_kernel_wins(tmp_path: Path) -> None:
    ran = await World(tmp_path, choices=FAST).search(ScriptedModel(faster_each_time))
    assert ran.result.winner is not None
    assert "T=993" in ran.result.winner.text
    assert [record.end for record in ran.proposals] == ["right"] * 8


async def test_a_candidate_names_its_model_prompt_and_request(tmp_path: Path) -> None:
    ran = await World(tmp_path, choices=FAST).search(ScriptedModel(faster_each_time, name="m"))
    assert ran.result.winner is not None
    origin = ran.result.winner.origin
    assert (origin.proposer, origin.model, origin.temperature) == ("model", "m", 0.5)
    assert origin.prompt_hash
    assert origin.request_key


async def test_a_candidate_says_which_task_it_is_of_whatever_the_model_wrote(tmp_path: Path) -> None:
    text = reply(5).replace("// op:", "// task: elsewhere.py::evil\n// op:")
    ran = await World(tmp_path, 1, 1, FAST).search(ScriptedModel(lambda _: text))
    assert ran.result.winner is not None
    assert ran.result.winner.text.startswith("// kernel-lsp: 1\n// task: ../model.py::scale\n// op:")
    assert "evil" not in ran.result.winner.text


async def test_a_kernel_that_fails_the_full_check_does_not_win(tmp_path: Path) -> None:
    answers = numbered(lambda n: reply(10, "FULL_WRONG") if n == 0 else reply(20))
    ran = await World(tmp_path, 1, 2, FAST).search(ScriptedModel(answers))
    assert ran.result.winner is not None
    assert "T=20" in ran.result.winner.text
    assert "1 faster ones failed the full check" in ran.result.reason


async def test_nothing_right_is_an_end_without_a_winner(tmp_path: Path) -> None:
    ran = await World(tmp_path, 1, 3, FAST).search(ScriptedModel(lambda _: reply(1, "WRONG")))
    assert ran.result.winner is None
    assert "elements wrong" in ran.result.reason


# --- correction


async def test_a_wrong_translation_is_corrected_with_what_was_found(tmp_path: Path) -> None:
    model = ScriptedModel(lambda r: reply(5) if r.purpose == "repair" else reply(5, "WRONG"))
    ran = await World(tmp_path, 1, 1, FAST).search(model)
    (record,) = ran.proposals
    assert [round_.outcome for round_ in record.rounds] == ["mismatch", "correct"]
    told = model.requests[1].messages[1].content
    assert "3 of 35 elements wrong" in told
    assert "worst at [6, 4]: 1 instead of 2" in told
    assert "'normal' at x [7, 5]" in told


async def test_a_compile_error_is_told_with_its_line(tmp_path: Path) -> None:
    model = ScriptedModel(lambda r: reply(5) if r.purpose == "repair" else reply(5, "BROKEN"))
    await World(tmp_path, 1, 1, FAST).search(model)
    told = model.requests[1].messages[1].content
    assert "line 5: identifier undefined" in told


async def test_correcting_ends_after_its_rounds(tmp_path: Path) -> None:
    model = ScriptedModel([reply(n, "CRASH") for n in range(5)])
    ran = await World(tmp_path, 1, 1, choices(repair_rounds=3)).search(model)
    assert len(model.requests) == 4
    assert ran.proposals[0].end == "wrong"


async def test_a_correction_that_changes_nothing_is_the_last(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: reply(5, "CRASH"))
    ran = await World(tmp_path, 1, 1, choices(repair_rounds=3)).search(model)
    assert len(model.requests) == 2
    assert "changed nothing" in ran.proposals[0].message


async def test_a_reply_out_of_form_gets_one_more_round(tmp_path: Path) -> None:
    model = ScriptedModel(lambda r: reply(5) if r.purpose == "reformat" else "here is your kernel: ...")
    ran = await World(tmp_path, 1, 1, FAST).search(model)
    assert ran.proposals[0].end == "right"
    assert "NAME:, THOUGHT: and CODE:" in model.requests[1].messages[1].content


async def test_a_second_bad_reply_is_dropped_and_said(tmp_path: Path) -> None:
    ran = await World(tmp_path, 1, 1, FAST).search(ScriptedModel(lambda _: "prose"))
    assert ran.proposals[0].end == "unreadable"
    (event,) = ran.of("proposal_dropped")
    assert event.reason == "unreadable"


# --- what a proposal knows


async def test_a_proposal_is_shown_the_best_of_a_generation_before_from_slow_to_fast(tmp_path: Path) -> None:
    model = ScriptedModel(faster_each_time)
    await World(tmp_path, 3, 4, choices(islands=1)).search(model)
    improving = [request for request in model.requests if request.prompt == "improve"]
    assert improving
    for request in improving:
        times = [
            int(line.split("T=")[1].split()[0]) for line in request.messages[1].content.splitlines() if "T=" in line
        ]
        assert times == sorted(times, reverse=True)
        assert times[-1] == 1000 - (request.sample - 4)
        assert len(times) <= 5


async def test_the_same_program_in_other_words_is_no_second_kernel(tmp_path: Path) -> None:
    answers = numbered(
        lambda n: reply(7).replace("NAME: proposal", f"NAME: p{n}").replace("void k", f"void  {'k' * (n + 1)}")
    )
    ran = await World(tmp_path, 2, 4, choices(strategy="best-of-n")).search(ScriptedModel(answers))
    assert "duplicate" in {record.end for record in ran.proposals[4:]}


async def test_best_of_n_shows_no_proposal_to_another(tmp_path: Path) -> None:
    model = ScriptedModel(faster_each_time)
    await World(tmp_path, 2, 4, choices(strategy="best-of-n")).search(model)
    assert len({request.messages for request in model.requests}) == 1
    assert len({request.key for request in model.requests}) == 8


async def test_beam_expands_the_best(tmp_path: Path) -> None:
    model = ScriptedModel(faster_each_time)
    ran = await World(tmp_path, 3, 4, choices(strategy="beam")).search(model)
    assert {record.operator for record in ran.proposals[4:]} == {"improve"}
    assert all(len(record.parents) == 1 for record in ran.proposals[4:])


async def test_what_overlaps_is_no_different_from_what_does_not(tmp_path: Path) -> None:
    records = []
    for number, delays in enumerate(([0.0], [0.03, 0.0, 0.01, 0.0, 0.02])):
        (folder := tmp_path / str(number)).mkdir()
        world = World(folder, 3, 4, FAST, FakeDevice(delay_s=0.005 * number))
        await world.search(Uneven(faster_each_time, delays))
        records.append(record_of(world))
    assert records[0] == records[1]


# --- ends


async def test_it_ends_at_the_floor(tmp_path: Path) -> None:
    ran = await World(tmp_path, 5, 2, choices(early_stop="on")).search(ScriptedModel(lambda _: reply(30.0)))
    assert "speed of light" in ran.result.stopped
    assert len(ran.proposals) <= 4


async def test_it_ends_when_nothing_is_gained_any_more(tmp_path: Path) -> None:
    answers = numbered(lambda n: reply(500 + n / 1000))
    ran = await World(tmp_path, 20, 2, choices(early_stop="on", strategy="best-of-n")).search(ScriptedModel(answers))
    assert "gained less than the noise" in ran.result.stopped
    assert len(ran.proposals) < 20


async def test_it_ends_when_the_budget_is_spent_and_never_passes_it(tmp_path: Path) -> None:
    model = ScriptedModel(faster_each_time, cost_usd=0.1)
    ran = await World(tmp_path, 10, 4, choices(budget_usd=1.05)).search(model)
    assert "budget" in ran.result.stopped
    assert len(model.requests) == 10
    assert ran.result.winner is not None


async def test_it_ends_when_the_provider_is_gone(tmp_path: Path) -> None:
    gone = ModelFailed(model="m", cause="authentication", message="bad key")
    model = ScriptedModel(lambda _: gone)
    ran = await World(tmp_path, 10, 4, FAST).search(model)
    assert ran.result.stopped == "no model can be asked: bad key"
    assert len(model.requests) <= 4, "those of one generation are asked at once"


async def test_another_model_takes_over_where_a_key_is_refused(tmp_path: Path) -> None:
    gone = ModelFailed(model="gone", cause="authentication", message="bad key")
    refused = ScriptedModel(lambda _: gone, name="gone")
    ran = await World(tmp_path, 4, 2, FAST).search({"": (refused, ScriptedModel(faster_each_time, name="here"))})
    assert len(refused.requests) <= 2
    assert [record.end for record in ran.proposals].count("right") >= 6


async def test_every_call_is_told_with_the_cost_so_far(tmp_path: Path) -> None:
    ran = await World(tmp_path, 1, 3, FAST).search(ScriptedModel(faster_each_time, cost_usd=0.25))
    calls = ran.of("model_called")
    assert [call.run_cost_usd for call in calls] == pytest.approx([0.25, 0.5, 0.75])
    assert {call.outcome for call in calls} == {"replied"}


async def test_a_broken_device_ends_the_run_at_once(tmp_path: Path) -> None:
    class Broken(FakeDevice):
        async def verify(self, candidate: object, depth: object) -> object:  # type: ignore[override]
            raise RuntimeError("the worker died")

    with pytest.raises(RuntimeError, match="the worker died"):
        await World(tmp_path, 2, 4, FAST, Broken()).search(ScriptedModel(faster_each_time))


# --- repeating and resuming


async def test_a_replay_gives_the_same_record(tmp_path: Path) -> None:
    worlds = []
    for name in ("live", "replayed"):
        (tmp_path / name).mkdir()
        worlds.append(World(tmp_path / name, 3, 4, FAST))
    live, replayed = worlds
    await live.search(ScriptedModel(faster_each_time))
    assert live.run_id is not None
    with Archive(live.folder) as archive:
        outcomes = {r.key: r.outcome for r in ModelRecords(archive, live.run_id).replies()}
    await replayed.search(ReplayModel(outcomes, "scripted"))
    assert record_of(live) == record_of(replayed)


async def test_a_recording_brings_the_related_kernels_that_it_was_made_with(tmp_path: Path) -> None:
    world = World(tmp_path, 1, 1, FAST)
    world.recording = Recording(
        {},
        {
            "related": '[{"identity":"i","task":"other","operators":{},"name":"n","thought":"",'
            '"time":"1 us","text":"RELATED TEXT"}]'
        },
    )
    model = ScriptedModel(faster_each_time)
    await world.search(model)
    assert "RELATED TEXT" in model.requests[0].messages[1].content


@pytest.mark.parametrize("n_events", [1, 5, 9, 14, 20, 27, 35])
async def test_a_run_that_was_cut_off_goes_on_to_the_same_record(tmp_path: Path, n_events: int) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole, cut = World(tmp_path / "whole", 3, 4, FAST), World(tmp_path / "cut", 3, 4, FAST)
    await whole.search(ScriptedModel(faster_each_time))

    class Cut(Exception):
        pass

    n_heard = 0

    def listen(_: object) -> None:
        nonlocal n_heard
        n_heard += 1
        if n_heard == n_events:
            raise Cut

    with pytest.raises(Cut):
        await cut.search(ScriptedModel(faster_each_time), listen)
    asked_again = ScriptedModel(faster_each_time)
    await cut.search(asked_again)
    assert record_of(whole) == record_of(cut)
    assert len(asked_again.requests) < 12 or n_events <= 5


async def test_what_was_spent_before_a_resume_counts(tmp_path: Path) -> None:
    world = World(tmp_path, 1, 2, choices(budget_usd=1.0))
    await world.search(ScriptedModel(faster_each_time, cost_usd=0.4))
    world.n_generations = 5
    again = ScriptedModel(faster_each_time, cost_usd=0.4)
    ran = await world.search(again)
    assert again.requests == []
    assert "budget" in ran.result.stopped


# --- hardware and judges


def judged(memory: float) -> object:
    def answer(request: ModelRequest) -> Answer:
        if request.purpose != "judge":
            return faster_each_time(request)
        return f"1. fine\nPROBABILITY: {memory if request.prompt == 'judge_memory' else 0.9}"

    return answer


def with_gpu(folder: Path, **changes: object) -> World:
    gpu, executor = FakeDevice(is_gpu=True), FakeDevice()
    return World(folder, 1, 3, choices(**changes), gpu, executor)


async def test_what_fails_the_executor_never_reaches_the_hardware(tmp_path: Path) -> None:
    world = with_gpu(tmp_path, repair_rounds=0)
    await world.search(ScriptedModel(lambda _: reply(5, "CRASH")))
    assert world.device.asked == []


async def test_what_is_wrong_on_the_hardware_is_corrected(tmp_path: Path) -> None:
    world = with_gpu(tmp_path)
    model = ScriptedModel(lambda r: reply(5) if r.purpose == "repair" else reply(6, "ON_GPU_WRONG"))
    ran = await world.search(model)
    assert {record.end for record in ran.proposals} == {"right"}


async def test_one_judge_that_doubts_holds_a_kernel_back(tmp_path: Path) -> None:
    world = with_gpu(tmp_path, judges="filter")
    ran = await world.search(ScriptedModel(judged(0.1)))  # type: ignore[arg-type]
    assert {record.end for record in ran.proposals} == {"held_back"}
    assert world.device.asked == []
    assert not any(event.is_passed for event in ran.of("candidate_judged"))


async def test_a_judge_above_the_threshold_decides_nothing(tmp_path: Path) -> None:
    world = with_gpu(tmp_path, judges="filter")
    ran = await world.search(ScriptedModel(judged(0.4)))  # type: ignore[arg-type]
    assert ran.result.winner is not None
    assert all(len(record.rounds[-1].judgements) == 3 or record.rounds[-1].judgements == () for record in ran.proposals)


async def test_judges_that_believe_make_no_wrong_kernel_right(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Answer:
        return "PROBABILITY: 1.0" if request.purpose == "judge" else reply(5, "ON_GPU_WRONG")

    world = with_gpu(tmp_path, judges="filter", repair_rounds=0)
    ran = await world.search(ScriptedModel(answer))
    assert ran.result.winner is None


# --- overlap


async def test_a_slow_model_does_not_idle_the_device(tmp_path: Path) -> None:
    # Model 40 ms, evaluation 20 ms, one slot: by turns the device would be idle for two thirds of the time.
    world = World(tmp_path, 5, 8, choices(repair_rounds=0, strategy="best-of-n"), FakeDevice(1, delay_s=0.02))
    ran: Ran = await world.search(ScriptedModel(faster_each_time, delay_s=0.04))
    device = ran.device
    assert device.first_s is not None
    assert device.busy_s / (device.last_s - device.first_s) > 0.6


async def test_usage_of_a_failed_call_is_part_of_the_cost(tmp_path: Path) -> None:
    failed = ModelFailed(model="m", cause="refused", message="too long", usage=Usage(cost_usd=0.5))
    ran = await World(tmp_path, 1, 1, FAST).search(ScriptedModel(lambda _: failed))
    assert ran.proposals[0].cost_usd == 0.5


def test_the_world_reads_worth_from_text() -> None:
    assert "T=5" in kernel(5)
    assert Message(role="user", content="x").content == "x"
