"""Inline calls of device functions, so that a kernel is one function without a call stack.

A formal parameter becomes the caller's `.param` variable, so nothing is copied. Registers, labels and local variables
get a suffix per call site. Recursion and indirect calls are not supported.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.ptx.text.syntax import (
    Address,
    Function,
    Guard,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Statement,
    Symbol,
    UnsupportedPtxError,
    Variable,
    Vector,
)

MAX_STATEMENTS = 200_000
"""Maximum statements of an inlined kernel. Beyond it, compilation takes minutes."""
STUBBED_FUNCTIONS = ("vprintf", "__assertfail")
"""Functions of the device runtime that the executor implements."""


def inline_calls(kernel: Function, module: Module) -> Function:
    """Return `kernel` with all calls inlined, except those of `STUBBED_FUNCTIONS`."""
    inliner = _Inliner(module, kernel)
    inliner.expand(kernel.statements, (kernel.name,))
    return replace(
        kernel,
        registers=inliner.registers,
        variables=tuple(inliner.variables),
        branch_tables=inliner.branch_tables,
        statements=tuple(inliner.statements),
    )


class _Inliner:
    """Collect the inlined body."""

    def __init__(self, module: Module, kernel: Function) -> None:
        self.module = module
        self.registers = dict(kernel.registers)
        self.variables: list[Variable] = list(kernel.variables)
        self.branch_tables = dict(kernel.branch_tables)
        self.statements: list[Statement] = []
        self.n_calls = 0

    def expand(self, statements: tuple[Statement, ...], chain: tuple[str, ...]) -> None:
        for statement in statements:
            if isinstance(statement, Instruction) and statement.opcode == "call":
                self.call(statement, chain)
            else:
                self.statements.append(statement)
        if len(self.statements) > MAX_STATEMENTS:
            raise UnsupportedPtxError(f"more than {MAX_STATEMENTS} instructions after inlining")

    def call(self, instruction: Instruction, chain: tuple[str, ...]) -> None:
        results, name, arguments = _call_parts(instruction)
        if name in STUBBED_FUNCTIONS:
            self.statements.append(instruction)
            return
        callee = self.module.functions.get(name)
        if callee is None:
            raise UnsupportedPtxError(f"a call of '{name}', which has no body here", instruction)
        if name in chain:
            raise UnsupportedPtxError(
                f"a call stack, and '{name}' calls itself: a loop, or a template of the depth, would run", instruction
            )
        self.n_calls += 1
        renamer = _Renamer(callee, f"#{self.n_calls}", _bind(callee, results, arguments, instruction))
        self.adopt(callee, renamer)
        end = f"return{renamer.suffix}"
        if instruction.guard is not None:
            guard = replace(instruction.guard, is_negated=not instruction.guard.is_negated)
            self.statements.append(_branch(instruction, end, guard))
        self.expand(tuple(renamer.statement(statement, end) for statement in callee.statements), (*chain, name))
        self.statements.append(Label(end))

    def adopt(self, callee: Function, renamer: _Renamer) -> None:
        self.registers.update((name + renamer.suffix, kind) for name, kind in callee.registers.items())
        for variable in callee.variables:
            is_shared = variable.space == "shared"
            if not is_shared:
                self.variables.append(replace(variable, name=variable.name + renamer.suffix))
            elif all(known.name != variable.name for known in self.variables):
                self.variables.append(variable)
        for name, targets in callee.branch_tables.items():
            self.branch_tables[name + renamer.suffix] = tuple(target + renamer.suffix for target in targets)


class _Renamer:
    """Rename the registers, labels and variables of a callee's statements for one call site."""

    def __init__(self, callee: Function, suffix: str, parameters: dict[str, Symbol]) -> None:
        self.callee, self.suffix, self.parameters = callee, suffix, parameters
        self.local_names = {variable.name for variable in callee.variables if variable.space != "shared"}
        self.local_names |= {statement.name for statement in callee.statements if isinstance(statement, Label)}
        self.local_names |= set(callee.branch_tables)

    def statement(self, statement: Statement, end: str) -> Statement:
        if isinstance(statement, Label):
            return Label(statement.name + self.suffix)
        guard = statement.guard
        if guard is not None:
            guard = Guard(self.register(guard.register), guard.is_negated)
        if statement.opcode == "ret":
            return _branch(statement, end, guard)
        operands = tuple(self.operand(operand) for operand in statement.operands)
        return replace(statement, operands=operands, guard=guard)

    def register(self, register: Register) -> Register:
        is_own = register.name in self.callee.registers
        return Register(register.name + self.suffix) if is_own else register

    def operand(self, operand: Operand) -> Operand:
        match operand:
            case Register():
                return self.register(operand)
            case Symbol(name, offset) if name in self.parameters:
                return replace(self.parameters[name], offset=self.parameters[name].offset + offset)
            case Symbol(name, offset) if name in self.local_names:
                return Symbol(name + self.suffix, offset)
            case Address(base, offset, coordinates):
                renamed = tuple(self.operand(coordinate) for coordinate in coordinates)
                return Address(self.operand(base), offset, renamed)  # type: ignore[arg-type]  # renaming keeps a base a base
            case Vector(elements):
                return Vector(tuple(self.operand(element) for element in elements))
            case Negated(register):
                return Negated(self.register(register))
            case Pair(first, second):
                return Pair(self.operand(first), self.operand(second))
        return operand


def _call_parts(instruction: Instruction) -> tuple[tuple[Operand, ...], str, tuple[Operand, ...]]:
    """Return results, name and arguments of a direct call."""
    operands = list(instruction.operands)
    results: tuple[Operand, ...] = ()
    if operands and isinstance(first := operands[0], Vector):
        results = first.elements
        del operands[0]
    target = operands.pop(0) if operands else None
    if not isinstance(target, Symbol):
        raise UnsupportedPtxError("a call through a function pointer", instruction)
    arguments = operands[0].elements if operands and isinstance(operands[0], Vector) else ()
    return results, target.name, arguments


def _bind(
    callee: Function, results: tuple[Operand, ...], arguments: tuple[Operand, ...], instruction: Instruction
) -> dict[str, Symbol]:
    formals = (*callee.results, *callee.parameters)
    actuals = (*results, *arguments)
    if len(formals) != len(actuals):
        raise UnsupportedPtxError("a call with another number of arguments than its function has", instruction)
    bound = {}
    for formal, actual in zip(formals, actuals, strict=True):
        if not isinstance(actual, Symbol):
            raise UnsupportedPtxError("a call with arguments in registers", instruction)
        bound[formal.name] = actual
    return bound


def _branch(instruction: Instruction, target: str, guard: Guard | None) -> Instruction:
    return replace(instruction, opcode="bra", modifiers=(), operands=(Symbol(target),), guard=guard)
