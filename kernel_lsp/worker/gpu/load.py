"""Candidates on a device: load machine code, load it anew, and unload it."""

from __future__ import annotations

import base64
import time
from typing import Any

from ..failure import Failure
from ..shipped.cuda_runtime import (
    CudaError,
    architecture_of,
    compiled,
    find_function,
    load_module,
    make_context_current,
    on_device,
)
from . import device as gpu_device
from .run import Candidate

LOADED: dict[str, Candidate] = {}


def handle_load(request: dict[str, Any]) -> dict[str, Any]:
    """Load ``{"candidate", "device", "kernels", "symbols", "cubin" (base64) or "ptx"}``, or ``"text"`` and
    ``"file_name"``.

    Answers ``{"loaded", "log", "load_s", ...device facts}``. Code that does not compile or load gives an answer, not a
    failure.
    """
    device = gpu_device.device_index(request)
    started = time.monotonic()
    log = ""
    with on_device(device):
        make_context_current(device)
        try:
            code, symbols = _machine_code(request, device)
            wanted = {name: symbols[name] for name in request["kernels"]}
            LOADED[request["candidate"]] = load_candidate(code, wanted, device)
        except CudaError as error:
            log = str(error)
    return {
        "loaded": not log,
        "log": log,
        "load_s": time.monotonic() - started,
        **gpu_device.device_facts(device),
    }


def unload(name: str) -> bool:
    """Unload a candidate; returns whether it was loaded."""
    candidate = LOADED.pop(name, None)
    if candidate is not None:
        gpu_device.unload_module(candidate.module)
    return candidate is not None


def load_candidate(code: bytes, symbols: dict[str, str], device: int) -> Candidate:
    """Load a module of its own, with its own variables in device memory. Raises CudaError."""
    module = load_module(code)
    functions = {name: find_function(module, symbol) for name, symbol in symbols.items()}
    return Candidate(functions, device, module, code, symbols)


def loaded_candidate(request: dict[str, Any]) -> Candidate:
    """Return the request's candidate. Raises Failure when it is not loaded here."""
    if request["candidate"] not in LOADED:
        raise Failure(f"the candidate {request['candidate']} is not loaded in this process")
    return LOADED[request["candidate"]]


def _machine_code(request: dict[str, Any], device: int) -> tuple[bytes, dict[str, str]]:
    if "cubin" in request:
        return base64.b64decode(request["cubin"]), request["symbols"]
    if "ptx" in request:
        return request["ptx"].encode(), request["symbols"]
    return compiled(request["text"], request["file_name"], request["kernels"], architecture_of(device))
