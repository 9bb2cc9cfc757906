"""Translate a small subset of Python to LLVM IR, so that the scheduler is readable and still native code.

The subset: functions of 64-bit integers; assignments, `if`, `while`, `for ... in range`, `return`, `break`, `continue`,
arithmetic (`//` and `%` truncate), comparisons (signed), `and`, `or`, `not`, conditional expressions, calls of each
other and of the intrinsics below. Names of module-level integers and `IntEnum` members are constants.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def load64(address: int) -> int:
    """Return the 64-bit integer at a host address."""
    return ctypes.c_int64.from_address(address).value


def store64(address: int, value: int) -> None:
    """Write a 64-bit integer at a host address."""
    ctypes.c_int64.from_address(address).value = value


def load8(address: int) -> int:
    """Return the byte at a host address."""
    return ctypes.c_uint8.from_address(address).value


def fill(address: int, byte: int, n_bytes: int) -> None:
    """Set `n_bytes` bytes."""
    ctypes.memset(address, byte, n_bytes)


def count_trailing_zeros(value: int) -> int:
    """Count trailing zero bits; 64 for 0."""
    return (value & -value).bit_length() - 1 if value else 64


def shift_right(value: int, n_bits: int) -> int:
    """Shift a 64-bit pattern logically to the right."""
    return (value & ((1 << 64) - 1)) >> n_bits


def call_thread(function: int, thread: int, counts: int, table: int, launch: int, context: int) -> int:
    """Run a compiled kernel for one thread up to its next yield."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5)
    return kind(function)(thread, counts, table, launch, context)


def call_warp(function: int, first: int, stride: int) -> int:
    """Run a function of `kernel_lsp.ptx.compile.warp_functions`."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(function)(first, stride))


_DECLARATIONS = """
declare i64 @llvm.cttz.i64(i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""
_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "sdiv",
    ast.Mod: "srem",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "ashr",
}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}


def functions_of(*modules: ModuleType) -> tuple[Callable[..., int], ...]:
    """Return the functions that modules in this subset define, in their order."""
    found = ((module, value) for module in modules for value in vars(module).values() if inspect.isfunction(value))
    return tuple(function for module, function in found if function.__module__ == module.__name__)


def declared(functions: Sequence[Callable[..., int]]) -> str:
    """Return the declarations of functions that are translated elsewhere."""
    arguments = ((function.__name__, ", ".join(["i64"] * function.__code__.co_argcount)) for function in functions)
    return "".join(f"declare i64 @{name}({types})\n" for name, types in arguments)


def translate(functions: Sequence[Callable[..., int]], others: Sequence[Callable[..., int]] = ()) -> str:
    """Return the LLVM IR of the functions, each with external linkage under its own name.
    They may call `others`, which are translated elsewhere."""
    names = {function.__name__ for function in (*functions, *others)}
    bodies = "\n".join(_FunctionTranslator(function, names).run() for function in functions)
    return _DECLARATIONS + declared(others) + bodies


@functools.cache
def _definitions(module: str) -> dict[str, ast.FunctionDef]:
    """Return the function definitions of a module. Parsing them together is much faster than one by one."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


class _FunctionTranslator:
    """Translate one function. Every variable is an `alloca`, which LLVM promotes to a register."""

    def __init__(self, function: Callable[..., int], names: set[str]) -> None:
        self.globals: dict[str, Any] = vars(sys.modules[function.__module__])
        self.names = names
        self.tree = _definitions(function.__module__)[function.__name__]
        self.lines: list[str] = []
        self.variables: dict[str, None] = {}
        self.n_temporaries = 0
        self.loops: list[tuple[str, str]] = []

    def run(self) -> str:
        arguments = [argument.arg for argument in self.tree.args.args]
        for argument in arguments:
            self.variables[argument] = None
        for statement in self.tree.body:
            self.statement(statement)
        head = [f"define i64 @{self.tree.name}({', '.join(f'i64 %arg.{name}' for name in arguments)}) {{", "entry:"]
        head += [f"  %v.{name} = alloca i64" for name in self.variables]
        head += [f"  store i64 %arg.{name}, ptr %v.{name}" for name in arguments]
        return "\n".join([*head, *self.lines, "  ret i64 0", "}", ""])

    def temporary(self) -> str:
        self.n_temporaries += 1
        return f"%t{self.n_temporaries}"

    def label(self) -> str:
        self.n_temporaries += 1
        return f"l{self.n_temporaries}"

    def emit(self, text: str) -> str:
        name = self.temporary()
        self.lines.append(f"  {name} = {text}")
        return name

    def begin(self, label: str) -> None:
        """Start a basic block; the previous one falls through to it."""
        self.lines += [f"  br label %{label}", f"{label}:"]

    def jump(self, label: str) -> None:
        """End the basic block; later code is unreachable."""
        self.lines += [f"  br label %{label}", f"{self.label()}:"]

    # statements

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(name, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                left = self.value(ast.Name(id=target.id, ctx=ast.Load()))
                self.assign(name, self.emit(f"{_BINARY[type(op)]} i64 {left}, {self.value(value)}"))
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=value):
                self.value(value)
            case ast.If():
                self.if_statement(node)
            case ast.While(test=test, body=body):
                self.loop(lambda: self.condition(test), body, None)
            case ast.For():
                self.for_statement(node)
            case ast.Return(value=value):
                self.lines += [f"  ret i64 {self.value(value) if value else 0}", f"{self.label()}:"]
            case ast.Break():
                self.jump(self.loops[-1][1])
            case ast.Continue():
                self.jump(self.loops[-1][0])
            case _:
                raise SyntaxError(f"not in the native subset: {ast.unparse(node)}")

    def assign(self, name: str, value: str) -> None:
        self.variables[name] = None
        self.lines.append(f"  store i64 {value}, ptr %v.{name}")

    def if_statement(self, node: ast.If) -> None:
        then, otherwise, end = self.label(), self.label(), self.label()
        self.lines.append(f"  br i1 {self.condition(node.test)}, label %{then}, label %{otherwise}")
        for label, body in ((then, node.body), (otherwise, node.orelse)):
            self.lines.append(f"{label}:")
            for statement in body:
                self.statement(statement)
            self.lines.append(f"  br label %{end}")
        self.lines.append(f"{end}:")

    def for_statement(self, node: ast.For) -> None:
        assert isinstance(node.target, ast.Name)
        assert isinstance(node.iter, ast.Call)
        bounds = [self.value(argument) for argument in node.iter.args]
        start, stop = ("0", bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        name = node.target.id
        self.assign(name, start)

        def condition() -> str:
            return self.emit(f"icmp slt i64 {self.read(name)}, {stop}")

        self.loop(condition, node.body, name)

    def loop(self, condition: Callable[[], str], body: list[ast.stmt], counter: str | None) -> None:
        head, inside, step, end = self.label(), self.label(), self.label(), self.label()
        self.begin(head)
        self.lines += [f"  br i1 {condition()}, label %{inside}, label %{end}", f"{inside}:"]
        self.loops.append((step, end))
        for statement in body:
            self.statement(statement)
        self.loops.pop()
        self.begin(step)
        if counter is not None:
            self.assign(counter, self.emit(f"add i64 {self.read(counter)}, 1"))
        self.lines += [f"  br label %{head}", f"{end}:"]

    # expressions

    def read(self, name: str) -> str:
        return self.emit(f"load i64, ptr %v.{name}")

    def value(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int(value)):
                return str(int(value))
            case ast.Name(id=name):
                return self.read(name) if name in self.variables else str(int(self.globals[name]))
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                return str(int(getattr(self.globals[owner], attribute)))
            case ast.BinOp(left=left, op=op, right=right):
                return self.emit(f"{_BINARY[type(op)]} i64 {self.value(left)}, {self.value(right)}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.emit(f"sub i64 0, {self.value(operand)}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self.emit(f"xor i64 -1, {self.value(operand)}")
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.condition(test)
                return self.emit(f"select i1 {condition}, i64 {self.value(body)}, i64 {self.value(orelse)}")
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self.call(name, [self.value(argument) for argument in arguments])
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp():
                return self.emit(f"zext i1 {self.condition(node)} to i64")
        raise SyntaxError(f"not in the native subset: {ast.unparse(node)}")

    def condition(self, node: ast.expr) -> str:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.emit(f"icmp {_COMPARE[type(op)]} i64 {self.value(left)}, {self.value(right)}")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.emit(f"xor i1 true, {self.condition(operand)}")
            case ast.BoolOp(op=op, values=values):
                return self.short_circuit(isinstance(op, ast.And), values)
        return self.emit(f"icmp ne i64 {self.value(node)}, 0")

    def short_circuit(self, is_and: bool, values: list[ast.expr]) -> str:
        name = f"bool{self.n_temporaries}"
        end = self.label()
        for value in values:
            result = self.condition(value)
            self.assign(name, self.emit(f"zext i1 {result} to i64"))
            more = self.label()
            targets = (more, end) if is_and else (end, more)
            self.lines += [f"  br i1 {result}, label %{targets[0]}, label %{targets[1]}", f"{more}:"]
        self.begin(end)
        return self.emit(f"icmp ne i64 {self.read(name)}, 0")

    def call(self, name: str, arguments: list[str]) -> str:
        if name in self.names:
            return self.emit(f"call i64 @{name}({', '.join(f'i64 {argument}' for argument in arguments)})")
        return getattr(self, f"intrinsic_{name}")(*arguments)

    # intrinsics

    def pointer(self, address: str) -> str:
        return self.emit(f"inttoptr i64 {address} to ptr")

    def intrinsic_load64(self, address: str) -> str:
        return self.emit(f"load i64, ptr {self.pointer(address)}, align 8")

    def intrinsic_store64(self, address: str, value: str) -> str:
        self.lines.append(f"  store i64 {value}, ptr {self.pointer(address)}, align 8")
        return "0"

    def intrinsic_load8(self, address: str) -> str:
        return self.emit(f"zext i8 {self.emit(f'load i8, ptr {self.pointer(address)}')} to i64")

    def intrinsic_fill(self, address: str, byte: str, n_bytes: str) -> str:
        value, pointer = self.emit(f"trunc i64 {byte} to i8"), self.pointer(address)
        self.lines.append(f"  call void @llvm.memset.p0.i64(ptr {pointer}, i8 {value}, i64 {n_bytes}, i1 false)")
        return "0"

    def intrinsic_count_trailing_zeros(self, value: str) -> str:
        return self.emit(f"call i64 @llvm.cttz.i64(i64 {value}, i1 false)")

    def intrinsic_shift_right(self, value: str, n_bits: str) -> str:
        return self.emit(f"lshr i64 {value}, {n_bits}")

    def intrinsic_call_thread(self, function: str, *arguments: str) -> str:
        pointers = ", ".join(f"ptr {self.pointer(argument)}" for argument in arguments)
        return self.emit(f"call i64 {self.pointer(function)}({pointers})")

    def intrinsic_call_warp(self, function: str, first: str, stride: str) -> str:
        return self.emit(f"call i64 {self.pointer(function)}(i64 {first}, i64 {stride})")
