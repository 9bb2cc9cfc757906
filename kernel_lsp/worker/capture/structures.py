"""Arguments of a call that are tuples and lists of tensors, and tensors that no kernel reads.

A structure is a text in Python's syntax in which names stand for tensors: ``(rotary_0, rotary_1)``. In a task a tensor
that no kernel reads is its type: ``f32[_, 64]``, with ``_`` for a dim of any size and ``x.shape[0]`` for one of another
argument.
"""

from __future__ import annotations

import ast
from typing import Any

import torch

from ..files import PLAN_NAMES
from .captured import Captured
from .inputs import TensorLeaf
from .symbols import is_settled, symbol_of

ANY_SIZE = "_"


def call_structures(captured: Captured) -> dict[str, str]:
    """Return the structures of the captured call by parameter: those that were given, and tensors that no kernel
    reads."""
    inputs, leaves = captured.inputs, captured.inputs.tensors
    names = {leaves[a.placeholder.index].name: a.name for a in captured.arguments if a.placeholder.role == "input"}
    texts = {leaf.name: names.get(leaf.name) or _unread(captured, at) for at, leaf in enumerate(leaves)}
    structures = {name: _renamed(text, texts) for name, text in inputs.structures.items()}
    nodes = [node for text in inputs.structures.values() for node in ast.walk(_parsed(text))]
    inner = {node.id for node in nodes if isinstance(node, ast.Name)}
    own = [leaf for leaf in leaves if leaf.state is None and leaf.name not in inner and leaf.name not in names]
    return {**structures, **{leaf.name: texts[leaf.name] for leaf in own}}


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _renamed(text: str, texts: dict[str, str]) -> str:
    class Names(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return _parsed(texts[node.id])

    return ast.unparse(Names().visit(_parsed(text)))


def _unread(captured: Captured, index: int) -> str:
    """Return the type of an input that no kernel reads. The code may still ask for its dtype and its sizes."""
    program = captured.program
    position = next(at for at, p in enumerate(program.placeholders) if p.role == "input" and p.index == index)
    dtype = PLAN_NAMES[program.fake_inputs[position].dtype]
    dims = [_dim(captured, leaf_size, size) for leaf_size, size in _sizes(captured, position, index)]
    return f"{dtype}[{', '.join(dims) or '()'}]"


def _sizes(captured: Captured, position: int, index: int) -> list[tuple[int, Any]]:
    leaf: TensorLeaf = captured.inputs.tensors[index]
    return list(zip(leaf.shape, captured.program.fake_inputs[position].shape))


def _dim(captured: Captured, captured_size: int, size: Any) -> str:
    symbol = symbol_of(size) if isinstance(size, torch.SymInt) and not is_settled(size) else None
    if symbol is None:
        return str(captured_size)
    for argument in captured.arguments:
        shape = captured.program.fake_inputs[argument.position].shape
        for dim, other in enumerate(shape if argument.placeholder.role == "input" else ()):
            if symbol_of(other) == symbol:
                return f"{argument.name}.shape[{dim}]"
    bounds = captured.bounds.get(symbol)
    is_free = bounds is None or (bounds.minimum <= 2 and bounds.maximum is None)
    return ANY_SIZE if is_free else str(captured_size)
