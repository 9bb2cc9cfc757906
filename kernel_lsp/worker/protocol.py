"""Serve requests: one JSON request per line on stdin, one JSON answer per line on a private copy of stdout.

The user's code runs in this process. Its prints go to stderr, and its reads of stdin reach the end of the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import itertools
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, Callable, TextIO

from .failure import EnvironmentFailure, Failure, short_message

OLDEST_TORCH = (2, 6)
COMMANDS = {
    "describe": ("describe", "describe"),
    "open_context": ("gpu.context_ahead", "open_context"),
    "prepare_capture": ("capture.capture", "prepare_capture"),
    "capture": ("capture.capture", "capture"),
    "try_inputs": ("task_facts", "try_inputs"),
    "make_cases": ("cases.make_cases", "make_cases"),
    "run_library": ("library", "run_library"),
    "profile_trace": ("timing.baseline", "profile_trace"),
    "examine_task": ("task_facts", "examine_task"),
    "count_configurations": ("task_facts", "count_configurations"),
    "crawl_operators": ("synthesis.crawl", "crawl_operators"),
    "draw_task": ("synthesis.compose", "draw_task"),
    "trace_task": ("synthesis.trace", "trace_task"),
    "prepare_candidate": ("timing.candidate", "prepare_candidate"),
    "prepare_compiler": ("timing.baseline", "prepare_compiler"),
    "prepare_baseline": ("timing.baseline", "prepare_baseline"),
    "prepare_probe": ("timing.rounds", "prepare_probe"),
    "set_calls": ("timing.rounds", "set_calls"),
    "wait_until_idle": ("timing.rounds", "wait_until_idle"),
    "time_block": ("timing.rounds", "time_block"),
    "end_timing": ("timing.rounds", "end_timing"),
    "extension_facts": ("describe", "extension_facts"),
    "start_pools": ("foreign.run", "start_pools"),
    "open_foreign": ("foreign.module", "open_foreign"),
    "run_foreign": ("foreign.run", "run_foreign"),
    "look_again": ("foreign.run", "look_again"),
    "prepare_foreign": ("foreign.run", "prepare_foreign"),
    "write_timed": ("foreign.run", "write_timed"),
    "burst": ("foreign.run", "burst"),
    "open_device": ("gpu.device", "open_device"),
    "warm_up": ("gpu.check_commands", "warm_up"),
    "load": ("gpu.run", "handle_load"),
    "unload": ("gpu.check_commands", "handle_unload"),
    "check": ("gpu.check_commands", "handle_check"),
    "recheck": ("gpu.check_commands", "handle_recheck"),
    "time_launches": ("gpu.launch_times", "time_launches"),
    "find_tools": ("gpu.tools", "find_tools"),
    "run_tools": ("gpu.tools", "run_tools"),
}
"""Command -> (module, function)."""
APART = frozenset({"try_inputs"})
"""Commands that run the user's code in a child: its modules, registered operators, default dtype and cached fake
tensors would stay for the capture that follows."""
RENEW = "renew"
DRIVER = "libcuda.so.1"
_HAS_DRIVER = threading.Event()
"""Set where NVIDIA's driver is loaded, which a child of this process cannot use."""


def serve(first: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Answer requests until stdin ends, `first` before all. Return the request `renew`, which another process
    answers."""
    requests, answers = _private_streams()
    sys.dont_write_bytecode = sys.pycache_prefix is None  # nothing may be written into the user's folder
    start_driver()
    for request in itertools.chain([first] if first else [], map(json.loads, requests)):
        if request["command"] == RENEW:
            return request
        answers.write(json.dumps(_answer_apart(request) if request["command"] in APART else answer(request)) + "\n")
        answers.flush()
    return None


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request: its function's result, or ``{"error": ...}``."""
    try:
        function = _find(request.pop("command"))
        return function(request)
    except Failure as failure:
        return {"error": failure.as_json()}
    except BaseException as error:  # the process must always answer: an unforeseen error is reported as ours
        traceback.print_exc()
        return {"error": _unforeseen(error).as_json()}


def _unforeseen(error: BaseException) -> Failure:
    """Return what an error that nothing else caught is for the user: too little memory, or a fault of ours."""
    if type(error).__name__ in {"MemoryError", "OutOfMemoryError"} or "can't allocate memory" in str(error):
        return EnvironmentFailure(
            f"the task needs more memory: {short_message(error)}",
            next_step="state smaller sizes in the target's pragma, or use a machine with more memory",
        )
    return Failure(f"the worker failed: {type(error).__name__}: {error}", next_step="report this with the file")


def _answer_apart(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a child process, which ends with it. Where no child can start or one dies, this process
    answers, and says so as ``in_place``."""
    with contextlib.suppress(Failure):  # it is the answer below
        _find(request["command"])  # its modules stay for later requests
    text = "" if _HAS_DRIVER.is_set() else _line_of_child(request)
    return json.loads(text) if text else {**answer(request), "in_place": True}


def _line_of_child(request: dict[str, Any]) -> str:
    """Return the line that a child writes, or an empty one."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        reading, writing = os.pipe()
        child = os.fork()
    except (AttributeError, OSError):  # Windows, or a limit on processes
        return ""
    if not child:
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(answer(request)) + "\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        line = pipe.readline()  # not to its end, which processes of the user's code may hold open
    os.waitpid(child, 0)
    return line if line.endswith("\n") else ""


def _find(command: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    with without_collections():
        return _import(command)


def _import(command: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    need_torch()
    if command not in COMMANDS:
        raise Failure(f"the worker has no command '{command}'")
    module, function = COMMANDS[command]
    return getattr(importlib.import_module(f".{module}", __package__), function)


def need_torch() -> None:
    """Check that the interpreter has a usable torch. Raises EnvironmentFailure when it has none."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentFailure(
            f"the interpreter {sys.executable} cannot import torch ({error})",
            file=sys.executable,
            next_step=f"run `{sys.executable} -m pip install torch`, or name another interpreter with --python",
        ) from None
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise EnvironmentFailure(
            f"the interpreter {sys.executable} has torch {torch.__version__}, and {oldest} or later is needed",
            file=sys.executable,
            next_step=f"run `{sys.executable} -m pip install --upgrade torch`",
        )


def _private_streams() -> tuple[TextIO, TextIO]:
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return requests, answers


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Suspend the garbage collector during imports: it would traverse the objects of two thousand modules again and
    again, all of which stay. A first capture takes 2.9 s instead of 3.4 (two cores, torch 2.13). Objects of the first
    imports are frozen. Those of later imports are not, since they may include the user's garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _freeze_once()
        gc.enable()


@functools.cache
def _freeze_once() -> None:
    """Freeze at most once. A flag is used, since asking the collector takes longer than a small case."""
    gc.freeze()


def start_driver() -> threading.Thread:
    """Initialise NVIDIA's driver in a thread while modules are imported: torch needs it sooner or later. Does nothing
    without a driver."""
    thread = threading.Thread(target=_start_driver, name="driver", daemon=True)
    thread.start()
    return thread


def _start_driver() -> None:
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL(DRIVER)
        _HAS_DRIVER.set()
        driver.cuInit(0)
