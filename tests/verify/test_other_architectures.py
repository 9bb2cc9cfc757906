"""Texts that may be another program on another GPU are known by what they ask."""

from __future__ import annotations

import pytest

from kernel_lsp.verify.build.building import may_differ


@pytest.mark.parametrize(
    "text",
    [
        "#if __CUDA_ARCH__ >= 900\n#endif",
        "#ifdef WHO_KNOWS\n#endif",
        "if (__CUDA_ARCH__ > 900) return;",
        "NV_IF_TARGET(NV_PROVIDES_SM_90, (return;))",
        "#define ASK(a, b) a##b\nint architecture = ASK(__CUDA_A, RCH__);",
    ],
)
def test_a_question_for_the_architecture_is_one_however_it_is_asked(text: str) -> None:
    assert may_differ(text)


@pytest.mark.parametrize(
    "text",
    [
        "__global__ void k(float* out) { out[0] = 1.0f; }",
        "#define WIDTH 4\n#if WIDTH > 2\n#endif",
        "// __CUDA_ARCH__ is no concern of this kernel\n",
    ],
)
def test_a_text_that_asks_for_nothing_is_one_program(text: str) -> None:
    assert not may_differ(text)
