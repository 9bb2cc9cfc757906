"""Launch-uniform predicates: comparisons of a kernel that depend on its arguments alone.

    conditions = GridConditions(statements, symbol)   # the statements of a PTX text
    conditions.outcomes(launch)                       # evaluate each for a launch, without running it
    conditions.numbers                                # their integer constants, which sizes may be compared with

`if (D == 1536)`, `D % 768 == 0`, `gridDim.x > 40` and `min(D, 512)` are such predicates in any spelling: the compiler
has folded and inlined the names of the text.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.core.plan import BoundLaunch, ScalarArgument, TensorArgument
from kernel_lsp.toolchain.integrity.ptx_text import Statement

MAX_STATEMENTS = 2_000
"""Maximum launch-uniform statements of one kernel: more are an unrolled table, not a decision."""
_TYPE = re.compile(r"\.(?P<kind>[subf])(?P<bits>8|16|32|64)\b")
PARAMETER = re.compile(r"\[\s*(?P<name>[\w$]+)_param_(?P<position>\d+)\s*\]")
_NUMBER = re.compile(r"^-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_DIMS = ("%ntid.x", "%ntid.y", "%ntid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z")
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    **dict.fromkeys(("lt", "lo"), operator.lt),
    **dict.fromkeys(("le", "ls"), operator.le),
    **dict.fromkeys(("gt", "hi"), operator.gt),
    **dict.fromkeys(("ge", "hs"), operator.ge),
}
"""PTX's comparison operators; the second of each pair is for unsigned numbers."""
EXTREMES = ("min", "max")
EQUALITIES = ("eq", "ne")
N_OPCODES, N_OPERANDS = 1 << 10, 1 << 14
"""Entries of the caches: the same few operands are read for every size that is tried."""
FLOATING = ("float", "double")
UNROLLED = 16
"""Threshold for interesting constants: unrolled loops compare with smaller ones."""

Outcome = tuple[tuple[str, tuple[bool, ...]], ...]
"""Outcomes of the comparisons, by compared value."""


class _Unknown(Exception):
    """The value does not follow from the arguments of the launch."""


@dataclass(frozen=True)
class _Step:
    """`result = opcode operands`; an integer operand is an immediate, any other a register."""

    opcode: str
    result: str
    operands: tuple[str, ...]


class GridConditions:
    """The launch-uniform predicates of one kernel, read from its PTX."""

    def __init__(self, body: Sequence[Statement]) -> None:
        self._steps, self._conditions = _followed(body)
        self._picks = list(_picks(body))
        self._makers = {step.result: step for step in self._steps}
        self.numbers = frozenset(self._numbers_behind(self._conditions))
        self.chosen = frozenset(self._chosen())
        """Compared values that contain a constant above `UNROLLED`, or no constant."""

    def outcomes(self, launch: BoundLaunch) -> Outcome:
        """Return the outcome of each condition, by compared value: two thresholds for one value give one outcome for
        each interval. Conditions on a tensor's address are left out."""
        values = self._values(launch)
        sides: dict[str, list[bool]] = {}
        for condition in self._conditions:
            try:
                sides.setdefault(condition.operands[0], []).append(_side(condition, values))
            except _Unknown:
                continue
        return tuple((value, tuple(found)) for value, found in sorted(sides.items()))

    def distances(self, launch: BoundLaunch) -> dict[int, int]:
        """Return the difference between the sides of each chosen equality, by its index among the conditions."""
        values = self._values(launch)
        found: dict[int, int] = {}
        for place, condition in enumerate(self._conditions):
            if condition.opcode.split(".")[1] in EQUALITIES and condition.operands[0] in self.chosen:
                with suppress(_Unknown):
                    left, right = (_read(operand, values, condition.opcode) for operand in condition.operands[:2])
                    found[place] = left - right
        return found

    def sides(self, launch: BoundLaunch) -> dict[int, bool]:
        """Return on which side of its threshold each chosen comparison lies, by its index among the conditions."""
        values = self._values(launch)
        found: dict[int, bool] = {}
        for place, condition in enumerate(self._conditions):
            name, comparison = condition.opcode.split(".")[:2]
            if name == "setp" and comparison not in EQUALITIES and condition.operands[0] in self.chosen:
                with suppress(_Unknown):
                    found[place] = _side(condition, values)
        return found

    def singles_out_a_block(self, launch: BoundLaunch) -> bool:
        """Check whether the kernel compares the block index with that of an inner block, which may take a path of its
        own."""
        values = self._values(launch)
        picked = [(launch.grid["xyz".index(axis)], values[one]) for axis, one in self._picks if one in values]
        picked += [(launch.grid["xyz".index(axis)], _number(one)) for axis, one in self._picks if _is_number(one)]
        return any(0 < block < n_blocks - 1 for n_blocks, block in picked)

    def _values(self, launch: BoundLaunch) -> dict[str, int]:
        """Return the value of each register that follows from the arguments, as unsigned bits."""
        passed = _passed(launch)
        values = dict(zip(_DIMS, (*launch.block, *launch.grid), strict=True))
        for step in self._steps:
            try:
                values[step.result] = _value(step, values, passed)
            except (_Unknown, ArithmeticError, ValueError):
                continue
        return values

    def _chosen(self) -> Iterable[str]:
        for condition in self._conditions:
            numbers = [*self._numbers_behind([condition])]
            is_equality = condition.opcode.split(".")[1] in EQUALITIES
            if any(number > UNROLLED for number in numbers) or (is_equality and not numbers):
                yield condition.operands[0]

    def _numbers_behind(self, conditions: Iterable[_Step]) -> Iterable[int]:
        """Yield the constants of the conditions and of all that they depend on."""
        pending, seen = list(conditions), set[str]()
        while pending:
            step = pending.pop()
            for operand in step.operands:
                if _is_number(operand):
                    yield abs(_number(operand))
                elif operand in self._makers and operand not in seen:
                    seen.add(operand)
                    pending.append(self._makers[operand])


def _followed(statements: Sequence[Statement]) -> tuple[list[_Step], list[_Step]]:
    """Return the steps that follow from arguments, in order of their dependencies, and the conditions
    among them. Leaves out registers that are set twice or under a guard."""
    n_set = Counter(register for statement in statements for register in _set_by(statement))
    known, steps, conditions = {*_DIMS}, list[_Step](), list[_Step]()
    for statement in statements:
        step = _step_of(statement)
        if step is None or not _follows(step, known) or len(steps) >= MAX_STATEMENTS:
            continue
        if step.opcode.startswith("setp."):
            conditions.append(step)
        elif not statement.guard and n_set[step.result] == 1:
            steps.append(step)
            known.add(step.result)
            conditions += [step] if step.opcode.split(".")[0] in EXTREMES else []
    return steps, [condition for condition in conditions if not all(map(_is_fixed, condition.operands))]


def _picks(statements: Sequence[Statement]) -> Iterable[tuple[str, str]]:
    """Yield the axis of a block index and the value that it is compared with for equality."""
    axes = {f"%ctaid.{axis}": axis for axis in "xyz"}
    for statement in statements:
        step = _step_of(statement)
        if step is not None and step.opcode.startswith("mov.") and step.operands[0] in axes:
            axes[step.result] = axes[step.operands[0]]
        if step is not None and step.opcode.startswith(("setp.eq.", "setp.ne.")):
            for one, other in (step.operands[:2], step.operands[1::-1]):
                if one in axes:
                    yield axes[one], other


def _set_by(statement: Statement) -> Iterator[str]:
    """Yield the first operands, which may be destination registers. Faster than a full parse."""
    _, _, operands = statement.text.partition(" ")
    first = operands.lstrip().partition("}" if operands.lstrip().startswith("{") else ",")[0]
    yield from (first.strip("{} ").replace(",", " ").split())


def _step_of(statement: Statement) -> _Step | None:
    """Return the step of a statement. None where its result is no single integer, or the opcode is not interpreted."""
    opcode = statement.opcode
    if opcode.partition(".")[0] not in _READ or ".f" in opcode:
        return None
    operands = [operand.strip() for operand in statement.text[len(opcode) :].split(",")]
    return _Step(opcode, operands[0], tuple(operands[1:])) if len(operands) > 1 else None


def _follows(step: _Step, known: set[str]) -> bool:
    if step.opcode.startswith("ld."):
        return step.opcode.startswith("ld.param.") and PARAMETER.search(step.operands[0]) is not None
    return all(operand in known or _is_number(operand) for operand in step.operands)


def _is_fixed(operand: str) -> bool:
    """Check whether the operand is the same in every launch. Block sizes count, since plans mostly write them as
    numbers."""
    return _is_number(operand) or operand.startswith("%ntid")


@lru_cache(maxsize=N_OPERANDS)
def _is_number(operand: str) -> bool:
    return _NUMBER.match(operand) is not None


@lru_cache(maxsize=N_OPERANDS)
def _number(operand: str) -> int:
    return int(operand.rstrip("U"), 0)


def _value(step: _Step, values: Mapping[str, int], passed: Sequence[int | None]) -> int:
    """Return the bits of the result. Raises _Unknown, or Python's arithmetic errors."""
    n_bits = _bits_of(step.opcode)
    if step.opcode.startswith("ld.param."):
        return _argument(step.operands[0], passed) & _mask(n_bits)
    name = step.opcode.split(".")[0]
    read = [_read(operand, values, step.opcode) for operand in step.operands]
    if name == "mul" and ".hi" in step.opcode:
        return (read[0] * read[1] >> n_bits) & _mask(n_bits)
    wide = 2 * n_bits if ".wide" in step.opcode else n_bits
    if name == "cvt":
        wide = int(_TYPE.findall(step.opcode)[0][1])
    return _OPERATIONS[name](*read) & _mask(wide)


def _side(condition: _Step, values: Mapping[str, int]) -> bool:
    """Return the outcome of a comparison; for min and max, whether the first operand is the smaller one."""
    left, right = (_read(operand, values, condition.opcode) for operand in condition.operands[:2])
    parts = condition.opcode.split(".")
    if parts[0] in EXTREMES:
        return left < right
    if parts[1] not in COMPARISONS or len(parts) != len(("setp", "eq", "s32")):
        raise _Unknown
    return COMPARISONS[parts[1]](left, right)


def _read(operand: str, values: Mapping[str, int], opcode: str) -> int:
    """Return the operand as the opcode's last type, which may be signed."""
    if not _is_number(operand) and operand not in values:
        raise _Unknown
    n_bits = _bits_of(opcode)
    bits = (_number(operand) if _is_number(operand) else values[operand]) & _mask(n_bits)
    is_signed = _is_signed(opcode)
    return bits - (1 << n_bits) if is_signed and bits >> (n_bits - 1) else bits


def _passed(launch: BoundLaunch) -> list[int | None]:
    """Return the integer value of each argument; None where it is not an integer or not known."""
    return [None if isinstance(argument, TensorArgument) else _whole(argument) for argument in launch.arguments]


def _whole(argument: ScalarArgument) -> int | None:
    is_whole = argument.cuda_type not in FLOATING and math.isfinite(argument.value)
    return int(argument.value) if is_whole else None


def _argument(operand: str, passed: Sequence[int | None]) -> int:
    """Return the integer passed as this parameter. Raises _Unknown for anything else."""
    match = PARAMETER.search(operand)
    position = int(match["position"]) if match else len(passed)
    number = passed[position] if position < len(passed) else None
    if number is None:
        raise _Unknown
    return number


@lru_cache(maxsize=N_OPCODES)
def _bits_of(opcode: str) -> int:
    """Return the width of the opcode's last type, that of its operands. Raises _Unknown for none."""
    types = _TYPE.findall(opcode)
    if not types:
        raise _Unknown
    return int(types[-1][1])


@lru_cache(maxsize=N_OPCODES)
def _is_signed(opcode: str) -> bool:
    """Check whether the opcode's last type is signed."""
    return bool(_TYPE.findall(opcode)[-1][0] == "s")


def _mask(n_bits: int) -> int:
    return (1 << n_bits) - 1


def _quotient(left: int, right: int) -> int:
    """Divide with truncation towards zero, as in C."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "cvta": lambda a: a,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mad": lambda a, b, c: a * b + c,
    "div": _quotient,
    "rem": lambda a, b: a - b * _quotient(a, b),
    "min": min,
    "max": max,
    "neg": operator.neg,
    "abs": abs,
    "not": operator.invert,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": lambda a, b: a << min(b, 64),
    "shr": lambda a, b: a >> min(b, 64),
    "popc": lambda a: a.bit_count(),
}
_READ = frozenset((*_OPERATIONS, "setp", "ld"))
