"""Find the `__device__` variables of a file that keep their values from launch to launch."""

from __future__ import annotations

import re
from collections.abc import Iterator

_DECLARED = re.compile(
    r"^[ \t]*(?:static\s+)?__device__\s+(?!.*\b(?:const|constexpr|__constant__|__managed__|__shared__)\b)"
    r"(?:unsigned\s+|long\s+|volatile\s+)*[A-Za-z_][\w:]*\s+(\w+)\s*(?:\[[^\];]*\]\s*)*(?:=[^;(]*)?;",
    re.MULTILINE,
)
_MAIN = re.compile(r"\bint\s+main\s*\(")


def unreset_totals(text: str) -> Iterator[str]:
    """Yield the variables that atomic operations change, that nothing sets, and whose address goes nowhere else. A
    program whose `main` launches each kernel once needs no reset."""
    declared = [match[1] for match in _DECLARED.finditer(text)]
    if not declared or (_MAIN.search(text) and text.count("<<<") < 2):
        return
    for name in dict.fromkeys(declared):
        element = rf"\b{name}\s*(?:\[[^\]]*\]\s*)*"
        body = _DECLARED.sub("", text)
        is_set = re.search(rf"{element}=[^=]|\b(?:atomicExch|atomicInc|atomicCAS)\s*\(\s*&?\s*{name}\b", body)
        is_passed = re.search(rf"(?:cudaMemcpyToSymbol|cudaGetSymbolAddress)\w*\s*\([^;]*\b{name}\b", body)
        escapes = re.search(rf"(?<!&)&\s*{name}\b", re.sub(rf"\batomic\w+\s*\(\s*&\s*{name}\b", "", body))
        if not is_set and not is_passed and not escapes:
            yield name
