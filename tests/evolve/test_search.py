"""The schedule search proposes new, valid, reproducible schedules and finds the best of a small space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from kernel_lsp.evolve.run.search import Proposer, Scored


@dataclass(frozen=True)
class FakeKnob:
    name: str
    values: tuple[int | str, ...]
    default: int | str


@dataclass(frozen=True)
class FakeRealized:
    schedule: dict[str, int | str]
    knobs: tuple[FakeKnob, ...]
    text: str
    is_valid: bool


class FakeProgram:
    """Fastest at block=256, vector=4; block 1024 with vector 8 is invalid; `unused` changes nothing."""

    knobs = (FakeKnob("block", (32, 64, 128, 256, 512, 1024), 128), FakeKnob("vector", (1, 2, 4, 8), 1))

    def __init__(self) -> None:
        self.n_builds = 0

    def realize(self, schedule: Mapping[str, int | str]) -> FakeRealized:
        self.n_builds += 1
        used: dict[str, int | str] = {knob.name: schedule.get(knob.name, knob.default) for knob in self.knobs}
        is_valid = not (used["block"] == 1024 and used["vector"] == 8)
        return FakeRealized(used, self.knobs, repr(sorted(used.items())), is_valid)


def _time_us(schedule: Mapping[str, int | str]) -> float:
    return abs(int(schedule["block"]) - 256) / 32 + abs(int(schedule["vector"]) - 4) + 1


def _search(seed: int, n_generations: int = 4) -> tuple[list[Scored], list[str]]:
    proposer, ranked, texts = Proposer(FakeProgram(), seed), [], []
    for generation in range(n_generations):
        batch = proposer.propose(5, generation, ranked)
        texts += [proposal.text for proposal in batch]
        ranked += [Scored(p.realized, p.text, _time_us(p.realized.schedule)) for p in batch]
        ranked.sort(key=lambda scored: scored.score_us)
    return ranked, texts


def test_the_default_comes_first() -> None:
    first = Proposer(FakeProgram(), seed=0).propose(3, 0, [])[0]
    assert first.realized.schedule == {"block": 128, "vector": 1}


def test_no_text_is_proposed_twice() -> None:
    _, texts = _search(seed=3)
    assert len(texts) == len(set(texts)) >= 15


def test_the_same_seed_gives_the_same_proposals() -> None:
    assert _search(seed=5)[1] == _search(seed=5)[1]
    assert _search(seed=5)[1] != _search(seed=6)[1]


def test_an_invalid_schedule_is_never_proposed() -> None:
    assert all(scored.realized.is_valid for seed in range(10) for scored in _search(seed)[0])


def test_it_finds_the_best_of_a_small_space() -> None:
    assert _search(seed=1)[0][0].score_us == 1.0


def test_an_exhausted_space_ends_with_fewer_proposals_and_few_builds() -> None:
    program = FakeProgram()
    proposer = Proposer(program, seed=0)
    found = [proposal for generation in range(30) for proposal in proposer.propose(5, generation, [])]
    assert len(found) < 24  # 23 valid ones; the default's neighbours are fewer
    assert program.n_builds <= 25


def test_a_fault_of_the_generator_costs_its_schedule_alone_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(FakeProgram):
        def realize(self, schedule: Mapping[str, int | str]) -> FakeRealized:
            if schedule.get("vector") == 8:
                raise KeyError("the index variable k has no value")
            return super().realize(schedule)

    proposals = Proposer(Faulty(), seed=0).propose(20, 0, [])
    assert len(proposals) > 5
    assert all(proposal.realized.schedule["vector"] != 8 for proposal in proposals)
    assert "'vector': 8" in caplog.text


class FakeNetwork(FakeProgram):
    """Twenty products; each is fastest with 256 threads, and the first ten in a library."""

    knobs = tuple(
        FakeKnob(f"layer_{i}.{kind}", values, values[0])
        for i in range(20)
        for kind, values in (("contraction", ("tiled", "rows", "library")), ("threads", (64, 128, 256)))
    )

    def realize(self, schedule: Mapping[str, int | str]) -> FakeRealized:
        used: dict[str, int | str] = {knob.name: schedule.get(knob.name, knob.default) for knob in self.knobs}
        return FakeRealized(used, self.knobs, repr(sorted(used.items())), True)


def test_a_network_is_tried_with_all_products_in_libraries_right_after_the_default() -> None:
    first, second, *_ = Proposer(FakeNetwork(), seed=0).propose(8, 0, [])
    assert {v for k, v in first.realized.schedule.items() if k.endswith("contraction")} == {"tiled"}
    assert {v for k, v in second.realized.schedule.items() if k.endswith("contraction")} == {"library"}
    assert {v for k, v in second.realized.schedule.items() if k.endswith("threads")} == {64}
    assert second.description == "contraction=library in 20 kernels"


def test_a_knob_of_all_kernels_changes_at_once() -> None:
    proposals = Proposer(FakeNetwork(), seed=0).propose(8, 0, [])
    threads = [[v for k, v in p.realized.schedule.items() if k.endswith("threads")] for p in proposals]
    assert any(set(each) == {256} for each in threads)
    assert any(each.count(64) == 19 for each in threads)


class FakeNorm(FakeProgram):
    """A reduction by parts, which a grid that keeps its rows may beat."""

    knobs = (FakeKnob("norm.sum.by_rows", (0, 1), 1), FakeKnob("norm.threads", (64, 128, 256), 64))
    realize = FakeNetwork.realize


@pytest.mark.parametrize("measures", [True, False])
def test_rows_that_a_grid_keeps_are_tried_where_a_gpu_measures(measures: bool) -> None:
    seconds = [Proposer(FakeNorm(), seed).propose(4, 0, [], measures=measures)[1] for seed in range(9)]
    assert all(second.description == "norm.sum.by_rows=0" for second in seconds) == measures


def test_a_fault_of_the_generator_at_another_structure_costs_this_alone() -> None:
    class Faulty(FakeNorm):
        def realize(self, schedule: Mapping[str, int | str]) -> FakeRealized:
            assert schedule.get("norm.sum.by_rows") != 0
            return super().realize(schedule)

    for tuned in (None, {"norm.sum.by_rows": 0}):
        assert Proposer(Faulty(), seed=0).propose(4, 0, [], tuned, measures=True)


class LargeNetwork(FakeNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.n_rendered = 0

    def realize(self, schedule: Mapping[str, int | str]) -> FakeRealized:
        self.n_rendered += 1
        realized = super().realize(schedule)
        return FakeRealized(realized.schedule, self.knobs, realized.text.ljust(100_000), True)


def test_an_order_has_no_more_schedules_of_a_large_text_rendered() -> None:
    program = LargeNetwork()
    proposer = Proposer(program, 0, lambda drawn, known: range(len(drawn)))
    first = proposer.propose(8, 0, [])
    before = program.n_rendered
    assert len(proposer.propose(8, 1, [Scored(first[1].realized, "library", 1.0)])) == 8
    assert program.n_rendered - before < 16


def test_drawing_ends_when_its_time_is_over() -> None:
    program = FakeNetwork()
    calls = iter([False, False, True])
    proposals = Proposer(program, 0).propose(8, 1, [], is_over=lambda: next(calls))
    assert len(proposals) == 2


def test_a_large_text_is_measured_before_its_neighbours_are_rendered() -> None:
    program = LargeNetwork()
    proposer = Proposer(program, seed=0)
    first = proposer.propose(8, 0, [])
    assert len(first) == program.n_rendered == 2
    assert len(proposer.propose(8, 1, [Scored(first[1].realized, "library", 1.0)])) == 8
