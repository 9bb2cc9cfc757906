"""Any text gives findings that lie within it, and never an exception."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_lsp.rules import cuda, pytorch
from kernel_lsp.rules.finding import RuleFinding, apply_fix, line_starts
from kernel_lsp.rules.registry import rules_of

ROOT = Path(__file__).parent.parent.parent
CHECKS: dict[str, Callable[[str], tuple[RuleFinding, ...]]] = {"pytorch": pytorch.check, "cuda": cuda.check}
SUFFIXES = {"pytorch": "py", "cuda": "cu"}
N_MUTATIONS = 150
DEPTH = 3000
PIECES = {
    "pytorch": ["import torch\n", "def f(x: torch.Tensor):\n", "    ", "x", ".item()", "[", "]", "(", ")", ":", ",",
                "=", "torch.", "log", "softmax", "for ", "in ", "if ", "return ", "class M(torch.nn.Module):\n",
                "\n", "'", '"""', "lambda", "*", "**", "not ", "@", "ä", "\x00", "\ufeff", "\ud800"],
    "cuda": ["__global__ void k(", "float* x", "int n", ") {", "}", "x[", "]", "threadIdx.x", "blockIdx.x", "*", "+",
             "=", "0.5", ";", "\n", "__shared__ float s[32][32];", "__syncthreads();", "if (", "for (", "k<<<",
             ">>>(", "(", ")", "// kernel-lsp: 1\n", "// op: f(x: f32[N]) -> (y: f32[N])\n", "#if 1\n", "'", '"',
             "/*", "0x", "08", "1e999", "sizeof(", "template <", "ä", "\x00", "\ufeff", "\ud800"],
}  # fmt: skip
FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("language", CHECKS)
@given(text=st.text(max_size=400))
@FEW
def test_any_text_is_checked(language: str, text: str) -> None:
    check(language, "import torch\n" + text)


@pytest.mark.parametrize("language", CHECKS)
@given(data=st.data())
@FEW
def test_any_text_of_the_language_s_own_pieces_is_checked(language: str, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from(PIECES[language]), max_size=80))
    check(language, "import torch\n" * (language == "pytorch") + "".join(pieces))


HALF_TYPED = """
__global__ void k(float* y, int n) {
    y[] = n;
    y[] = x[blockIdx.x * blockDim.x + threadIdx.x];
    y[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
}
const int N = 1024;
void f(float* y, int n) { k<<<HOLE, 256>>>(y, n); }
"""


@pytest.mark.parametrize("grid", ["1024 >> 99999999", "1 << 99999999", "n >> 99999999999", "n >> -1", "n / 0", "n / "])
def test_a_grid_that_is_half_typed_is_checked_at_once(grid: str) -> None:
    """A shift by many bits took 20 s, and raised."""
    check("cuda", HALF_TYPED.replace("HOLE", grid))


@pytest.mark.parametrize("language", CHECKS)
def test_files_that_were_damaged_are_checked(language: str) -> None:
    damage = random.Random(7)
    texts = real_texts(language)
    for _ in range(N_MUTATIONS):
        check(language, damaged(damage.choice(texts), PIECES[language], damage))


@pytest.mark.parametrize("language", CHECKS)
def test_files_that_end_anywhere_are_checked(language: str) -> None:
    text = max(real_texts(language), key=len)
    for end in range(0, len(text), max(len(text) // 80, 1)):
        check(language, text[:end])


@pytest.mark.parametrize("opening", ["(", "[", "x = -", "f(", "lambda: ", "x if ", "not ", "a.b(", "a + ", "{1: "])
def test_python_that_nests_deeply_is_checked(opening: str) -> None:
    head = "import torch\ndef f(x: torch.Tensor) -> torch.Tensor:\n    return "
    check("pytorch", head + opening * DEPTH)
    check("pytorch", head + opening * DEPTH + "x" + ")" * DEPTH)
    check("pytorch", head + "x" + " + x" * DEPTH)
    check("pytorch", head + "x" + ".relu()" * DEPTH)
    check("pytorch", head + "torch.exp(" * 80 + "x" + ")" * 80)


@pytest.mark.parametrize("opening", ["(", "[", "{", "if (x) ", "f(", "x + ", "-", "a ? ", "for (;;) ", "*", "int x = "])
def test_cuda_that_nests_deeply_is_checked(opening: str) -> None:
    head = "__global__ void k(float* x, int n) { int i = threadIdx.x; x["
    check("cuda", head + opening * DEPTH)
    check("cuda", head + opening * DEPTH + "i" + ")" * DEPTH + "]; }")
    check("cuda", head + "i" + " + i * 2" * DEPTH + "] = 0; }")


def test_names_that_are_defined_by_each_other_end() -> None:
    check("cuda", "__global__ void k(float* x) { int a = b; int b = a; x[a * 8] = 0; const int c = c; x[c] = 1.0; }")
    check(
        "pytorch",
        "import torch\ndef f(x: torch.Tensor):\n    a = b + x\n    b = a + x\n    return a.exp() / a.exp().sum()\n",
    )


# --- below: texts, and what must hold of each


def check(language: str, text: str) -> None:
    lengths = lines_of(text)
    for finding in CHECKS[language](text):
        for place in (finding.range, *(edit.range for fix in finding.fixes for edit in fix.edits)):
            assert (place.start_line, place.start_column) <= (place.end_line, place.end_column)
            assert 0 <= place.start_line <= place.end_line < len(lengths)
            assert place.start_column <= lengths[place.start_line]
            assert place.end_column <= lengths[place.end_line]
        for fix in finding.fixes:
            apply_fix(text, fix)


def lines_of(text: str) -> list[int]:
    starts = [*line_starts(text), len(text)]
    return [end - start for start, end in pairwise(starts)]


def real_texts(language: str) -> list[str]:
    files = sorted(ROOT.glob(f"examples/**/*.{SUFFIXES[language]}"))
    texts = [path.read_text() for path in files]
    return texts + [text for rule in rules_of(language) for text in (rule.bad, rule.good)]  # type: ignore[arg-type]


def damaged(text: str, pieces: list[str], damage: random.Random) -> str:
    for _ in range(damage.randint(1, 6)):
        start = damage.randrange(len(text) + 1)
        end = min(start + damage.choice((0, 0, 1, 2, 10, 60)), len(text))
        text = text[:start] + damage.choice([*pieces, ""]) + text[end:]
    return text
