"""Read shapes from jaxtyping annotations: ``x: Float32[Tensor, "batch 4096"]``."""

from __future__ import annotations

import ast
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.source.pragma import Pragma, TensorItem, read_dim

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
    node = _unquoted(annotation)
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) != 2:
        return None
    dtype, shape = JAXTYPING_DTYPES.get(_last_name(node.value)), node.slice.elts[1]
    if dtype is None or not isinstance(shape, ast.Constant) or not isinstance(shape.value, str):
        return None
    texts = shape.value.split()
    if any(text.startswith(("*", "#", "?", "_")) or text == "..." for text in texts):
        return None  # leaves dims open: needs a pragma
    line = annotation.lineno if annotation is not None else 1
    dims = tuple(read_dim(text, name, line, pragma) for text in texts)
    return TensorItem(name, dtype, dims, None, line)


def annotation_kind(annotation: ast.expr | None) -> AnnotationKind:
    """Return the kind of value that an annotation declares: ``none`` without one."""
    node = _unquoted(annotation)
    if node is None:
        return "none"
    if isinstance(node, ast.Subscript) and _last_name(node.value) in JAXTYPING_DTYPES:
        return "tensor"
    match _last_name(node):
        case "Tensor" | "FloatTensor" | "LongTensor" | "Parameter":
            return "tensor"
        case "float":
            return "float"
        case "int":
            return "int"
        case "bool":
            return "bool"
    return "other"


# --- below: names in annotations


def _unquoted(annotation: ast.expr | None) -> ast.expr | None:
    """Return the annotation, parsed if it is a string."""
    if not isinstance(annotation, ast.Constant) or not isinstance(annotation.value, str):
        return annotation
    try:
        return ast.parse(annotation.value, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name: ``Tensor`` for ``torch.Tensor``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
