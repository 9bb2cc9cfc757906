"""Measure the server's latency: `python benchmarks/server_latency.py [SECONDS [RESULT.json]]`; 1 over a budget.

A real server and a real engine. While one optimization and one check run and ten edits arrive each second, requests are
asked one after the other, as an editor does. Times are wall clock: on a busy machine they hold what others take, so the
load is printed, too.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from kernel_lsp.process.tree import descendants, is_running
from tests.server.client import VSCODE, Client, initialized
from tests.server.samples import KERNEL, SCALE, SCALE_LINE

N_STARTS = 5
N_FILES = 20
N_LINES = 2000
EDITS_PER_S = 10
LONG = {"device": "cpu", "generations": 100, "proposals": 8, "inlayHints": True}
BUDGETS = {
    "initialize": 500.0,
    "resident": 120.0,
    "hover": 100.0,
    "codeLens": 100.0,
    "codeAction": 100.0,
    "inlayHint": 100.0,
    "ping": 100.0,
    "exit": 2000.0,
}
"""Milliseconds (99th percentile; best of several for `initialize`, worst for `ping`), and MB for `resident`.
`echo` has none: it is a process that sends back what it gets, and tells a slow machine from a slow server."""


@dataclass(frozen=True)
class Figure:
    """One number against its budget."""

    name: str
    value: float
    unit: str
    detail: str

    @property
    def is_over(self) -> bool:
        return self.value > BUDGETS.get(self.name, math.inf)


async def measure(seconds: float) -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / ".kernel-lsp").mkdir()
        (root / "scale.py").write_text(SCALE)
        (root / "scale.cu").write_text(KERNEL)
        (root / "big.py").write_text(large_text(N_LINES))
        return [await start_figure(root), await memory_figure(root), *await busy_figures(root, seconds)]


async def start_figure(root: Path) -> Figure:
    """Measure from spawning the process to its answer."""
    times = []
    for _ in range(N_STARTS):
        async with initialized(root, VSCODE) as editor:
            times.append(editor.initialize_s * 1000)
    return Figure("initialize", min(times), "ms", f"median {sorted(times)[N_STARTS // 2]:.0f}, worst {max(times):.0f}")


async def memory_figure(root: Path) -> Figure:
    """Return the memory of the server after it has opened and analysed files; its helper beside it."""
    async with initialized(root, VSCODE) as editor:
        for number in range(N_FILES):
            path = root / f"file_{number}.py"
            await editor.diagnostics(editor.open(path, large_text(500)))
            await editor.at("codeLens", path.as_uri())
        (analyst,) = descendants(editor.pid)
        own, helper = resident_mb(editor.pid), resident_mb(analyst)
        return Figure("resident", own, "MB", f"after {N_FILES} files; the analysis process beside it {helper:.0f} MB")


async def busy_figures(root: Path, seconds: float, of_requests: float = 0.99, of_pings: float = 1.0) -> list[Figure]:
    """Latencies, as quantiles, while everything is going on; and the end of it."""
    answers = {"workspace/configuration": lambda params: [LONG for _ in params["items"]]}
    async with initialized(root, VSCODE, answers, trusted=True) as editor:
        uri, kernel = editor.open(root / "scale.py"), editor.open(root / "scale.cu")
        await editor.diagnostics(uri)
        await editor.until(lambda: editor.asked("workspace/configuration"))
        await editor.command("optimize", uri=uri, symbol="scale")
        await editor.until(lambda: any("best" in str(p) for p in editor.said("$/progress")), 300)
        big = editor.open(root / "big.py", large_text(N_LINES))
        await editor.diagnostics(big)
        ending = time.monotonic() + seconds
        times: dict[str, list[float]] = {}
        await asyncio.gather(
            echo(ending, times),
            edit(editor, big, ending),
            check(editor, kernel, ending),
            ask(editor, big, ending, times),
            ping(editor, ending, times),
        )
        quantiles = {"ping": of_pings, "echo": 1.0}
        figures = [latency_figure(name, times[name], quantiles.get(name, of_requests)) for name in times]
        before = time.perf_counter()
        below = descendants(editor.pid)
        await editor.leave()
        exit_ms = (time.perf_counter() - before) * 1000
        left = [pid for pid in below if is_running(pid)]
        return [*figures, Figure("exit", exit_ms, "ms", f"{len(below)} processes before, {len(left)} left")]


# --- below: what goes on


async def edit(editor: Client, uri: str, ending: float) -> None:
    """Type, in the middle of the file."""
    version = 1
    while time.monotonic() < ending:
        version += 1
        place = {"line": N_LINES // 2, "character": 0}
        editor.change(uri, version, {"range": {"start": place, "end": place}, "text": "# typed\n"})
        await asyncio.sleep(1 / EDITS_PER_S)


async def check(editor: Client, uri: str, ending: float) -> None:
    """Check a kernel, again and again."""
    while time.monotonic() < ending:
        n_before = len(editor.said("window/showMessage"))
        await editor.command("check", uri=uri)
        while len(editor.said("window/showMessage")) == n_before and time.monotonic() < ending:
            await asyncio.sleep(0.1)


async def ask(editor: Client, uri: str, ending: float, times: dict[str, list[float]]) -> None:
    """The four requests in turn."""
    place = {"line": SCALE_LINE, "character": 4}
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": N_LINES, "character": 0}}
    document = {"textDocument": {"uri": uri}}
    requests: dict[str, dict[str, Any]] = {
        "hover": {**document, "position": place},
        "codeLens": document,
        "codeAction": {**document, "range": {"start": place, "end": place}, "context": {"diagnostics": []}},
        "inlayHint": {**document, "range": whole},
    }
    while time.monotonic() < ending:
        for name, params in requests.items():
            before = time.perf_counter()
            await editor.ask(f"textDocument/{name}", params)
            times.setdefault(name, []).append((time.perf_counter() - before) * 1000)
        await asyncio.sleep(0.02)


async def ping(editor: Client, ending: float, times: dict[str, list[float]]) -> None:
    """Something that needs nothing but the server's attention."""
    while time.monotonic() < ending:
        before = time.perf_counter()
        await editor.ask("kernelLsp/status", {})
        times.setdefault("ping", []).append((time.perf_counter() - before) * 1000)
        await asyncio.sleep(0.05)


async def echo(ending: float, times: dict[str, list[float]]) -> None:
    """Measure what the machine takes for nothing at all."""
    program = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    while time.monotonic() < ending:
        before = time.perf_counter()
        process.stdin.write(b"hello\n")
        await process.stdout.readline()
        times.setdefault("echo", []).append((time.perf_counter() - before) * 1000)
        await asyncio.sleep(0.05)
    process.kill()
    await process.wait()


# --- below: numbers


def latency_figure(name: str, values: list[float], quantile: float) -> Figure:
    """Return that quantile of the times, in milliseconds."""
    ordered = sorted(values)
    figure, median, p99 = (ordered[min(int(len(ordered) * q), len(ordered) - 1)] for q in (quantile, 0.5, 0.99))
    detail = f"{len(ordered)} requests, median {median:.1f}, p99 {p99:.1f}, worst {ordered[-1]:.1f}"
    return Figure(name, figure, "ms", detail)


def resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def large_text(n_lines: int) -> str:
    """The sample, repeated under other names."""
    head, _, body = SCALE.partition("\n\n\n")
    parts = [body.replace("scale", f"scale_{number}").replace("Net", f"Net_{number}") for number in range(n_lines)]
    n_parts = n_lines // (body.count("\n") + 2)
    return head + "\n\n\n" + "\n\n".join(parts[:n_parts])


def _record(figures: list[Figure]) -> dict[str, Any]:
    machine = f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    listed = {f.name: {**asdict(f), "budget": BUDGETS.get(f.name), "is_within": not f.is_over} for f in figures}
    return {"machine": machine, "date": datetime.date.today().isoformat(), "figures": listed}


def main() -> int:
    gc.disable()  # this client keeps all that the server said: looking through it takes longer than an answer
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    figures = asyncio.run(measure(seconds))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for figure in figures:
        mark = "OVER" if figure.is_over else "ok"
        bound = f"of {BUDGETS[figure.name]:.0f} {mark}" if figure.name in BUDGETS else "(no budget)"
        print(f"{figure.name:<11} {figure.value:8.1f} {figure.unit} {bound:<12} {figure.detail}")
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(_record(figures), indent=1) + "\n")
    return int(any(figure.is_over for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
