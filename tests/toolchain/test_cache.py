"""The build cache: whole entries or none."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_lsp.core.verdict import BuildFailed, Built
from kernel_lsp.process.atomic_files import write_atomically
from kernel_lsp.toolchain.nvrtc.build_cache import BuildCache, content_key
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain

KERNEL = "__global__ void k(float* x) { x[0] = 1; }"


def outcome_of(ptx: str) -> Built:
    return Built(architecture="sm_90", ptx=ptx, symbols={"k": "_Z1k"})


def check(cache: BuildCache, key: str, ptx: str | None) -> None:
    """The cache holds this PTX under the key, or nothing."""
    found = cache.get(key)
    assert (found.ptx if isinstance(found, Built) else found) == ptx


def test_what_is_put_comes_back_and_says_so(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    cache.put("ab", outcome_of("x"))
    found = cache.get("ab")
    assert isinstance(found, Built)
    assert found.from_cache


def test_a_failed_build_is_kept_too(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    cache.put("ab", BuildFailed(findings=()))
    assert isinstance(cache.get("ab"), BuildFailed)


def test_an_empty_directory_is_a_miss(tmp_path: Path) -> None:
    check(BuildCache(tmp_path / "not there"), "ab", None)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda whole: b"",
    "overwritten": lambda whole: b"nonsense",
    "cut short": lambda whole: whole[:-5],
    "changed inside": lambda whole: whole.replace(b"sm_90", b"sm_91"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_a_miss_and_can_be_replaced(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    cache = BuildCache(tmp_path)
    cache.put("ab", outcome_of("x"))
    path = tmp_path / "ab" / "ab.json"
    path.write_bytes(damage(path.read_bytes()))
    check(cache, "ab", None)
    cache.put("ab", outcome_of("y"))
    check(cache, "ab", "y")


def test_an_entry_of_another_shape_is_a_miss(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    write_atomically(tmp_path / "ab" / "ab.json", b"0" * 64 + b"\n{}")
    check(cache, "ab", None)


def test_the_oldest_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, max_bytes=3000)
    for number in range(5):
        cache.put(f"a{number}", outcome_of("x" * 900))
        os.utime(tmp_path / f"a{number}" / f"a{number}.json", (number, number))
    BuildCache(tmp_path, max_bytes=3000).put("b0", outcome_of("y"))
    check(cache, "a0", None)
    check(cache, "a4", "x" * 900)
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*.json")) < 3500


def test_what_a_killed_writer_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / "ab" / ".writing-1-2-3", tmp_path / "ab" / ".writing-4-5-6"
    old.parent.mkdir()
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    BuildCache(tmp_path).put("ab", outcome_of("x"))
    assert not old.exists()
    assert young.exists()


def test_a_disk_that_takes_nothing_is_said_once_and_then_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    cache = BuildCache(blocked)
    with caplog.at_level(logging.WARNING):
        cache.put("ab", outcome_of("x"))
        cache.put("cd", outcome_of("y"))
    assert len(caplog.records) == 1
    check(cache, "ab", None)


def test_a_full_disk_leaves_no_half_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    cache = BuildCache(tmp_path)
    cache.put("ab", outcome_of("x"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def _write_for_ever(directory: Path) -> None:
    cache = BuildCache(directory)
    while True:
        cache.put("ab", outcome_of("z" * 200_000))


def test_readers_see_whole_entries_whoever_is_killed_when(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    cache = BuildCache(tmp_path)
    for delay_s in (0.01, 0.02, 0.03, 0.05):
        writers = [context.Process(target=_write_for_ever, args=(tmp_path,)) for _ in range(2)]
        for writer in writers:
            writer.start()
        time.sleep(delay_s)
        while cache.get("ab") is None:
            time.sleep(0.001)
        for writer in writers:
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
        check(cache, "ab", "z" * 200_000)


def test_keys_differ_where_parts_do() -> None:
    assert content_key("ab", "c") != content_key("a", "bc")


async def test_a_second_compile_comes_from_the_cache(tmp_path: Path, toolchain: Toolchain) -> None:
    request = BuildRequest(text=KERNEL, name_expressions=("k",))
    async with Compiler(toolchain, cache=BuildCache(tmp_path)) as compiler:
        first = await compiler.compile(request)
        second = await compiler.compile(request)
    assert isinstance(first, Built)
    assert isinstance(second, Built)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.ptx == second.ptx


@pytest.mark.parametrize(
    "change", [{"text": KERNEL + " "}, {"architecture": "sm_80"}, {"name_expressions": ()}, {"file_name": "other.cu"}]
)
async def test_another_request_is_another_entry(
    tmp_path: Path, toolchain: Toolchain, change: dict[str, object]
) -> None:
    request = BuildRequest(text=KERNEL, name_expressions=("k",))
    async with Compiler(toolchain, cache=BuildCache(tmp_path)) as compiler:
        await compiler.compile(request)
        outcome = await compiler.compile(request.model_copy(update=change))
    assert isinstance(outcome, Built)
    assert not outcome.from_cache
