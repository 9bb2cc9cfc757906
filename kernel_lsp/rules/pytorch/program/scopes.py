"""Model one function (or the top level) of a PyTorch file: its tensor expressions, its nodes by type, and the functions
and classes of the file that its calls and values lead to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kernel_lsp.rules.pytorch.program.file_names import ModuleClass, Names
from kernel_lsp.rules.pytorch.program.functions import Function, FunctionNode, Functions
from kernel_lsp.rules.pytorch.program.kinds import TENSOR_KINDS, TENSOR_NAMESPACES, Kind
from kernel_lsp.rules.pytorch.program.parsing import ParsedModule, children_of, nodes_of

_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(eq=False)
class Program:
    """The functions of one file, and their scopes, which are read when a rule follows a call or a value there."""

    functions: Functions
    read: Callable[[FunctionNode | ast.Module, ModuleClass | None], Scope]
    names: Names
    scopes: dict[int, Scope] = field(default_factory=dict)

    def scope_of(self, function: Function) -> Scope:
        known = None if function.owner is None else self.names.classes.get(function.owner.name)
        return self.read_once(function.node, known if known is not None and known.node is function.owner else None)

    def read_once(self, node: FunctionNode | ast.Module, owner: ModuleClass | None) -> Scope:
        if id(node) not in self.scopes:
            self.scopes[id(node)] = self.read(node, owner)
        return self.scopes[id(node)]


@dataclass(eq=False)
class Scope:
    """One function or the top level of a file. `is_forward` is True if the code runs at each step of a model; the
    rules about synchronization check such code."""

    module: ParsedModule
    names: Names
    node: FunctionNode | ast.Module
    owner: ModuleClass | None
    program: Program
    is_forward: bool = False
    kinds: dict[int, Kind] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    binaries: list[ast.BinOp] = field(default_factory=list)
    subscripts: list[ast.Subscript] = field(default_factory=list)
    compares: list[ast.Compare] = field(default_factory=list)
    attributes: list[ast.Attribute] = field(default_factory=list)
    tests: list[ast.expr] = field(default_factory=list)
    """Conditions that Python evaluates: of `if`, `while`, `assert`, `x if c else y`, `and`, `or`, `not`."""
    loops: list[ast.For | ast.AsyncFor | ast.While] = field(default_factory=list)
    comprehensions: list[ast.ListComp | ast.GeneratorExp | ast.SetComp] = field(default_factory=list)
    statements: list[ast.stmt] = field(default_factory=list)
    inner: list[tuple[FunctionNode, ModuleClass | None]] = field(default_factory=list)
    """The functions that the scope defines, with the module classes whose methods they are."""
    assigned: dict[str, list[ast.expr]] = field(default_factory=dict)
    """The values that plain assignments bind to each name."""
    dotted_names: dict[int, str] = field(default_factory=dict)
    function_names: dict[int, str] = field(default_factory=dict)
    reduced_names: frozenset[str] | None = None
    """The names in operands of reductions, computed on first use."""
    on_device: dict[int, bool] = field(default_factory=dict)
    """True for expressions with a value of the device, by the id of their nodes."""
    followed: dict[tuple, Any] = field(default_factory=dict)
    """Results of following calls and values out of this scope."""
    is_followed: bool = False
    """True once findings here depend on other parts of the file than those that rules read directly."""

    @property
    def function(self) -> Function | None:
        """The function or method of the file, None for a nested function."""
        return self.program.functions.by_node.get(id(self.node))

    @property
    def functions(self) -> Functions:
        """The functions of the file. Findings depend on all of them from here on."""
        self.is_followed = bool(self.program.functions.by_node)
        return self.program.functions

    def is_tensor(self, node: ast.AST) -> bool:
        return self.kinds.get(id(node)) in TENSOR_KINDS

    def kind(self, node: ast.AST) -> Kind:
        return self.kinds.get(id(node), Kind.OTHER)

    def dotted(self, node: ast.expr) -> str:
        name = self.dotted_names.get(id(node))
        if name is None:
            name = self.dotted_names[id(node)] = self.names.dotted(node)
        return name

    def function_name(self, node: ast.expr) -> str:
        """Return ``softmax`` for a call of `torch.softmax`, `F.softmax` or a tensor's method `softmax`, else ""."""
        if not isinstance(node, ast.Call):
            return ""
        name = self.function_names.get(id(node))
        if name is None:
            name = self.function_names[id(node)] = self.read_function_name(node)
        return name

    def read_function_name(self, node: ast.Call) -> str:
        dotted = self.dotted(node.func)
        if dotted.startswith("torch."):
            name = dotted.rpartition(".")[2]
            return name if dotted == f"torch.{name}" or dotted.startswith(TENSOR_NAMESPACES) else ""
        if isinstance(node.func, ast.Attribute) and self.is_tensor(node.func.value):
            return node.func.attr
        return ""

    def operand(self, node: ast.Call) -> ast.expr | None:
        """Return the main operand of a call: the object of a method, or the first argument of a function."""
        if isinstance(node.func, ast.Attribute) and not self.dotted(node.func).startswith("torch."):
            return node.func.value
        return node.args[0] if node.args else None

    def arguments(self, node: ast.Call) -> list[ast.expr]:
        """Return the positional arguments after the operand."""
        is_method = isinstance(node.func, ast.Attribute) and not self.dotted(node.func).startswith("torch.")
        return node.args if is_method else node.args[1:]

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around `node`, innermost first."""
        while (parent := self.parents.get(id(node))) is not None:
            yield parent
            node = parent

    def loop_around(self, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
        """Return the innermost loop whose body contains the node."""
        if not self.loops:
            return None
        child = node
        for parent in self.around(node):
            if isinstance(parent, ast.For | ast.AsyncFor) and child is not parent.iter:
                return parent
            if isinstance(parent, ast.While):
                return parent
            child = parent
        return None

    def definition(self, node: ast.expr) -> ast.expr:
        """Return the single value that a name has in this scope, or the node itself."""
        if isinstance(node, ast.Name) and node.id not in self.parameters:
            values = self.assigned.get(node.id, ())
            if len(values) == 1:
                return values[0]
        return node

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """The parent of each node of this scope, by id. Nested functions and classes are scopes of their own."""
        found: dict[int, ast.AST] = {}
        waiting: list[ast.AST] = [self.node]
        while waiting:
            node = waiting.pop()
            for child in children_of(node):
                found[id(child)] = node
                if not isinstance(child, _OTHER_SCOPES):
                    waiting.append(child)
                elif not isinstance(child, ast.ClassDef):
                    waiting += child.decorator_list
                    found |= dict.fromkeys(map(id, child.decorator_list), child)
        return found

    @cached_property
    def backward_values(self) -> frozenset[str]:
        """Return the code of values with a ``.backward()`` call, ``loss`` or ``out["loss"]``, also scaled or divided,
        and of those that an accelerator's ``backward(loss)`` is given. Only tensors have such a method without
        arguments."""
        found: set[str] = set()
        for call in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "manual_backward"):
                value = call.args[0] if call.args else call.func.value
                found.add(ast.unparse(value))
                match value:
                    case ast.Call(func=ast.Attribute(attr="scale" | "mean" | "sum"), args=[inner]):
                        found.add(ast.unparse(inner))
                    case ast.Call(func=ast.Attribute(value=inner, attr="mean" | "sum")) | ast.BinOp(left=inner):
                        found.add(ast.unparse(inner))
                if isinstance(value, ast.BinOp):
                    part = value.left if isinstance(value.op, ast.Div) else value
                    found |= {n.id for n in nodes_of(part, ast.Name)} - self.parameters
        return frozenset(found)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of all parameters."""
        if isinstance(self.node, ast.Module):
            return frozenset()
        arguments = self.node.args
        rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
        return frozenset(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest))


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in node.keywords if k.arg == name), None)


def first_line(node: FunctionNode) -> int:
    """Return the 1-based first line of the function or of its first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def same(first: ast.AST, second: ast.AST) -> bool:
    """Return whether two nodes are the same code."""
    return type(first) is type(second) and ast.dump(first) == ast.dump(second)
