"""A worker that speaks the timing commands without torch or a GPU: a program of its own, told how to behave.

Its argument is JSON: ``{"log": path, "times_us": {"ours": 40, "eager": 100, ...}, ...}``. It appends a line to the log
when a block starts and when it ends, so that tests can see that no two processes run blocks at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

BEHAVIOUR: dict[str, Any] = json.loads(sys.argv[1])
DRAW = random.Random(BEHAVIOUR.get("seed", 0))
SUBJECTS: dict[str, str] = {}
METHODS: dict[str, str] = {}
N_BLOCKS = [0]
TICK_S = 0.01
FACTS = {
    "n_sets": 16,
    "enqueue_us": 5.0,
    "resolution_us": 1.0,
    "tick_us": 0.03,
    "gpu": BEHAVIOUR.get("gpu", "NVIDIA H200"),
    "gpu_uuid": "GPU-fake",
    "driver": "580.0",
    "torch_version": "2.11.0",
    "date": "2026-11-21",
    "tf32": "off",
    "cudnn_benchmark": "on",
    "pid": os.getpid(),
    **BEHAVIOUR.get("facts", {}),
}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(COMMANDS[request["command"]](request)), flush=True)


def prepare_candidate(request: dict[str, Any]) -> dict[str, Any]:
    return ready(request, "ours")


def prepare_probe(request: dict[str, Any]) -> dict[str, Any]:
    log("probe")
    return ready(request, "probe")


def prepare_compiler(request: dict[str, Any]) -> dict[str, Any]:
    log("prepare_compiler")
    return {"status": "ready"}


def prepare_baseline(request: dict[str, Any]) -> dict[str, Any]:
    mode = request["mode"]
    log(f"prepare {mode}")
    for _ in range(int(BEHAVIOUR.get("slow_modes", {}).get(mode, 0.0) / TICK_S)):
        time.sleep(TICK_S)
        log("compiling")
    if mode in BEHAVIOUR.get("crowded_modes", ()):
        with open(BEHAVIOUR["log"]) as file:
            n_before = sum(line.endswith(f" prepare {mode}\n") for line in file)
        if n_before <= BEHAVIOUR.get("n_crowded", 1):
            return {"status": "failed", "message": "OutOfMemoryError: CUDA out of memory."}
    if mode in BEHAVIOUR.get("failing_modes", {}):
        return {"status": "failed", "message": BEHAVIOUR["failing_modes"][mode]}
    if mode in BEHAVIOUR.get("dying_modes", ()):
        os.kill(os.getpid(), signal.SIGKILL)
    log(f"prepared {mode}")
    return ready(request, mode)


def ready(request: dict[str, Any], what: str) -> dict[str, Any]:
    SUBJECTS[request["subject"]] = what
    enqueue(request)
    n_calls = int(request.get("n_calls", 0)) or max(1, min(16, round(200 / true_us(what))))
    return arranged(what, n_calls, request["subject"])


def enqueue(request: dict[str, Any]) -> None:
    """In a graph, where it can be captured and nothing else is asked for."""
    can_capture = BEHAVIOUR.get("can_capture", True)
    METHODS[request["subject"]] = request.get("method", "graph") if can_capture else "stream"


def set_calls(request: dict[str, Any]) -> dict[str, Any]:
    log(f"set_calls {request['subject']} {request['n_calls']}")
    enqueue(request)
    return arranged(SUBJECTS[request["subject"]], request["n_calls"], request["subject"])


def arranged(what: str, n_calls: int, subject: str) -> dict[str, Any]:
    return {
        "status": "ready",
        "time_us": true_us(what),
        "is_long": true_us(what) >= 5000.0,
        "n_calls": min(n_calls, BEHAVIOUR.get("max_calls", 16)),
        "max_calls": BEHAVIOUR.get("max_calls", 16),
        "method": METHODS[subject],
        **FACTS,
    }


def wait_until_idle(request: dict[str, Any]) -> dict[str, Any]:
    log("wait_until_idle")
    return {"status": "ready", "is_idle": not BEHAVIOUR.get("stays_busy"), "waited_s": 0.0}


def time_block(request: dict[str, Any]) -> dict[str, Any]:
    what = SUBJECTS[request["subject"]]
    N_BLOCKS[0] += 1
    log(f"start {request['subject']} {time.monotonic_ns()} {request['n_warm_samples']}")
    if N_BLOCKS[0] == BEHAVIOUR.get("die_at_block") or what in BEHAVIOUR.get("dies_timing", ()):
        os.kill(os.getpid(), signal.SIGKILL)
    if N_BLOCKS[0] == BEHAVIOUR.get("hang_at_block"):
        time.sleep(3600)
    if N_BLOCKS[0] == BEHAVIOUR.get("crash_at_block"):
        return {"status": "crashed", "message": "CUDA error: an illegal memory access was encountered"}
    noise = [DRAW.gauss(0, BEHAVIOUR.get("spread", 0.01)) for _ in range(request["n_samples"])]
    added_us = BEHAVIOUR.get("stream_us", 0.0) if METHODS[request["subject"]] == "stream" else 0.0
    cold = [true_us(what) * (1 + error) + added_us + BEHAVIOUR.get("offset_us", 0.0) for error in noise]
    log(f"end {request['subject']} {time.monotonic_ns()}")
    return {
        "status": "timed",
        "cold_us": cold,
        "places": [DRAW.randrange(16) for _ in cold],
        "warm_us": [true_us(what) * 0.8] * request["n_warm_samples"],
        "operator_us": [true_us(what) + 6.0] * (request["n_operator_calls"] > 0),
        "clocks": clocks(),
    }


def clocks() -> dict[str, Any]:
    if BEHAVIOUR.get("has_no_nvml"):
        return {"reason": "NVML: libnvidia-ml.so.1: cannot open shared object file"}
    every = BEHAVIOUR.get("throttled_every", 0)
    throttled = ["software power cap"] if every and N_BLOCKS[0] % every == 0 else []
    return {"sm_mhz": 1980, "memory_mhz": 3201, "temperature_c": 40, "power_w": 300.0, "throttled": throttled}


def end_timing(request: dict[str, Any]) -> dict[str, Any]:
    del SUBJECTS[request["subject"]]
    return {"status": "ended", **BEHAVIOUR.get("report", {})}


def true_us(what: str) -> float:
    return float(BEHAVIOUR.get("times_us", {}).get(what, 50.0))


def log(text: str) -> None:
    with open(BEHAVIOUR["log"], "a") as file:
        file.write(f"{os.getpid()} {text}\n")


COMMANDS = {
    "prepare_candidate": prepare_candidate,
    "prepare_compiler": prepare_compiler,
    "prepare_baseline": prepare_baseline,
    "prepare_probe": prepare_probe,
    "set_calls": set_calls,
    "wait_until_idle": wait_until_idle,
    "time_block": time_block,
    "end_timing": end_timing,
}

if __name__ == "__main__":
    main()
