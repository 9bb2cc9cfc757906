"""The Model Context Protocol over JSON lines: an agent's tools for any MCP client.

Version 2025-06-18 of the protocol (modelcontextprotocol.io): `initialize`, `ping`, `tools/list` and `tools/call`;
nothing else is offered. A malformed line is answered with JSON-RPC's own errors and ends nothing.
"""

from __future__ import annotations

import json
from typing import Any

from kernel_lsp import __version__
from kernel_lsp.evolve.agent.tools import TOOLS, AgentTools, ToolSpec

PROTOCOL_VERSION = "2025-06-18"
KNOWN_VERSIONS = (PROTOCOL_VERSION, "2025-03-26", "2024-11-05")
"""Protocol versions in which our messages are identical."""
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
INSTRUCTIONS = (
    "Write a CUDA kernel file that replaces a PyTorch function. Call task first. Then write a kernel, compile, check "
    "and profile it, and improve it until check gives the reward 3, or 2 where no compiled PyTorch is timed."
)


async def answer(line: str, tools: AgentTools) -> dict[str, Any] | None:
    """Return the reply to one line; None for a notification."""
    try:
        message = json.loads(line)
    except ValueError as error:
        return _error(None, PARSE_ERROR, f"no JSON: {error}")
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return _error(None, INVALID_REQUEST, "no request")
    if "id" not in message:
        return None
    params = message.get("params") or {}
    if not isinstance(params, dict):
        return _error(message["id"], BAD_PARAMS, "params are no object")
    return await _respond(message["id"], message["method"], params, tools)


# --- below


async def _respond(id_: Any, method: str, params: dict[str, Any], tools: AgentTools) -> dict[str, Any]:
    match method:
        case "initialize":
            return _result(id_, _initialized(params))
        case "ping":
            return _result(id_, {})
        case "tools/list":
            return _result(id_, {"tools": [_listed(spec) for spec in TOOLS]})
        case "tools/call":
            name, arguments = params.get("name"), params.get("arguments") or {}
            if not isinstance(name, str) or not isinstance(arguments, dict):
                return _error(id_, BAD_PARAMS, "a call has a name and arguments")
            called = await tools.call(name, arguments)
            return _result(id_, {"content": [{"type": "text", "text": called.text}], "isError": called.is_error})
    return _error(id_, NO_METHOD, f"no method {method}")


def _initialized(params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in KNOWN_VERSIONS else PROTOCOL_VERSION,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "kernel-lsp", "version": __version__},
        "instructions": INSTRUCTIONS,
    }


def _listed(spec: ToolSpec) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": text} for name, text in spec.parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": spec.name, "description": spec.description, "inputSchema": schema}


def _result(id_: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": result}


def _error(id_: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}
