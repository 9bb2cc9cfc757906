"""A long CUDA file of functions that are alike is parsed in parts, and nothing else is said of it for that."""

from __future__ import annotations

import re

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda import checking, parsing
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.cuda.splitting import split_behind_functions
from kernel_lsp.rules.finding import RuleFinding
from kernel_lsp.rules.registry import rules_of
from kernel_lsp.rules.rule import Check
from kernel_lsp.server.analysis import analysis_worker as analyst

KERNEL = """
// Kernel {0}.
template <int N_{0}>
__global__ void scale_{0}(const float* x, float* y, int32_t n) {{
    int i{0} = blockIdx.x * blockDim.x + threadIdx.x;
    y[i{0}] = x[i{0} * {0}] * {0}.5;
}}
"""
FILE = "#define SIZE 4\n" + "".join(KERNEL.format(i) for i in range(100, 180))


@pytest.fixture(autouse=True)
def _short_texts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MIN_SPLIT_BYTES", 0)
    checking._kept.clear()


def found_in_whole(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[RuleFinding, ...]:
    monkeypatch.setattr(parsing, "MIN_SPLIT_BYTES", len(text) * 4 + 1)
    checking._kept.clear()
    assert len(cuda.parse(text).parts) == 1
    return cuda.check(text)


def n_shapes(parsed: ParsedCuda) -> int:
    return len({id(part.shape) for part in parsed.parts})


@pytest.mark.parametrize(
    "text",
    [
        FILE,
        FILE.replace("\n", "\r\n"),
        FILE.replace("Kernel", "Kernel ä𝄞"),
        FILE.replace("* 107.5", "* 0.5f"),
        FILE + "__global__ void last(float* x) { x[threadIdx.x * 8] = 0.5; }",
        FILE + "".join(rule.bad for rule in rules_of("cuda") if "// op:" not in rule.bad),
    ],
)
def test_a_file_in_parts_has_the_findings_of_the_whole(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(cuda.parse(text).parts) > 50
    found = cuda.check(text)
    assert found
    assert found == found_in_whole(text, monkeypatch)


def test_parts_that_differ_in_digits_have_one_tree() -> None:
    parsed = cuda.parse(FILE)
    assert len(parsed.parts) == 80
    assert n_shapes(parsed) < 12  # the first has a macro in front, and zeros stay


def test_the_parts_have_the_nodes_of_the_whole() -> None:
    parsed = cuda.parse(FILE)
    in_parts = [str(node) for part in parsed.parts for node in part.tree.root_node.children]
    assert in_parts == [str(node) for node in parsed.tree.root_node.children]


@pytest.mark.parametrize("check", [c for c in checking.FUNCTION_CHECKS if c.patterns], ids=lambda c: c.rule.code)
def test_what_a_check_looks_for_is_the_same_in_texts_of_one_shape(check: Check) -> None:
    for pattern in check.patterns:
        assert re.search("[1-9]", re.sub(r"\{\d+\}", "", pattern.pattern)) is None


@pytest.mark.parametrize("name", ["int9_t", "int8_t n, int32_t"])
def test_digits_that_make_a_keyword_make_another_shape(name: str) -> None:
    edited = FILE.replace("151(const float* x, float* y, int32_t", f"151(const float* x, float* y, {name}")
    assert n_shapes(cuda.parse(edited)) == n_shapes(cuda.parse(FILE)) + 1


def test_an_edit_leaves_the_other_parts_and_their_trees() -> None:
    before = cuda.parse(FILE)
    after = cuda.parse(FILE.replace("150.5", "150.5f + 1"), before)
    assert [part.tree for part in after.parts].count(before.parts[50].tree) > 0
    assert set(after.shapes) - set(before.shapes) == {parsing._shape_of(after.parts[50].data)}
    assert cuda.check(after.text, tree=after) == cuda.check(after.text)


@pytest.mark.parametrize("broken", ["if (x[", "}", '"'])
def test_a_file_with_a_fault_is_parsed_as_a_whole(broken: str) -> None:
    assert len(cuda.parse(FILE.replace("// Kernel 170.", broken), cuda.parse(FILE)).parts) == 1


@pytest.mark.parametrize("broken", ["if (x[", "}", "{", "/*", '"', "#if 1\n"])
def test_a_file_with_a_fault_has_the_findings_of_the_whole(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FILE.replace("// Kernel 170.", broken)
    after = cuda.parse(text, cuda.parse(FILE))
    assert cuda.check(text, tree=after) == found_in_whole(text, monkeypatch)


@pytest.mark.parametrize("n_lines", [-1, -2, -3, -5])
def test_a_file_that_ends_within_a_function_is_in_parts_all_the_same(
    n_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(FILE.splitlines(keepends=True)[:n_lines])
    assert len(cuda.parse(text).parts) == 80
    assert cuda.check(text) == found_in_whole(text, monkeypatch)


def test_a_file_of_different_functions_is_parsed_as_a_whole() -> None:
    text = "".join(f"void f{'x' * i}() {{\n    g({'y' * i});\n}}\n" for i in range(20))
    assert len(cuda.parse(text).parts) == 1


def test_the_lines_of_kernels_are_those_in_the_file() -> None:
    kernels = analyst.analyse("cuda", "/w/parts.cu", FILE).kernels
    assert [kernel.name for kernel in kernels] == [f"scale_{i}" for i in range(100, 180)]
    assert [kernel.line for kernel in kernels] == [3 + 7 * i for i in range(80)]


@pytest.mark.parametrize(
    "function",
    [
        "void f() {\n  if (x) {\n  }\n}\n",
        'void f() {\n  g("}\\"}");\n}\n',
        "void f() {\n  g('}', '\\'', '}');\n}\n",
        "void f() {\n  // }\n  /* }\n}\n */\n}\n",
        "#define END }\\\n}\nvoid f() {\n}\n",
        "#if A\nvoid f() {\n}\n#endif\nvoid g() {\n}\n",
        "struct S {\n  int x;\n};\nvoid f() {\n}\n",
        "namespace n {\nvoid f() {\n}\nvoid g() {\n}\n}  \n",
        "void f() {\n  g(1'000'000);\n}\n",
    ],
)
def test_a_text_is_cut_behind_the_braces_at_its_top(function: str) -> None:
    assert split_behind_functions(function.encode() * 3) == [function.encode()] * 3


@pytest.mark.parametrize("text", ["", "int x;\n", "}\n}\n", 'void f() {\n}\nauto s = R"({)";\n', "void f() {\n}\r}\n"])
def test_a_text_that_is_not_to_be_cut_is_one_part(text: str) -> None:
    assert split_behind_functions(text.encode()) == [text.encode()]


def test_what_stands_behind_the_last_function_is_a_part() -> None:
    assert split_behind_functions(b"void f() {\n}\nint x;\n") == [b"void f() {\n}\n", b"int x;\n"]
