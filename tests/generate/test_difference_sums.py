"""Sums over the differences of all pairs of rows and columns, in tiles."""

from __future__ import annotations

import pytest

from .harness import check_program, plan_text, tensor

PAIRS = {
    "distances": ("torch.cdist(a, b, compute_mode='donot_use_mm_for_euclid_dist')", (70, 20), (37, 20)),
    "squares by hand": ("((a[:, None] - b[None]) ** 2).sum(-1).min(1).values", (70, 20), (37, 20)),
    "magnitudes": ("(b[None, :] - a[:, None]).abs().sum(-1) * 0.5", (70, 20), (37, 20)),
    "a batch": ("torch.cdist(a, b, p=1.0)", (3, 40, 12), (3, 33, 12)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_differences_of_all_pairs_are_summed_in_tiles(name: str) -> None:
    call, left, right = PAIRS[name]
    program = plan_text(f"def f(a, b): return {call}", inputs=[tensor("a", *left), tensor("b", *right)])
    (knob,) = [knob for knob in program.knobs if knob.name.endswith(".tiled")]
    checked = check_program(program, schedule={knob.name: 1})
    assert "left[i] - right[j]" in checked.text
    assert "left[i] - right[j]" not in program.render({knob.name: 0})


def test_distances_of_many_points_are_in_tiles_by_default() -> None:
    program = plan_text("def f(a): return torch.cdist(a, a)", inputs=[tensor("a", 512, 64)])
    assert "left[i] - right[j]" in program.render({})


@pytest.mark.parametrize("call", ["((a - b) ** 2).sum(-1)", "((a[:, None] - b[None]) * b[None]).sum(-1)"])
def test_other_sums_have_no_such_tiles(call: str) -> None:
    program = plan_text(f"def f(a, b): return {call}", inputs=[tensor("a", 40, 20), tensor("b", 40, 20)])
    assert not [knob for knob in program.knobs if knob.name.endswith(".tiled")]
