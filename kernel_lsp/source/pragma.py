"""The pragma that says what a target is called with, e.g. ``# kernel-lsp: x=f32[B=8192, 4096]``, and shapes in
jaxtyping annotations, ``x: Float32[Tensor, "batch 4096"]``.

Grammar::

    pragma := ["init:"] item ("," item)*
    item   := NAME "=" (tensor | tensors | expression | literal | construction)
    tensor := DTYPE "[" [dim ("," dim)*] "]" ["<" expression | "in" "[" expression "," expression ")"]
    dim    := NAME "=" INT | expression

Names in dims get their size from a dim ``B=8192``, from an item ``B=8192`` or from an integer input. Literals are
strings, None, dtypes of torch, and sequences and dictionaries of them and of numbers: ``kernel_size=(5, 5)``. Names of
classes and functions, ``act=nn.GELU``, and constructions, ``config=NormConfig(width=64)``, are for constructors only.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression, ExpressionError, Name, Number, evaluate, evaluate_int, parse
from kernel_lsp.core.task import Construction, InitArgument, TensorInput


class PragmaError(ValueError):
    """Syntax error or inconsistency in a pragma. `line` is 1-based."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True)
class PragmaLine:
    """One comment: `text` is the part after ``# kernel-lsp:``."""

    text: str
    line: int

    @property
    def is_init(self) -> bool:
        """Return True for a pragma of the constructor's arguments."""
        return _INIT.match(self.text) is not None


@dataclass(frozen=True)
class TensorItem:
    """A tensor with symbolic dims. `bounds` are the two ends of its ``[low, high)``."""

    name: str
    dtype: DType
    dims: tuple[Expression, ...]
    bounds: tuple[Expression, Expression] | None
    line: int


@dataclass(frozen=True)
class NumberItem:
    """A scalar input, or the size of a dim."""

    name: str
    value: Number
    line: int


@dataclass(frozen=True)
class ConstantItem:
    """An input that is neither a tensor nor a number, as a Python literal, with the names of `tensors` in it."""

    name: str
    literal: str
    line: int
    tensors: tuple[TensorItem, ...] = ()


@dataclass
class Pragma:
    """All pragma lines of one target combined. `init` is None without a line for the constructor."""

    tensors: dict[str, TensorItem] = field(default_factory=dict)
    numbers: dict[str, NumberItem] = field(default_factory=dict)
    constants: dict[str, ConstantItem] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    init: dict[str, InitArgument] | None = None
    init_line: int = 1

    @property
    def says_inputs(self) -> bool:
        return bool(self.tensors or self.numbers or self.constants)

    @property
    def values(self) -> dict[str, NumberItem | ConstantItem]:
        """Return the inputs that are no tensors, by name."""
        return {**self.numbers, **self.constants}

    @property
    def parts(self) -> list[TensorItem]:
        """Return the tensors inside of tuples and lists."""
        return [tensor for each in self.constants.values() for tensor in each.tensors]


def parse_pragma(lines: Iterable[PragmaLine]) -> Pragma:
    """Combine all lines into one pragma. Raises PragmaError."""
    pragma = Pragma()
    for line in lines:
        if line.is_init:
            _read_init(line, pragma)
        else:
            for item in _items(line.text, line.line):
                _read_item(*item, line.line, pragma)
    return pragma


def bind_tensor(item: TensorItem, sizes: dict[str, int]) -> TensorInput:
    """Return the tensor with concrete sizes. Raises PragmaError for a name without a size or an empty range."""
    shape = tuple(_size(dim, item, sizes) for dim in item.dims)
    return TensorInput(
        name=item.name,
        dtype=item.dtype,
        shape=shape,
        dim_names=tuple(dim.id if isinstance(dim, Name) else None for dim in item.dims),
        integer_range=_bind_range(item, sizes),
    )


_INIT = re.compile(r"\s*init\s*:")
_ITEM = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(.*\S)\s*", re.DOTALL)
_TENSOR = re.compile(r"([A-Za-z]\w*)\s*\[(.*?)\](.*)", re.DOTALL)
_NAMED_DIM = re.compile(r"([A-Za-z_]\w*)\s*=\s*(\d{1,18})", re.ASCII)
_BELOW = re.compile(r"\s*<\s*(.+)", re.DOTALL)
_BETWEEN = re.compile(r"\s*in\s*\[(.+),(.+)\)\s*", re.DOTALL)
_PYTHON_LITERALS: dict[str, bool] = {"True": True, "False": False, "true": True, "false": False}
CONSTRUCTION = re.compile(r"(?:[A-Za-z_]\w*\.)*_*[A-Z]\w*\(.*\)", re.DOTALL)
"""A call of a class, by its capital letter: functions of sizes begin with a small one."""
_QUOTED = re.compile(r"""'([^'\\]*)'|"([^"\\]*)\"""")


def _items(text: str, line: int) -> Iterator[tuple[str, str]]:
    parts = split_commas(text)
    if not any(part.strip() for part in parts):
        raise PragmaError("the pragma is empty", line)
    for part in parts:
        match = _ITEM.fullmatch(part)
        if match is None:
            raise PragmaError(f"expected name=value, and found '{part.strip()}'", line)
        yield match.group(1), match.group(2)


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
        else:
            depth += (character in "([{") - (character in ")]}")
    return [*parts, text[start:]]


def _read_init(line: PragmaLine, pragma: Pragma) -> None:
    text = line.text.partition(":")[2]
    pragma.init = {} if pragma.init is None else pragma.init
    pragma.init_line = line.line
    for name, value in _items(text, line.line) if text.strip() else ():
        if name in pragma.init:
            raise PragmaError(f"'{name}' is given twice", line.line)
        pragma.init[name] = _init_argument(name, value, line.line)


def _init_argument(name: str, value: str, line: int) -> InitArgument:
    quoted = _QUOTED.fullmatch(value)
    if quoted:
        return quoted.group(1) or quoted.group(2) or ""
    node = _python(value)
    if node is not None and _is_argument(node) and not _is_number(node):
        return Construction(call=value)
    if CONSTRUCTION.fullmatch(value):
        raise PragmaError(f"'{name}={value}': write literals by keyword, e.g. Config(width=64)", line)
    return _number(name, value, line)


def _python(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_number(node: ast.expr) -> bool:
    """Return True for what an expression of numbers can be, and for the names that those have: `true`, `f32`."""
    if isinstance(node, ast.Name):
        return node.id in _PYTHON_LITERALS or node.id in DType.__members__.values()
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float | complex)


def _is_construction(node: ast.AST | None) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="partial") | ast.Attribute(attr="partial"), args=[ast.Name() | ast.Attribute()]):
            return all(each.arg and _is_argument(each.value) for each in node.keywords)
        case ast.Call(func=ast.Name() | ast.Attribute(), args=[], keywords=keywords):
            is_class = CONSTRUCTION.fullmatch(f"{ast.unparse(node.func)}()") is not None
            return is_class and all(each.arg and _is_argument(each.value) for each in keywords)
    return False


def _is_argument(node: ast.expr) -> bool:
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(map(_is_argument, parts))
        case ast.Dict(keys=keys, values=parts):
            return all(isinstance(key, ast.Constant) for key in keys) and all(map(_is_argument, parts))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()) | ast.Constant() | ast.Name():
            return True
        case ast.Attribute(value=owner):
            return isinstance(owner, ast.Name | ast.Attribute) and _is_argument(owner)
    return _is_construction(node)


def _is_literal(node: ast.expr | None) -> bool:
    """Return True for an argument that holds no names but those of torch's dtypes."""
    if node is None or not _is_argument(node) or _is_number(node):
        return False
    names = {id(each.value): each for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    others = [each for each in ast.walk(node) if isinstance(each, ast.Name | ast.Call) and id(each) not in names]
    return not others and all(DType.from_torch_name(each.attr) is not None for each in names.values())


def _read_item(name: str, value: str, line: int, pragma: Pragma) -> None:
    if name in pragma.tensors or name in pragma.values:
        raise PragmaError(f"'{name}' is given twice", line)
    tensor = _TENSOR.fullmatch(value)
    if tensor is None and _is_literal(_python(value)):
        pragma.constants[name] = ConstantItem(name, value, line)
    elif tensor is None and (sequence := _sequence(name, value, line, pragma)) is not None:
        pragma.constants[name] = sequence
    elif tensor is None:
        number = _number(name, value, line)
        pragma.numbers[name] = NumberItem(name, number, line)
        if type(number) is int:
            _set_size(name, number, line, pragma)
    else:
        pragma.tensors[name] = _read_tensor(name, tensor, line, pragma)


def _sequence(name: str, value: str, line: int, pragma: Pragma) -> ConstantItem | None:
    """Return a tuple or list with tensors in it; None for another value. Raises PragmaError."""
    parts = _parts_within(value)
    if parts is None or not any(part[:1] in ("(", "[") or _TENSOR.fullmatch(part) for part in parts):
        return None
    texts, tensors = list[str](), list[TensorItem]()
    for position, part in enumerate(parts):
        inner = f"{name}_{position}"
        tensor = _TENSOR.fullmatch(part)
        if tensor is not None:
            tensors.append(_read_tensor(inner, tensor, line, pragma))
            texts.append(inner)
        elif (sequence := _sequence(inner, part, line, pragma)) is not None:
            tensors += sequence.tensors
            texts.append(sequence.literal)
        else:
            texts.append(part if _is_literal(_python(part)) else repr(_number(inner, part, line)))
    inside = ", ".join(texts) + ("," if len(texts) == 1 and value[0] == "(" else "")
    return ConstantItem(name, f"{value[0]}{inside}{value[-1]}", line, tuple(tensors))


def _parts_within(value: str) -> list[str] | None:
    """Return the parts of a tuple or list; None for other values, such as an expression in parentheses."""
    ends = value[:1] + value[-1:]
    if ends not in ("()", "[]"):
        return None
    depth = 0
    for position, character in enumerate(value):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and position < len(value) - 1:
            return None
    parts = [part.strip() for part in split_commas(value[1:-1])]
    if ends == "()" and len(parts) == 1 and parts[0]:
        return None
    return parts if parts[-1] else parts[:-1]


def _number(name: str, value: str, line: int) -> Number:
    if value in _PYTHON_LITERALS:
        return _PYTHON_LITERALS[value]
    if value in DType.__members__.values():
        raise PragmaError(f"'{name}={value}' has no dims: write {name}={value}[1024] or {name}={value}[]", line)
    try:
        return evaluate(parse(value), {})
    except ExpressionError as error:
        raise PragmaError(
            f"'{name}={value}' is neither a tensor such as f32[8, 16] nor a literal: {error}", line
        ) from None


def _read_tensor(name: str, match: re.Match[str], line: int, pragma: Pragma) -> TensorItem:
    spelled, dims, rest = match.groups()
    dtype = dtype_of(spelled)
    if dtype is None:
        raise PragmaError(f"no dtype '{spelled}' for '{name}': {_suggest_dtype(spelled)}", line)
    texts = split_commas(dims) if dims.strip() else []
    return TensorItem(
        name=name,
        dtype=dtype,
        dims=tuple(read_dim(text.strip(), name, line, pragma) for text in texts),
        bounds=_read_bounds(name, dtype, rest, line),
        line=line,
    )


def dtype_of(spelled: str) -> DType | None:
    """Return the dtype for `f32`, or torch's `float32`; None for anything else."""
    return DType(spelled) if spelled in DType.__members__.values() else DType.from_torch_name(spelled)


def _suggest_dtype(spelled: str) -> str:
    if re.fullmatch(r"c\d+|complex\d*", spelled):
        return "complex numbers are not supported"
    near = difflib.get_close_matches(spelled, list(DType), n=1)
    return f"did you mean {near[0]}?" if near else f"there are {' '.join(DType)}"


def read_dim(text: str, tensor: str, line: int, pragma: Pragma) -> Expression:
    """Parse a dim; one such as ``B=8192`` also gives the pragma a size. Raises PragmaError."""
    named = _NAMED_DIM.fullmatch(text)
    if named:
        _set_size(named.group(1), int(named.group(2)), line, pragma)
        return Name(named.group(1))
    return parse_dim(text, tensor, line)


def parse_dim(text: str, tensor: str, line: int) -> Expression:
    """Parse a dim as an expression over sizes. Raises PragmaError."""
    try:
        return parse(text)
    except ExpressionError as error:
        raise PragmaError(f"'{text}' is no dim of '{tensor}': {error}", line) from None


def _read_bounds(name: str, dtype: DType, text: str, line: int) -> tuple[Expression, Expression] | None:
    if not text.strip():
        return None
    below, between = _BELOW.fullmatch(text), _BETWEEN.fullmatch(text)
    if below is None and between is None:
        raise PragmaError(f"expected '< 100' or 'in [0, 100)' after the shape of '{name}', not '{text.strip()}'", line)
    if dtype.is_floating or dtype is DType.BOOL:
        raise PragmaError(f"a range is for integers that index something, and '{name}' is {dtype}", line)
    low, high = ("0", below.group(1)) if below else between.groups()  # type: ignore[union-attr]  # see above
    try:
        return parse(low.strip()), parse(high.strip())
    except ExpressionError as error:
        raise PragmaError(f"the range of '{name}': {error}", line) from None


def _set_size(name: str, size: int, line: int, pragma: Pragma) -> None:
    if pragma.sizes.setdefault(name, size) != size:
        raise PragmaError(f"'{name}' is {pragma.sizes[name]} and {size}", line)


def _size(dim: Expression, item: TensorItem, sizes: dict[str, int]) -> int:
    size = _evaluated(dim, f"the dim '{dim}' of '{item.name}'", item.line, sizes)
    if size < 0:
        raise PragmaError(f"the dim '{dim}' of '{item.name}' is {size}, and no size is negative", item.line)
    return size


def _bind_range(item: TensorItem, sizes: dict[str, int]) -> tuple[int, int] | None:
    if item.bounds is None:
        return None
    low, high = (_evaluated(bound, f"the range of '{item.name}'", item.line, sizes) for bound in item.bounds)
    if low >= high:
        raise PragmaError(f"the range [{low}, {high}) of '{item.name}' is empty", item.line)
    return low, high


def _evaluated(expression: Expression, what: str, line: int, sizes: dict[str, int]) -> int:
    try:
        return evaluate_int(expression, sizes)
    except ExpressionError as error:
        raise PragmaError(f"{what}: {error}", line) from None


AnnotationKind = Literal["tensor", "float", "int", "bool", "other", "none"]
JAXTYPING_DTYPES = {
    "Float": DType.F32,
    "Float16": DType.F16,
    "Float32": DType.F32,
    "Float64": DType.F64,
    "BFloat16": DType.BF16,
    "Int": DType.I64,
    "Integer": DType.I64,
    "Int8": DType.I8,
    "Int16": DType.I16,
    "Int32": DType.I32,
    "Int64": DType.I64,
    "UInt8": DType.U8,
    "Bool": DType.BOOL,
}
"""`Float` and `Int` leave the width open; f32 and i64 are torch's defaults."""


def tensor_item(name: str, annotation: ast.expr | None, pragma: Pragma) -> TensorItem | None:
    """Return the tensor of a complete annotation; None if it has no shape. A dim ``batch=2`` gives the pragma a size.
    Raises PragmaError for invalid dims."""
    node = unquoted(annotation)
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) != 2:
        return None
    dtype, shape = JAXTYPING_DTYPES.get(last_name(node.value)), node.slice.elts[1]
    if dtype is None or not isinstance(shape, ast.Constant) or not isinstance(shape.value, str):
        return None
    texts = shape.value.split()
    if any(text.startswith(("*", "#", "?", "_")) or text == "..." for text in texts):
        return None  # leaves dims open: needs a pragma
    line = annotation.lineno if annotation is not None else 1
    dims = tuple(read_dim(text, name, line, pragma) for text in texts)
    return TensorItem(name, dtype, dims, None, line)


_KINDS: dict[str, AnnotationKind] = {
    **dict.fromkeys(("Tensor", "FloatTensor", "LongTensor", "Parameter"), "tensor"),
    **{"float": "float", "int": "int", "bool": "bool"},
}
"""Kind of value by the last part of an annotation's name."""


def annotation_kind(annotation: ast.expr | None) -> AnnotationKind:
    """Return the kind of value that an annotation declares: ``none`` without one."""
    node = unquoted(annotation)
    if node is None:
        return "none"
    if isinstance(node, ast.Subscript) and last_name(node.value) in JAXTYPING_DTYPES:
        return "tensor"
    return _KINDS.get(last_name(node), "other")


def unquoted(annotation: ast.expr | None) -> ast.expr | None:
    """Return the annotation, parsed if it is a string."""
    if not isinstance(annotation, ast.Constant) or not isinstance(annotation.value, str):
        return annotation
    try:
        return ast.parse(annotation.value, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name: ``Tensor`` for ``torch.Tensor``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
