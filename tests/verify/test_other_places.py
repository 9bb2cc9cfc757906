"""A text that asks for its file or its line may be another program elsewhere: such places are tried."""

from __future__ import annotations

import pytest

from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.build.source_location_variants import (
    OTHER_FILES,
    asks_where_it_stands,
    moved_text,
    programs_of_other_places,
)


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [
        ("int a = __LINE__;", True),
        ("const char* a = __FI\\\nLE__;", True),
        ("#if __INCLUDE_LEVEL__ > 0\n#endif", True),
        ("int a = __builtin_LINE();", True),
        ('// __LINE__\nconst char* a = "__FILE__";', False),
        ("const char* a = __func__;", False),
        ("#include <cassert>\n__global__ void k(int n) { assert(n); }", False),
    ],
)
def test_a_question_for_the_place_is_found(text: str, is_asked: bool) -> None:
    assert asks_where_it_stands(text) == is_asked


def test_the_text_stands_behind_other_lines_and_in_a_file_that_another_one_includes() -> None:
    moved = moved_text(BuildRequest(text="int a = __INCLUDE_LEVEL__;"), "a.cu", 2)
    assert (moved.text, moved.file_name) == ("\n\nint a = 1;", "a.cu")


def test_names_of_all_usual_lengths_are_tried() -> None:
    assert {len(name) for name in OTHER_FILES} >= set(range(4, 24)) - {len("kernel.cu")}


async def places(text: str) -> list[str]:
    request = BuildRequest(text=text, name_expressions=("k",))
    async with Compiler(find_toolchain()) as compiler:
        built = await compiler.compile(request)
        assert isinstance(built, Built)
        return [where async for where, _ in programs_of_other_places(compiler, request, built)]


@pytest.mark.parametrize(("value", "n_programs"), [("sizeof(__FILE__) == 8", 1), ("__LINE__ == 2", 1), ("__LINE__", 6)])
async def test_a_program_of_another_place_is_found(value: str, n_programs: int) -> None:
    assert len(await places(f"__global__ void k(float* x) {{ x[0] = {value}; }}\n")) == n_programs


async def test_a_name_that_is_made_of_a_line_makes_no_other_program() -> None:
    joined = "#define JOIN_(a, b) a##b\n#define JOIN(a, b) JOIN_(a, b)\n"
    assert await places(joined + "__global__ void k(float* x) { float JOIN(y, __LINE__) = 2; x[0] = 1; }\n") == []
