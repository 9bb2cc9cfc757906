"""`kernel-lsp plan`: draft a launch plan for a file that has none."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.cli import console
from kernel_lsp.errors import UserError
from kernel_lsp.plan.parser import parse
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.source.plan_task import drafted_plan
from kernel_lsp.verify.session.check_kernel import read_kernel


@console.command
async def main(file: Path, task: str | None, kernel: str | None, write: bool) -> int:
    text = read_kernel(file)
    if parse(text).plan is not None:
        raise UserError("the file has a launch plan already", file=str(file), next_step=f"kernel-lsp check {file}")
    names = [signature.name.rpartition("::")[2] for signature in kernel_signatures(text)]
    if kernel is not None and kernel not in names:
        known = ", ".join(names) or "none"
        raise UserError(f"the file has no kernel {kernel!r}", file=str(file), next_step=f"name one of: {known}")
    draft = drafted_plan(file, text, task, kernel or "")
    if not draft:
        raise UserError("no kernel writes to memory", file=str(file), next_step="write a `__global__` function")
    console.stdout.print(draft, markup=False, highlight=False, soft_wrap=True)
    if write:
        file.write_text(f"{draft}\n\n{text}", encoding="utf-8")
    return console.EXIT_OK
