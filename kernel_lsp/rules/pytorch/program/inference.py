"""Infer which expressions of a scope are tensors.

Inference visits the statements once in source order. It is conservative: a name is a tensor by its annotation, by a use
valid for tensors alone, or by its assigned value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from kernel_lsp.rules.pytorch.program.evidence import CallKinds, tensor_parameters
from kernel_lsp.rules.pytorch.program.file_names import ModuleClass, Names
from kernel_lsp.rules.pytorch.program.functions import FunctionNode, functions_of_file
from kernel_lsp.rules.pytorch.program.kinds import (
    EXTREMA,
    NOT_TENSOR_METHODS,
    TENSOR_ATTRIBUTES,
    TENSOR_KINDS,
    TENSORS_FUNCTIONS,
    Kind,
)
from kernel_lsp.rules.pytorch.program.parsing import ParsedModule
from kernel_lsp.rules.pytorch.program.scopes import Program, Scope
from kernel_lsp.rules.pytorch.program.trained import is_forward


def read_program(module: ParsedModule, names: Names) -> Program:
    """Return the functions of a file. Their scopes are read on demand, which raises RecursionError for code nested
    beyond the stack."""

    def read(node: FunctionNode | ast.Module, owner: ModuleClass | None) -> Scope:
        scope = Scope(module, names, node, owner, program)
        reader = _Reader(scope)
        reader.read()
        scope.is_forward = is_forward(scope, reader.has_tensor_parameter, reader.returns_tensor)
        return scope

    program = Program(functions_of_file(module), read, names)
    return program


class _Reader:
    """Visit one scope and fill it. Nested functions are read separately."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.names = scope.names
        self.kinds = scope.kinds
        self.values: dict[str, Kind] = {}
        self.calls = CallKinds(scope)
        self.has_tensor_parameter = False
        self.returns_tensor = False

    def read(self) -> None:
        node = self.scope.node
        if not isinstance(node, ast.Module):
            self.read_parameters(node)
        self.read_block(node.body)

    def read_parameters(self, node: FunctionNode) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        unclear: set[str] = set()
        for argument in arguments:
            if argument.annotation is None:
                unclear.add(argument.arg)
            elif self.names.is_tensor_annotation(argument.annotation):
                self.values[argument.arg] = Kind.TENSOR
        unclear -= {"self", "cls", "ctx"}
        if unclear:
            self.values |= tensor_parameters(node, unclear, self.scope, self.calls)
        self.has_tensor_parameter = bool(self.values)

    # statements

    def read_block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.scope.statements.append(statement)
            reader = _STATEMENTS.get(type(statement))
            if reader is not None:
                reader(self, statement)
            else:
                self.read_parts(statement)

    def read_parts(self, node: ast.AST) -> None:
        """Read any node without its own reader: its expressions, then its blocks."""
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.expr):
                self.value(value)
            elif isinstance(value, list) and value:
                if isinstance(value[0], ast.stmt):
                    self.read_block(value)
                else:
                    self.read_items(value)

    def read_items(self, items: list[ast.AST]) -> None:
        for item in items:
            if isinstance(item, ast.expr):
                self.value(item)
            elif isinstance(item, ast.AST):
                self.read_parts(item)

    def read_function(self, node: FunctionNode) -> None:
        self.scope.inner.append((node, None))
        for decorator in node.decorator_list:
            self.value(decorator)

    def read_class(self, node: ast.ClassDef) -> None:
        known = self.names.classes.get(node.name)
        owner = known if known is not None and known.node is node else None
        for child in node.body:
            if isinstance(child, FunctionNode):
                self.scope.inner.append((child, owner))

    def read_assign(self, node: ast.Assign) -> None:
        kind = self.value(node.value)
        for target in node.targets:
            self.assign(target, kind, node.value)

    def read_annotated(self, node: ast.AnnAssign) -> None:
        kind = Kind.TENSOR if self.names.is_tensor_annotation(node.annotation) else Kind.OTHER
        if node.value is not None:
            found = self.value(node.value)
            kind = found if kind is Kind.OTHER else kind
            self.assign(node.target, kind, node.value)

    def read_augmented(self, node: ast.AugAssign) -> None:
        kind = self.value(node.value)
        target = self.value(node.target)
        if isinstance(node.target, ast.Name):
            self.scope.assigned.setdefault(node.target.id, []).append(node.value)
            if kind in TENSOR_KINDS and target not in TENSOR_KINDS and target is not Kind.TENSORS:
                self.values[node.target.id] = Kind.TENSOR

    def read_for(self, node: ast.For | ast.AsyncFor) -> None:
        self.scope.loops.append(node)
        self.read_target(node.target, node.iter, self.value(node.iter))
        self.read_block(node.body)
        self.read_block(node.orelse)

    def read_while(self, node: ast.While) -> None:
        self.scope.loops.append(node)
        self.test(node.test)
        self.read_block(node.body)
        self.read_block(node.orelse)

    def read_if(self, node: ast.If) -> None:
        self.test(node.test)
        self.read_block(node.body)
        self.read_block(node.orelse)

    def read_assert(self, node: ast.Assert) -> None:
        self.test(node.test)
        if node.msg is not None:
            self.value(node.msg)

    def read_return(self, node: ast.Return) -> None:
        if node.value is not None:
            kind = self.value(node.value)
            self.returns_tensor |= kind in TENSOR_KINDS or kind is Kind.TENSORS

    def read_target(self, target: ast.expr, source: ast.expr, kind: Kind) -> None:
        """Record the names that a loop or comprehension binds."""
        match source, target:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, last]):
                self.assign(last, self.item_kind(self.scope.kind(inner)), source)
            case ast.Call(func=ast.Name(id="zip"), args=parts), ast.Tuple(elts=targets) if len(parts) == len(targets):
                for part, name in zip(parts, targets, strict=True):
                    self.assign(name, self.item_kind(self.scope.kind(part)), source)
            case _:
                self.assign(target, self.item_kind(kind), source)

    @staticmethod
    def item_kind(kind: Kind) -> Kind:
        if kind is Kind.TENSORS:
            return Kind.TENSOR
        return kind if kind in TENSOR_KINDS else Kind.OTHER

    def assign(self, target: ast.expr, kind: Kind, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = kind
            self.kinds[id(target)] = kind
            self.scope.assigned.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            item = {Kind.SIZES: Kind.SIZE}.get(kind, self.item_kind(kind))
            parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else []
            for index, name in enumerate(target.elts):
                part = parts[index] if parts else value
                self.assign(name, self.scope.kind(part) if parts else item, part)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Kind.OTHER, value)
        else:
            self.value(target)

    def test(self, node: ast.expr) -> None:
        """Record a condition whose truth value Python evaluates."""
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.test(value)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.test(node.operand)
        else:
            self.value(node)
            self.scope.tests.append(node)

    # expressions

    def value(self, node: ast.expr) -> Kind:
        reader = _EXPRESSIONS.get(node.__class__)
        if reader is None:
            self.read_parts(node)
            return Kind.OTHER
        kind = reader(self, node)
        if kind is not Kind.OTHER:
            self.kinds[id(node)] = kind
        return kind

    def read_constant(self, node: ast.Constant) -> Kind:
        return Kind.OTHER

    def read_name(self, node: ast.Name) -> Kind:
        return self.values.get(node.id, Kind.OTHER)

    def read_attribute(self, node: ast.Attribute) -> Kind:
        self.scope.attributes.append(node)
        base = self.value(node.value)
        if base in TENSOR_KINDS:
            if node.attr == "shape":
                return Kind.SIZES
            return Kind.TENSOR if node.attr in TENSOR_ATTRIBUTES else Kind.OTHER
        if base is Kind.TENSORS:
            return Kind.TENSOR if node.attr in ("values", "indices") else Kind.OTHER
        owner = self.scope.owner
        if owner is not None and isinstance(node.value, ast.Name) and node.value.id == "self":
            return Kind.TENSOR if node.attr in owner.tensor_attributes else Kind.OTHER
        return Kind.OTHER

    def read_subscript(self, node: ast.Subscript) -> Kind:
        self.scope.subscripts.append(node)
        base = self.value(node.value)
        self.value(node.slice)
        if base is Kind.SIZES:
            return Kind.SIZES if isinstance(node.slice, ast.Slice) else Kind.SIZE
        if base is Kind.TENSORS:
            return Kind.TENSORS if isinstance(node.slice, ast.Slice) else Kind.TENSOR
        return Kind.TENSOR if base in TENSOR_KINDS else Kind.OTHER

    def read_call(self, node: ast.Call) -> Kind:
        self.scope.calls.append(node)
        self.value(node.func)
        for argument in node.args:
            self.value(argument)
        for named in node.keywords:
            self.value(named.value)
        return self.call_kind(node)

    def call_kind(self, node: ast.Call) -> Kind:
        function = node.func
        if isinstance(function, ast.Name):
            if function.id == "len":
                return Kind.SIZE if node.args and self.scope.is_tensor(node.args[0]) else Kind.OTHER
            if function.id in self.names.tensor_functions:
                return Kind.TENSOR
        elif isinstance(function, ast.Attribute) and self.scope.is_tensor(function.value):
            return self.method_kind(function.attr, node)
        kind = self.calls.of(function)
        if kind is not Kind.TENSOR:
            return kind
        name = self.scope.dotted(function).rpartition(".")[2]
        if name in TENSORS_FUNCTIONS or (name in EXTREMA and len(node.args) + len(node.keywords) > 1):
            return Kind.TENSORS if name not in ("max", "min") or not self.is_pairwise(node) else Kind.TENSOR
        return Kind.TENSOR

    def is_pairwise(self, node: ast.Call) -> bool:
        """Return whether the call is `torch.max(a, b)` of two tensors."""
        return len(node.args) == 2 and self.scope.is_tensor(node.args[1])

    def method_kind(self, method: str, node: ast.Call) -> Kind:
        if method == "size":
            return Kind.SIZE if node.args else Kind.SIZES
        if method == "numel":
            return Kind.SIZE
        if method in NOT_TENSOR_METHODS:
            return Kind.OTHER
        if method in TENSORS_FUNCTIONS or (method in EXTREMA and (node.args or node.keywords)):
            return Kind.TENSORS
        return Kind.TENSOR

    def read_binary(self, node: ast.BinOp) -> Kind:
        self.scope.binaries.append(node)
        left, right = self.value(node.left), self.value(node.right)
        if left is Kind.MASK and right is Kind.MASK:
            return Kind.MASK
        if left in TENSOR_KINDS or right in TENSOR_KINDS:
            return Kind.TENSOR
        return Kind.SIZE if Kind.SIZE in (left, right) else Kind.OTHER

    def read_unary(self, node: ast.UnaryOp) -> Kind:
        if isinstance(node.op, ast.Not):
            self.test(node.operand)
            return Kind.OTHER
        return self.value(node.operand)

    def read_compare(self, node: ast.Compare) -> Kind:
        self.scope.compares.append(node)
        kinds = [self.value(node.left), *(self.value(other) for other in node.comparators)]
        if not TENSOR_KINDS.isdisjoint(kinds) and all(isinstance(op, _COMPARISONS) for op in node.ops):
            others = (node.left, *node.comparators)
            return Kind.OTHER if any(_is_text_or_none(other) for other in others) else Kind.MASK
        return Kind.OTHER

    def read_bool(self, node: ast.BoolOp) -> Kind:
        for value in node.values[:-1]:
            self.test(value)
        return self.value(node.values[-1])

    def read_conditional(self, node: ast.IfExp) -> Kind:
        self.test(node.test)
        kinds = (self.value(node.body), self.value(node.orelse))
        return Kind.TENSOR if not TENSOR_KINDS.isdisjoint(kinds) else Kind.OTHER

    def read_named(self, node: ast.NamedExpr) -> Kind:
        kind = self.value(node.value)
        self.assign(node.target, kind, node.value)
        return kind

    def read_sequence(self, node: ast.List | ast.Tuple) -> Kind:
        kinds = [self.value(element) for element in node.elts]
        return Kind.TENSORS if kinds and TENSOR_KINDS.issuperset(kinds) else Kind.OTHER

    def read_comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Kind:
        self.scope.comprehensions.append(node)
        for generator in node.generators:
            self.read_target(generator.target, generator.iter, self.value(generator.iter))
            for condition in generator.ifs:
                self.test(condition)
        return Kind.TENSORS if self.value(node.elt) in TENSOR_KINDS else Kind.OTHER


_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _is_text_or_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str))


_STATEMENTS: dict[type[ast.stmt], Callable[[_Reader, Any], None]] = {
    ast.FunctionDef: _Reader.read_function,
    ast.AsyncFunctionDef: _Reader.read_function,
    ast.ClassDef: _Reader.read_class,
    ast.Assign: _Reader.read_assign,
    ast.AnnAssign: _Reader.read_annotated,
    ast.AugAssign: _Reader.read_augmented,
    ast.For: _Reader.read_for,
    ast.AsyncFor: _Reader.read_for,
    ast.While: _Reader.read_while,
    ast.If: _Reader.read_if,
    ast.Assert: _Reader.read_assert,
    ast.Return: _Reader.read_return,
}
_EXPRESSIONS: dict[type[ast.expr], Callable[[_Reader, Any], Kind]] = {
    ast.Constant: _Reader.read_constant,
    ast.Name: _Reader.read_name,
    ast.Attribute: _Reader.read_attribute,
    ast.Subscript: _Reader.read_subscript,
    ast.Call: _Reader.read_call,
    ast.BinOp: _Reader.read_binary,
    ast.UnaryOp: _Reader.read_unary,
    ast.Compare: _Reader.read_compare,
    ast.BoolOp: _Reader.read_bool,
    ast.IfExp: _Reader.read_conditional,
    ast.NamedExpr: _Reader.read_named,
    ast.List: _Reader.read_sequence,
    ast.Tuple: _Reader.read_sequence,
    ast.ListComp: _Reader.read_comprehension,
    ast.GeneratorExp: _Reader.read_comprehension,
    ast.SetComp: _Reader.read_comprehension,
}
