"""A fingerprint tells any change of a tensor's bytes, and does not depend on what else is asked about."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_lsp.worker.gpu import fingerprints

SIZES = (0, 1, 7, 8, 9, 64, 1001)
GUARD, POISON = 16, 0xFF


def of(tensor: torch.Tensor) -> int:
    return int(fingerprints.fingerprints({"it": tensor})["it"])


def random_bytes(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(n)).to(torch.uint8)


@pytest.mark.parametrize("n", SIZES)
def test_every_byte_counts(n: int) -> None:
    tensor = random_bytes(n)
    first = of(tensor)
    for place in range(n):
        tensor[place] ^= 1 << (place % 8)
        assert of(tensor) != first, place
        tensor[place] ^= 1 << (place % 8)
    assert of(tensor) == first


def test_places_count() -> None:
    tensor = torch.arange(64, dtype=torch.int64)
    assert of(tensor) != of(tensor.flip(0))


def test_a_longer_tensor_of_zeros_is_another() -> None:
    assert len({of(torch.zeros(n, dtype=torch.uint8)) for n in SIZES}) == len(SIZES)


def test_many_at_once_are_what_each_is_alone() -> None:
    tensors = {str(n): random_bytes(n) for n in SIZES}
    assert fingerprints.fingerprints(tensors) == {name: of(tensor) for name, tensor in tensors.items()}
    assert fingerprints.fingerprints({}) == {}


def test_parts_of_a_large_tensor_are_added_up_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_bytes(1003)
    whole = of(tensor)
    monkeypatch.setattr(fingerprints, "FINGERPRINT_WORDS", 16)
    assert of(tensor) == whole


@pytest.mark.parametrize("place", [0, GUARD - 1, -GUARD, -1])
def test_each_byte_of_a_guard_is_looked_at(place: int) -> None:
    buffers = {name: torch.full((64,), POISON, dtype=torch.uint8) for name in ("x", "out", "scratch")}
    assert fingerprints.broken_guards(buffers, GUARD, POISON) == []
    buffers["out"][place] = 0
    assert fingerprints.broken_guards(buffers, GUARD, POISON) == ["out"]


def test_what_lies_between_the_guards_is_not_theirs() -> None:
    buffer = torch.full((64,), POISON, dtype=torch.uint8)
    buffer[GUARD:-GUARD] = 0
    assert fingerprints.broken_guards({"out": buffer}, GUARD, POISON) == []


def test_the_distance_in_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.arange(1, 101, dtype=torch.float32)
    other = one.clone()
    other[[3, 77]] += torch.tensor([0.5, 2.0])
    whole = fingerprints.spread(one, other)
    monkeypatch.setattr(fingerprints, "PIECE_ELEMENTS", 7)
    found = fingerprints.spread(one, other)
    assert found == pytest.approx(whole)
    assert found["max"] == 2.0
    assert found["relative_l2"] == pytest.approx(float((one - other).norm() / one.norm()))


def test_a_number_in_place_of_a_nan_is_infinitely_far() -> None:
    one = torch.tensor([1.0, math.nan])
    assert fingerprints.spread(one, one.clone()) == {"relative_l2": 0.0, "max": 0.0}
    assert fingerprints.spread(one, torch.ones(2))["relative_l2"] == math.inf
