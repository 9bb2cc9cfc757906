"""Resolve the grammar's field names to the tree's own ids. A lookup by id takes a third of the time."""

from __future__ import annotations

from kernel_lsp.rules.cuda.parsing import language


def _number_of(name: str) -> int:
    number = language().field_id_for_name(name)
    assert number is not None, f"the grammar has no field {name}"
    return number


ALTERNATIVE = _number_of("alternative")
ARGUMENT = _number_of("argument")
ARGUMENTS = _number_of("arguments")
BODY = _number_of("body")
CONDITION = _number_of("condition")
CONSEQUENCE = _number_of("consequence")
DECLARATOR = _number_of("declarator")
FIELD = _number_of("field")
FUNCTION = _number_of("function")
INDICES = _number_of("indices")
LEFT = _number_of("left")
NAME = _number_of("name")
OPERATOR = _number_of("operator")
PARAMETERS = _number_of("parameters")
PLACEMENT = _number_of("placement")
RIGHT = _number_of("right")
SIZE = _number_of("size")
TYPE = _number_of("type")
VALUE = _number_of("value")
