"""Captures small texts in a real worker, for tests here and in other areas.

    task = capture_text("def f(x): return x.relu()", "f", inputs=[tensor("x", 8, 16)])

One worker lives as long as the process that runs the tests: torch takes seconds to import.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import ScalarInput, TargetInput, TargetKind, TargetSource, Task, TensorInput
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.worker_client import Worker

PRELUDE = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


def tensor(
    name: str, *shape: int, dtype: str = "f32", dims: tuple[str | None, ...] = (), within: tuple[int, int] | None = None
) -> TensorInput:
    """A tensor as a pragma would give it."""
    return TensorInput(name=name, dtype=DType(dtype), shape=shape, dim_names=dims, integer_range=within)


def scalar(name: str, value: float | int | bool) -> ScalarInput:
    """A number as a pragma would give it."""
    return ScalarInput(name=name, value=value)


def source_of(
    text: str,
    symbol: str,
    *,
    inputs: list[TargetInput] | None = None,
    file: Path | None = None,
    kind: TargetKind | None = None,
    init: dict[str, Any] | None = None,
) -> TargetSource:
    """The target `symbol` of a text, which is written to `file`, or to a new file that is removed at exit."""
    file = file or Path(_FOLDER.name) / f"case_{next(_COUNTER)}.py"
    file.write_text(PRELUDE + textwrap.dedent(text).strip() + "\n")
    lines = file.read_text().splitlines()
    line = next((n for n, found in enumerate(lines, 1) if f" {symbol.split('.')[0]}" in found), 1)
    return TargetSource(
        target=f"{file.name}::{symbol}",
        file=str(file),
        symbol=symbol,
        kind=kind or ("method" if "." in symbol else "module" if symbol[:1].isupper() else "function"),
        line=line,
        parameters=(),
        inputs=None if inputs is None else tuple(inputs),
        init_arguments=init,
        has_get_inputs="def get_inputs" in text,
        has_get_init_inputs="def get_init_inputs" in text,
        example_pragma="# kernel-lsp: x=f32[8, 16]",
    )


def capture_text(
    text: str,
    symbol: str,
    *,
    inputs: list[TargetInput] | None = None,
    backward: bool = False,
    **source: Any,
) -> Task:
    """The task that a text's symbol is captured as. Raises what `Worker.capture` raises."""
    return capture_source(source_of(text, symbol, inputs=inputs, **source), backward=backward)


def capture_source(source: TargetSource, *, backward: bool = False) -> Task:
    """Capture in the shared worker, started anew when it died."""

    async def ask() -> Task:
        worker = await _worker()
        _LAST.clear()
        return await worker.capture(source, with_backward=backward)

    return _LOOP.run_until_complete(ask())


def capture_text_once(text: str, symbol: str, **options: Any) -> Task:
    """The same task again where the text was captured last: neighbouring tests differ in their schedules or inputs."""
    key = repr((text, symbol, options))
    if key not in _LAST or not _SHARED[0].is_alive:
        task = capture_text(text, symbol, **options)
        _LAST[key] = task
    return _LAST[key]


def make_case(
    operation: str, shapes: dict[str, Any], family: str, directory: Path, *, seed: int = 1, **more: Any
) -> CaseFiles:
    """A case of the task captured last."""

    async def ask() -> CaseFiles:
        worker = await _worker()
        return await worker.make_case(
            operation,
            shapes=shapes,
            family=family,
            seed=seed,
            directory=directory,  # type: ignore[arg-type]
            **more,
        )

    return _LOOP.run_until_complete(ask())


def with_worker(action: Any) -> Any:
    """Return the result of ``await action(worker)``, with the shared worker."""

    async def ask() -> Any:
        return await action(await _worker())

    return _LOOP.run_until_complete(ask())


# --- below: one worker for the process

_FOLDER = tempfile.TemporaryDirectory(prefix="kernel-lsp-tests-")
_COUNTER = itertools.count()
_LOOP = asyncio.new_event_loop()
_SHARED: list[Worker] = []
_LAST: dict[str, Task] = {}
"""The task that the shared worker holds, by what was captured."""


async def _worker() -> Worker:
    if _SHARED and not _SHARED[0].is_alive:
        _SHARED.clear()
    if not _SHARED:
        worker = Worker(await find_python(None))
        await worker.__aenter__()
        _SHARED.append(worker)
    return _SHARED[0]


def _close() -> None:
    if _SHARED:
        _LOOP.run_until_complete(_SHARED[0].__aexit__())
    _LOOP.close()


atexit.register(_close)
