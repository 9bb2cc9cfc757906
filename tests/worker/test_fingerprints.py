"""A fingerprint tells any change of a tensor's bytes, and does not depend on what else is asked about."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

WORKER = Path(__file__).parents[2] / "kernel_lsp" / "worker"
SIZES = (0, 1, 7, 8, 9, 64, 1001)
GUARD, POISON = 16, 0xFF


@pytest.fixture(scope="module", name="module")
def the_module() -> ModuleType:
    package = "_worker_for_fingerprints"
    spec = importlib.util.spec_from_file_location(
        package, WORKER / "__init__.py", submodule_search_locations=[str(WORKER)]
    )
    assert spec is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.fingerprints")


def of(module: ModuleType, tensor: torch.Tensor) -> int:
    return int(module.fingerprints({"it": tensor})["it"])


def random_bytes(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(n)).to(torch.uint8)


@pytest.mark.parametrize("n", SIZES)
def test_every_byte_counts(module: ModuleType, n: int) -> None:
    tensor = random_bytes(n)
    first = of(module, tensor)
    for place in range(n):
        tensor[place] ^= 1 << (place % 8)
        assert of(module, tensor) != first, place
        tensor[place] ^= 1 << (place % 8)
    assert of(module, tensor) == first


def test_places_count(module: ModuleType) -> None:
    tensor = torch.arange(64, dtype=torch.int64)
    assert of(module, tensor) != of(module, tensor.flip(0))


def test_a_longer_tensor_of_zeros_is_another(module: ModuleType) -> None:
    assert len({of(module, torch.zeros(n, dtype=torch.uint8)) for n in SIZES}) == len(SIZES)


def test_many_at_once_are_what_each_is_alone(module: ModuleType) -> None:
    tensors = {str(n): random_bytes(n) for n in SIZES}
    assert module.fingerprints(tensors) == {name: of(module, tensor) for name, tensor in tensors.items()}
    assert module.fingerprints({}) == {}


def test_parts_of_a_large_tensor_are_added_up_by_their_places(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = random_bytes(1003)
    whole = of(module, tensor)
    monkeypatch.setattr(module, "FINGERPRINT_WORDS", 16)
    assert of(module, tensor) == whole


@pytest.mark.parametrize("place", [0, GUARD - 1, -GUARD, -1])
def test_each_byte_of_a_guard_is_looked_at(module: ModuleType, place: int) -> None:
    buffers = {name: torch.full((64,), POISON, dtype=torch.uint8) for name in ("x", "out", "scratch")}
    assert module.broken_guards(buffers, GUARD, POISON) == []
    buffers["out"][place] = 0
    assert module.broken_guards(buffers, GUARD, POISON) == ["out"]


def test_what_lies_between_the_guards_is_not_theirs(module: ModuleType) -> None:
    buffer = torch.full((64,), POISON, dtype=torch.uint8)
    buffer[GUARD:-GUARD] = 0
    assert module.broken_guards({"out": buffer}, GUARD, POISON) == []
