"""Check that what is kept from the tree before an edit is what the new tree has, wherever the edit was."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda import checking, outline
from kernel_lsp.rules.cuda.edit_window import OFFSETS, Spans, Window, Words
from kernel_lsp.rules.cuda.node_list import DEEP, PAGE_NODES, FoundSpans
from kernel_lsp.rules.cuda.nodes import captured_in, in_order
from kernel_lsp.rules.cuda.outline import Definition
from kernel_lsp.rules.cuda.parsing import ParsedCuda, Part, Shape
from kernel_lsp.rules.finding import RuleFinding
from kernel_lsp.rules.registry import rules_of

ROOT = Path(__file__).parent.parent.parent
N_EDITS = 45
PIECES = (
    "x[", "]", "threadIdx.x", "blockIdx.x", " * ", " + ", " = ", "0.5", ";", "\n", "__syncthreads();", "if (n > 1) ",
    "for (int q = 0; q < n; ++q) {", "(", ")", "{", "}", "/*", "*/", "//", '"', "7", " ", "", "", "ä", "&&", "return;",
    "float q = x[threadIdx.x * n];", "__shared__ float s[32][32];", "#if 1\n", "#endif\n", "f(", "a ? b : ", "double ",
)  # fmt: skip
LINES = """\
    if (threadIdx.x < n && n > {0}) out[threadIdx.x * {0} + {0}] = fmaxf(x[threadIdx.x * n + {0}], 0.5) / 3.0f;
    for (int j{0} = 0; j{0} < n; ++j{0}) {{ tile[threadIdx.x][{0}] = f(x[j{0}])[{0}]; __syncthreads(); }}
"""
KERNEL = (
    "__global__ void k(const float* x, float* out, int n) {\n    __shared__ float tile[32][32];\n"
    + "".join(LINES.format(number) for number in range(2, 40))
    + "}\n"
)
SUM = " + ".join(f"x[threadIdx.x * n + {number}]" for number in range(2, 200))
DEEP_KERNEL = KERNEL.removesuffix("}\n") + f"    out[n] = 0.5 * ({SUM});\n}}\n"


@pytest.fixture(autouse=True)
def _short_functions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by its text alone, and short functions are carried over, too."""
    monkeypatch.setattr(outline, "MIN_LONG_BYTES", 0)
    checking._kept.clear()


def texts() -> list[str]:
    files = sorted((ROOT / "examples").glob("**/*.cu"))
    bad = "".join(rule.bad for rule in rules_of("cuda") if "// op:" not in rule.bad)
    return [KERNEL, DEEP_KERNEL, bad, bad.replace("\n", "\r\n"), KERNEL + bad, *(path.read_text() for path in files)]


def edited(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text) + 1)
    end = min(start + chance.choice((0, 0, 0, 1, 2, 9, 60)), len(text))
    return text[:start] + chance.choice(PIECES) + text[end:]


def found_in(text: str, tree: ParsedCuda) -> tuple[RuleFinding, ...]:
    checking._kept.clear()
    return cuda.check(text, tree=tree)


def forgetful(tree: ParsedCuda) -> ParsedCuda:
    """The same tree, of which nothing is known."""
    assert len(tree.parts) == 1
    return ParsedCuda(tree.text, tree.data, (Part(tree.data, Shape(tree.parts[0].tree)),), {})


def definitions(tree: ParsedCuda) -> list[Definition]:
    items = tree.parts[0].shape.items
    assert items is not None
    return [item for item in items if isinstance(item, Definition) and item.is_long]


@pytest.mark.parametrize("text", texts(), ids=lambda text: f"{len(text)} characters")
def test_after_any_edits_a_file_has_the_findings_of_one_that_is_new(text: str) -> None:
    chance = random.Random(len(text))
    tree = cuda.parse(text)
    found_in(text, tree)
    for number in range(N_EDITS):
        if number % 9 == 0:
            changed = text
        changed = edited(changed, chance)
        tree = cuda.parse(changed, tree)
        assert found_in(changed, tree) == found_in(changed, forgetful(tree)), repr(changed)


@pytest.mark.parametrize("text", [KERNEL, DEEP_KERNEL])
def test_what_is_carried_over_are_the_nodes_of_the_new_tree(text: str) -> None:
    chance = random.Random(3)
    tree = cuda.parse(text)
    found_in(text, tree)
    n_carried = 0
    for _ in range(N_EDITS):
        tree = cuda.parse(changed := edited(text, chance), tree)
        outline.read_outline(tree)
        for inside in [definition.inside for definition in definitions(tree) if definition.inside.spans is not None]:
            n_carried += 1
            nodes = captured_in(inside.body)
            for name in nodes.keys() | inside.all_spans().keys():
                assert list(inside.nodes(name)) == in_order(nodes.get(name, []))
        found_in(changed, tree)
    assert n_carried > N_EDITS // 2


def test_an_edit_of_one_function_leaves_what_is_known_of_another() -> None:
    text = KERNEL + KERNEL.replace(" k(", " other(")
    tree = cuda.parse(text)
    found_in(text, tree)
    for changed in (text.replace("0.5", "0.25", 1), "// a comment\n" + text):
        after = cuda.parse(changed, tree)
        found_in(changed, after)
        assert all(definition.inside.spans is not None for definition in definitions(after))
        assert definitions(after)[1].inside.spans is definitions(tree)[1].inside.spans


def test_a_node_that_is_not_where_it_was_is_looked_for_again() -> None:
    tree = cuda.parse(KERNEL)
    right = found_in(KERNEL, tree)
    inside = definitions(tree)[0].inside
    spans = inside.all_spans()["subscripts"]
    moved = Spans(array(OFFSETS, [start + 1 for start in spans.starts]), spans.ends)
    after = cuda.parse(changed := KERNEL + "// end\n", tree)
    inside.spans = {**inside.all_spans(), "subscripts": moved}
    assert right
    assert found_in(changed, after) == right


def test_a_deep_expression_is_read_in_pages() -> None:
    tree = cuda.parse(DEEP_KERNEL)
    found_in(DEEP_KERNEL, tree)
    after = cuda.parse(DEEP_KERNEL + "// end\n", tree)
    found_in(after.text, after)
    inside = definitions(after)[0].inside
    subscripts = inside.nodes("subscripts")
    assert isinstance(subscripts, FoundSpans)
    assert list(subscripts) == in_order(captured_in(inside.body)["subscripts"])
    assert any(subscripts.deep_pages.values())
    assert len(subscripts) > DEEP + PAGE_NODES


def test_no_nodes_are_held_between_edits() -> None:
    tree = cuda.parse(KERNEL)
    found_in(KERNEL, tree)
    (definition,) = definitions(tree)
    assert definition.inside.spans
    assert not definition.inside.ordered
    assert "captured" not in definition.inside.__dict__


def test_no_tree_holds_more_than_the_one_before_it() -> None:
    tree = cuda.parse(KERNEL)
    found_in(KERNEL, tree)
    for number in range(5):
        tree = cuda.parse(f"{KERNEL}// {number}\n", tree)
        before = tree.parts[0].shape.before
        assert before is None or before[0].before is None
    found_in(tree.text, tree)
    assert tree.parts[0].shape.before is None


@pytest.mark.parametrize(
    ("old", "new", "window"),
    [
        ("a for b", "a xfor b", Window(2, 2, 3)),
        ("a fr b", "a for b", Window(3, 3, 4)),
        ("a for b", "a fr b", Window(3, 4, 3)),
        ("a fxor b", "a for b", Window(3, 4, 3)),
        ("for for", "fr for", Window(1, 2, 1)),
        ("a for", "for", Window(0, 2, 0)),
    ],
)
def test_words_are_known_after_an_edit(old: str, new: str, window: Window) -> None:
    words = Words(old.encode())
    assert (b"for" in words) == ("for" in old)
    after = words.carried(new.encode(), window)
    assert (b"for" in after) == ("for" in new)
