"""Features of real schedules, random schedules, and the order that a search uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.evolve.run.search import Proposer
from kernel_lsp.generate.program import Program, plan_program
from kernel_lsp.training import ranker as ranker_module
from kernel_lsp.training.features import (
    RealizedLike,
    candidate_features,
    draw_schedules,
    family,
    graph_hash,
    schedule_features,
    task_features,
)
from kernel_lsp.training.ppo import PpoSettings
from kernel_lsp.training.ranker import ScheduleRanker, train_models
from kernel_lsp.training.table import TimedSchedule, TimedTask
from tests.evolve.test_search import FakeProgram
from tests.evolve.world import TASK


@pytest.fixture(scope="module")
def program() -> Program:
    return plan_program(TASK)


def _wide(realized: RealizedLike) -> float:
    """Return a made-up time: wide vectors are fast, unrolling is slow."""
    features = schedule_features(realized, TASK)
    return 10.0 - 3.0 * features["knob.vector"] + features["knob.unroll"]


def _timed(program: Program) -> list[TimedTask]:
    found = []
    for seed in range(6):
        schedules = tuple(
            TimedSchedule(schedule=dict(r.schedule), time_us=_wide(r), features=schedule_features(r, TASK))
            for r in draw_schedules(program, 10, seed)
        )
        task = TimedTask(
            name=f"scale{seed}", graph="g", family="pointwise", features=task_features(TASK), schedules=schedules
        )
        found.append(task)
    return found


def test_random_schedules_begin_with_the_default_and_differ(program: Program) -> None:
    found = draw_schedules(program, 12, 0)
    assert found[0].text == program.realize({}).text
    assert len({each.text for each in found}) == len(found) == 12
    assert all(each.is_valid for each in found)
    assert [each.text for each in draw_schedules(program, 12, 0)] == [each.text for each in found]
    assert [each.text for each in draw_schedules(program, 12, 1)] != [each.text for each in found]


def test_a_small_space_gives_all_of_its_schedules() -> None:
    assert len(draw_schedules(FakeProgram(), 100, 0)) == 23


def test_features_are_those_of_the_launch(program: Program) -> None:
    default = program.realize({})
    name = next(knob.name for knob in default.knobs if knob.name.endswith(".threads"))
    found = schedule_features(program.realize({name: 1024}), TASK)
    base = schedule_features(default, TASK)
    assert found["launch.block_threads"] == pytest.approx(10.0, abs=0.01)
    assert found["launch.n"] == 1.0
    both = candidate_features(task_features(TASK), found, base)
    assert both["change.launch.block_threads"] == pytest.approx(
        found["launch.block_threads"] - base["launch.block_threads"]
    )
    assert both["task.inputs"] == pytest.approx(24.0, abs=0.01)
    assert candidate_features({}, base, base)["n_changes"] == 0.0
    assert both["n_changes"] > 0.0


def test_a_graph_is_known_by_its_operators_alone() -> None:
    larger = TASK.model_copy(update={"symbols": tuple(s.model_copy(update={"captured": 8}) for s in TASK.symbols)})
    other = TASK.forward.nodes[0].model_copy(update={"op": "aten.mm.default"})
    product = TASK.model_copy(update={"forward": TASK.forward.model_copy(update={"nodes": (other,)})})
    assert graph_hash(larger) == graph_hash(TASK) != graph_hash(product)
    assert (family(TASK), family(product)) == ("pointwise", "product")


@pytest.mark.parametrize("order", ["cost_model", "policy"])
def test_a_trained_order_puts_fast_schedules_first(program: Program, order: str) -> None:
    settings = PpoSettings(n_iterations=10, n_warmup_iterations=10, n_picks=4)
    models = replace(train_models(_timed(program), settings=settings), order=order)  # type: ignore[arg-type]
    candidates = draw_schedules(program, 24, "unseen")
    ranker = ScheduleRanker(models, TASK, program.realize({}))
    times = [_wide(candidates[place]) for place in ranker.order(candidates)]
    assert sorted(ranker.order(candidates)) == list(range(len(candidates)))
    assert sum(times[:8]) < sum(times[-8:])
    assert min(times[:8]) == min(times)


def test_schedules_that_are_predicted_to_be_much_slower_than_the_default_are_not_tried(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker_module, "MAX_COST", 1.2)
    settings = PpoSettings(n_iterations=1, n_warmup_iterations=1, n_picks=4)
    candidates = draw_schedules(program, 24, "unseen")
    ranker = ScheduleRanker(train_models(_timed(program), settings=settings), TASK, candidates[0])
    promising = ranker.promising(candidates)
    assert promising == [place for place in ranker.order(candidates) if place in promising]
    assert 0 in promising, "the default is as slow as itself"
    assert 0 < len(promising) < len(candidates)
    left_out = [_wide(each) for place, each in enumerate(candidates) if place not in promising]
    assert min(left_out) > _wide(candidates[0])


def _by_block(schedules: Sequence[RealizedLike], _: Sequence[tuple[RealizedLike, float]]) -> list[int]:
    """Order by block size, the largest first."""
    return sorted(range(len(schedules)), key=lambda place: -int(schedules[place].schedule["block"]))


def test_the_search_proposes_what_the_order_puts_first() -> None:
    proposer = Proposer(FakeProgram(), seed=0, order=_by_block)
    first = proposer.propose(4, 0, [])
    assert first[0].realized.schedule == {"block": 128, "vector": 1}
    assert len(first) == 4
    blocks = [int(proposal.realized.schedule["block"]) for proposal in first[1:]]
    plain = [int(p.realized.schedule["block"]) for p in Proposer(FakeProgram(), seed=0).propose(4, 0, [])[1:]]
    assert sum(blocks) > sum(plain)


def test_postponed_schedules_are_proposed_later() -> None:
    proposer = Proposer(FakeProgram(), seed=0, order=_by_block)
    found = [proposal.text for generation in range(30) for proposal in proposer.propose(5, generation, [])]
    assert len(found) == len(set(found)) == 23  # all that are valid


def test_the_command_trains_from_a_table(tmp_path: Path) -> None:
    from kernel_lsp.cli.train import LiveRequest, main
    from tests.training.tables import made_up_table

    made_up_table(6).write(tmp_path / "table.json")
    assert main([tmp_path / "table.json"], [], tmp_path / "models.json", "cost_model", 0, LiveRequest()) == 0
    assert (tmp_path / "models.json").stat().st_size > 1000
    assert main([tmp_path / "missing.json"], [], tmp_path / "models.json", "cost_model", 0, LiveRequest()) == 2
    made_up_table(2).write(tmp_path / "table.json")
    assert main([tmp_path / "table.json"], [], tmp_path / "other.json", "cost_model", 0, LiveRequest()) == 2
    assert not (tmp_path / "other.json").exists()
