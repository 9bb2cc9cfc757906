"""Parse `op:` lines, and the tensors declared by them and `scratch:`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import Operation, ScalarParameter, ScalarType, TensorParameter
from kernel_lsp.plan.block import Piece
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.plan.pieces import (
    Fault,
    expect,
    expect_end,
    parse_expression,
    take_name,
    take_parenthesized,
    whole_name,
    without_comment,
)

_TENSOR_TYPE = re.compile(r"\s*(\w+)\s*\[(.*)\]\s*", re.DOTALL)
_SCALAR_TYPES: dict[str, ScalarType] = {"float": "float", "int": "int", "bool": "bool"}


def parse_signature(value: Piece) -> Operation:
    """Parse ``name(parameters) -> (results)``, without steps. Raises Fault."""
    name, rest = take_name(value, "the operation's name")
    parameters, rest = take_parenthesized(rest, "the parameters")
    rest = expect(rest, "->", "the results")
    results, rest = take_parenthesized(rest, "the results")
    expect_end(without_comment(rest))
    if not results.text.strip():
        raise Fault(PlanCode.SYNTAX, "an operation has at least one result", results.span)
    declared = tuple(_parse_parameter(piece) for piece in parameters.split())
    known = {parameter.name: parameter for parameter in declared if isinstance(parameter, TensorParameter)}
    found: list[TensorParameter] = []
    for piece in results.split():
        found.append(_parse_result(piece, known))
        known.setdefault(found[-1].name, found[-1])
    return Operation(name=name.text, parameters=declared, results=tuple(found), span=name.span)


def parse_tensor(piece: Piece) -> TensorParameter:
    """Parse ``name: dtype[dims]``. Raises Fault."""
    name, type_piece = _parse_declaration(piece)
    match = _TENSOR_TYPE.fullmatch(type_piece.text)
    if match is None:
        raise Fault(PlanCode.BAD_DTYPE, _explain_type(type_piece.text), type_piece.span)
    dtype = _parse_dtype(type_piece.part(*match.span(1)))
    dims = tuple(parse_expression(dim, "a dim") for dim in type_piece.part(*match.span(2)).split())
    return TensorParameter(name.text, dtype, dims, piece.span)


# --- below: parts of a declaration


def _parse_parameter(piece: Piece) -> TensorParameter | ScalarParameter:
    name, type_piece = _parse_declaration(piece)
    scalar = _SCALAR_TYPES.get(type_piece.text)
    if scalar is not None:
        return ScalarParameter(name.text, scalar, piece.span)
    return parse_tensor(piece)


def _parse_result(piece: Piece, known: Mapping[str, TensorParameter]) -> TensorParameter:
    """Parse a tensor, or ``name = other`` for a result that is another tensor of the signature."""
    name, rest = take_name(piece, "a name")
    if not rest.text.startswith("="):
        return parse_tensor(piece)
    other = whole_name(expect(rest, "=", "the tensor that it is"), "a tensor")
    if other not in known:
        message = f"'{name.text} = {other}' needs '{other}' among the parameters, or among the results before it"
        raise Fault(PlanCode.UNKNOWN_TENSOR, message, piece.span)
    held = known[other]
    return TensorParameter(name.text, held.dtype, held.dims, piece.span, held.same_as or other)


def _parse_declaration(piece: Piece) -> tuple[Piece, Piece]:
    """Parse ``name: type``, split at the colon."""
    name, rest = take_name(piece, "a name")
    type_piece = expect(rest, ":", f"the type of '{name.text}'")
    if not type_piece.text:
        raise Fault(PlanCode.SYNTAX, f"expected the type of '{name.text}' after ':'", type_piece.span)
    return name, type_piece


def _parse_dtype(piece: Piece) -> DType:
    try:
        return DType(piece.text)
    except ValueError:
        message = f"no dtype '{piece.text}': {_suggest_dtype(piece.text)}"
        raise Fault(PlanCode.BAD_DTYPE, message, piece.span) from None


def _explain_type(text: str) -> str:
    if text in DType.__members__.values():
        return f"a tensor needs its dims: '{text}[N]', or '{text}[]' for a single element"
    if re.fullmatch(r"\w+\s*\[[^\]]*", text):
        return f"the ']' of '{text}' is missing"
    return f"'{text}' is neither a tensor type such as f32[B, D] nor float, int or bool"


def _suggest_dtype(text: str) -> str:
    known = DType.from_torch_name(text)
    if known is None:
        near = difflib.get_close_matches(text, list(DType), n=1)
        known = DType(near[0]) if near else None
    return f"did you mean '{known}'?" if known else f"there are {' '.join(DType)}"
