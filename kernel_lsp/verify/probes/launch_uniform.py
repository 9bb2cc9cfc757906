"""Launch-uniform predicates: comparisons of a kernel that depend on its arguments alone.

    conditions = GridConditions(function)   # of a PTX text
    conditions.outcomes(launch)             # evaluate each for a launch, without running it
    conditions.numbers                      # their integer constants, which sizes may be compared with

`if (D == 1536)`, `D % 768 == 0`, `gridDim.x > 40` and `min(D, 512)` are such predicates in any spelling: the compiler
has folded and inlined the names of the text.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.core.plan import BoundLaunch, ScalarArgument, TensorArgument
from kernel_lsp.toolchain.integrity.ptx_text import Function, Statement

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
FLOATING = ("float", "double")
UNROLLED = 16
"""Threshold for interesting constants: unrolled loops compare with smaller ones."""

Outcome = tuple[tuple[str, tuple[bool, ...]], ...]
"""Outcomes of the comparisons, by compared value."""


UNKNOWN = (LookupError, ArithmeticError, ValueError)
"""Raised where a value does not follow from the arguments of the launch."""


@dataclass(frozen=True)
class _Step:
    """`result = opcode operands`; an integer operand is an immediate, any other a register."""

    opcode: str
    result: str
    operands: tuple[str | int, ...]

    @cached_property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def compared(self) -> str:
        """Return the value that a comparison compares."""
        return str(self.operands[0])

    @property
    def comparison(self) -> str:
        """Return the operator of a comparison."""
        return self.opcode.split(".")[1]

    @cached_property
    def type(self) -> tuple[str, int]:
        """Return kind and width of the last type, that of the operands. Raises IndexError for none."""
        kind, n_bits = _TYPE.findall(self.opcode)[-1]
        return kind, int(n_bits)

    def read(self, values: Mapping[str, int]) -> list[int]:
        """Return the operands, which may be signed. Raises KeyError for one that is unknown."""
        kind, n_bits = self.type
        bits = [(one if isinstance(one, int) else values[one]) & _mask(n_bits) for one in self.operands]
        return [one - (1 << n_bits) if kind == "s" and one >> (n_bits - 1) else one for one in bits]


class GridConditions:
    """The launch-uniform predicates of one kernel, read from its PTX."""

    def __init__(self, function: Function) -> None:
        self._steps, self._conditions = _followed(function)
        self._picks = list(_picks(function.body))
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
            with suppress(*UNKNOWN):
                sides.setdefault(condition.compared, []).append(_side(condition, values))
        return tuple((value, tuple(found)) for value, found in sorted(sides.items()))

    def distances(self, launch: BoundLaunch) -> dict[int, int]:
        """Return the difference between the sides of each chosen equality, by its index among the conditions."""
        values = self._values(launch)
        found: dict[int, int] = {}
        for place, condition in enumerate(self._conditions):
            if condition.comparison in EQUALITIES and condition.compared in self.chosen:
                with suppress(*UNKNOWN):
                    left, right, *_ = condition.read(values)
                    found[place] = left - right
        return found

    def sides(self, launch: BoundLaunch) -> dict[int, bool]:
        """Return on which side of its threshold each chosen comparison lies, by its index among the conditions."""
        values = self._values(launch)
        found: dict[int, bool] = {}
        for place, condition in enumerate(self._conditions):
            is_threshold = condition.name == "setp" and condition.comparison not in EQUALITIES
            if is_threshold and condition.compared in self.chosen:
                with suppress(*UNKNOWN):
                    found[place] = _side(condition, values)
        return found

    def singles_out_a_block(self, launch: BoundLaunch) -> bool:
        """Check whether the kernel compares the block index with that of an inner block, which may take a path of its
        own."""
        values = self._values(launch)
        picked = [(launch.grid["xyz".index(axis)], values.get(str(one), one)) for axis, one in self._picks]
        return any(isinstance(block, int) and 0 < block < n_blocks - 1 for n_blocks, block in picked)

    def _values(self, launch: BoundLaunch) -> dict[str, int]:
        """Return the value of each register that follows from the arguments, as unsigned bits."""
        passed = [None if isinstance(argument, TensorArgument) else _whole(argument) for argument in launch.arguments]
        values = dict(zip(_DIMS, (*launch.block, *launch.grid), strict=True))
        for step in self._steps:
            with suppress(*UNKNOWN):
                values[step.result] = _value(step, values, passed)
        return values

    def _chosen(self) -> Iterable[str]:
        for condition in self._conditions:
            numbers = [*self._numbers_behind([condition])]
            is_equality = condition.comparison in EQUALITIES
            if any(number > UNROLLED for number in numbers) or (is_equality and not numbers):
                yield condition.compared

    def _numbers_behind(self, conditions: Iterable[_Step]) -> Iterable[int]:
        """Yield the constants of the conditions and of all that they depend on."""
        pending, seen = list(conditions), set[str]()
        while pending:
            for operand in pending.pop().operands:
                if isinstance(operand, int):
                    yield abs(operand)
                elif operand in self._makers and operand not in seen:
                    seen.add(operand)
                    pending.append(self._makers[operand])


def _followed(function: Function) -> tuple[list[_Step], list[_Step]]:
    """Return the steps that follow from arguments, in order of their dependencies, and the conditions
    among them. Leaves out registers that are set twice or under a guard."""
    known, steps, conditions = {*_DIMS}, list[_Step](), list[_Step]()
    for statement in function.body:
        step = _step_of(statement)
        if step is None or not _follows(step, known) or len(steps) >= MAX_STATEMENTS:
            continue
        if step.name == "setp":
            conditions.append(step)
        elif not statement.guard and len(function.definitions.get(step.result, ())) == 1:
            steps.append(step)
            known.add(step.result)
            conditions += [step] if step.name in EXTREMES else []
    return steps, [condition for condition in conditions if not all(map(_is_fixed, condition.operands))]


def _picks(statements: Sequence[Statement]) -> Iterable[tuple[str, str | int]]:
    """Yield the axis of a block index and the value that it is compared with for equality."""
    axes: dict[str | int, str] = {f"%ctaid.{axis}": axis for axis in "xyz"}
    for statement in statements:
        if not statement.opcode.startswith(("mov.", "setp.eq.", "setp.ne.")):
            continue
        step = _step_of(statement)
        if step is not None and step.name == "mov" and step.operands[0] in axes:
            axes[step.result] = axes[step.operands[0]]
        elif step is not None and step.name == "setp":
            for one, other in (step.operands[:2], step.operands[1::-1]):
                if one in axes:
                    yield axes[one], other


def _step_of(statement: Statement) -> _Step | None:
    """Return the step of a statement. None where its result is no single integer, or the opcode is not interpreted."""
    opcode = statement.opcode
    if opcode.partition(".")[0] not in _READ or ".f" in opcode:
        return None
    result, *operands = (operand.strip() for operand in statement.text[len(opcode) :].split(","))
    return _Step(opcode, result, tuple(map(_operand, operands))) if operands else None


def _operand(text: str) -> str | int:
    """Return a number of PTX, where a leading zero means octal, or the text of any other operand."""
    digits = text.rstrip("U")
    try:
        return int(digits, 8 if _OCTAL.match(digits) else 0) if _NUMBER.match(text) else text
    except ValueError:
        return text


_OCTAL = re.compile(r"-?0\d")


def _follows(step: _Step, known: set[str]) -> bool:
    if step.name == "ld":
        return step.opcode.startswith("ld.param.") and PARAMETER.search(str(step.operands[0])) is not None
    return all(isinstance(operand, int) or operand in known for operand in step.operands)


def _is_fixed(operand: str | int) -> bool:
    """Check whether the operand is the same in every launch. Block sizes count, since plans mostly write them as
    numbers."""
    return isinstance(operand, int) or operand.startswith("%ntid")


def _value(step: _Step, values: Mapping[str, int], passed: Sequence[int | None]) -> int:
    """Return the bits of the result. Raises `UNKNOWN`."""
    n_bits = step.type[1]
    if step.name == "ld":
        return _argument(str(step.operands[0]), passed) & _mask(n_bits)
    read = step.read(values)
    if step.name == "mul" and ".hi" in step.opcode:
        return (read[0] * read[1] >> n_bits) & _mask(n_bits)
    wide = 2 * n_bits if ".wide" in step.opcode else n_bits
    if step.name == "cvt":
        wide = int(_TYPE.findall(step.opcode)[0][1])
    return _OPERATIONS[step.name](*read) & _mask(wide)


def _side(condition: _Step, values: Mapping[str, int]) -> bool:
    """Return the outcome of a comparison; for min and max, whether the first operand is the smaller one. Raises
    `UNKNOWN`."""
    left, right, *_ = condition.read(values)
    if condition.name in EXTREMES:
        return left < right
    if condition.opcode.count(".") != "setp.eq.s32".count("."):
        raise KeyError(condition.opcode)
    return COMPARISONS[condition.comparison](left, right)


def _whole(argument: ScalarArgument) -> int | None:
    """Return the integer value of an argument; None where it is no integer."""
    is_whole = argument.cuda_type not in FLOATING and math.isfinite(argument.value)
    return int(argument.value) if is_whole else None


def _argument(operand: str, passed: Sequence[int | None]) -> int:
    """Return the integer passed as this parameter. Raises LookupError for anything else."""
    match = PARAMETER.search(operand)
    number = passed[int(match["position"])] if match else None
    if number is None:
        raise KeyError(operand)
    return number


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
