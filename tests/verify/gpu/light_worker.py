"""A worker without torch, for tests and benchmarks that need many: the real processes and protocol, a GPU that sleeps.

``light_worker.py SECONDS PROGRAM fork_server``: a case takes so many seconds on average, as `case_seconds` says. Every
kernel computes 2 x + 1.
"""

from __future__ import annotations

import array
import importlib
import importlib.util
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

PACKAGE = "_kernel_lsp_worker"
NOTHING: dict[str, dict[str, Any]] = {"stages_s": {}, "unwritten": {}, "spread": {}, "fingerprints": {}}
FACTS = {"gpu": "Light GPU", "driver": "0", "torch_version": "0", "architecture": "sm_90", "total_bytes": 1 << 30}


def case_seconds(mean_s: float, candidate: str) -> float:
    """Return the seconds of a candidate's case, between half and one and a half of the mean. With equal ones, slots
    that began together would end together for ever."""
    return mean_s * (0.5 + zlib.crc32(candidate.encode()) % 1001 / 1000)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer as a GPU would, in the time that was asked for."""
    match request["command"]:
        case "open_device":
            return {**FACTS, "uuid": f"light-{os.getppid()}", "n_devices": 1}
        case "load":
            return {"loaded": True, "log": ""}
        case "check":
            return _checked(request)
        case "recheck":
            return {"differs": []}
        case _:
            return {}


def _checked(request: dict[str, Any]) -> dict[str, Any]:
    started, root = time.monotonic(), os.environ.get("KERNEL_LSP_FILES", "").rstrip("/")
    for given in request["inputs"]:
        x = array.array("f", Path(root + given["path"]).read_bytes())
    out = array.array("f", (2 * value + 1 for value in x))
    seconds = case_seconds(float(sys.argv[1]), request["candidate"])
    if request["candidate"] == "canary":  # a small kernel, of milliseconds
        seconds = 0.0
        x = array.array("i", x.tobytes())
        out = array.array("i", (3 * x[block + 255 - n] + 1 for block in range(0, len(x), 256) for n in range(256)))
    target = Path(root + next(iter(request["outputs"].values())))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(out.tobytes())
    time.sleep(max(0.0, started + seconds - time.monotonic()))
    slept = {"stages_s": {"sleep": time.monotonic() - started}}
    name = next(iter(request["outputs"]))
    shown = {"path": request["outputs"][name]}
    return {
        "status": "ran",
        "outputs": [shown],
        "changed_inputs": [],
        "overrun": [],
        "scratch_bytes": 0,
        **NOTHING,
        **slept,
    }


def main() -> None:
    folder = Path(sys.argv[2]).parent
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    protocol, fork_server = (importlib.import_module(f"{PACKAGE}.{name}") for name in ("protocol", "fork_server"))
    failure = importlib.import_module(f"{PACKAGE}.failure").Failure

    def no_torch() -> None:
        raise failure("this worker has none")

    protocol.answer, fork_server.need_torch = answer, no_torch
    fork_server.main([])


if __name__ == "__main__":
    main()
