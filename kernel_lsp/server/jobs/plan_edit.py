"""Write a drafted launch plan into a kernel file that has none."""

from __future__ import annotations

from kernel_lsp.engine.messages import DraftPlan, PlanDraft
from kernel_lsp.rules.finding import TextEdit, TextRange
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.edits import DocumentEdits, document_edit, line_end
from kernel_lsp.server.documents.places import file_of
from kernel_lsp.server.jobs.jobs import new_id
from kernel_lsp.server.state import State

LABEL = "kernel-lsp: add a launch plan"
NOTHING = "no plan drafted: the file has no kernel that writes to memory"
TOP = TextRange(0, 0, 0, 0)


async def write_plan(state: State, document: Document) -> None:
    """Draft a plan and insert it at the top, unless the text has changed meanwhile."""
    serial = document.serial
    reply = await state.engines.of(file_of(document).parent).ask(DraftPlan(id=new_id(), text=document.text))
    draft = PlanDraft.model_validate(reply.result).text if reply.result is not None else ""
    if not draft:
        state.client.warn(reply.error.message if reply.error is not None else NOTHING)
    elif document.serial != serial:
        state.client.inform("the text has changed since: no plan was added")
    else:
        end = line_end(document)
        inserted = TextEdit(TOP, draft.replace("\n", end) + end + end)
        edit = document_edit(DocumentEdits(document, (inserted,)), versioned=state.client.features.versioned_edits)
        await state.client.apply(edit, LABEL)
