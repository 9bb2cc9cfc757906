"""Probes are rows of one table: each has a defence that switches it off, and cases with seeds of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.task import GraphNode, Task
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.model.defences import DEFENCES, SWITCHED, without
from kernel_lsp.verify.probes.probed_kernel import FEW_ROWS, MANY_PRODUCTS, VARIANT_FAMILIES, proposed
from kernel_lsp.verify.probes.table import TABLE
from tests.verify.kernels import kernel_of, task_of

DOCS = Path(__file__).parents[2] / "docs"
TASK = task_of("B", "D")


def check(*off: str, seed: int = 1) -> list[Case]:
    """Return the cases of a full check without these defences."""
    with without(*off):
        return proposed(TABLE, kernel_of(TASK, seed=seed), "plan")


def test_every_probe_belongs_to_a_defence_with_a_switch() -> None:
    assert {name for row in TABLE for name in row.defences} <= SWITCHED.keys()
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_without_sizes_only_the_captured_ones_are_left() -> None:
    assert all(case.is_captured for case in check("sizes"))
    assert not all(case.is_captured for case in check())


def test_without_families_only_ordinary_inputs_are_left() -> None:
    assert {case.family for case in check("families")} == {"given", "normal", "late_extremes"}


def test_without_zeros_one_family_is_missing() -> None:
    assert {case.family for case in check()} - {case.family for case in check("zeros")} == {"negative_zeros"}


@pytest.mark.parametrize(("n_products", "is_network"), [(MANY_PRODUCTS, True), (MANY_PRODUCTS - 1, False)])
def test_most_families_of_a_network_have_few_rows(n_products: int, is_network: bool) -> None:
    task = task_of("B", "64", captured={"B": 8192})
    node = GraphNode(name="n", op="aten.mm.default", arguments=(), types=(task.forward.input_types[0],))
    network = task.model_copy(update={"forward": task.forward.model_copy(update={"nodes": (node,) * n_products})})
    cases = proposed(TABLE, kernel_of(network), "plan")
    rows = {case.family: dict(case.sizes)["B"] for case in cases if case.family not in ("given", "normal", "octaves")}
    assert {name: rows[name] for name in VARIANT_FAMILIES["forward"]} == {
        name: size for name, size in rows_of(task).items() if name in VARIANT_FAMILIES["forward"]
    }
    others = {size for name, size in rows.items() if name not in VARIANT_FAMILIES["forward"]}
    assert (others == set(FEW_ROWS)) is is_network
    assert {dict(case.sizes)["B"] for case in cases} >= {1, 5, 17, 8192}


def rows_of(task: Task) -> dict[str, int]:
    """Return the rows of each family of a task that is no network."""
    return {case.family: dict(case.sizes)["B"] for case in proposed(TABLE, kernel_of(task), "plan")}


def test_a_defence_without_a_switch_cannot_be_switched_off() -> None:
    with pytest.raises(KeyError), without("bounds"):
        pass


def test_every_case_has_a_seed_of_its_own_that_recurs() -> None:
    seeds = [case.seed for case in check() if case.seed]
    assert len(set(seeds)) == len(seeds) > 20
    assert seeds == [case.seed for case in check() if case.seed]
    assert set(seeds).isdisjoint(case.seed for case in check(seed=2))


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("test-cases.md", [f"| {row.name} | {row.words} | {', '.join(row.defences)} |" for row in TABLE]),
        ("checks.md", [f"| {name} | {words} |" for name, words in sorted(DEFENCES.items())]),
    ],
)
def test_the_docs_have_the_table(page: str, rows: list[str]) -> None:
    expected = "\n".join(rows)
    assert expected in (DOCS / page).read_text(), f"docs/{page} is stale; its table is:\n{expected}"
