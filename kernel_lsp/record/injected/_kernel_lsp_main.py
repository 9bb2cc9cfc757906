"""Notice the functions that the main script defines: it still runs when they are called, so no import ends it.

Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

import atexit
import signal
import sys
import time
from typing import Any

TOOLS = (4, 3)
"""Numbers of `sys.monitoring` that no kind of tool has by convention."""
MAX_TRACED_S = 5.0
"""Seconds after the import of torch in which a trace function looks for the main script's functions."""


def watch_main(recorder):
    """Have the recorder scan the main script while it runs: on its lines; before Python 3.12 by a trace function,
    up to the first step, as that one slows every call."""
    frame = _frame_of(vars(sys.modules["__main__"]))
    monitoring = getattr(sys, "monitoring", None)
    tool = next((tool for tool in TOOLS if monitoring.get_tool(tool) is None), None) if monitoring else None
    if tool is not None and frame is not None:
        _watch_lines(recorder, monitoring, tool, frame.f_code)
    elif sys.gettrace() is None:
        _trace(recorder, frame)


def _frame_of(main):
    """Return the frame of the main script, which runs below us; None where it does not."""
    frame: Any = sys._getframe()
    while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame


def _watch_lines(recorder, monitoring, tool, code):
    """Scan at each line of the main script when it first runs; no other code is slower for it."""
    event = monitoring.events.LINE

    def line(_code, _number):
        recorder.guarded(recorder.scan_main)
        return monitoring.DISABLE

    def stop():
        monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)

    monitoring.use_tool_id(tool, "kernel-lsp record")
    monitoring.register_callback(tool, event, line)
    monitoring.set_local_events(tool, code, event)
    recorder.undo.append(stop)


def _trace(recorder, frame):
    """Scan at lines of the main script's frame, and at calls: a function is found before its first call, too."""
    deadline, main = time.perf_counter() + MAX_TRACED_S, vars(sys.modules["__main__"])

    def trace(_frame, _event, _argument):
        if len(main) != recorder.n_main:
            recorder.guarded(recorder.scan_main)
        if not recorder.is_on or recorder.n_steps or time.perf_counter() > deadline:
            stop()
        return trace if _frame is frame else None

    def stop():
        if sys.gettrace() is trace:
            sys.settrace(None)
        if frame is not None and frame.f_trace is trace:
            frame.f_trace = None

    sys.settrace(trace)
    if frame is not None:
        frame.f_trace = trace
    recorder.undo.append(stop)


def hide_interrupt():
    """Print no traceback of a `KeyboardInterrupt` that ends the program: a limit ends it by one."""
    shown = sys.excepthook

    def hook(kind, error, trace):
        if not issubclass(kind, KeyboardInterrupt):
            shown(kind, error, trace)

    hook._hides_interrupt = True  # type: ignore[attr-defined]  # a mark of ours
    sys.excepthook = hook


def register_end(finish):
    """Call `finish` when the program ends. The interrupt of a limit may come then, and is not heard any more."""

    def end():
        if getattr(sys.excepthook, "_hides_interrupt", False):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        finish()

    atexit.register(end)
