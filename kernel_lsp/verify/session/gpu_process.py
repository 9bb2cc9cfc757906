"""Reach verdicts for one of several GPUs in a process of its own: ``python -m kernel_lsp.verify.session.gpu_process``.

The messages are in `several_gpus.py`. The end of stdin ends the process and everything that it started.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import BinaryIO

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.errors import InternalError, KernelLspError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.stdio import claim_stdout, open_stdin, write_line
from kernel_lsp.verify.model.cases import Depth
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.several_gpus import Problem, Request, Said, Start
from kernel_lsp.verify.session.verifier import Verifier


def main() -> None:
    """Serve until stdin ends."""
    asyncio.run(_serve(claim_stdout()))


async def _serve(stdout: BinaryIO) -> None:
    stdin = await open_stdin()
    start = Start.model_validate_json(await stdin.readline())
    try:
        async with Session(
            start.settings,
            full_wait_s=start.full_wait_s,
            peers=start.peers,
            n_slots=start.n_slots,
            is_one_of_several=True,
        ) as session:
            task = await session.capture(start.source, with_backward=start.with_backward)
            verifier = await session.verifier(start.source, task)
            write_line(stdout, Said(gpu=verifier.device_name))
            await _answer(stdin, stdout, verifier)
    except KernelLspError as error:
        write_line(stdout, Said(problem=Problem.of(error)))


async def _answer(stdin: asyncio.StreamReader, stdout: BinaryIO, verifier: Verifier) -> None:
    """Reach the verdicts that are asked for, all at once: the other process limits their number."""
    running: dict[int, asyncio.Task[None]] = {}

    async def verify(number: int, candidate: Candidate, depth: Depth) -> None:
        try:
            said = Said(number=number, verdict=await verifier.verify(candidate, depth))
        except KernelLspError as error:
            said = Said(number=number, problem=Problem.of(error))
        except Exception as error:  # a bug of ours: the other process raises it, and this one serves on
            said = Said(number=number, problem=Problem.of(InternalError(f"{type(error).__name__}: {error}")))
        write_line(stdout, said)

    try:
        while (line := await stdin.readline()).endswith(b"\n"):
            request = Request.model_validate_json(line)
            if request.candidate is None:
                if (task := running.get(request.number)) is not None:
                    task.cancel()
                continue
            task = asyncio.create_task(verify(request.number, request.candidate, request.depth))
            running[request.number] = task
            task.add_done_callback(partial(_forget, running, request.number))
    finally:
        await end_tasks(*running.values())


def _forget(running: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    running.pop(number, None)


if __name__ == "__main__":
    main()
