"""Texts that may be another program on another GPU are known by what they ask."""

from __future__ import annotations

import pytest

from kernel_lsp.verify.devices.building import OTHER_ARCHITECTURES, may_differ, other_architectures


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


@pytest.mark.parametrize(
    ("text", "own", "others"),
    [
        ("#if __CUDA_ARCH__ >= 800\n#endif", "sm_90", []),
        ("#if __CUDA_ARCH__ >= 890\n#else\n#endif", "sm_90", ["sm_80"]),
        ("#if __CUDA_ARCH__ == 900\n#endif\n#if __CUDA_ARCH__ < 890\n#endif", "sm_90a", ["sm_80", "sm_89"]),
    ],
)
def test_architectures_with_the_same_answers_are_one_program(text: str, own: str, others: list[str]) -> None:
    assert other_architectures(text, own) == others


@pytest.mark.parametrize(
    "text",
    [
        "#if __CUDA_ARCH__ >= 800 && 1\n#endif",
        "#if __CUDA_ARCH__ >= 800\n#elif __CUDA_ARCH__ >= 700\n#endif",
        "#if __CUDA_ARCH__ >= 800\nint a = __CUDA_ARCH__;\n#endif",
        "#if __CUDA_ARCH__ >= 800\n#endif\n#ifdef WHO_KNOWS\n#endif",
        "#define N 800\n#if __CUDA_ARCH__ >= N\n#endif",
        "#if __CUDA_ARCH__ >= 0x320\n#endif",
    ],
)
def test_any_other_question_is_put_to_all_architectures(text: str) -> None:
    assert other_architectures(text, "sm_90") == [name for name in OTHER_ARCHITECTURES if name != "sm_90"]
