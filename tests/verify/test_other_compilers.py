"""Texts that may be another program for another compiler are known by the macros that they ask for."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.nvrtc.compile import BuildRequest
from kernel_lsp.verify.build.other_compilers import OTHER_COMPILERS, _as_for, asked_names

NVRTC_12 = next(one for one in OTHER_COMPILERS if one.words == "NVRTC of CUDA 12.4")
NVCC_12 = next(one for one in OTHER_COMPILERS if one.words == "nvcc of CUDA 12.9")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("#if __CUDACC_VER_MAJOR__ >= 13\n#endif", ("__CUDACC_VER_MAJOR__",)),
        ("#ifdef __CUDACC_RTC__\n#elif CUDA_VERSION > 12040\n#endif", ("__CUDACC_RTC__", "CUDA_VERSION")),
        ("int release() { return CUDART_VERSION / 1000; }", ("CUDART_VERSION",)),
        ("#ifdef __NV\\\nCC__\n#endif", ("__NVCC__",)),
        ("#if _CCCL_CTK_AT_LEAST(12, 5)\n#endif\n_CCCL_DEVICE int a;", ("_CCCL_CTK_AT_LEAST(...)",)),
        ("#if __has_include(<cuda_fp8.h>) && __has_builtin(x)\n#endif", ("__has_builtin(...)",)),
        ("#ifdef __CUDA_FP16_H__\n#endif", ("__CUDA_FP16_H__",)),
        ("#if __CUDA_ARCH__ >= 900 && __cplusplus > 201703L || defined(TILE)\n#endif", ()),
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


def test_what_headers_conclude_is_so_for_one_compiler_and_not_for_another() -> None:
    text = "#if _CCCL_CTK_AT_LEAST(12, 5)\n#endif"
    given = {_as_for(BuildRequest(text=text, options=()), one, asked_names(text)).options for one in OTHER_COMPILERS}
    assert given == {(f"-Dkernel_lsp_elsewhere__CCCL_CTK_AT_LEAST(...)={answer}",) for answer in "01"}


def test_each_release_is_asked_once() -> None:
    def n_answers(*names: str) -> int:
        return len({tuple(one.answers(names).items()) for one in OTHER_COMPILERS})

    assert (n_answers("__CUDACC_RTC__"), n_answers("__CUDACC_VER_MAJOR__"), n_answers("CUDA_VERSION")) == (2, 4, 15)
