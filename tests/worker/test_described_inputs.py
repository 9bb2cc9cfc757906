"""Files describe large inputs of the user's own `get_inputs`, and every process makes the same numbers from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernel_lsp.worker import large_random
from kernel_lsp.worker.cases import case_values
from kernel_lsp.worker.cases.case_values import Values
from kernel_lsp.worker.failure import TargetFailure
from kernel_lsp.worker.files import read_tensor, write_description, write_tensor
from kernel_lsp.worker.large_random import PIECE_ELEMENTS, DeferredRandom, uniform

CPU = torch.device("cpu")
Inputs = Callable[[], list[torch.Tensor]]


@pytest.fixture(autouse=True)
def _few_elements_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_random, "DRAWN_ELEMENTS", 1000)


def splitmix64(seed: int, n: int, start: int = 0) -> np.ndarray:
    """The published generator in unsigned arithmetic, as numbers of 24 bits below 1."""
    state = np.uint64(seed) + np.arange(start + 1, start + n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (state ^ (state >> np.uint64(31))) >> np.uint64(40)
    return (bits.astype(np.float64) * 2.0**-24).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 12345, (1 << 62) - 1])
def test_numbers_are_splitmix64_s(seed: int) -> None:
    assert np.array_equal(uniform((30, 100), seed, CPU).numpy().ravel(), splitmix64(seed, 3000))


def test_later_pieces_go_on_where_the_first_ended() -> None:
    numbers = uniform((PIECE_ELEMENTS + 5,), 7, CPU)[-8:].numpy()
    assert np.array_equal(numbers, splitmix64(7, 8, PIECE_ELEMENTS - 3))


def test_a_description_is_read_as_its_numbers_and_any_other_file_as_what_it_holds(tmp_path: Path) -> None:
    made = uniform((40, 50), 99, CPU)
    entry = write_description(str(tmp_path / "inputs" / "x.bin"), "x", made, 99)
    assert torch.equal(read_tensor(entry), made)
    assert Path(entry["path"]).stat().st_size < 100
    of_equal_size = torch.arange(39, dtype=torch.uint8)
    assert torch.equal(read_tensor(write_tensor(str(tmp_path / "y.bin"), "y", of_equal_size)), of_equal_size)


def test_a_file_of_as_many_bytes_as_its_tensor_describes_nothing(tmp_path: Path) -> None:
    entry = write_description(str(tmp_path / "x.bin"), "x", torch.empty(40, 50), 99)
    n_bytes = Path(entry["path"]).stat().st_size
    found = read_tensor({**entry, "dtype": "u8", "shape": [n_bytes]})
    assert bytes(found.tolist()) == Path(entry["path"]).read_bytes()


def values_of(fresh: Inputs, *, draws_on: torch.device | None = CPU, family: str = "given") -> Values:
    leaf = SimpleNamespace(dtype=torch.float32, state=None)
    captured: Any = SimpleNamespace(inputs=SimpleNamespace(fresh=fresh, tensors=[leaf]), captured_sizes={})
    return Values(captured, family, "plain", 3, {}, draws_on=draws_on)


def test_large_random_inputs_are_made_from_a_seed_that_follows_the_case_s() -> None:
    given, seeds = values_of(lambda: [torch.rand(40, 50), torch.rand(3), torch.randn(40, 50)])._given()
    assert given is not None
    assert list(seeds) == [0]
    assert torch.equal(given[0], uniform((40, 50), seeds[0], CPU))
    assert [tuple(each.shape) for each in given] == [(40, 50), (3,), (40, 50)]
    _, again = values_of(lambda: [torch.rand(40, 50), torch.rand(3), torch.randn(40, 50)])._given()
    assert again == seeds


def _reads(function: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    def fresh() -> list[torch.Tensor]:
        try:
            large = torch.rand(40, 50)
            return [large, function(large)]
        except RuntimeError as error:
            raise TargetFailure(str(error)) from None

    return fresh


@pytest.mark.parametrize(
    "fresh",
    [
        _reads(lambda x: x * 2),
        _reads(lambda x: x.T.contiguous()),
        _reads(lambda x: torch.triu(x)),
        _reads(lambda x: x.sum() + 1),
        _reads(lambda x: x.detach().softmax(-1)),
        _reads(lambda x: torch.cat([x, x])),
    ],
    ids=["product", "transposed", "triangle", "sum", "detached", "joined"],
)
def test_inputs_that_the_code_computes_with_are_made_by_it(fresh: Inputs) -> None:
    given, seeds = values_of(fresh)._given()
    assert seeds == {}
    assert given is not None
    assert all(float(each.abs().sum()) > 0 for each in given)


def test_tensors_that_are_not_described_have_the_numbers_of_written_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_random, "LARGE_ELEMENTS", 1000)
    made = [values_of(lambda: [torch.randn(40, 50)], draws_on=draws_on)._given()[0] for draws_on in (CPU, None)]
    assert made[0] is not None
    assert made[1] is not None
    assert torch.equal(made[0][0], made[1][0])


def test_other_tensors_are_pytorch_s_own() -> None:
    for fresh in (lambda: [torch.rand(40, 50, dtype=torch.float64)], lambda: [torch.rand(9)]):
        assert values_of(fresh)._given()[1] == {}
    assert values_of(lambda: [torch.rand(40, 50)], draws_on=None)._given()[1] == {}


def test_a_tensor_that_shares_the_memory_of_a_large_one_has_its_numbers() -> None:
    with DeferredRandom() as random:
        large = torch.rand(40, 50)
        same = large.detach().cpu().contiguous()
    assert random.seed_of(same) == random.seed_of(large) is not None
    assert random.seed_of(torch.zeros(40, 50)) is None


def test_other_inputs_may_have_the_shape_of_a_large_one() -> None:
    with DeferredRandom() as random:
        large = torch.rand(40, 50)
        mask = torch.randint(0, 2, large.shape).bool()
        others = [torch.zeros(large.size(0), large.dim(), dtype=large.dtype), torch.ones(large.numel(), len(large))]
    assert random.seed_of(large) is not None
    assert not random.was_read
    assert (mask.shape, others[0].shape, others[1].shape) == ((40, 50), (40, 2), (2000, 40))


def test_a_property_that_is_a_view_of_the_numbers_reads_them() -> None:
    with DeferredRandom() as random, pytest.raises(RuntimeError, match="are read"):
        _ = torch.rand(40, 50).T
    assert random.was_read


@pytest.mark.parametrize(
    "copied",
    [
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.cpu(memory_format=torch.channels_last),
    ],
    ids=["contiguous", "cpu"],
)
def test_a_copy_in_another_memory_format_is_computed_by_the_code(
    copied: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with DeferredRandom() as random, pytest.raises(RuntimeError, match="are read"):
        copied(torch.rand(2, 4, 10, 25))
    assert random.was_read


def test_numbers_on_another_default_device_are_made_by_the_code() -> None:
    with torch.device("meta"), DeferredRandom() as random:
        large, on_cpu = torch.rand(40, 50), torch.rand(40, 50, device="cpu")
    assert large.device.type == "meta"
    assert random.seed_of(large) is None
    assert random.seed_of(on_cpu) is not None


def test_an_input_that_does_not_fit_on_the_gpu_is_made_on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(shape: Any, seed: int, device: torch.device) -> torch.Tensor:
        if device.type == "cuda":
            raise torch.OutOfMemoryError("full")
        return uniform(shape, seed, device)

    monkeypatch.setattr(case_values, "uniform", full)
    given, seeds = values_of(lambda: [torch.rand(40, 50)], draws_on=torch.device("cuda", 0))._given()
    assert given is not None
    assert torch.equal(given[0], uniform((40, 50), seeds[0], CPU))
