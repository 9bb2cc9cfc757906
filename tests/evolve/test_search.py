"""The schedule search proposes new, valid, reproducible schedules and finds the best of a small space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel_lsp.evolve.search import Scored, default_schedule, propose


@dataclass(frozen=True)
class FakeKnob:
    name: str
    values: tuple[int, ...]
    default: int


class FakeProgram:
    """Fastest at block=256, vector=4; block 1024 with vector 8 is invalid."""

    knobs = (FakeKnob("block", (32, 64, 128, 256, 512, 1024), 128), FakeKnob("vector", (1, 2, 4, 8), 1))

    def is_valid(self, schedule: Mapping[str, int | str]) -> bool:
        return not (schedule["block"] == 1024 and schedule["vector"] == 8)

    def render(self, schedule: Mapping[str, int | str]) -> str:
        return repr(sorted(schedule.items()))

    def time_us(self, schedule: Mapping[str, int | str]) -> float:
        return abs(int(schedule["block"]) - 256) / 32 + abs(int(schedule["vector"]) - 4) + 1


def _search(seed: int, n_generations: int = 4) -> tuple[list[Scored], list[str]]:
    program, ranked, texts = FakeProgram(), [], []
    for generation in range(n_generations):
        batch = propose(program, n=5, generation=generation, ranked=ranked, seen=set(texts), seed=seed)
        texts += [proposal.text for proposal in batch]
        ranked += [Scored(p.schedule, p.text, program.time_us(p.schedule)) for p in batch]
        ranked.sort(key=lambda scored: scored.score_us)
    return ranked, texts


def test_the_default_comes_first() -> None:
    first = propose(FakeProgram(), n=3, generation=0, ranked=[], seen=set(), seed=0)[0]
    assert first.schedule == default_schedule(FakeProgram())


def test_no_text_is_proposed_twice() -> None:
    _, texts = _search(seed=3)
    assert len(texts) == len(set(texts)) >= 15


def test_the_same_seed_gives_the_same_proposals() -> None:
    assert _search(seed=5)[1] == _search(seed=5)[1]
    assert _search(seed=5)[1] != _search(seed=6)[1]


def test_an_invalid_schedule_is_never_proposed() -> None:
    assert all(FakeProgram().is_valid(scored.schedule) for seed in range(10) for scored in _search(seed)[0])


def test_it_finds_the_best_of_a_small_space() -> None:
    assert _search(seed=1)[0][0].score_us == 1.0


def test_an_exhausted_space_gives_fewer_proposals() -> None:
    everything = {
        FakeProgram().render({"block": b, "vector": v}) for b in FakeProgram.knobs[0].values for v in (1, 2, 4, 8)
    }
    assert propose(FakeProgram(), n=5, generation=1, ranked=[], seen=everything, seed=0) == []
