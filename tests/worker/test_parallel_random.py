"""Check that large random inputs are drawn in parallel as PyTorch would draw them, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernel_lsp.worker import large_random
from kernel_lsp.worker.cases.families import PARAMETER_NOISE, near_own_values, own_generator
from kernel_lsp.worker.large_random import LARGE_ELEMENTS, ParallelRandom, standard_normal


def drawn(function: Callable[..., torch.Tensor], *shape: Any, seed: int = 0, **given: Any) -> torch.Tensor:
    torch.manual_seed(seed)
    with ParallelRandom():
        return function(*shape, **given)


def test_large_draws_have_their_distribution_and_follow_the_seed() -> None:
    uniform, normal = drawn(torch.rand, 4, LARGE_ELEMENTS // 4), drawn(torch.randn, LARGE_ELEMENTS)
    assert uniform.shape == (4, LARGE_ELEMENTS // 4)
    assert 0.0 <= float(uniform.min()) < 1e-3
    assert 0.999 < float(uniform.max()) <= 1.0
    assert abs(float(uniform.mean()) - 0.5) < 1e-3
    assert abs(float(normal.mean())) < 1e-3
    assert abs(float(normal.std()) - 1.0) < 1e-3
    assert torch.equal(uniform, drawn(torch.rand, 4, LARGE_ELEMENTS // 4))
    assert not torch.equal(uniform, drawn(torch.rand, 4, LARGE_ELEMENTS // 4, seed=1))
    chunks = normal.split(large_random.CHUNK_ELEMENTS)
    assert not torch.equal(chunks[0], chunks[1])


def test_other_draws_are_pytorch_s_own() -> None:
    for given in ({}, {"dtype": torch.float64}, {"requires_grad": True}):
        torch.manual_seed(0)
        assert torch.equal(torch.rand(3, 5, **given), drawn(torch.rand, 3, 5, **given))
    for args, given in (((0, 9, (30, 5)), {}), ((9, (LARGE_ELEMENTS,)), {"requires_grad": False})):
        torch.manual_seed(0)
        assert torch.equal(torch.randint(*args, **given), drawn(torch.randint, *args, **given))


def test_large_integers_are_drawn_in_chunks_within_their_limits() -> None:
    three, negative = drawn(torch.randint, 3, (4, LARGE_ELEMENTS // 4)), drawn(torch.randint, -2, 2, (LARGE_ELEMENTS,))
    assert (three.shape, three.dtype) == ((4, LARGE_ELEMENTS // 4), torch.int64)
    for numbers, low, n in ((three, 0, 3), (negative, -2, 4)):
        shares = torch.bincount(numbers.view(-1) - low, minlength=n) / LARGE_ELEMENTS
        assert len(shares) == n
        assert float((shares - 1 / n).abs().max()) < 1e-3
    first, second, *_ = negative.split(large_random.CHUNK_ELEMENTS)
    assert not torch.equal(first, second)
    assert torch.equal(three, drawn(torch.randint, 3, (4, LARGE_ELEMENTS // 4)))
    assert drawn(torch.randint, 0, 9, (LARGE_ELEMENTS,), dtype=torch.int32).dtype == torch.int32


def test_noise_of_large_parameters_follows_the_seed_and_small_one_is_pytorch_s_own() -> None:
    large = torch.linspace(1.0, 3.0, LARGE_ELEMENTS)
    near = near_own_values(large, own_generator(0, "weight"))
    noise = (near - large) / (PARAMETER_NOISE * float(large.square().mean().sqrt()))
    assert abs(float(noise.mean())) < 1e-3
    assert abs(float(noise.std()) - 1.0) < 1e-3
    assert torch.equal(near, near_own_values(large, own_generator(0, "weight")))
    assert not torch.equal(near, near_own_values(large, own_generator(1, "weight")))
    assert torch.equal(
        standard_normal(torch.Size((3, 5)), own_generator(0)), torch.randn(3, 5, generator=own_generator(0))
    )
