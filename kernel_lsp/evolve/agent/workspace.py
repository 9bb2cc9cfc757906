"""Write a folder for an external coding agent: a skill document, the task, a place for kernels, and the tools' address.

The folder holds documents and the agent's own work. The tools run elsewhere, over MCP, on the captured task; they read
nothing in the folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from kernel_lsp.errors import EnvironmentProblem, UserError
from kernel_lsp.evolve.agent.tools import TOOLS

SKILL_NAME, TASK_NAME, CONFIGURATION_NAME, KERNELS_NAME = "SKILL.md", "TASK.md", ".mcp.json", "kernels"
READ_ONLY = 0o444

_SKILL = """\
---
name: cuda-kernel
description: Write a verified CUDA kernel that replaces the PyTorch function in TASK.md, and is faster.
---

# Writing a kernel

1. Read `TASK.md`: the function, the signature, the sizes, the format of kernel files.
2. Write `kernels/{name}.cu`: right first, for every size inside its contract.
3. Call the tools of the MCP server `kernel-lsp` with the text of the file:

{tools}

4. Improve what `profile` says is slow. Keep every version that is right in `kernels/`.
5. Stop when `check` gives the reward 3 (2 where no compiled PyTorch is timed), or when nothing helps any more.

The rewards: -1 it is wrong, 1 it is right, 2 it is more than 5 % faster than eager PyTorch, 3 than eager and every
timed mode of torch.compile. They are computed where the tools run, from the task as it was captured when they started:
no file in this folder plays a part in them.
"""


def write_workspace(directory: Path, name: str, document: str, server: list[str], cwd: Path) -> tuple[Path, ...]:
    """Write the folder and return its files. `document` is the task's; `server` is the command of the MCP server, run
    in `cwd`. Raises UserError when the folder is not empty."""
    if directory.exists() and any(directory.iterdir()):
        raise UserError("is not empty", file=str(directory), next_step="name a new folder")
    tools = "\n".join(f"   - `{spec.name}`: {spec.description}" for spec in TOOLS)
    entry = {"command": server[0], "args": server[1:], "cwd": str(cwd)}
    configuration = {"mcpServers": {"kernel-lsp": entry}}
    texts = {
        SKILL_NAME: _SKILL.format(name=name, tools=tools),
        TASK_NAME: f"# {name}\n\n{document}",
        CONFIGURATION_NAME: json.dumps(configuration, indent=1) + "\n",
    }
    try:
        (directory / KERNELS_NAME).mkdir(parents=True)
        for file_name, text in texts.items():
            (directory / file_name).write_text(text, encoding="utf-8")
            (directory / file_name).chmod(READ_ONLY)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot be written: {error.strerror}", file=str(directory), next_step="name another folder"
        ) from error
    return tuple(directory / file_name for file_name in texts)
