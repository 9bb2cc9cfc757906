"""The compiler process: a JSON request per line of stdin, a JSON reply per line of stdout. Standard library only.

    python -I -S nvrtc_program.py LIBNVRTC LIBNVRTC_BUILTINS

A request is ``{"text", "file_name", "name_expressions", "options", "headers"}`` (`headers` maps an include name to its
text). A reply is ``{"status", "log", "ptx", "cubin", "symbols", "compile_s"}``; `status` is NVRTC's code, 0 for
success, and `cubin` is base64. When ptxas refuses the kernel the PTX is there nevertheless. The parent keeps the
deadline.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Callable

MAX_MEMORY_BYTES = 8 << 30  # NVRTC itself maps about 0.4 GB; this stops template bombs before the machine runs out
MAX_LOG_BYTES = 1 << 20
MAX_PTX_BYTES = 64 << 20
MAX_CUBIN_BYTES = 64 << 20
TOO_LARGE_STATUS = -1
"""Our own status: the PTX exceeds `MAX_PTX_BYTES`."""
Foreign = Callable[..., int]
"""A library function that returns a status."""


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of the library must not mix with the replies
    _limit_resources()
    library = _load(sys.argv[1], sys.argv[2])
    for line in sys.stdin.buffer:
        replies.write(json.dumps(_compile(library, json.loads(line))) + "\n")
        replies.flush()


def _limit_resources() -> None:
    for kind, limit in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(ValueError, OSError):  # a lower limit is already in force
            resource.setrlimit(kind, (limit, limit))


def _load(nvrtc: str, builtins: str) -> ctypes.CDLL:
    """Load NVRTC after its builtins, which it looks up by name and would not find outside the loader's path."""
    ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(nvrtc)


def _compile(library: ctypes.CDLL, request: dict) -> dict:
    started = time.monotonic()
    names = [name.encode() for name in request["name_expressions"]]
    program = _create(library, request)
    try:
        for name in names:
            library.nvrtcAddNameExpression(program, name)
        options = [option.encode() for option in request["options"]]
        status = library.nvrtcCompileProgram(program, len(options), _strings(options))
        ptx = _text(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program, MAX_PTX_BYTES + 1)
        if len(ptx) > MAX_PTX_BYTES:
            status, ptx = TOO_LARGE_STATUS, ""
        return {
            "status": status,
            "log": _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program, MAX_LOG_BYTES),
            "ptx": ptx,
            "cubin": _machine_code(library, program) if status == 0 else "",
            "symbols": _symbols(library, program, names) if status == 0 else {},
            "compile_s": time.monotonic() - started,
        }
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _create(library: ctypes.CDLL, request: dict) -> ctypes.c_void_p:
    headers = {name.encode(): text.encode() for name, text in request["headers"].items()}
    program = ctypes.c_void_p()
    status = library.nvrtcCreateProgram(
        ctypes.byref(program),
        request["text"].encode(),
        request["file_name"].encode(),
        len(headers),
        _strings(list(headers.values())),
        _strings(list(headers)),
    )
    if status != 0:
        raise SystemExit(f"nvrtcCreateProgram failed with {status}")
    return program


def _strings(values: list[bytes]) -> ctypes.Array:
    return (ctypes.c_char_p * len(values))(*values)


def _text(size_of: Foreign, read: Foreign, program: ctypes.c_void_p, max_bytes: int) -> str:
    raw = _raw(size_of, read, program)
    return raw[: min(len(raw) - 1, max_bytes)].decode(errors="replace") if raw else ""


def _machine_code(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    """Return the machine code; empty for a virtual architecture, which has none."""
    code = _raw(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    return base64.b64encode(code).decode() if len(code) <= MAX_CUBIN_BYTES else ""


def _raw(size_of: Foreign, read: Foreign, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    if size_of(program, ctypes.byref(size)) != 0 or size.value == 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    read(program, buffer)
    return buffer.raw


def _symbols(library: ctypes.CDLL, program: ctypes.c_void_p, names: list[bytes]) -> dict:
    symbols = {}
    for name in names:
        symbol = ctypes.c_char_p()
        if library.nvrtcGetLoweredName(program, name, ctypes.byref(symbol)) == 0 and symbol.value is not None:
            symbols[name.decode()] = symbol.value.decode()
    return symbols


if __name__ == "__main__":
    main()
