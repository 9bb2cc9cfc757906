"""Notice the functions that the main script defines: it still runs when they are called, so no import ends it.

Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

TOOLS = (4, 3)
"""Numbers of `sys.monitoring` that no kind of tool has by convention."""
MAX_PROFILED_S = 5.0
"""Seconds after the import of torch in which a profile function looks for the main script's functions."""


def watch_main(recorder):
    """Have the recorder scan the main script while it runs: on its lines, or before Python 3.12 by a profile function,
    up to the first step, as that one slows every call."""
    code = _code_of(vars(sys.modules["__main__"]))
    monitoring = getattr(sys, "monitoring", None)
    tool = next((tool for tool in TOOLS if monitoring.get_tool(tool) is None), None) if monitoring else None
    if tool is not None and code is not None:
        _watch_lines(recorder, monitoring, tool, code)
    elif sys.getprofile() is None:
        _watch_calls(recorder)


def _code_of(main):
    """Return the code of the main script, which runs below us; None where it does not."""
    frame: Any = sys._getframe()
    while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return None if frame is None else frame.f_code


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


def _watch_calls(recorder):
    deadline, main = time.perf_counter() + MAX_PROFILED_S, vars(sys.modules["__main__"])
    counter = itertools.count(1)

    def profile(_frame, _event, _argument):
        if len(main) != recorder.n_main:
            recorder.guarded(recorder.scan_main)
        if not recorder.is_on or recorder.n_steps or (next(counter) % 256 == 0 and time.perf_counter() > deadline):
            sys.setprofile(None)

    def stop():
        if sys.getprofile() is profile:
            sys.setprofile(None)

    sys.setprofile(profile)
    recorder.undo.append(stop)
