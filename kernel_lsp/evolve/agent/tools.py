"""The tools of an agent that works on one task, which cannot influence its own evaluation, their protocol (MCP over
JSON lines), and a folder for an external agent.

The task is captured once, when the tools are opened, from the files at that time. Kernels are passed as text; they are
built, run, judged and timed here, in our own processes and folders. Whatever an agent does to the files in its own
folder, the verdict and the reward are for the original task. An agent that may run programs as the same user could
still change an installation: for strict isolation, run the tools as another user or in a separate container.

Version 2025-06-18 of the protocol (modelcontextprotocol.io): `initialize`, `ping`, `tools/list` and `tools/call`;
nothing else is offered. A malformed line is answered with JSON-RPC's own errors and ends nothing.

The folder holds documents and the agent's own work. The tools run elsewhere, over MCP, on the captured task; they read
nothing in the folder.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import __version__
from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, UserError
from kernel_lsp.evolve.propose.feedback import describe_failure, describe_profile
from kernel_lsp.evolve.propose.prompt_builder import assemble
from kernel_lsp.evolve.run.evaluations import outcome_message
from kernel_lsp.evolve.run.task_text import describe_task, task_floor_us
from kernel_lsp.llm.prompts import Prompts
from kernel_lsp.rules.registry import explain, has_page
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.training.environment import reward
from kernel_lsp.verify.profile.profile import profile_candidate
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.verifier import Verifier

MAX_CODE_CHARACTERS = 200_000


@dataclass(frozen=True)
class ToolSpec:
    """One tool, as described to an agent. `parameters` are names with descriptions; all are text and required."""

    name: str
    description: str
    parameters: dict[str, str]


@dataclass(frozen=True)
class ToolResult:
    """Result of a tool call. `is_error` marks a call that could not be made, never an incorrect kernel. `reward` is set
    by `check` alone."""

    text: str
    is_error: bool = False
    reward: int | None = None


_CODE = {"code": "The whole text of the kernel file, the launch plan first."}
TOOLS = (
    ToolSpec("task", "The function to replace, its signature and sizes, and the format of kernel files.", {}),
    ToolSpec("compile", "Build a kernel. Says what is wrong with the plan or the code, with lines.", _CODE),
    ToolSpec(
        "check",
        "Build, check every case against PyTorch, time, and reward: -1 incorrect, 1 correct, 2 faster than eager "
        "PyTorch, 3 than torch.compile, too.",
        _CODE,
    ),
    ToolSpec("time", "The time of a kernel that passed one case, beside PyTorch's. Quicker than check.", _CODE),
    ToolSpec("profile", "Where the time of a kernel goes, by line, and what would help most.", _CODE),
    ToolSpec("explain", "What a finding means and how to avoid it.", {"finding": "A code such as KL201."}),
)


class AgentTools:
    """The tools for one target. Use as ``async with``; entry raises the errors of a capture."""

    def __init__(self, target: str, directory: Path, settings: Settings, *, with_backward: bool) -> None:
        self._source = read_target(target, directory)
        self._settings, self._with_backward = settings, with_backward
        self._stack = AsyncExitStack()
        self._task: Task
        self._session: Session
        self._verifier: Verifier

    async def __aenter__(self) -> AgentTools:
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(Session(self._settings))
            self._task = await self._session.capture(self._source, with_backward=self._with_backward)
            self._verifier = await self._session.verifier(self._source, self._task)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def name(self) -> str:
        """Name of the task."""
        return self._task.name

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool. Neither kernels nor faulty calls raise: both give a result."""
        tools: dict[str, Callable[..., Awaitable[ToolResult]]] = {
            "task": self._describe,
            "compile": self._compile,
            "check": self._check,
            "time": self._time,
            "profile": self._profile,
            "explain": self._explain,
        }
        spec = next((spec for spec in TOOLS if spec.name == name), None)
        if spec is None:
            return ToolResult(f"there is no tool '{name}'; the tools are {', '.join(tools)}", is_error=True)
        problem = _problem(spec, arguments)
        if problem:
            return ToolResult(problem, is_error=True)
        try:
            return await tools[name](**arguments)
        except KernelLspError as error:
            return ToolResult(str(error), is_error=True)

    async def _describe(self) -> ToolResult:
        return ToolResult(task_document(self._task, self._session))

    async def _compile(self, code: str) -> ToolResult:
        candidate = self._candidate(code)
        ready = await self._verifier.runs.ready_runs(candidate)
        if isinstance(ready, list):
            kernels = "; ".join(
                f"{k.kernel}: {k.n_registers} registers, {k.shared_bytes} bytes shared, "
                f"{k.spill_store_bytes + k.spill_load_bytes} bytes spilled"
                for k in ready[0].built.kernels
            )
            return ToolResult(f"It builds. {kernels}")
        verdict = Verdict(candidate_id=candidate.id, device="compiler", outcome=ready)
        return ToolResult(describe_failure(verdict, candidate.text))

    async def _check(self, code: str) -> ToolResult:
        candidate = self._candidate(code)
        verdict = await self._verifier.verify(candidate, "full")
        earned = reward(verdict)
        text = self._words(verdict, candidate)
        times = "no times" if earned.kind == "none" else f"{earned.kind} times"
        return ToolResult(f"{text}\nReward: {earned.value} ({times})", reward=earned.value)

    async def _time(self, code: str) -> ToolResult:
        candidate = self._candidate(code)
        return ToolResult(self._words(await self._verifier.verify(candidate, "screen"), candidate))

    async def _profile(self, code: str) -> ToolResult:
        candidate = self._candidate(code)
        runs, file_name = self._verifier.runs, f"{self._task.name}.cu"
        report = await profile_candidate(self._session, runs, self._task, candidate, file_name)
        if isinstance(report, ProfileReport):
            return ToolResult(report.summary())
        verdict = Verdict(candidate_id=candidate.id, device="profiler", outcome=report)
        return ToolResult(describe_failure(verdict, candidate.text))

    async def _explain(self, finding: str) -> ToolResult:
        return ToolResult(explain(finding), is_error=not has_page(finding))

    def _candidate(self, code: str) -> Candidate:
        return Candidate(text=assemble(code, self._task.target), origin=Origin(proposer="user", description="agent"))

    def _words(self, verdict: Verdict, candidate: Candidate) -> str:
        if not verdict.is_correct:
            return describe_failure(verdict, candidate.text)
        lines = [f"It is correct: it {outcome_message(verdict)} on the {verdict.device}."]
        lines += [_comparison(name, comparison) for name, comparison in verdict.times.items()]
        lines.append(describe_profile(verdict, task_floor_us(self._task, self._session.gpu)))
        return "\n".join(lines)


def task_document(task: Task, session: Session) -> str:
    """Return the task and the kernel format, as prompts show them to models."""
    inputs = {"task": describe_task(task, session.gpu), "kernels": [], "related": []}
    system, user = Prompts().render("translate", inputs).messages
    return f"{system.content}\n\n{user.content.split('Write the kernel file.')[0].strip()}\n"


def _comparison(name: str, comparison: Comparison) -> str:
    ours = comparison.ours
    text = f"{name}: {ours.time_us:.4g} us against {comparison.baseline_name} {comparison.baseline.time_us:.4g} us"
    return f"{text}, {comparison.speedup:.2f}x ({ours.kind} on {ours.gpu})"


def _problem(spec: ToolSpec, arguments: dict[str, Any]) -> str:
    """Return the error in a call; empty if it is valid."""
    if arguments.keys() != spec.parameters.keys():
        wanted, given = (", ".join(names) or "nothing" for names in (spec.parameters, arguments))
        return f"{spec.name} takes {wanted}, and was given {given}"
    if any(not isinstance(value, str) for value in arguments.values()):
        return f"what {spec.name} takes is text"
    if any(len(value) > MAX_CODE_CHARACTERS for value in arguments.values()):
        return f"more than {MAX_CODE_CHARACTERS} characters"
    return ""


PROTOCOL_VERSION = "2025-06-18"
KNOWN_VERSIONS = (PROTOCOL_VERSION, "2025-03-26", "2024-11-05")
"""Protocol versions in which our messages are identical."""
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
INSTRUCTIONS = (
    "Write a CUDA kernel file that replaces a PyTorch function. Call task first. Then write a kernel, compile, check "
    "and profile it, and improve it until check gives the reward 3, or 2 where no compiled PyTorch is timed."
)


async def answer(line: str, tools: AgentTools) -> dict[str, Any] | None:
    """Return the reply to one line; None for a notification."""
    try:
        message = json.loads(line)
    except ValueError as error:
        return _error(None, PARSE_ERROR, f"no JSON: {error}")
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return _error(None, INVALID_REQUEST, "no request")
    if "id" not in message:
        return None
    params = message.get("params") or {}
    if not isinstance(params, dict):
        return _error(message["id"], BAD_PARAMS, "params are no object")
    return await _respond(message["id"], message["method"], params, tools)


async def _respond(id_: Any, method: str, params: dict[str, Any], tools: AgentTools) -> dict[str, Any]:
    match method:
        case "initialize":
            return _result(id_, _initialized(params))
        case "ping":
            return _result(id_, {})
        case "tools/list":
            return _result(id_, {"tools": [_listed(spec) for spec in TOOLS]})
        case "tools/call":
            name, arguments = params.get("name"), params.get("arguments") or {}
            if not isinstance(name, str) or not isinstance(arguments, dict):
                return _error(id_, BAD_PARAMS, "a call has a name and arguments")
            called = await tools.call(name, arguments)
            return _result(id_, {"content": [{"type": "text", "text": called.text}], "isError": called.is_error})
    return _error(id_, NO_METHOD, f"no method {method}")


def _initialized(params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in KNOWN_VERSIONS else PROTOCOL_VERSION,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "kernel-lsp", "version": __version__},
        "instructions": INSTRUCTIONS,
    }


def _listed(spec: ToolSpec) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": text} for name, text in spec.parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": spec.name, "description": spec.description, "inputSchema": schema}


def _result(id_: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": result}


def _error(id_: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}


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
