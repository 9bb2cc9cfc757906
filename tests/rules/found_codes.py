"""The codes of all findings in a text."""

from __future__ import annotations

from kernel_lsp.rules import cuda, pytorch


def cuda_codes(text: str) -> set[str]:
    return {finding.code for finding in cuda.check(text)}


def pytorch_codes(text: str) -> set[str]:
    return {finding.code for finding in pytorch.check(text)}
