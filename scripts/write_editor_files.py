"""Writes what the editors' clients know of the settings and the protocol: `python scripts/write_editor_files.py`.

The settings in `vscode-client/package.json`, the protocol's types in `vscode-client/src/protocol.ts`, the settings'
types in `nvim-client/lua/kernel_lsp/settings.lua`, and `docs/editors/settings.md` all come from `kernel_lsp.config` and
`server.protocol.messages`. With ``--check`` nothing is written, and the exit status is 1 when one of them is stale.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from kernel_lsp import __version__
from kernel_lsp.config import Settings, describe_settings
from kernel_lsp.gpu.specs import GPUS
from kernel_lsp.server.protocol import messages as protocol

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vscode-client" / "package.json"
PROTOCOL_TYPES = ROOT / "vscode-client" / "src" / "protocol.ts"
LUA_TYPES = ROOT / "nvim-client" / "lua" / "kernel_lsp" / "settings.lua"
PAGE = ROOT / "docs" / "editors" / "settings.md"
SECTION = "kernelLsp"

CLIENT_SETTINGS: dict[str, dict[str, Any]] = {
    "serverPath": {
        "type": "string",
        "default": "",
        "scope": "machine",
        "markdownDescription": (
            "The `kernel-lsp` program. Empty: that of the selected Python environment, else the one on `PATH`."
        ),
    },
    "trace.server": {
        "type": "string",
        "enum": ["off", "messages", "verbose"],
        "default": "off",
        "scope": "window",
        "markdownDescription": "What the channel *kernel-lsp trace* shows of the messages to and from the server.",
    },
}
"""Settings of the VS Code extension alone: the server never hears of them."""


def main(arguments: list[str]) -> int:
    """Write, or with ``--check`` compare. Returns the exit status."""
    stale = [path for path, text in rendered().items() if not path.is_file() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run python scripts/write_editor_files.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered()[path], encoding="utf-8")
    return 0


def rendered() -> dict[Path, str]:
    """Each file's text as it should be."""
    return {
        PACKAGE: _package(),
        PROTOCOL_TYPES: _protocol_types(),
        LUA_TYPES: _lua_types(),
        PAGE: _page(),
    }


# --- below: package.json


def _package() -> str:
    package = json.loads(PACKAGE.read_text("utf-8"))
    package["version"] = __version__
    properties = dict(_properties())
    package["contributes"]["configuration"] = {"title": "kernel-lsp", "properties": properties}
    restricted = [name for name, schema in properties.items() if schema["scope"] == "machine"]
    package["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"] = restricted
    return json.dumps(package, indent=2, ensure_ascii=False) + "\n"


def _properties() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in CLIENT_SETTINGS.items():
        yield f"{SECTION}.{name}", schema
    schemas = Settings.model_json_schema()["properties"]
    for setting in describe_settings():
        yield f"{SECTION}.{_camel(setting.name)}", _property(setting.name, schemas[setting.name])


def _property(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A setting as VS Code's schema. A default of None, or one that depends on the machine, is `null`: not given."""
    variants = [variant for variant in schema.get("anyOf", [schema]) if variant.get("type") != "null"]
    value = variants[0]
    default = schema.get("default")
    given: dict[str, Any] = {"type": value["type"] if default is not None else [value["type"], "null"]}
    for ours, theirs in (
        ("pattern", "pattern"),
        ("minimum", "minimum"),
        ("maximum", "maximum"),
        ("enum", "enum"),
        ("minLength", "minLength"),
        ("exclusiveMinimum", "exclusiveMinimum"),
        ("items", "items"),
    ):
        if ours in value:
            given[theirs] = value[ours]
    if value.get("exclusiveMaximum", 1 << 53) < 1 << 53:  # JSON's numbers are exact up to there
        given["exclusiveMaximum"] = value["exclusiveMaximum"]
    if name == "target_gpu":
        given["examples"] = [gpu.name for gpu in GPUS]
    scope = "machine" if schema["scope"] == "machine" else "resource"
    return {**given, "default": default, "scope": scope, "markdownDescription": schema["description"]}


# --- below: the protocol's types


def _protocol_types() -> str:
    parts = [
        "// Written by scripts/write_editor_files.py from kernel_lsp/server/protocol/messages.py. Do not edit.",
        f'export const SERVER_VERSION = "{__version__}";',
        f"export const GPUS: readonly string[] = {json.dumps([gpu.name for gpu in GPUS])};",
        "export const COMMANDS = {\n"
        + "".join(f'  {command.name.partition(".")[2]}: "{command.name}",\n' for command in protocol.COMMANDS)
        + "} as const;",
        "export const METHODS = {\n"
        + "".join(f'  {method.name.partition("/")[2]}: "{method.name}",\n' for method in protocol.METHODS)
        + "} as const;",
        *map(_interface, _types_used()),
    ]
    return "\n\n".join(parts) + "\n"


def _types_used() -> list[type]:
    found: dict[type, None] = {}

    def add(type_: Any) -> None:
        if isinstance(type_, type) and attrs.has(type_) and type_ not in found:
            found[type_] = None
            for hint in typing.get_type_hints(type_).values():
                add(hint)
        for part in typing.get_args(type_):
            add(part)

    for method in protocol.METHODS:
        add(method.params)
        add(method.result)
    for command in protocol.COMMANDS:
        add(command.argument)
        add(command.result)
    return list(found)


def _interface(type_: type) -> str:
    text = " ".join((type_.__doc__ or "").split())
    hints = typing.get_type_hints(type_)
    lines = [f"/** {text} */", f"export interface {type_.__name__} {{"]
    for field in attrs.fields(type_):
        mark = "" if field.default is attrs.NOTHING else "?"
        lines.append(f"  {_camel(field.name)}{mark}: {_typescript(hints[field.name])};")
    return "\n".join([*lines, "}"])


def _typescript(type_: Any) -> str:
    origin = typing.get_origin(type_)
    if origin is typing.Literal:
        return " | ".join(f'"{value}"' for value in typing.get_args(type_))
    if origin is list:
        return f"({_typescript(typing.get_args(type_)[0])})[]"
    if origin is dict:
        return f"{{ [name: string]: {_typescript(typing.get_args(type_)[1])} }}"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_typescript, typing.get_args(type_)))
    names = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", Any: "unknown"}
    return names.get(type_, type_.__name__)


# --- below: Lua and the page


def _lua_types() -> str:
    lines = [
        "-- Written by scripts/write_editor_files.py from kernel_lsp/config.py. Do not edit.",
        "",
        "---@class kernel_lsp.Settings",
    ]
    schemas = Settings.model_json_schema()["properties"]
    for setting in describe_settings():
        lines.append(f"---@field {_camel(setting.name)}? {_lua(schemas[setting.name])} {setting.description}")
    names = ", ".join(f'"{_camel(setting.name)}"' for setting in describe_settings())
    gpus = ", ".join(f'"{gpu.name}"' for gpu in GPUS)
    return "\n".join([*lines, "", "return {", f"  names = {{ {names} }},", f"  gpus = {{ {gpus} }},", "}"]) + "\n"


def _lua(schema: dict[str, Any]) -> str:
    variants = [variant for variant in schema.get("anyOf", [schema]) if variant.get("type") != "null"]
    value = variants[0]
    if "enum" in value:
        return "|".join(f'"{each}"' for each in value["enum"])
    return {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}.get(
        value["type"], "table"
    )


def _page() -> str:
    head = (
        "# Settings\n\n<!-- Written by scripts/write_editor_files.py from kernel_lsp/config.py. Do not edit. -->\n\n"
        f"One list for every way to use it: in an editor under `{SECTION}`, in camelCase; in `pyproject.toml` under\n"
        "`[tool.kernel-lsp]`; in the environment. Later wins: defaults, `pyproject.toml`, the environment, the editor\n"
        "or the command line. A change in an editor takes effect at once.\n\n"
        "| editor | pyproject.toml | environment | type | default | what |\n|---|---|---|---|---|---|\n"
    )
    rows = []
    for setting in describe_settings():
        default = "in the user's cache folder" if setting.name == "cache_directory" else f"`{setting.default}`"
        default = "" if default == "``" else default
        type_ = setting.type.replace("|", "\\|")
        rows.append(
            f"| `{SECTION}.{_camel(setting.name)}` | `{setting.name}` | `{setting.environment_variable}` | {type_} "
            f"| {default} | {setting.description} |"
        )
    return head + "\n".join(rows) + "\n"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
