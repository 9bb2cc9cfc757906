"""The codes of the findings in a text: which ones, and in the order of the text."""

from __future__ import annotations

from kernel_lsp.rules import cuda, pytorch


def cuda_codes(text: str) -> set[str]:
    return {finding.code for finding in cuda.check(text)}


def pytorch_codes(text: str) -> set[str]:
    return {finding.code for finding in pytorch.check(text)}


def ordered_cuda_codes(text: str) -> list[str]:
    return [finding.code for finding in cuda.check(text)]
