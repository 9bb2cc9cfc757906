"""The terminal: results on stdout, progress and errors on stderr, and a person as the model, whose replies come from
stdin."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from pydantic import BaseModel

from kernel_lsp.errors import KernelLspError, RepliesAwaited, UnknownInputsError
from kernel_lsp.llm.manual import ManualPrompt, prompt_text
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied

LINE_OF_NEXT = "\n       "
"""Begins further lines of a next step, below the first one's text."""
RECORD_INSTEAD = "or record a program that calls it: kernel-lsp record -- python PROGRAM.py"
P = ParamSpec("P")
EXIT_OK, EXIT_NO, EXIT_COULD_NOT, EXIT_INTERRUPTED = 0, 1, 2, 130

if TYPE_CHECKING:
    from rich.console import Console

    stdout: Console
    stderr: Console


def __getattr__(name: str) -> Console:
    """`stdout` and `stderr`, made when something is written: rich takes a tenth of a second to import, in which a
    worker can begin."""
    if name not in ("stdout", "stderr"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _console(name)


@cache
def _console(name: str) -> Console:
    from rich.console import Console

    return Console(stderr=name == "stderr", highlight=False, soft_wrap=True)


@contextmanager
def stage(message: str) -> Iterator[None]:
    """Show what is being done: a spinner on a terminal, else one line."""
    stderr = _console("stderr")
    if stderr.is_terminal:
        with stderr.status(message):
            yield
    else:
        stderr.print(message, markup=False)
        yield


def print_json(result: BaseModel) -> None:
    """The one JSON object that `--json` promises."""
    sys.stdout.write(result.model_dump_json() + "\n")
    sys.stdout.flush()


def print_error(error: KernelLspError) -> None:
    """The error with its place, and what to do next. No traceback."""
    say = _console("stderr").print
    say(f"error: {error.message}", style="bold red", markup=False)
    if error.file:
        say(f"   at: {error.file}{f':{error.line}' if error.line is not None else ''}", markup=False)
    if error.next_step:
        recording = [RECORD_INSTEAD] if isinstance(error, UnknownInputsError) else []
        say(f" next: {LINE_OF_NEXT.join([*error.next_step.splitlines(), *recording])}", markup=False)


def say_prompt(prompt: ManualPrompt) -> None:
    """Print where a prompt for a person is, and where the reply belongs."""
    if prompt.is_waiting:
        text = f"  waiting for a reply: paste {prompt.prompt} into a chat, save the reply as {prompt.reply}"
        _console("stderr").print(text, markup=False)


def can_read(target: str) -> bool:
    """Report a target that cannot be read: a wrong name, no shapes."""
    from kernel_lsp.source.pytorch import read_target

    try:
        read_target(target, Path.cwd())
    except KernelLspError as error:
        print_error(error)
        return False
    except OSError:  # said by the command itself
        return True
    return True


def command(main: Callable[P, Coroutine[Any, Any, int]]) -> Callable[P, int]:
    """Decorate a coroutine function that is a command: a call runs it and returns its exit status."""
    return wraps(main)(lambda *arguments, **options: run_to_exit_status(main(*arguments, **options)))


def run_to_exit_status(main: Coroutine[Any, Any, int]) -> int:
    """Run a command. Our own errors become a message and status 2 (130 where a run waits for replies), an interrupt
    130, a closed pipe a quiet end."""
    try:
        with asyncio.Runner() as runner:
            return runner.run(_cancelled_by_signals(main))
    except RepliesAwaited as error:
        print_error(error)
        return EXIT_INTERRUPTED
    except KernelLspError as error:
        print_error(error)
        return EXIT_COULD_NOT
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_COULD_NOT
    except OSError as error:  # a full disk or a lost permission, met where nothing more specific caught it
        print_error(_from_os_error(error))
        return EXIT_COULD_NOT


def _from_os_error(error: OSError) -> KernelLspError:
    place = str(error.filename) if error.filename else None
    return KernelLspError(error.strerror or str(error), file=place, next_step="free some space or fix the permissions")


INTERRUPT_S = 2.0
"""Maximum seconds that work without an `await` goes on after SIGINT: planning a large network takes half a minute."""


async def _cancelled_by_signals(main: Coroutine[Any, Any, int]) -> int:
    """Run a command in a task that SIGTERM and SIGINT cancel. Work that does not let the event loop run is interrupted
    after `INTERRUPT_S`, or by another SIGINT."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "a coroutine runs in a task"

    def interrupt(number: int, _: object) -> None:
        if number == signal.SIGALRM or task.cancelling():
            raise KeyboardInterrupt
        task.cancel()
        signal.setitimer(signal.ITIMER_REAL, INTERRUPT_S)
        loop.call_soon_threadsafe(signal.setitimer, signal.ITIMER_REAL, 0)

    with suppress(NotImplementedError):  # Windows has no such handlers
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        return await main
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        return await main
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


END_MARK = "."
"""Line that ends a reply, as in mail; the end of stdin does, too."""

_TURN = asyncio.Lock()


async def paste(request: ModelRequest) -> Replied | ModelFailed:
    """Show the prompt, read the reply. One at a time."""
    async with _TURN:
        stderr = _console("stderr")
        stderr.rule("prompt")
        stderr.print(prompt_text(request), markup=False)
        stderr.rule(f"paste the reply, then a line with a single {END_MARK}")
        text = await asyncio.to_thread(_read_reply)
    if not text.strip():
        return ModelFailed(model="paste", cause="unavailable", message="nothing was pasted")
    return Replied(model="paste", text=text)


def _read_reply() -> str:
    lines: list[str] = []
    for line in sys.stdin:
        if line.rstrip("\r\n") == END_MARK:
            break
        lines.append(line)
    return "".join(lines)
