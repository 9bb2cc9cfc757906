"""Numbers that a kernel's own code compares data with, or its target's: a kernel that is right for all others must be
right for them.

A kernel's are read from the PTX, where a compiler has folded what the text hides behind names. Integers are taken for
the bits of numbers, too: data is compared in either form.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Graph
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import Statement, read_ptx
from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.model.progress import Plan

MAX_NUMBERS = 8
"""Of one kernel file."""
ORDINARY = frozenset((0.0, 0.5, 1.0, 2.0))
"""And their negatives: nearly every kernel has them, and normal numbers are on both sides of them."""
LEAST, LARGEST = 1e-3, 1e5
"""Magnitudes: others have families of their own, and would hide what is wrong with ordinary numbers beside them."""
LEAST_BITS = 1 << 12
"""Smaller integers are lengths, lanes and masks of bytes."""
EXPONENTS = (0x3E800000, 0x40000000, 0xC1000000)
"""Of 0.25, 2 and -8 in f32: low bits of a number are put behind each."""
N_LOW_BITS = 23
BESIDE = 1.0 + 2.0**-7
"""Beyond a limit of what is computed otherwise, and still a number of bf16."""
_FLOAT = re.compile(r"\b0[fF](?P<bits>[0-9a-fA-F]{8})\b")
_DOUBLE = re.compile(r"\b0[dD](?P<bits>[0-9a-fA-F]{16})\b")
_INTEGER = re.compile(r"(?<![\w.%])-?(?:0[xX][0-9a-fA-F]+|\d+)\b")
COMPARE = ("setp.", "set.", "min.", "max.")
EQUALITIES = ("setp.eq.", "setp.ne.")
COMPARISONS = tuple(f"aten.{name}." for name in ("eq", "ne", "lt", "le", "gt", "ge", "clamp", "clamp_min", "clamp_max"))
"""Of targets, that have the number as an argument."""


def pointed_values(built: Built, target: Graph) -> tuple[float, ...]:
    """The numbers, their negatives, and one on the far side of each; none where data is compared with nothing but zero,
    one and the like."""
    own, of_target = _numbers(read_ptx(built.ptx, "").statements), _compared(target)
    found = [n for numbers in (own, of_target) for n in [*dict.fromkeys(numbers)][:MAX_NUMBERS]]
    return tuple(dict.fromkeys(n for number in found for n in (number, -number, number * BESIDE, -number * BESIDE)))


def sizes_with_room(plan: Plan, n_values: int) -> Sizes:
    """The smallest of a plan's sizes where the largest input has a place for each, and others beside them."""

    def room(bound: BoundOperation) -> int:
        return max((tensor.n_elements for tensor in bound.tensors if tensor.role == "input"), default=0)

    by_room = sorted(((room(bound), case.sizes) for case, bound in plan), key=lambda entry: entry[0])
    return dict(next((sizes for n, sizes in by_room if n >= 2 * n_values), by_room[-1][1]))


# --- below: numbers in statements, and in a graph


def _compared(target: Graph) -> Iterator[float]:
    """What the target asks for, whatever the kernel does about it."""
    for node in target.nodes:
        numbers = node.arguments[1:] if node.op.startswith(COMPARISONS) else ()
        yield from (float(n) for n in numbers if isinstance(n, (int, float)) and _is_telling(float(n)))


def _is_telling(number: float) -> bool:
    return LEAST <= abs(number) <= LARGEST and abs(number) not in ORDINARY


def _numbers(statements: Iterable[Statement]) -> Iterator[float]:
    for statement in statements:
        if not statement.opcode.startswith(COMPARE):
            continue
        floats = [*_floats(statement.text)]
        integers = [] if ".f" in statement.opcode or not statement.opcode.startswith(EQUALITIES) else _bits(statement)
        yield from (n for n in (*floats, *integers) if _is_telling(n))


def _floats(text: str) -> Iterator[float]:
    for match in _FLOAT.finditer(text):
        yield from _finite(struct.unpack(">f", bytes.fromhex(match["bits"]))[0])
    for match in _DOUBLE.finditer(text):
        yield from _finite(struct.unpack(">d", bytes.fromhex(match["bits"]))[0])


def _bits(statement: Statement) -> Iterator[float]:
    """The numbers of f32 that have these bits, or these low bits."""
    for match in _INTEGER.finditer(statement.sources):
        bits = int(match[0], 0) & 0xFFFFFFFF
        if bits >= LEAST_BITS:
            patterns = (bits,) if bits >> N_LOW_BITS else (bits | exponent for exponent in EXPONENTS)
            for pattern in patterns:
                yield from _finite(struct.unpack(">f", pattern.to_bytes(4, "big"))[0])


def _finite(number: float) -> Iterator[float]:
    if math.isfinite(number):
        yield abs(number) if abs(number) < LARGEST else number
