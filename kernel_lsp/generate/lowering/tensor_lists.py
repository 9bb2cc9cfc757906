"""Operators over lists of tensors: each item is lowered by the rule of the operator on one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_lsp.core.task import GraphNode
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.builder import RULES, Call, lowers

OPERATORS = """
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min copy cos cosh div erf erfc exp expm1 floor lerp
lgamma log log10 log1p log2 maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan
tanh trunc zero
"""
"""Operators whose ``_foreach_`` form applies them to each tensor of a list."""
ITEM_NAMES = {"norm": "linalg_vector_norm", "zero": "zeros_like"}
"""Rule of one item, where it has another name."""


def _of_each(name: str) -> Callable[[Call], tuple[Tensor | None, ...]]:
    def rule(call: Call) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for position in range(len(call.node.types)):
            result = _rule_of(call, name)(call.of(_item(call.node, name, position)))
            found.append(result if isinstance(result, Tensor) else result[0])
        return tuple(found)

    return rule


def _rule_of(call: Call, name: str) -> Callable[[Call], Any]:
    rule = RULES.get(f"aten.{name}")
    if rule is None:
        call.fail(f"there is no rule for {name}")
    return rule


def _item(node: GraphNode, name: str, position: int) -> GraphNode:
    """Return the call on one item of each list. A list of numbers has one number per tensor, too."""
    overload = "Scalar" if node.op.endswith("Scalar") and name != "norm" else "Tensor"
    return node.model_copy(
        update={
            "op": f"aten.{name}.{overload}",
            "arguments": tuple(_of_list(argument, position) for argument in node.arguments),
            "keywords": {key: _of_list(value, position) for key, value in node.keywords.items()},
            "types": (node.types[position],),
            "user_name": node.user_name and f"{node.user_name}_{position}",
        }
    )


def _of_list(argument: Any, position: int) -> Any:
    return argument[position] if isinstance(argument, list | tuple) else argument


for _name in OPERATORS.split():
    lowers(f"_foreach_{_name}")(_of_each(ITEM_NAMES.get(_name, _name)))
