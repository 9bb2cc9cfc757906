"""Follow a function's code with tensors whose shapes are unknown, and find what its operations require of them.

Each statement is read once, both branches of an unknown condition included. What is not understood is UNKNOWN, which
requires nothing.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from kernel_lsp.source.inference.arithmetic import arithmetic, converted
from kernel_lsp.source.inference.arrays import Array, Dim, Elements
from kernel_lsp.source.inference.operations import (
    CREATORS,
    KEEPING_LAYERS,
    LAYERS,
    Layer,
    apply_layer,
    created,
    function_of,
    known_keywords,
    matmul,
    weight_of,
)
from kernel_lsp.source.inference.requirements import Rank, raises, require
from kernel_lsp.source.inference.values import UNKNOWN, Field, Instance, Method, Named, Scope, Shape, Unknown, fields_of
from kernel_lsp.source.inference.views import Unbound, indexed
from kernel_lsp.source.python_file import FunctionNode, PythonFile, parameter_names

MAX_DEPTH = 12
"""Maximum calls inside of each other that are followed."""
MAX_STATEMENTS = 3_000
MAX_ELEMENTS = 4_096
"""Maximum elements of a list, which may be spread into itself repeatedly."""


class Returned(Exception):
    """Ends a function; `value` is its result."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class Interpreter:
    """Reads functions of a file, and of classes that it imports from files beside it. `constructor_guess` gives a value
    to a required argument that no call gives."""

    def __init__(self, source: PythonFile, constructor_guess: Callable[[ast.ClassDef, str], object]) -> None:
        self._source, self._guess = source, constructor_guess
        self._depth, self._n_statements = 0, 0
        self.constructed: list[tuple[Instance, Mapping[str, object]]] = []
        self.called: list[tuple[Instance, Mapping[str, object]]] = []
        """Objects with the arguments of their construction, and with those of calls of their `forward`."""
        self._homes: dict[int, PythonFile] = {}
        self._imported: dict[tuple[int, str], ast.ClassDef | None] = {}

    def construct(self, node: ast.ClassDef, given: Mapping[str, object]) -> Instance:
        """Return an object of the class, constructed with the given arguments, its defaults and guesses."""
        instance = Instance(node)
        constructor = self._inherited(node, "__init__")
        with self._within(node):
            if isinstance(constructor, FunctionNode):
                self._construct_in(instance, constructor, given)
            else:
                instance.attributes |= {each.name: self._field(node, each, given) for each in self.fields(node)}
                if isinstance(completes := self._inherited(node, "__post_init__"), FunctionNode):
                    self._construct_in(instance, completes, {})
        return instance

    def class_of(self, annotation: ast.expr | None) -> ast.ClassDef | None:
        """Return the class that an annotation names, in the file or imported from one beside it."""
        found = self.value(annotation, {}) if annotation is not None else None
        return found if isinstance(found, ast.ClassDef) else None

    def fields(self, node: ast.ClassDef, depth: int = MAX_DEPTH) -> list[Field]:
        """Return the fields of a class, after those that it inherits."""
        with self._within(node):
            bases = [base for base in map(self.class_of, node.bases if depth else ()) if base is not None]
        inherited = [field for base in bases for field in self.fields(base, depth - 1)]
        return list({field.name: field for field in (*inherited, *fields_of(node))}.values())

    def _field(self, node: ast.ClassDef, field: Field, given: Mapping[str, object]) -> object:
        if field.name in given:
            return given[field.name]
        match field.default:
            case None:
                return self._guess(node, field.name)
            case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=keywords):
                values = {keyword.arg: keyword.value for keyword in keywords}
                if "default" in values:
                    return self.value(values["default"], {})
                factory = self.value(values["default_factory"], {}) if "default_factory" in values else UNKNOWN
                return self.construct(factory, {}) if isinstance(factory, ast.ClassDef) else UNKNOWN
        return self.value(field.default, {})

    def _construct_in(self, instance: Instance, constructor: FunctionNode, given: Mapping[str, object]) -> None:
        scope = self.defaults(constructor) | dict(given)
        arguments = constructor.args
        for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]:
            if each.arg not in scope:
                scope[each.arg] = self._guess(instance.node, each.arg)
        self.run(constructor, scope | {_self_name(constructor): instance})

    def run(self, function: FunctionNode, scope: Scope) -> object:
        """Return the result of a function; UNKNOWN where the depth is exceeded."""
        if self._depth >= MAX_DEPTH:
            return UNKNOWN
        self._depth += 1
        try:
            self._block(function.body, scope)
        except Returned as returned:
            return returned.value
        finally:
            self._depth -= 1
        return UNKNOWN

    def defaults(self, function: FunctionNode) -> Scope:
        """Return the values of the parameters that have a default."""
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(positional[::-1], arguments.defaults[::-1], strict=False)]
        pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        return {argument.arg: self.value(default, {}) for argument, default in pairs}

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._n_statements += 1
            if self._n_statements <= MAX_STATEMENTS:
                self._statement(statement, scope)

    def _statement(self, statement: ast.stmt, scope: Scope) -> None:
        match statement:
            case ast.Return(value=value):
                raise Returned(self.value(value, scope) if value is not None else None)
            case ast.Assign(targets=targets, value=value):
                found = self.value(value, scope)
                for target in targets:
                    self._assign(target, found, scope)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, self.value(value, scope), scope)
            case ast.AugAssign(target=target, op=op, value=value):
                self._assign(target, self._binary(op, self.value(target, scope), self.value(value, scope)), scope)
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.Assert(test=test):
                require(test, lambda node: self.value(node, scope))
            case ast.If(test=test, body=body, orelse=orelse) if raises(body, orelse):
                require(test, lambda node: self.value(node, scope), holds=False)
            case ast.If(test=test, body=body, orelse=orelse):
                self._if(self.value(test, scope), body, orelse, scope)
            case ast.For(target=target, iter=iterable, body=body):
                self._assign(target, _element(self.value(iterable, scope)), scope)
                self._block(body, scope)
            case ast.While(body=body) | ast.With(body=body) | ast.Try(body=body):
                self._block(body, scope)

    def _if(self, test: object, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt], scope: Scope) -> None:
        if isinstance(test, bool | int | None):
            self._block(body if test else orelse, scope)
            return
        results = []
        for block in (body, orelse):
            try:
                self._block(block, scope)
            except Returned as returned:
                results.append(returned)
        if len(results) > 1 or (results and not orelse and isinstance(results[0].value, Array)):
            raise results[0]

    def _assign(self, target: ast.expr, value: object, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=owner, attr=name):
                instance = self.value(owner, scope)
                if isinstance(instance, Instance):
                    instance.attributes[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for each, part in zip(targets, _parts(value, targets), strict=True):
                    self._assign(each, part, scope)

    def value(self, node: ast.expr, scope: Scope) -> object:
        """Return the value of an expression."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return scope[name] if name in scope else self._global(name)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self.value(owner, scope), name)
            case ast.Call():
                return self._call(node, scope)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self.value(left, scope), self.value(right, scope))
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(op, self.value(operand, scope))
            case ast.BoolOp(op=op, values=values):
                return self._boolean(op, [self.value(value, scope) for value in values])
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(ops, [self.value(each, scope) for each in (left, *others)])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(self.value(test, scope), body, orelse, scope)
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(self.value(each, scope) if each is not None else None for each in (lower, upper, step)))
            case ast.Subscript(value=value, slice=index):
                found = self.value(index, scope)
                return self._item(self.value(value, scope), [found] if isinstance(index, ast.List) else found)
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return {key.value: self.value(value, scope) for key, value in pairs if isinstance(key, ast.Constant)}
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                found = [each for element in elements for each in self._spread(element, scope)]
                return found if len(found) <= MAX_ELEMENTS else UNKNOWN
            case (
                ast.ListComp(elt=element, generators=[generator])
                | ast.GeneratorExp(elt=element, generators=[generator])
            ):
                inner = dict(scope)
                self._assign(generator.target, _element(self.value(generator.iter, scope)), inner)
                return [self.value(element, inner)]
        return UNKNOWN

    def _spread(self, element: ast.expr, scope: Scope) -> list[object]:
        if isinstance(element, ast.Starred):
            value = self.value(element.value, scope)
            return list(value) if isinstance(value, list) else [UNKNOWN]
        return [self.value(element, scope)]

    def _global(self, name: str) -> object:
        definition = self._source.definition(name)
        if isinstance(definition, ast.FunctionDef):
            return Method(None, definition)
        if isinstance(definition, ast.ClassDef):
            self._homes.setdefault(id(definition), self._source)
            return definition
        constant = self._source.constants.get(name)
        if constant is not None and name not in _names(constant):
            return self.value(constant, {})
        return self._imported_class(name) or Named(name)

    def _imported_class(self, name: str) -> ast.ClassDef | None:
        """Return the class of a file beside this one that the name imports."""
        key = id(self._source.tree), name
        if key not in self._imported:
            found = self._source.imported_class(name)
            self._imported[key] = None if found is None else found[1]
            if found is not None:
                self._homes.setdefault(id(found[1]), found[0])
        return self._imported[key]

    def _inner_class(self, owner: ast.ClassDef, name: str) -> ast.ClassDef | None:
        found = next((each for each in owner.body if isinstance(each, ast.ClassDef) and each.name == name), None)
        if found is not None:
            self._homes.setdefault(id(found), self._homes.get(id(owner), self._source))
        return found

    @contextlib.contextmanager
    def _within(self, node: ast.ClassDef) -> Iterator[None]:
        """Read names as the file of a class does."""
        before, self._source = self._source, self._homes.get(id(node), self._source)
        try:
            yield
        finally:
            self._source = before

    def _inherited(self, node: ast.ClassDef, name: str) -> object:
        return self._homes.get(id(node), self._source).inherited(node, name)

    def _attribute(self, owner: object, name: str) -> object:
        if isinstance(owner, Array):
            if name == "shape":
                return Shape(owner)
            if name == "ndim":
                return Rank(owner)
            if name in ("T", "mT"):
                if name == "T":
                    owner.set_rank(2)
                return self._library("transpose", [owner, -2, -1], {})
            return Named(name, owner)
        if isinstance(owner, Instance):
            if name in owner.attributes:
                return owner.attributes[name]
            method = self._inherited(owner.node, name)
            return Method(owner, method) if isinstance(method, ast.FunctionDef) else Named(name, owner)
        if isinstance(owner, Layer):
            return weight_of(owner) if name == "weight" else owner.values.get(name, UNKNOWN)
        if isinstance(owner, ast.ClassDef):
            return self._inner_class(owner, name) or UNKNOWN
        if not isinstance(owner, Named) or owner.on is not None:
            return UNKNOWN
        return self._imported_class(f"{owner.name}.{name}") or Named(name)

    def _choice(self, test: object, body: ast.expr, orelse: ast.expr, scope: Scope) -> object:
        if isinstance(test, bool | int | None):
            return self.value(body if test else orelse, scope)
        found = self.value(body, scope), self.value(orelse, scope)
        return next((value for value in found if isinstance(value, Array)), UNKNOWN)

    def _item(self, value: object, index: object) -> object:
        if isinstance(value, Shape) and isinstance(index, int):
            return value.array.at(index) or UNKNOWN
        if isinstance(value, Array) and isinstance(index, Array) and not index.is_state:
            index.elements.dtype = index.elements.dtype or "i64"
            value.set_rank(2)
            index.elements.below = index.elements.below or value.at(0)
        elif isinstance(value, Array):
            return indexed(value, index)
        if isinstance(value, list) and isinstance(index, int) and -len(value) <= index < len(value):
            return value[index]
        if isinstance(value, list) and isinstance(index, slice):
            bounds = index.start, index.stop, index.step
            return value[index] if all(isinstance(each, int | None) for each in bounds) else UNKNOWN
        if isinstance(value, dict) and isinstance(index, str):
            return value.get(index, UNKNOWN)
        return UNKNOWN

    def _call(self, node: ast.Call, scope: Scope) -> object:
        function = self.value(node.func, scope)
        positional = [each for argument in node.args for each in self._spread(argument, scope)]
        keywords = {keyword.arg: self.value(keyword.value, scope) for keyword in node.keywords if keyword.arg}
        match function:
            case Method(owner=owner, node=called):
                return self._follow(owner, called, positional, keywords)
            case ast.ClassDef():
                return self._construct(function, positional, keywords)
            case Instance():
                forward = self._inherited(function.node, "forward")
                if not isinstance(forward, FunctionNode):
                    return UNKNOWN
                names = parameter_names(forward)[1:]
                self.called.append((function, dict(zip(names, positional, strict=False)) | keywords))
                return self._follow(function, forward, positional, keywords)
            case Layer():
                return self._layer(function, [*positional, *keywords.values()])
            case Named(on=Array() as array):
                return self._method(array, function.name, positional, keywords)
            case Named(name="register_buffer" | "register_parameter", on=Instance() as owner) if len(positional) > 1:
                owner.attributes[str(positional[0])] = positional[1]
                return UNKNOWN
            case Named():
                return self._library(function.name, positional, keywords)
        return UNKNOWN

    def _construct(self, node: ast.ClassDef, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
        constructor = self._inherited(node, "__init__")
        of_fields = [field.name for field in self.fields(node)]
        names = parameter_names(constructor)[1:] if isinstance(constructor, FunctionNode) else of_fields
        given = dict(zip(names, positional, strict=False)) | dict(keywords)
        instance = self.construct(node, given)
        self.constructed.append((instance, given))
        return instance

    def _follow(
        self, owner: Instance | None, node: FunctionNode, positional: Sequence[object], keywords: Mapping[str, object]
    ) -> object:
        names = parameter_names(node)
        is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
        values = [owner, *positional] if owner is not None and not is_static else list(positional)
        scope = dict.fromkeys(names, UNKNOWN) | self.defaults(node) | dict(zip(names, values, strict=False))
        with self._within(owner.node) if owner is not None else contextlib.nullcontext():
            return self.run(node, scope | dict(keywords))

    def _layer(self, layer: Layer, arguments: Sequence[object]) -> object:
        if layer.name == "Sequential":
            value = arguments[0] if arguments else UNKNOWN
            for each in layer.values.values():
                value = self._apply(each, value)
            return value
        found = apply_layer(layer, arguments)
        return UNKNOWN if found is None else found

    def _apply(self, function: object, value: object) -> object:
        if isinstance(function, Layer):
            return self._layer(function, [value])
        forward = self._inherited(function.node, "forward") if isinstance(function, Instance) else None
        if isinstance(function, Instance) and isinstance(forward, FunctionNode):
            return self._follow(function, forward, [value], {})
        return UNKNOWN

    def _method(self, array: Array, name: str, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
        match name, positional:
            case "size", []:
                return Shape(array)
            case "dim" | "ndimension", []:
                return Rank(array)
            case "size", [int() as axis]:
                return array.at(axis) or UNKNOWN
            case "t", []:
                array.set_rank(2)
                return self._library("transpose", [array, 0, 1], {})
        if name.endswith("_") and function_of(name) is None:
            return array  # changed in place
        return self._library(name, [array, *positional], keywords)

    def _library(self, name: str, positional: Sequence[object], keywords: Mapping[str, object]) -> object:
        if name in ("ModuleList", "ParameterList", "list", "tuple", "reversed"):
            return positional[0] if positional else []
        if name == "len" and len(positional) == 1 and isinstance(positional[0], Shape):
            return Rank(positional[0].array)
        lists = [each for each in positional if isinstance(each, list)]
        if name == "zip" and len(lists) == len(positional):
            return [list(each) for each in zip(*lists, strict=False)]
        if name in ("ModuleDict", "ParameterDict", "weight_norm", "spectral_norm"):
            return positional[0] if positional else UNKNOWN
        if name == "enumerate":
            return [[UNKNOWN, _element(positional[0])]] if positional else UNKNOWN
        if name == "Sequential":
            return Layer(name, {str(i): each for i, each in enumerate(positional)})
        if name == "Parameter":
            return positional[0] if positional else UNKNOWN
        if name in ("int", "max", "min", "round", "float") and all(type(v) in (int, float) for v in positional):
            return converted(name, positional)
        if name in LAYERS or name in KEEPING_LAYERS or name.endswith("Loss"):
            parameters = LAYERS[name].parameters if name in LAYERS else ()
            return Layer(name, dict(zip(parameters, positional, strict=False)) | dict(keywords))
        if name == "arange" and positional and isinstance(positional[0], Dim):
            return Array([positional[0]], 1, Elements("i64"), counts=positional[0])
        if name in CREATORS:
            array = created(name, positional)
            if array is not None:
                array.is_state = True
            return array if array is not None else UNKNOWN
        function = function_of(name)
        found = function(*positional, *known_keywords(name, keywords)) if function is not None else None
        return UNKNOWN if found is None else found

    def _binary(self, op: ast.operator, left: object, right: object) -> object:
        if isinstance(op, ast.MatMult):
            found = matmul(left, right)
            return UNKNOWN if found is None else found
        if isinstance(left, Array) or isinstance(right, Array):
            return self._library("add", [left, right], {})
        return arithmetic(op, left, right)

    def _unary(self, op: ast.unaryop, value: object) -> object:
        if isinstance(value, Array):
            return value
        if isinstance(op, ast.USub) and type(value) in (int, float):
            return -value  # type: ignore[operator]  # a number
        return not value if isinstance(op, ast.Not) and isinstance(value, bool | int | None) else UNKNOWN

    def _boolean(self, op: ast.boolop, values: Sequence[object]) -> object:
        for value in values[:-1]:
            if not isinstance(value, bool | int | float | str | None):
                return UNKNOWN
            if bool(value) == isinstance(op, ast.Or):
                return value
        return values[-1]

    def _compare(self, ops: Sequence[ast.cmpop], values: Sequence[object]) -> object:
        arrays = [value for value in values if isinstance(value, Array)]
        left, right = values[0], values[1]
        if isinstance(left, Rank) and left.array.known_rank is not None:
            left = left.array.known_rank
            values = [left, right]
        match ops:
            case [ast.Is() | ast.IsNot()] if right is None and not isinstance(left, Unknown):
                return (left is None) == isinstance(ops[0], ast.Is)
            case [ast.Eq() | ast.NotEq()] if all(isinstance(v, bool | int | float | str) for v in values):
                return (left == right) == isinstance(ops[0], ast.Eq)
        return self._library("add", arrays, {}) if arrays else UNKNOWN


def _element(value: object) -> object:
    return value[0] if isinstance(value, list) and value else UNKNOWN


def _parts(value: object, names: Sequence[ast.expr]) -> list[object]:
    """Return the values that an unpacking assigns. Unpacking a shape fixes the rank."""
    if isinstance(value, Shape) and not any(isinstance(name, ast.Starred) for name in names):
        value.array.set_rank(len(names))
        if value.array.known_rank == len(names):
            return list(value.array.all_dims())
    if isinstance(value, Array | Unbound) and not any(isinstance(name, ast.Starred) for name in names):
        return (value if isinstance(value, Unbound) else Unbound(value, 0)).parts(len(names))
    if isinstance(value, Shape) and names and not isinstance(names[-1], ast.Starred):
        return [UNKNOWN] * (len(names) - 1) + [value.array.at(-1)]
    return list(value) if isinstance(value, list) and len(value) == len(names) else [UNKNOWN] * len(names)


def _self_name(constructor: FunctionNode) -> str:
    return next(iter(parameter_names(constructor)), "self")


def _names(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
