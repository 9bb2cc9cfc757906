"""PTX of the function at the cursor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .client import initialized

TEXT = """#include <vector>
template <int BLOCK>
__global__ void fill(float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) out[i] = 1.0f;
}

template <typename T> __global__ void never_launched(T* out) { out[0] = T(2); }

int main() {
    fill<64><<<1, 64>>>(nullptr, 64);
}
"""
DEFINE, STORE, GAP, NEVER = 2, 4, 6, 7


async def ptx(folder: Path, line: int, text: str = TEXT, architecture: str = "sm_80") -> dict[str, Any]:
    (folder / ".kernel-lsp").mkdir()
    async with initialized(folder, trusted=True) as editor:
        about = {
            "uri": editor.open(folder / "fill.cu", text),
            "line": line,
            "form": "ptx",
            "architecture": architecture,
        }
        found: dict[str, Any] = await editor.ask("kernelLsp/machineCode", about)
        return found


async def test_a_launched_instance_is_shown_with_the_lines_that_it_comes_from(tmp_path: Path) -> None:
    found = await ptx(tmp_path, STORE)
    stored = [line for line, text in zip(found["lines"], found["text"].split("\n"), strict=True) if "st.global" in text]
    assert stored == [STORE]
    assert (found["function"], found["architecture"], found["firstLine"]) == ("fill<64>", "sm_80", DEFINE - 1)


async def test_a_template_that_nothing_launches_is_shown_for_float(tmp_path: Path) -> None:
    assert (await ptx(tmp_path, NEVER))["function"] == "never_launched<float>"


async def test_between_functions_there_is_a_problem_and_no_text(tmp_path: Path) -> None:
    found = await ptx(tmp_path, GAP)
    assert (found["text"], found["firstLine"]) == ("", -1)
    assert "no kernel" in found["problem"]


async def test_an_error_of_the_compiler_is_the_problem(tmp_path: Path) -> None:
    assert (await ptx(tmp_path, STORE, TEXT.replace("1.0f", "one")))["problem"].startswith("line 5: ")


async def test_an_unknown_architecture_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    assert "sm_90" in (await ptx(tmp_path, STORE, architecture="sm_x"))["problem"]
