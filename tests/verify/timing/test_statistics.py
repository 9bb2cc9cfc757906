"""Intervals and claims on synthetic times, where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernel_lsp.verify.timing.result import (
    MIN_NOISE_FLOOR,
    Interval,
    Pair,
    bootstrap,
    claim,
    log_ratio_interval,
    median_interval,
    noise_floor,
    placement_noise,
    self_ratio_interval,
    widened,
)

N_ROUNDS = 12
N_TRIALS = 300


def rounds(
    draw: np.random.Generator,
    ratio: float = 1.0,
    *,
    spread: float = 0.01,
    drift: float = 0.0,
    outlier_share: float = 0.0,
    n_rounds: int = N_ROUNDS,
) -> tuple[list[Pair], list[Pair]]:
    """Theirs and ours, A-B-B-A, ours 100 us. `drift` is per block; an outlier takes half as long again."""
    theirs, ours = [], []
    for index in range(n_rounds):
        start = 4 * index
        blocks = [100.0 * math.exp(draw.normal(0, spread) + drift * (start + place)) for place in range(4)]
        blocks = [block * (1.5 if draw.random() < outlier_share else 1.0) for block in blocks]
        ours.append(Pair(blocks[0], blocks[3]))
        theirs.append(Pair(blocks[1] * ratio, blocks[2] * ratio))
    return theirs, ours


def coverage(**settings: float) -> float:
    n_covered = 0
    for trial in range(N_TRIALS):
        theirs, ours = rounds(np.random.default_rng(trial), 1.3, **settings)  # type: ignore[arg-type]
        interval = log_ratio_interval(theirs, ours, seed=trial)
        n_covered += interval.low <= math.log(1.3) <= interval.high
    return n_covered / N_TRIALS


def full_claim(theirs: list[Pair], ours: list[Pair], seed: int, measured: float = 0.0) -> str:
    own = [self_ratio_interval(pairs, seed) for pairs in (theirs, ours)]
    return claim(log_ratio_interval(theirs, ours, seed), noise_floor(own, measured, 0.0))


def n_claims(n_trials: int, **settings: float) -> int:
    """Differences claimed between a thing and itself."""
    return sum(
        full_claim(*rounds(np.random.default_rng(trial), **settings), seed=trial) != "no difference"  # type: ignore[arg-type]
        for trial in range(n_trials)
    )


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    assert 0.92 <= coverage() <= 0.99


def test_the_interval_covers_the_truth_with_a_linear_drift() -> None:
    assert 0.92 <= coverage(drift=0.002) <= 0.99


def test_the_interval_covers_the_truth_with_outliers() -> None:
    assert coverage(outlier_share=0.05) >= 0.92


def test_the_interval_covers_the_truth_with_few_rounds() -> None:
    assert coverage(n_rounds=6) >= 0.9


@pytest.mark.parametrize("spread", [0.001, 0.01, 0.05])
def test_a_thing_against_itself_is_claimed_different_in_fewer_than_one_of_fifty(spread: float) -> None:
    assert n_claims(200, spread=spread) <= 4


def test_drift_and_outliers_make_no_claims() -> None:
    assert n_claims(200, drift=0.005, outlier_share=0.05) <= 4


def test_a_difference_of_five_percent_is_found() -> None:
    found = [full_claim(*rounds(np.random.default_rng(trial), 1.05), seed=trial) for trial in range(50)]
    assert found.count("faster") >= 48


def test_a_slower_one_is_said_to_be_slower() -> None:
    assert full_claim(*rounds(np.random.default_rng(0), 1 / 1.2), seed=0) == "slower"


def test_a_ratio_inside_the_noise_of_the_gpu_is_no_difference() -> None:
    assert full_claim(*rounds(np.random.default_rng(0), 1.05), seed=0, measured=0.08) == "no difference"


def test_a_difference_below_the_smallest_noise_is_never_claimed() -> None:
    theirs, ours = rounds(np.random.default_rng(0), 1 + 0.9 * MIN_NOISE_FLOOR, spread=1e-5)
    assert full_claim(theirs, ours, seed=0) == "no difference"


def test_an_interval_that_touches_the_floor_claims_nothing() -> None:
    assert claim(Interval(0.05, math.log1p(0.02), 0.08), 0.02) == "no difference"


def test_a_timer_that_cannot_see_the_difference_sets_the_floor() -> None:
    assert noise_floor([], 0.0, resolution=0.3) == 0.3


def test_a_linear_drift_is_no_noise_of_a_thing_against_itself() -> None:
    pairs = [Pair(math.exp(0.01 * 4 * i), math.exp(0.01 * (4 * i + 3))) for i in range(N_ROUNDS)]
    assert self_ratio_interval(pairs, 0).largest_magnitude < 1e-9


def test_buffers_that_lie_well_or_badly_are_noise() -> None:
    side = {place: [95.0, 105.0][place % 2 : place % 2 + 1] * 6 for place in range(16)}
    assert 0.02 < placement_noise(side) < 0.04
    assert 0.03 < placement_noise(side, side) < 0.05


def test_buffers_that_are_all_alike_are_no_noise() -> None:
    assert placement_noise({place: [100.0] * 6 for place in range(16)}) == 0


def test_few_sets_of_buffers_leave_much_open_and_one_says_nothing() -> None:
    assert placement_noise({0: [100.0] * 8, 1: [101.0] * 8}) > 0.05
    assert placement_noise({0: [100.0, 110.0]}, {0: [100.0]}) == 0


def test_an_error_of_its_own_widens_an_interval_on_either_side() -> None:
    found = widened(Interval(0.1, 0.07, 0.15), 0.04)
    assert (found.low, found.value, found.high) == pytest.approx((0.05, 0.1, 0.1 + math.hypot(0.05, 0.04)))


def test_the_same_seed_gives_the_same_interval() -> None:
    values = [0.1, 0.12, 0.08, 0.11, 0.09]
    assert bootstrap(values, 7) == bootstrap(values, 7)


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert bootstrap([0.25] * 6, 0) == Interval(0.25, 0.25, 0.25)


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rounds"):
        bootstrap([0.1, 0.2, 0.3], 0)


def test_one_wild_round_of_twelve_hardly_moves_the_value() -> None:
    assert bootstrap([0.1] * 11 + [3.0], 0).value == pytest.approx(0.1)


def test_the_median_lies_in_its_interval() -> None:
    draw = np.random.default_rng(3)
    found = median_interval([list(draw.normal(50, 1, 5)) for _ in range(24)], 0)
    assert found.low <= found.value <= found.high
    assert found.high - found.low < 2


def test_samples_of_one_block_count_as_one_observation() -> None:
    """Six blocks of a thousand equal samples know no more than six blocks of one."""
    levels = [49.0, 50.0, 51.0, 52.0, 48.0, 50.5]
    many = median_interval([[level] * 1000 for level in levels], 0)
    assert many.high - many.low > 1
