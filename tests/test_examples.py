"""Check that what the examples say of themselves holds: listed once, documented, and readable by us."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.checking import check as check_plan
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.source.cuda import kernel_signatures

EXAMPLES = Path(__file__).parent.parent / "examples"
ENTRIES = tomllib.loads((EXAMPLES / "examples.toml").read_text())["example"]
TARGETS = [entry["target"] for entry in ENTRIES]
KERNELS = sorted(EXAMPLES.glob("*.cu"))
MINIMUM_TARGETS, MINIMUM_BACKWARD = 12, 6


def test_there_are_enough_examples() -> None:
    assert len(set(TARGETS)) == len(TARGETS) >= MINIMUM_TARGETS
    assert sum(entry["backward"] for entry in ENTRIES) >= MINIMUM_BACKWARD


@pytest.mark.parametrize("target", TARGETS)
def test_a_listed_target_exists(target: str) -> None:
    file, _, symbol = target.partition("::")
    if not file.endswith(".py"):
        assert (EXAMPLES / file / "func_forward.py").is_file()
        return
    names = symbol.split(".") if symbol else ["Model"]
    assert find_symbol(ast.parse((EXAMPLES / file).read_text()), names)


@pytest.mark.parametrize("target", TARGETS)
def test_the_readme_lists_the_target(target: str) -> None:
    assert f"| `{target}`" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_file_is_listed_and_says_where_it_is_used(file: Path) -> None:
    assert any(target.startswith(file.name) for target in TARGETS)
    assert ast.get_docstring(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", KERNELS, ids=lambda file: file.stem)
def test_a_hand_written_kernel_fits_its_plan(file: Path) -> None:
    plan = parse_or_raise(file.read_text(), str(file))
    assert check_plan(plan, kernel_signatures(file.read_text())) == ()
    assert plan.task in TARGETS


@pytest.mark.parametrize(
    ("D", "kernel"), [(4, "softmax_rows<64>"), (1024, "softmax_rows<64>"), (1028, "softmax_rows<256>")]
)
def test_the_softmax_plan_launches_a_block_per_row(D: int, kernel: str) -> None:
    text = (EXAMPLES / "row_softmax.cu").read_text()
    bound = bind(parse_or_raise(text, "row_softmax.cu").forward, {"x": (7, D)}, {}, kernel_signatures(text))
    assert [(step.kernel, step.grid) for step in bound.steps] == [(kernel, (7, 1, 1))]


def find_symbol(tree: ast.Module, names: list[str]) -> bool:
    """Return whether `names`, each inside the one before, lead to a class or a function."""
    body: list[ast.stmt] = tree.body
    for name in names:
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
        if not found:
            return False
        body = found[0].body
    return True
