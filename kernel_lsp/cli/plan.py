"""`kernel-lsp plan`: draft a launch plan for a file that has none."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.cli import console
from kernel_lsp.errors import UserError
from kernel_lsp.plan.parser import parse
from kernel_lsp.source.plan_draft import draft_plan
from kernel_lsp.source.plan_task import task_beside
from kernel_lsp.verify.session.check_kernel import read_kernel


@console.command
async def main(kernel: Path, task: str | None, write: bool) -> int:
    text = read_kernel(kernel)
    if parse(text).plan is not None:
        raise UserError("the file has a launch plan already", file=str(kernel), next_step=f"kernel-lsp check {kernel}")
    draft = draft_plan(text, task or task_beside(kernel, text))
    if not draft:
        raise UserError("no kernel writes to memory", file=str(kernel), next_step="write a `__global__` function")
    console.stdout.print(draft, markup=False, highlight=False, soft_wrap=True)
    if write:
        kernel.write_text(f"{draft}\n\n{text}", encoding="utf-8")
    return console.EXIT_OK
