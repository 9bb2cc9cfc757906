"""Texts that may be another program for another compiler are known by the macros that they ask for."""

from __future__ import annotations

import pytest

from kernel_lsp.evaluate.other_compilers import OTHER_COMPILERS, _as_for, asked_names
from kernel_lsp.toolchain.compile import BuildRequest

NVRTC_12, NVCC_12 = OTHER_COMPILERS[0], OTHER_COMPILERS[2]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("#if __CUDACC_VER_MAJOR__ >= 13\n#endif", ("__CUDACC_VER_MAJOR__",)),
        ("#ifdef __CUDACC_RTC__\n#elif CUDA_VERSION > 12040\n#endif", ("__CUDACC_RTC__", "CUDA_VERSION")),
        ("int release() { return CUDART_VERSION / 1000; }", ("CUDART_VERSION",)),
        ("#ifdef __NV\\\nCC__\n#endif", ("__NVCC__",)),
        ("// __NVCC__\nint MY_CUDA_VERSION;", ()),
        ('const char* name = "__CUDACC_RTC__";', ()),
    ],
)
def test_a_question_for_the_compiler_is_found(text: str, names: tuple[str, ...]) -> None:
    assert asked_names(text) == names


def test_the_other_compiler_answers_for_itself_and_lines_stay() -> None:
    text = "#include <cuda_fp16.h>\n#if defined(__CUDACC_RTC__) && __CUDACC_VER_MA\\\nJOR__ == 13\nint a;\n#endif\n"
    changed = _as_for(BuildRequest(text=text, options=("-x",)), NVRTC_12, asked_names(text))
    assert changed.options[0] == "-x"
    assert {option.rpartition("_elsewhere_")[2] for option in changed.options[1:]} == {
        "__CUDACC_RTC__=1",
        "__CUDACC_VER_MAJOR__=12",
    }
    assert "defined(kernel_lsp_elsewhere___CUDACC_RTC__)" in changed.text


def test_what_a_compiler_does_not_have_stays_undefined() -> None:
    changed = _as_for(BuildRequest(text="#ifdef __CUDACC_RTC__\n#endif", options=()), NVCC_12, ("__CUDACC_RTC__",))
    assert changed.options == ()
