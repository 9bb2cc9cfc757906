"""A case that PyTorch refuses leaves no memory of its tensors on a GPU: the next candidate may need it."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_lsp.worker import protocol
from kernel_lsp.worker.cases import make_cases
from kernel_lsp.worker.failure import TargetFailure


def test_a_refused_case_is_freed_before_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    given_back: list[tuple[object, bool]] = []

    def refuse(*_: Any) -> dict[str, Any]:
        large = torch.zeros(8)
        held.append(weakref.ref(large))
        try:
            large.view(3)
        except RuntimeError as error:
            raise TargetFailure(f"refused: {error}") from None
        return {}

    monkeypatch.setattr(make_cases, "WARM", SimpleNamespace(find=lambda configuration: SimpleNamespace()))
    monkeypatch.setattr(make_cases, "bind_sizes", lambda captured, shapes: ({}, ""))
    monkeypatch.setattr(make_cases, "_cannot_make", lambda captured, family, sizes, is_backward: "")
    monkeypatch.setattr(make_cases, "threads_for", lambda shapes: nullcontext())
    monkeypatch.setattr(make_cases, "_with_integers", refuse)
    monkeypatch.setattr(make_cases, "give_back_memory", lambda gpu: given_back.append((gpu, held[0]() is None)))
    request = {"family": "normal", "operation": "forward", "shapes": {}, "device": 2}
    with pytest.raises(TargetFailure, match="refused"):
        make_cases.make_cases(request)
    assert given_back == [(2, True)]


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_no_fault_to_report(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(protocol, "_find", lambda _: fail)
    answered = protocol.answer({"command": "cases"})["error"]
    assert answered["kind"] == "environment"
    assert answered["message"].startswith("the task needs more memory: ")
    assert "smaller sizes" in answered["next_step"]
