"""Waiting for a device: no longer than it may take, and not by the clock of a machine that has no processor for us."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from kernel_lsp.worker.gpu import device as gpu_device


class Clock:
    """Goes on by so much each time somebody sleeps, or looks."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def monotonic(self) -> float:
        self.now += self.step_s
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def event_that_ends_after(n_looks: int, looked: list[int]) -> Any:
    class Event:
        def record(self) -> None:
            looked.clear()

        def query(self) -> bool:
            looked.append(1)
            return len(looked) > n_looks

    return Event


@pytest.fixture
def synchronized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    devices: list[int] = []
    monkeypatch.setattr(gpu_device, "synchronize", devices.append)
    return devices


@pytest.mark.parametrize("n_looks", [0, 1, 300])
def test_what_ends_is_waited_for(n_looks: int, monkeypatch: pytest.MonkeyPatch, synchronized: list[int]) -> None:
    monkeypatch.setattr(torch.cuda, "Event", event_that_ends_after(n_looks, []))
    monkeypatch.setattr(gpu_device, "time", Clock(0.001))
    gpu_device.wait(3, 6.0)
    assert synchronized == [3]


def test_what_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch, synchronized: list[int]) -> None:
    clock = Clock(0.001)
    monkeypatch.setattr(torch.cuda, "Event", event_that_ends_after(10**9, []))
    monkeypatch.setattr(gpu_device, "time", clock)
    with pytest.raises(gpu_device.StillRunning, match="after 6 s"):
        gpu_device.wait(0, 6.0)
    assert 6.0 < clock.now < 7.0
    assert not synchronized


def test_time_in_which_the_process_was_not_awake_does_not_count(
    monkeypatch: pytest.MonkeyPatch, synchronized: list[int]
) -> None:
    """Each look comes a second after the last: so many are an hour, and of that a few seconds."""
    monkeypatch.setattr(torch.cuda, "Event", event_that_ends_after(1000, []))
    monkeypatch.setattr(gpu_device, "time", Clock(1.0))
    gpu_device.wait(0, 6.0)
    assert synchronized == [0]


def test_waiting_is_over_soon_after_the_device_is_done(
    monkeypatch: pytest.MonkeyPatch, synchronized: list[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", event_that_ends_after(20, []))
    started = time.monotonic()
    gpu_device.wait(0, 6.0)
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    ("n_failures", "is_crowded", "n_tries", "waited_s"), [(2, True, 3, 3.0), (2, False, 2, 0.0), (9, True, 4, 7.0)]
)
def test_work_is_done_again_once_others_need_less_memory(
    n_failures: int, is_crowded: bool, n_tries: int, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, done = Clock(0.0), list[str]()
    monkeypatch.setattr(gpu_device.time, "sleep", clock.sleep)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 if is_crowded else 9, 10))
    monkeypatch.setattr(gpu_device, "_waited_in_vain", {})

    def work() -> str:
        done.append("tried")
        if done.count("tried") <= n_failures:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return "ready"

    if n_tries > n_failures:
        assert gpu_device.once_there_is_memory(0, work, lambda: done.append("let go")) == "ready"
    else:
        with pytest.raises(torch.OutOfMemoryError):
            gpu_device.once_there_is_memory(0, work, lambda: done.append("let go"))
    assert (done.count("tried"), done.count("let go"), clock.now) == (n_tries, n_tries - 1, waited_s)


def test_a_gpu_that_others_keep_full_is_waited_for_once_and_again_a_minute_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(gpu_device, "_waited_in_vain", {})
    monkeypatch.setattr(gpu_device.time, "sleep", clock.sleep)
    monkeypatch.setattr(gpu_device.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 10))
    n_tries = 0

    def work() -> None:
        nonlocal n_tries
        n_tries += 1
        raise torch.OutOfMemoryError("CUDA out of memory.")

    waited_s = []
    for pause_s in (0.0, 0.0, gpu_device.IN_VAIN_S):
        clock.now += pause_s
        began = clock.now
        with pytest.raises(torch.OutOfMemoryError):
            gpu_device.once_there_is_memory(0, work, lambda: None)
        waited_s.append(clock.now - began)
    assert waited_s == [7.0, 0.0, 7.0]
    assert n_tries == 4 + 2 + 4
