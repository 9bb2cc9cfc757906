"""Check that after any edit a file has the findings of the same text in a new file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda import checking
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


def texts() -> list[str]:
    files = sorted((ROOT / "examples").glob("**/*.cu"))
    bad = "".join(rule.bad for rule in rules_of("cuda") if "// op:" not in rule.bad)
    return [KERNEL, DEEP_KERNEL, bad, bad.replace("\n", "\r\n"), KERNEL + bad, *(path.read_text() for path in files)]


def edited(text: str, chance: random.Random) -> str:
    start = chance.randrange(len(text) + 1)
    end = min(start + chance.choice((0, 0, 0, 1, 2, 9, 60)), len(text))
    return text[:start] + chance.choice(PIECES) + text[end:]


@pytest.mark.parametrize("text", texts(), ids=lambda text: f"{len(text)} characters")
def test_after_any_edits_a_file_has_the_findings_of_one_that_is_new(text: str) -> None:
    chance = random.Random(len(text))
    tree = cuda.parse(text)
    for number in range(N_EDITS):
        if number % 9 == 0:
            changed = text
        changed = edited(changed, chance)
        tree = cuda.parse(changed, tree)
        found = cuda.check(changed, tree=tree)
        checking._kept.clear()
        assert found == cuda.check(changed, tree=tree), repr(changed)


def test_an_edit_of_one_function_leaves_the_findings_of_another() -> None:
    checking._kept.clear()
    text = KERNEL + KERNEL.replace(" k(", " other(")
    cuda.check(text)
    n_kept = len(checking._kept)
    cuda.check(text.replace("0.5", "0.25", 1))
    assert len(checking._kept) == n_kept + 1


def test_a_finding_in_a_called_function_keeps_its_place_when_its_layout_changes() -> None:
    text = (
        "__device__ float total(float v) {\n    __shared__ float s[256]; // here\n    s[threadIdx.x] = v;\n"
        "    return s[255 - threadIdx.x];\n}\n"
        "__global__ void k(const float* __restrict__ x, float* __restrict__ y) {\n"
        "    y[threadIdx.x] = total(x[threadIdx.x]);\n}\n"
    )
    edited = (text, text.replace("    return", "      return"), text.replace("// here", "// here\n"))
    places = [[(f.code, f.range.start_line, f.range.start_column) for f in cuda.check(each)] for each in edited]
    assert places == [[("KL207", 3, 11)], [("KL207", 3, 13)], [("KL207", 4, 11)]]


@pytest.mark.parametrize(
    ("before", "after", "n_new"),
    [
        ("// here", "// there", 1),
        ("  return", "    return", 1),
        ('"at most"', '"at  most"', 2),
        ("N * 2", "N * 4", 2),
    ],
)
def test_callers_depend_on_a_function_s_text_without_its_layout(before: str, after: str, n_new: int) -> None:
    checking._kept.clear()
    text = (
        "template <int N> __device__ float twice(float v) {  // here\n"
        '    static_assert(N * 2 < 64, "at most");\n  return v * 2.0f;\n}\n'
        "__global__ void k(const float* __restrict__ x, float* __restrict__ y) {\n"
        "    y[threadIdx.x] = twice<8>(x[threadIdx.x]);\n}\n"
    )
    cuda.check(text)
    n_kept = len(checking._kept)
    cuda.check(text.replace(before, after))
    assert len(checking._kept) == n_kept + n_new


@pytest.mark.parametrize(("before", "after"), [("x.dtype()", "x.device()"), ("x.device()", "x.dtype()")])
def test_callers_depend_on_what_a_function_checks(before: str, after: str) -> None:
    text = (
        "const float* rows(const at::Tensor& x) {\n    TORCH_CHECK(ASKED == expected);\n"
        "    return static_cast<const float*>(x.data_ptr());\n}\n"
        "void run(const at::Tensor& x) {\n    TORCH_CHECK(x.is_cuda() && x.is_contiguous());\n"
        "    scale<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(rows(x));\n    C10_CUDA_KERNEL_LAUNCH_CHECK();\n}\n"
    )
    checking._kept.clear()
    tree = cuda.parse(text.replace("ASKED", before))
    cuda.check(tree.text, tree=tree)
    found = {each.code for each in cuda.check(text.replace("ASKED", after))}
    assert ("KL264" in found) is ("dtype" not in after)
