"""The small decisions of a search: what is shown, drawn, hinted, kept, and when it is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import Comparison, Measurement, TimeFloor
from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.propose.feedback import (
    describe_failure,
    describe_profile,
    describe_times,
    facts_of_kernel,
    facts_of_task,
)
from kernel_lsp.evolve.propose.population import (
    Innovation,
    Member,
    island_of,
    keep_innovation,
    plan_proposal,
    ranked,
    related,
    shown,
    similarity,
)
from kernel_lsp.evolve.propose.prompt_builder import assemble
from kernel_lsp.evolve.propose.proposal import Hint, applicable, catalogue, kinds
from kernel_lsp.evolve.run.final_verification import why_give_up, why_stop
from kernel_lsp.evolve.run.task_text import describe_task, signatures
from kernel_lsp.gpu.floor import graph_bytes
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.llm.ensemble import Arms, Ensemble, Pull, gain_of
from kernel_lsp.plan.parser import parse
from kernel_lsp.toolchain.integrity.ptx_text import kernels_hash, program_hash
from tests.evolve.world import FACTS, TASK, kernel, verdict_of

TARGET = "../model.py::scale"


def member(time_us: float, slot: int = 0, island: int = 0, program: str = "") -> Member:
    candidate = Candidate(text=kernel(time_us, f"slot{slot}"), origin=Origin(proposer="model", description=f"n{slot}"))
    verdict = verdict_of(candidate)
    if program:
        verdict = verdict.model_copy(update={"program_hash": program})
    return Member(slot, island, candidate, verdict, time_us)


# --- assembling


def test_a_task_line_is_put_where_there_is_none() -> None:
    text = assemble("// kernel-lsp: 1\n// op: f(x: f32[N]) -> (y: f32[N])\n\ncode", TARGET)
    assert text == f"// kernel-lsp: 1\n// task: {TARGET}\n// op: f(x: f32[N]) -> (y: f32[N])\n\ncode\n"


def test_every_other_task_line_goes_with_its_continuation() -> None:
    text = assemble("// kernel-lsp: 1\n// op: f()\n// task: a.py::\n//     b\n// where: x\n\n// task: prose", TARGET)
    assert text.count("task:") == 2
    assert "// where: x" in text
    assert "b\n" not in text.split("// where")[0]
    assert text.endswith("// task: prose\n")


def test_code_without_a_plan_stays_for_the_evaluation_to_refuse() -> None:
    assert assemble("__global__ void k() {}", TARGET) == "__global__ void k() {}\n"


def test_the_signature_for_prompts_is_one_that_the_plan_understands() -> None:
    (signature,) = signatures(TASK)
    plan = parse(f"// kernel-lsp: 1\n// op: {signature}\n// fill: out = 0\n").plan
    assert isinstance(plan, LaunchPlan)
    assert plan.forward.name == "scale"


def test_a_task_is_described_without_its_path() -> None:
    moved = TASK.model_copy(update={"target": "/secret/place.py::scale", "source_file": "/secret/place.py"})
    assert describe_task(moved, find_gpu("H200")) == describe_task(TASK, find_gpu("H200"))


# --- the same program


PTX = """.version 8.0
.visible .entry kernel_a(.param .u64 kernel_a_param_0)
{
 .reg .b32 %r<3>;
 .loc 1 4 2
 mov.u32 %r1, %tid.x; // comment
 add.s32 %r2, %r1, 1;
$L__BB0_1:
 bra $L__BB0_1;
}
"""


def test_names_lines_and_registers_do_not_make_another_program() -> None:
    other = (
        PTX.replace("kernel_a", "other").replace(".loc 1 4 2", ".loc 1 9 1").replace("%r1", "%r7").replace("BB0", "BB5")
    )
    assert program_hash(PTX) == program_hash(other)


@pytest.mark.parametrize(("old", "new"), [("add.s32", "sub.s32"), (", 1;", ", 2;"), ("%tid.x", "%tid.y")])
def test_another_instruction_is_another_program(old: str, new: str) -> None:
    assert program_hash(PTX) != program_hash(PTX.replace(old, new))


def test_kernels_are_told_apart_by_their_own_code_and_the_variables_of_the_module() -> None:
    second = PTX.replace("kernel_a", "kernel_b")[PTX.index(".visible") :]
    ptx, both = f"{PTX}\n{second}", ("kernel_a", "kernel_b")
    changed = f"{PTX}\n{second.replace('add.s32', 'sub.s32')}"
    assert kernels_hash(ptx, {"kernel_a"}) == kernels_hash(changed, {"kernel_a"})
    assert kernels_hash(ptx, {"kernel_b"}) != kernels_hash(changed, {"kernel_b"})
    assert kernels_hash(ptx, both) != kernels_hash(changed, both)
    with_variable = f"{PTX}\n{second}\n.global .align 4 .b8 total[4];\n"
    assert kernels_hash(ptx, {"kernel_a"}) != kernels_hash(with_variable, {"kernel_a"})
    assert kernels_hash(f"{ptx}\n.func helper()\n{{\n ret;\n}}\n", both) == ""


# --- what is shown


def test_the_best_of_each_program_counts_once() -> None:
    members = [member(3, 0), member(1, 1, program="p"), member(2, 2, program="p")]
    assert [found.time_us for found in ranked(members)] == [1, 3]


def test_at_most_five_are_shown_from_the_slowest_to_the_fastest() -> None:
    texts = shown(ranked([member(float(n), n) for n in range(1, 9)]))
    assert [text.time.split()[0] for text in texts] == ["5", "4", "3", "2", "1"]


def test_an_island_sees_its_own_and_the_best_of_all_when_visited() -> None:
    members = [member(1, 0, island=0), member(2, 1, island=1), member(3, -1)]
    assert [found.time_us for found in island_of(members, 1, has_visitors=False)] == [2, 3]
    assert [found.time_us for found in island_of(members, 1, has_visitors=True)] == [1, 2, 3]


def test_the_same_knowledge_gives_the_same_plan() -> None:
    members = [member(float(n), n, island=n % 2) for n in range(1, 7)]
    plans = [plan_proposal("evolve", slot, 4, members, 2, seed=1) for slot in range(8, 40)]
    assert plans == [plan_proposal("evolve", slot, 4, members, 2, seed=1) for slot in range(8, 40)]
    assert {plan.operator for plan in plans} == {"improve", "edit", "crossover"}


def test_crossover_has_two_parents_and_edits_have_one_to_edit() -> None:
    members = [member(float(n), n) for n in range(1, 7)]
    plans = [plan_proposal("evolve", slot, 4, members, 1, seed=0) for slot in range(8, 60)]
    assert all(len(plan.members) == 2 for plan in plans if plan.operator == "crossover")
    assert all(plan.members[0] not in plan.members[1:] for plan in plans)


def test_without_anything_right_a_proposal_translates() -> None:
    for strategy in ("evolve", "beam", "best-of-n"):
        assert plan_proposal(strategy, 9, 4, [], 2, seed=0).operator == "translate"  # type: ignore[arg-type]


# --- ends


def test_it_is_enough_at_the_floor() -> None:
    assert "speed of light" in why_stop([10.4], member(10.4), 10.0, 4)
    assert why_stop([10.6], member(10.6), 10.0, 4) == ""


def test_it_is_enough_when_three_generations_gain_less_than_noise() -> None:
    stale = [100.0] * 3 + [99.9] * 10
    assert "noise" in why_stop(stale, member(99.9), 1.0, 4)
    assert why_stop([*stale, 98.0], member(98.0), 1.0, 4) == ""


def test_a_noisy_measurement_needs_a_larger_gain() -> None:
    best = member(95.0)
    noisy = best.verdict.model_copy(
        update={"measurement": Measurement.model_construct(time_us=95.0, low_us=85.0, high_us=105.0)}
    )
    noisy_best = Member(best.slot, best.island, best.candidate, noisy, 95.0)
    assert "noise of 10.5%" in why_stop([100.0, *[95.0] * 12], noisy_best, 1.0, 4)
    assert why_stop([100.0, *[95.0] * 12], best, 1.0, 4) == ""


def test_it_gives_up_after_eight_failures_in_a_row() -> None:
    assert why_give_up(7, "x") == ""
    assert "no reply; the last: x" in why_give_up(8, "x")


# --- the ensemble


def draws(pulls: list[Pull], n: int = 200, mode: str = "bandit") -> list[Arms]:
    ensemble = Ensemble(2, (0.2, 1.0), mode, seed=0)  # type: ignore[arg-type]
    return [ensemble.draw(slot, pulls, ("memory", "launch")) for slot in range(n)]


def pull(model: int, gain: float | None, cost_usd: float = 0.0) -> Pull:
    return Pull(Arms(model, 0.2, "memory"), gain, cost_usd)


def test_the_model_that_brings_more_is_drawn() -> None:
    assert {arms.model for arms in draws([pull(0, 0.9), pull(1, 0.0)] * 50)} == {0}


def test_of_equal_models_the_cheaper_is_drawn() -> None:
    assert {arms.model for arms in draws([pull(0, 0.3, 0.01), pull(1, 0.3, 1.0)] * 50)} == {0}


def test_a_model_that_was_never_drawn_comes_first() -> None:
    assert {arms.model for arms in draws([pull(0, 1.0)] * 10)} == {1}


def test_many_at_once_do_not_all_draw_the_same() -> None:
    assert {arms.model for arms in draws([pull(0, None)] * 20 + [pull(1, 0.0)] * 2)} == {1}


def test_uniform_draws_ignore_what_was_gained() -> None:
    models = [arms.model for arms in draws([pull(0, 1.0), pull(1, 0.0)] * 50, mode="uniform")]
    assert 60 < sum(models) < 140


def test_the_same_history_gives_the_same_draws() -> None:
    history = [pull(0, 0.2), pull(1, None)]
    assert draws(history) == draws(history)


def test_being_right_is_worth_a_little_and_being_faster_more() -> None:
    assert gain_of(None, 10.0) == 0.0
    assert gain_of(20.0, 10.0) == pytest.approx(0.1)
    assert gain_of(5.0, 10.0) == pytest.approx(1.0)
    assert 0.1 < gain_of(9.0, 10.0) < 0.5


# --- hints, facts, feedback


def test_every_hint_asks_for_facts_that_exist() -> None:
    known = {"memory_bound", "compute_bound", "latency_bound", "launch_bound", "rereads", "uncoalesced"}
    known |= {"several_launches", "spills", "shared_memory", "reduction", "contraction", "half_precision"}
    known |= {"bank_conflicts", "low_occupancy"}
    assert all(hint.when <= known for hint in catalogue())
    assert len({hint.id for hint in catalogue()}) == len(catalogue())


def test_a_hint_applies_when_all_its_facts_hold() -> None:
    hints = [Hint("a", "x", frozenset({"p"}), ""), Hint("b", "y", frozenset({"p", "q"}), "")]
    assert [hint.id for hint in applicable(frozenset({"p"}), hints)] == ["a"]
    assert kinds(hints) == ("x", "y")


def test_there_is_always_some_hint() -> None:
    assert applicable(frozenset())


def test_facts_come_from_estimate_compilation_and_task() -> None:
    verdict = member(5).verdict.model_copy(update={"kernels": (FACTS.model_copy(update={"spill_load_bytes": 8}),)})
    sizes = {"B": 4096, "D": 4096}
    assert facts_of_kernel(verdict, graph_bytes(TASK.forward, sizes)) == {"memory_bound", "spills"}
    assert facts_of_kernel(verdict, 1) == {"memory_bound", "spills", "rereads"}
    assert facts_of_task(TASK) == frozenset()


def test_a_profile_ends_in_at_most_three_recommendations() -> None:
    kernels = (FACTS.model_copy(update={"spill_load_bytes": 8, "n_registers": 255}),)
    text = describe_profile(member(5).verdict.model_copy(update={"kernels": kernels}), 2.5)
    assert "2 times the floor" in text
    assert "1. Registers are spilled" in text
    assert "4." not in text.replace("134", "")


def test_what_was_measured_is_told_beside_pytorchs_fastest_and_the_floor() -> None:
    ours, theirs = (
        Measurement.model_construct(time_us=time_us, gpu="NVIDIA H200", cache="cold") for time_us in (2.972, 4.98)
    )
    floor = TimeFloor(time_us=0.244, impossible_below_us=0.1, basis="bytes")
    found = Comparison.model_construct(baseline_name="compile", baseline=theirs, ours=ours, floor=floor)
    text = describe_times(member(5).verdict.model_copy(update={"times": {"scale": found}}))
    assert text == (
        "scale: 2.972 us measured on NVIDIA H200 with a cold L2; the fastest of PyTorch (compile) takes 4.98 us;"
        " the floor is 0.244 us"
    )


def test_of_estimates_nothing_is_told_as_measured() -> None:
    estimate = member(5).verdict.estimate
    assert estimate is not None
    found = Comparison.model_construct(baseline_name="eager", baseline=estimate, ours=estimate, floor=None)
    assert describe_times(member(5).verdict.model_copy(update={"times": {"scale": found}})) == ""


def test_a_failure_says_where_with_the_line() -> None:
    candidate = Candidate(text=kernel(1, "BROKEN"), origin=Origin(proposer="model"))
    text = describe_failure(verdict_of(candidate), candidate.text)
    assert "line 5: identifier undefined [nvrtc-20]\n    __global__" in text


# --- innovations


def innovation(task: str, operators: dict[str, int]) -> Innovation:
    return Innovation(identity=task, task=task, operators=operators, name="n", thought="", time="1 us", text="code")


def test_related_kernels_are_those_of_other_tasks_with_the_same_operators(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        for task, operators in (
            ("scale", {"aten.mul": 1}),
            ("near", {"aten.mul": 1}),
            ("far", {"aten.convolution": 2}),
        ):
            keep_innovation(archive, innovation(task, operators))
        assert [found.task for found in related(archive, TASK)] == ["near"]


def test_similarity_is_shared_calls_of_all_calls() -> None:
    assert similarity({"a": 2, "b": 1}, {"a": 1, "c": 1}) == pytest.approx(1 / 4)
    assert similarity({}, {}) == 0.0


def test_a_verdict_without_ptx_has_no_program() -> None:
    assert Verdict.model_fields["program_hash"].default == ""
