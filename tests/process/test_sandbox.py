"""The sandbox holds, and the probe that says so notices when it does not."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from kernel_lsp.errors import SettingError
from kernel_lsp.process import confinement, profiles
from kernel_lsp.process.confinement import (
    Confinement,
    SandboxLevel,
    Support,
    confined_command,
    sandbox_level,
    support,
)
from kernel_lsp.process.profiles import (
    executor_confinement,
    foreign_confinement,
    profiler_confinement,
    worker_confinement,
)
from kernel_lsp.process.self_test import Attempt, self_test
from kernel_lsp.process.supervisor import Answered, Conversation, ProcessResult, run

PYTHON = [sys.executable, "-I", "-S"]
full = pytest.mark.skipif(
    support().level is not SandboxLevel.LANDLOCK_SECCOMP, reason="this kernel lacks Landlock or seccomp"
)
with_bwrap = pytest.mark.skipif(
    not support().has_bwrap or bool(confinement._bwrap_problem()), reason="no bwrap here that can make namespaces"
)


async def confined(confinement: Confinement, program: str, folder: Path) -> ProcessResult:
    file = folder / "program.py"
    file.write_text(program)
    return await run([*PYTHON, file], deadline_s=30, confinement=confinement, how="run")


def strict(folder: Path) -> Confinement:
    return executor_confinement(support().level, readable=(), writable=(folder,))


def worker(folder: Path) -> Confinement:
    return worker_confinement(support().level, Path(sys.executable), scratch=folder, cache=folder / "cache")


@full
@pytest.mark.parametrize("level", [SandboxLevel.LANDLOCK_SECCOMP, pytest.param(SandboxLevel.BWRAP, marks=with_bwrap)])
async def test_every_attempt_of_every_profile_is_denied(level: SandboxLevel) -> None:
    attempts = await self_test(level)
    assert {attempt.profile for attempt in attempts} == {"compiler", "executor", "worker", "foreign code", "profiler"}
    assert [attempt for attempt in attempts if not attempt.was_denied and not attempt.why_open] == []


@full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network")
async def test_a_profiler_reads_no_secret_and_reaches_no_network() -> None:
    denied = {a.what for a in await self_test(support().level) if a.profile == "profiler" and a.was_denied}
    assert {"read a secret file", "write outside", "connect over TCP", "trace another process"} <= denied


@full
async def test_a_profiler_may_talk_to_its_own_child_over_tcp(tmp_path: Path) -> None:
    program = (
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as s, socket.create_connection(s.getsockname()): print('talks')\n"
    )
    confinement = profiler_confinement(support().level, Path(sys.executable), scratch=tmp_path, needs_counters=False)
    result = await confined(confinement, program, tmp_path)
    assert result.stdout == b"talks\n", result.stderr


@full
@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else has rights to keep")
@pytest.mark.parametrize(("for_administrators", "needs_counters"), [(True, True), (True, False), (False, True)])
async def test_a_profiler_keeps_the_right_to_counters_only_where_it_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_administrators: bool, needs_counters: bool
) -> None:
    monkeypatch.setattr(profiles, "_gpu_devices", lambda: (Path("/dev/null"),))
    monkeypatch.setattr(profiles, "DRIVER_PARAMETERS", tmp_path / "params")
    (tmp_path / "params").write_text(f"Mobile: 1\nRmProfilingAdminOnly: {int(for_administrators)}\n")
    program = "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')))"
    confinement = profiler_confinement(
        support().level, Path(sys.executable), scratch=tmp_path, needs_counters=needs_counters
    )
    result = await confined(confinement, program, tmp_path)
    files_alone = 0b11111
    kept = int(result.stdout, 16) & ~files_alone
    assert kept in ((profiles.CAP_SYS_ADMIN, 0) if for_administrators and needs_counters else (0,))


@full
async def test_without_a_sandbox_the_probe_succeeds_at_all_but_the_key_and_the_bomb() -> None:
    attempts = await self_test(SandboxLevel.NONE)
    assert {attempt.what for attempt in attempts if attempt.was_denied} <= {"read an API key", "resolve a name"}


@full
async def test_landlock_alone_keeps_files_and_leaves_what_it_cannot_keep() -> None:
    by_what = {
        attempt.what: attempt for attempt in await self_test(SandboxLevel.LANDLOCK) if is_of(attempt, "executor")
    }
    assert by_what["read a secret file"].was_denied
    assert by_what["write outside"].was_denied
    assert not by_what["send over UDP"].was_denied


def is_of(attempt: Attempt, profile: str) -> bool:
    return attempt.profile == profile


@full
async def test_a_strict_child_starts_no_program(tmp_path: Path) -> None:
    result = await confined(strict(tmp_path), "import subprocess; subprocess.run(['/bin/true'])", tmp_path)
    assert b"PermissionError" in result.stderr


@full
async def test_a_strict_child_still_has_threads(tmp_path: Path) -> None:
    program = "import threading; t = threading.Thread(target=print, args=('ran',)); t.start(); t.join()"
    assert (await confined(strict(tmp_path), program, tmp_path)).stdout == b"ran\n"


@full
async def test_a_worker_starts_programs_that_are_confined_as_it_is(tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside"
    folder = tmp_path / "scratch"
    folder.mkdir()
    program = f"import subprocess; subprocess.run('echo a > {folder}/in; echo b > {outside}', shell=True)"
    result = await confined(worker(folder), program, folder)
    assert (folder / "in").read_text() == "a\n"
    assert not outside.exists()
    assert b"ermission denied" in result.stderr


@full
async def test_asyncio_and_multiprocessing_work_in_a_worker(tmp_path: Path) -> None:
    program = (
        "import asyncio, multiprocessing as m\n"
        "async def main():\n p = await asyncio.create_subprocess_exec('true'); print(await p.wait())\n"
        "asyncio.run(main())\n"
        "a, b = m.Pipe(); p = m.get_context('fork').Process(target=b.send, args=(7,)); p.start(); print(a.recv())\n"
    )
    result = await confined(worker(tmp_path), program, tmp_path)
    assert result.stdout == b"0\n7\n", result.stderr


@full
async def test_a_worker_may_listen_as_cuda_does_and_connects_nowhere(tmp_path: Path) -> None:
    program = (
        "import os, socket\n"
        "own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "own.bind('\\0own-%d' % os.getpid())\n"
        "own.listen()\n"
        "print('listens')\n"
        "for family, kind in ((1, 2), (1, 3), (2, 1), (10, 2), (16, 3)):\n"
        "    try: socket.socket(family, kind)\n"
        "    except PermissionError: print('denied')\n"
        "try: socket.socket(socket.AF_UNIX).connect('\\0own-%d' % os.getpid())\n"
        "except PermissionError: print('no way out')\n"
    )
    result = await confined(worker(tmp_path), program, tmp_path)
    assert result.stdout.decode().split("\n") == ["listens", *["denied"] * 5, "no way out", ""], result.stderr


@full
async def test_a_child_that_leaves_its_group_dies_with_it(tmp_path: Path) -> None:
    program = (
        "import os\nif os.fork() == 0:\n os.closerange(0, 3)\n os.setsid()\n os.execlp('sleep', 'sleep', '317')\n"
        "print('started')"
    )
    assert (await confined(worker(tmp_path), program, tmp_path)).stdout == b"started\n"
    await asyncio.sleep(0.1)
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.read_bytes() == b"sleep\x00317\x00"]


@full
async def test_a_conversation_with_a_confined_program_works(tmp_path: Path) -> None:
    program = tmp_path / "echo.py"
    program.write_text("import sys\nfor line in sys.stdin: print(line, end='', flush=True)")
    async with Conversation([*PYTHON, program], confinement=strict(tmp_path), how="run") as conversation:
        assert await conversation.ask({"a": 1}, deadline_s=20) == Answered({"a": 1})


@full
async def test_what_cannot_be_confined_does_not_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('ran')")
    command = confined_command([*PYTHON, program], "run", strict(tmp_path))
    command[4] = command[4].replace('"fs": ', '"fs": 9223372036854775808, "old": ')
    result = await run(command, deadline_s=20)
    assert (result.returncode, result.stdout) == (125, b"")
    assert b"confine: " in result.stderr


def foreign(folder: Path) -> Confinement:
    return foreign_confinement(
        support().level, Path(sys.executable), readable=(), scratch=folder, may_start_programs=False
    )


@full
async def test_foreign_code_has_its_scratch_folder_as_its_home(tmp_path: Path) -> None:
    program = "import os; open(os.path.expanduser('~/mine'), 'w').close(); print(os.path.expanduser('~'))"
    result = await confined(foreign(tmp_path), program, tmp_path)
    assert result.stdout.decode().strip() == str(tmp_path), result.stderr
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    "attempt", ["open(secret + '/key').read()", "open(secret + '/key', 'a')", "os.remove(secret + '/key')"]
)
@full
async def test_foreign_code_reaches_no_secret_of_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: str
) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    secret = home / ".ssh"
    for folder in (secret, scratch):
        folder.mkdir(parents=True)
    (secret / "key").write_text("private")
    monkeypatch.setenv("HOME", str(home))
    program = f"import os\nsecret = {str(secret)!r}\ntry: print({attempt})\nexcept PermissionError: print('denied')"
    result = await confined(foreign(scratch), program, scratch)
    assert result.stdout == b"denied\n", result.stderr
    assert (secret / "key").read_text() == "private"


async def test_a_module_runs_confined_from_any_folder(tmp_path: Path) -> None:
    result = await run(
        [sys.executable, "kernel_lsp.ptx.executor_process"],
        deadline_s=60,
        stdin=b'{"command": "run"}\n',
        directory=tmp_path,
        confinement=strict(tmp_path),
        how="module",
    )
    assert b"no module is loaded" in result.stdout, result.stderr


@pytest.mark.parametrize("setting", ["auto", "off", "limits"])
def test_a_setting_names_a_level(setting: str) -> None:
    expected = {"auto": support().level, "off": SandboxLevel.NONE, "limits": SandboxLevel.LIMITS}
    assert sandbox_level(setting) is expected[setting]


def test_a_level_that_is_not_there_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        confinement, "support", lambda: confinement.Support(SandboxLevel.LIMITS, False, ("old kernel",))
    )
    with pytest.raises(SettingError, match="old kernel"):
        sandbox_level("landlock+seccomp")
    with pytest.raises(SettingError, match="bwrap"):
        sandbox_level("bwrap")
    assert sandbox_level("auto") is SandboxLevel.LIMITS


def test_a_bwrap_that_may_not_make_namespaces_is_an_error_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(confinement, "support", lambda: Support(SandboxLevel.LIMITS, True))
    confinement._bwrap_problem.cache_clear()
    with pytest.raises(SettingError, match="No permissions to create new namespace"):
        sandbox_level("bwrap")
    confinement._bwrap_problem.cache_clear()


def test_without_a_level_the_command_is_as_it_was(tmp_path: Path) -> None:
    assert confined_command(["a", "-b", "c"], "run", None) == ["a", "-b", "c"]
    assert confined_command(["a", "-b", "c"], "module", Confinement(SandboxLevel.NONE)) == ["a", "-b", "-m", "c"]


def test_hidden_entries_of_a_home_are_secret_except_for_caches_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".ssh", ".config", ".netrc", ".cache", ".local", ".pyenv", "project"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    secret = {path.name for path in profiles._secrets_in_homes() if path.parent == tmp_path}
    assert secret == {".ssh", ".config", ".netrc", "snap"}


def test_no_readable_folder_of_a_worker_is_above_a_secret() -> None:
    confinement = worker_confinement(SandboxLevel.LANDLOCK, Path(sys.executable), scratch=None, cache=Path("/tmp/none"))
    above = {parent for secret in profiles._secrets() for parent in secret.parents}
    assert above.isdisjoint(confinement.readable)
