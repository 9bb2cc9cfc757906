"""Writes docs/protocol.md from the protocol's declarations: `python scripts/write_protocol_page.py`."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from kernel_lsp.server.protocol import messages as protocol

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"
HEAD = """\
# Protocol

<!-- Written by scripts/write_protocol_page.py from kernel_lsp/server/protocol/messages.py. Do not edit. -->

`kernel-lsp serve` speaks the Language Server Protocol 3.17 on stdin and stdout. Everything that matters works without
what is on this page: jobs show as work-done progress, results arrive as `workspace/applyEdit`, and so on. A client may
use more.

## What `initialize` may say

| where | what |
|---|---|
| `initializationOptions.trusted` | whether the user trusts the workspace; left out, nothing runs until a command asks |
| `initializationOptions.settings` | values of the configuration section `kernelLsp`, in camelCase, until others come |
| `capabilities.experimental.kernelLsp.jobs` | `true` to be sent `kernelLsp/jobChanged` |
| `capabilities.experimental.kernelLsp.events` | `true` to be sent `kernelLsp/runEvent` |
| `capabilities.experimental.kernelLsp.terminal` | `true` to be sent `kernelLsp/typeCommand` |
| `capabilities.experimental.kernelLsp.languageModel` | `true` to be sent `kernelLsp/completeChat` |
"""


def render() -> str:
    """Render the page as Markdown."""
    types_used = [method.params for method in protocol.METHODS]
    types_used += [method.result for method in protocol.METHODS if method.result is not None]
    types_used += [command.argument for command in protocol.COMMANDS]
    results = [command.result for command in protocol.COMMANDS]
    types_used += [result for result in results if result is not None and attrs.has(result)]
    parts = [HEAD.strip(), "## Methods", *map(_method, protocol.METHODS), "## Commands", _commands(), "## Types"]
    return "\n\n".join([*parts, *map(_type, _with_parts(types_used))]) + "\n"


def _with_parts(types_used: Iterable[type]) -> dict[type, None]:
    """Return the types, each once, followed by the item types of their list fields."""
    found: dict[type, None] = {}
    for type_ in types_used:
        found[type_] = None
        for hint in typing.get_type_hints(type_).values():
            found.update((part, None) for part in typing.get_args(hint) if attrs.has(part))
    return found


def _method(method: protocol.Method) -> str:
    kind = "notification" if method.result is None else f"request, answered by [{_link(method.result)}"
    head = f"{method.direction.capitalize()}, {kind}. Params: [{_link(method.params)}."
    return f"### `{method.name}`\n\n{head}\n\n{method.summary}"


def _link(type_: type) -> str:
    return f"{type_.__name__}](#{type_.__name__.lower()})"


def _commands() -> str:
    head = "For `workspace/executeCommand`. Each takes one object."
    rows = ["| command | argument | result | what |", "|---|---|---|---|"]
    for command in protocol.COMMANDS:
        result = "null" if command.result is None else _name_of(command.result)
        rows.append(f"| `{command.name}` | [{_link(command.argument)} | {result} | {command.summary} |")
    return head + "\n\n" + "\n".join(rows)


def _type(type_: type) -> str:
    text = " ".join((type_.__doc__ or "").split())
    rows = list(_fields(type_))
    table = "\n".join(["", "", "| field | type | default |", "|---|---|---|", *rows]) if rows else ""
    return f"### {type_.__name__}\n\n{text}{table}"


def _fields(type_: type) -> Iterable[str]:
    hints = typing.get_type_hints(type_)
    for field in attrs.fields(type_):
        default = "" if field.default is attrs.NOTHING else f"`{_json(field.default)}`"
        yield f"| `{_camel(field.name)}` | {_name_of(hints[field.name])} | {default} |"


def _name_of(type_: Any) -> str:
    """Return a type's name in JSON."""
    if typing.get_origin(type_) is typing.Literal:
        return " \\| ".join(f'`"{value}"`' for value in typing.get_args(type_))
    if typing.get_origin(type_) is dict:
        return "object"
    if typing.get_origin(type_) is list:
        return f"array of {_name_of(typing.get_args(type_)[0])}"
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        return " \\| ".join(_name_of(part) for part in typing.get_args(type_))
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return names[type_] if type_ in names else f"[{_link(type_)}"


def _json(value: Any) -> str:
    return {None: "null", "": '""', True: "true", False: "false"}.get(value, str(value))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
