"""The engine's side of the worker: a conversation with a program under the user's interpreter.

Errors in the user's file are raised as `TargetError` with file, line and next step; errors of the interpreter as
`EnvironmentProblem`. A worker that died or exceeded its deadline is unusable: start a new one.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernel_lsp.config import default_cache_directory
from kernel_lsp.core.task import TargetSource, Task
from kernel_lsp.errors import EnvironmentProblem, InternalError, KernelLspError, ScratchFullError, TargetError
from kernel_lsp.process.case_files import CaseFiles, CaseTensor, output_of, slices_of, tensor_of
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.process.profiles import worker_confinement
from kernel_lsp.process.supervisor import Answered, Conversation, Died, Overran, run, scrubbed_environment

WORKER_PROGRAM = Path(__file__).resolve().parent.parent / "worker" / "__main__.py"
CAPTURE_DEADLINE_S = 120.0
CASE_DEADLINE_S = 300.0
DESCRIBE_DEADLINE_S = 60.0
STDERR_LINES = 3
ENDED = "remove calls such as os._exit(), or check memory use and native extensions"
KILLED = "try again with more free memory: the system kills processes when it has none left"
"""Next steps where user code ended the worker: by itself, or by SIGKILL, which comes from outside of it."""
COMPILED_PARTS = ("torch", "torch/_dynamo", "torch/export", "sympy")
"""Packages that a capture imports; a plain `import torch` does not import all of them."""
LATE_PARTS = (
    "torch/_dynamo",
    "torch/_functorch",
    "torch/fx",
    "torch/export",
    "torch/_export",
    "torch/_higher_order_ops",
)
"""Packages that a capture imports last: the worker compiles the others itself meanwhile."""
COMPILED_MARKER = "complete"
"""File in the bytecode folder that marks the end of compiling ahead."""
WORKER_CACHE = "worker"
"""Folder of torch's and Triton's caches, in the cache folder."""
ACTIVITIES = {
    "open_foreign": "importing the kernel",
    "run_foreign": "running the kernel",
    "prepare_foreign": "preparing the kernel's timing",
    "make_cases": "making references",
    "examine_task": "running the task",
    "load": "loading the kernel",
    "check": "running the kernel",
    "recheck": "running the kernel again",
    "prepare_candidate": "preparing the kernel's timing",
    "prepare_baseline": "preparing PyTorch's timing",
    "time_block": "timing",
}
"""Command -> the worker's activity in messages, for commands that run code of users."""

OperationName = Literal["forward", "backward"]


@dataclass(frozen=True)
class Interpreter:
    """Versions and devices that a worker reports."""

    python: Path
    python_version: str
    torch_version: str
    cuda_version: str | None
    has_cuda: bool
    devices: tuple[str, ...]


class Worker:
    """One worker process. Use as ``async with``; it starts on entry and is killed with its children on exit.

    It may write to `scratch` (by default the temporary folder) and to torch's caches below `cache`, and has no
    network.
    """

    def __init__(
        self,
        python: Path,
        *,
        capture_deadline_s: float = CAPTURE_DEADLINE_S,
        scratch: Path | None = None,
        cache: Path | None = None,
        sandbox: SandboxLevel | None = None,
        program: Path = WORKER_PROGRAM,
    ) -> None:
        """`sandbox` is the process's confinement level; None selects the strongest of this machine."""
        self.python = python
        self.ran_user_code = False
        """It tried inputs in its own process: what the file registered or cached there remains."""
        self._capture_deadline_s = capture_deadline_s
        folder = (cache or default_cache_directory()) / WORKER_CACHE
        confinement = worker_confinement(
            sandbox_level("auto") if sandbox is None else sandbox, python, scratch=scratch, cache=folder
        )
        self._program, self._confinement = program, confinement
        self._bytecode = None if _is_compiled(python) else folder / "bytecode"
        self._conversation = Conversation(
            [python, program], environment=self._environment(), confinement=confinement, how="run"
        )

    async def __aenter__(self) -> Worker:
        """Start the process, unless it is already running: a worker may be warmed up before it is handed over."""
        try:
            await self._conversation.start()
        except OSError as error:
            raise _cannot_start(self.python, error) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._conversation.close()

    @property
    def is_alive(self) -> bool:
        return self._conversation.is_alive

    def kill(self) -> None:
        """Start killing it. GPU memory takes a moment to be released, so kill several workers at once."""
        self._conversation.kill()

    def hold(self) -> None:
        """Suspend it and its children, e.g. while something else is timed. Its running GPU kernels finish."""
        self._conversation.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume after `hold`."""
        self._conversation.signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        """Process id. Raises RuntimeError before the start."""
        return self._conversation.pid

    async def describe(self) -> Interpreter:
        """Return versions and devices. Raises EnvironmentProblem when the interpreter has no usable torch."""
        reply = await self._ask({"command": "describe"}, DESCRIBE_DEADLINE_S)
        return Interpreter(
            python=Path(reply["python"]),
            python_version=reply["python_version"],
            torch_version=reply["torch_version"],
            cuda_version=reply["cuda_version"],
            has_cuda=reply["has_cuda"],
            devices=tuple(reply["devices"]),
        )

    async def compile_ahead(self) -> None:
        """Compile what a capture imports last, where the installation did not, while the worker imports the rest: a
        third of what it compiles. Failure or late completion only costs that time."""
        if self._bytecode is None or (marker := self._bytecode / COMPILED_MARKER).exists():
            return
        parts = [folder / part for folder in _folders_of_torch(self.python) for part in LATE_PARTS]
        with suppress(OSError):
            await run(
                [self.python, "-m", "compileall", "-q", *parts],
                deadline_s=self._capture_deadline_s,
                environment=self._environment(),
                confinement=self._confinement,
            )
            marker.touch()

    async def open_context(self, device: int) -> None:
        """Start opening a GPU context, concurrently with the next requests."""
        await self.converse("open_context", {"device": device}, deadline_s=self._capture_deadline_s)

    async def prepare_capture(self) -> None:
        """Start importing the modules for a capture, which takes seconds. The next request reports any error; requests
        sent meanwhile are queued. A short deadline is the file's: torch's import that overran it was reported as
        the file's death."""
        await self.converse("prepare_capture", {}, deadline_s=max(self._capture_deadline_s, CAPTURE_DEADLINE_S))

    async def capture(self, source: TargetSource, *, with_backward: bool, configuration: int = 0) -> Task:
        """Import the user's file, run the target on inputs without values, and return its graph.

        `configuration` is an index in a task folder; capturing a later one keeps the first capture. Raises TargetError
        (the file raises, hangs, exits, or computes what cannot be captured), EnvironmentProblem.
        """
        request = {
            "command": "capture",
            "source": source.model_dump(mode="json"),
            "with_backward": with_backward,
            "configuration": configuration,
        }
        reply = await self._ask_about(source, request, self._capture_deadline_s)
        return Task.model_validate(reply["task"])

    async def try_inputs(self, sources: Sequence[TargetSource]) -> int:
        """Return the index of the first description of a target's inputs that its code accepts, on fake tensors.
        Raises TargetError with the first one's failure, EnvironmentProblem."""
        request = {"command": "try_inputs", "sources": [source.model_dump(mode="json") for source in sources]}
        reply = await self._ask_about(sources[0], request, self._capture_deadline_s)
        self.ran_user_code = self.ran_user_code or bool(reply.get("in_place"))
        return int(reply["accepted"])

    async def make_case(
        self,
        operation: OperationName,
        *,
        shapes: Mapping[str, Sequence[int]],
        family: str,
        seed: int,
        directory: Path,
        configuration: int = 0,
        gpu: int | None = None,
        values: Sequence[float] = (),
        sample_from_bytes: int | None = None,
        may_describe: bool = False,
    ) -> CaseFiles:
        """Write inputs, the fp64 reference and PyTorch's own result for the last captured task, below `directory`.

        `configuration` selects a capture of a task folder; `shapes` gives the shape of each tensor argument by name;
        `gpu` is the index of a GPU reserved for us; `values` are inserted into the inputs. A case with at least
        `sample_from_bytes` of inputs and outputs has expected results of a few slices only, where its code computes
        them apart. `may_describe`: files of large inputs may describe them, for workers alone. Raises TargetError when
        the user's code fails.
        """
        request = {
            "command": "make_cases",
            "operation": operation,
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "family": family,
            "seed": seed,
            "directory": str(directory),
            "configuration": configuration,
            "device": gpu,
            "values": list(values),
            "sample_from_bytes": sample_from_bytes,
            "may_describe": may_describe,
        }
        reply = await self._ask(request, CASE_DEADLINE_S)
        return CaseFiles(
            family=family,
            seed=seed,
            inputs=tuple(map(tensor_of, reply.get("inputs", ()))),
            outputs=tuple(map(output_of, reply.get("outputs", ()))),
            eager_bytes=reply.get("eager_bytes", 0),
            is_degenerate=reply["degenerate"],
            reason=reply["reason"],
            slices=slices_of(reply.get("sample")),
        )

    async def run_library(
        self,
        function: str,
        arguments: Sequence[Any],
        *,
        tensors: Sequence[CaseTensor],
        results: Sequence[CaseTensor],
    ) -> None:
        """Run one vendor library function on files and write its results to files.

        `arguments` are JSON values in which ``{"tensor": name}`` refers to `tensors`; `results` give each result's
        file, dtype and shape. Raises TargetError when the function rejects them.
        """
        request = {
            "command": "run_library",
            "function": function,
            "arguments": list(arguments),
            "tensors": [tensor.entry for tensor in tensors],
            "results": [tensor.entry for tensor in results],
        }
        await self._ask(request, CASE_DEADLINE_S)

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
        """Send any other command, e.g. one for the GPU. Raises the worker's error."""
        return await self._ask({"command": command, **arguments}, deadline_s)

    async def converse(
        self, command: str, arguments: Mapping[str, Any], *, deadline_s: float
    ) -> Answered | Died | Overran:
        """Send any command; return its outcome as a value. A reply that is not JSON counts as a death."""
        try:
            return await self._conversation.ask({"command": command, **arguments}, deadline_s=deadline_s)
        except ValueError:
            return Died(-1, "its answer is not JSON")

    def _environment(self) -> dict[str, str]:
        """Return the environment. Where torch's bytecode is missing, Python's bytecode cache goes to our folder, so
        that nothing is written next to other files."""
        return scrubbed_environment({"PYTHONPYCACHEPREFIX": str(self._bytecode)} if self._bytecode else {})

    async def _ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        answer = await self._conversation.ask(request, deadline_s=deadline_s)
        if isinstance(answer, Overran):
            raise TargetError(
                f"the worker did not finish {activity(request['command'])} within {answer.deadline_s:g} s",
                next_step="use smaller sizes, or a target that does less",
            )
        if isinstance(answer, Died):
            raise TargetError(
                f"the worker {_ending(answer.returncode)} while {activity(request['command'])}{_tail(answer)}"
            )
        if "error" in answer.reply:
            raise as_error(answer.reply["error"])
        return answer.reply

    async def _ask_about(self, source: TargetSource, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Send a request that runs user code: an end without a reply is the file's fault."""
        answer = await self._conversation.ask(request, deadline_s=deadline_s)
        if isinstance(answer, Overran):
            raise TargetError(
                f"import and capture did not finish within {answer.deadline_s:g} s: the file hangs or does too much",
                file=source.file,
                line=source.line,
                next_step='move work that runs on import under `if __name__ == "__main__":`; for a long loop, or '
                "beside much other work, set KERNEL_LSP_CAPTURE_DEADLINE_S=600, or capture fewer steps",
            )
        if isinstance(answer, Died):
            raise TargetError(
                f"the file {_ending(answer.returncode)} while it was imported or captured{_tail(answer)}",
                file=source.file,
                line=source.line,
                next_step=KILLED if answer.returncode == -signal.SIGKILL else ENDED,
            )
        if "error" in answer.reply:
            raise as_error(answer.reply["error"])
        return answer.reply


def _is_compiled(python: Path) -> bool:
    """Return True when the installation compiled torch's Python files. uv does not, and then each start would take 5 s
    instead of 2 (measured, torch 2.11). A previous import of torch compiles only a part."""
    parts = [folder / part for folder in _folders_of_torch(python) for part in COMPILED_PARTS]
    return all((part / "__pycache__").is_dir() for part in parts)


def _folders_of_torch(python: Path) -> list[Path]:
    folders = python.parent.parent.glob("lib*/python3*/site-packages")
    return [folder for folder in folders if (folder / "torch").is_dir()]


def _cannot_start(python: Path, error: OSError) -> EnvironmentProblem:
    """Return what is in the way of a start: a folder of the cache, else the interpreter."""
    if error.filename and Path(str(error.filename)) != python:
        return EnvironmentProblem(
            f"the cache cannot be written ({error.strerror})",
            file=str(error.filename),
            next_step="make the folder writable, or set KERNEL_LSP_CACHE_DIRECTORY to one that is",
        )
    return EnvironmentProblem(
        f"the interpreter cannot be started ({error.strerror})",
        file=str(python),
        next_step="name a Python interpreter that has torch with --python",
    )


def activity(command: str) -> str:
    """Return what a worker does for a command, as messages say it."""
    return ACTIVITIES.get(command, f"answering '{command}'")


def as_error(error: Mapping[str, Any]) -> KernelLspError:
    """Convert a worker's ``error`` object to an exception."""
    kinds: dict[str, type[KernelLspError]] = {
        "target": TargetError,
        "environment": EnvironmentProblem,
        "scratch": ScratchFullError,
    }
    kind = kinds.get(error["kind"], InternalError)
    return kind(error["message"], file=error["file"], line=error["line"], next_step=error["next_step"])


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by signal {-returncode}"
    return f"ended the interpreter (exit code {returncode})"


def _tail(died: Died) -> str:
    """Return the last lines of its output, which often give the reason."""
    lines = [line.strip() for line in died.stderr.splitlines() if line.strip()][-STDERR_LINES:]
    return f": {' | '.join(lines)}" if lines else ""
