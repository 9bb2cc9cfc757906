"""Mine the constants that a kernel's code, or its target, compares data with.

They are read from the PTX, where the compiler has folded the names of the text. Integers also count as bit patterns of
floats: data is compared in either form.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator

from kernel_lsp.core.operators import is_a
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Graph
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import Statement, read_ptx
from kernel_lsp.verify.model.cases import Plan, Sizes

MAX_NUMBERS = 8
"""Maximum constants of one kernel file."""
ORDINARY = frozenset((0.0, 0.5, 1.0, 2.0))
"""Excluded, with their negatives: `normal` inputs already cover both sides."""
LEAST, LARGEST = 1e-3, 1e5
"""Range of magnitudes. Others have families of their own, and would hide errors in ordinary numbers of the same
input."""
LEAST_BITS = 1 << 12
"""Smallest integer that counts as a bit pattern: smaller ones are lengths, lanes and byte masks."""
EXPONENTS = (0x3E800000, 0x40000000, 0xC1000000)
"""Exponent bits of 0.25, 2 and -8 in f32, which are combined with the low bits of an integer."""
N_LOW_BITS = 23
BESIDE = 1.0 + 2.0**-7
"""Factor to a value just beyond a threshold; a bf16 number."""
_FLOAT = re.compile(r"\b0[fF](?P<bits>[0-9a-fA-F]{8})\b")
_DOUBLE = re.compile(r"\b0[dD](?P<bits>[0-9a-fA-F]{16})\b")
_INTEGER = re.compile(r"(?<![\w.%])-?(?:0[xX][0-9a-fA-F]+|\d+)\b")
COMPARE = ("setp.", "set.", "min.", "max.")
EQUALITIES = ("setp.eq.", "setp.ne.")


def compared_constants(built: Built, target: Graph) -> tuple[float, ...]:
    """Return the constants, their negatives, and a value on the far side of each. Empty where data is compared only
    with zero, one and the like."""
    own, of_target = _numbers(read_ptx(built.ptx).statements), _compared(target)
    found = [n for numbers in (own, of_target) for n in [*dict.fromkeys(numbers)][:MAX_NUMBERS]]
    return tuple(dict.fromkeys(n for number in found for n in (number, -number, number * BESIDE, -number * BESIDE)))


def sizes_with_room(plan: Plan, n_values: int) -> Sizes:
    """Return the smallest of a plan's sizes whose largest input has room for each value, and for others."""

    def room(bound: BoundOperation) -> int:
        return max((tensor.n_elements for tensor in bound.inputs), default=0)

    by_room = sorted(((room(bound), case.sizes) for case, bound in plan), key=lambda entry: entry[0])
    return dict(next((sizes for n, sizes in by_room if n >= 2 * n_values), by_room[-1][1]))


def _compared(target: Graph) -> Iterator[float]:
    """Yield the constants in the target's comparisons, independent of the kernel."""
    for node in target.nodes:
        numbers = node.arguments[1:] if is_a(node.op, "compares") else ()
        yield from (float(n) for n in numbers if isinstance(n, (int, float)) and _is_kept(float(n)))


def _is_kept(number: float) -> bool:
    return LEAST <= abs(number) <= LARGEST and abs(number) not in ORDINARY


def _numbers(statements: Iterable[Statement]) -> Iterator[float]:
    for statement in statements:
        if not statement.opcode.startswith(COMPARE):
            continue
        floats = [*_floats(statement.text)]
        integers = [] if ".f" in statement.opcode or not statement.opcode.startswith(EQUALITIES) else _bits(statement)
        yield from (n for n in (*floats, *integers) if _is_kept(n))


def _floats(text: str) -> Iterator[float]:
    for match in _FLOAT.finditer(text):
        yield from _finite(struct.unpack(">f", bytes.fromhex(match["bits"]))[0])
    for match in _DOUBLE.finditer(text):
        yield from _finite(struct.unpack(">d", bytes.fromhex(match["bits"]))[0])


def _bits(statement: Statement) -> Iterator[float]:
    """Yield the f32 numbers that have these bits, or these low bits."""
    for match in _INTEGER.finditer(statement.sources):
        bits = int(match[0], 0) & 0xFFFFFFFF
        if bits >= LEAST_BITS:
            patterns = (bits,) if bits >> N_LOW_BITS else (bits | exponent for exponent in EXPONENTS)
            for pattern in patterns:
                yield from _finite(struct.unpack(">f", pattern.to_bytes(4, "big"))[0])


def _finite(number: float) -> Iterator[float]:
    if math.isfinite(number):
        yield abs(number) if abs(number) < LARGEST else number
