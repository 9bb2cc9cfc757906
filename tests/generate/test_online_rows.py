"""Rows read once: maxima, sums of exponentials and what these weigh, found in one pass over memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest

from tests.generate.harness import Checked, check, plan_text, run, tensor

KL = "def f(x, y): return F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction='none').sum(-1)"
KL_OF_LOGARITHMS = """
def f(x, y):
    return F.kl_div(F.log_softmax(x, -1), F.log_softmax(y, -1), reduction='none', log_target=True).sum(-1)
"""
ENTROPY = "def f(x): return -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1)"
SUM_OF_LOGARITHMS = "def f(x): return F.log_softmax(x, -1).sum(-1)"
ONLINE = {"f.cached": 0, "f.online": 1, "f.blocks": 1}
LOWEST = np.finfo(np.float32).min


def reads_of(checked: Checked, name: str) -> int:
    """Return how often the text of the first kernel reads a row of a tensor."""
    kernel = checked.text.split("__global__")[1]
    return len(re.findall(rf"(?:packs<\d>\({name}\)|\b{name})\[row \*", kernel))


@pytest.mark.parametrize("text", [KL, KL_OF_LOGARITHMS, ENTROPY, SUM_OF_LOGARITHMS])
@pytest.mark.parametrize(("dtype", "vector"), [("f32", 4), ("f32", 1), ("bf16", 8), ("f16", 2)])
def test_a_weighted_sum_takes_one_pass(text: str, dtype: str, vector: int) -> None:
    names = ("x", "y") if "y" in text.split(":")[0] else ("x",)
    n_columns = 1048 if vector > 1 else 1051
    checked = check(
        text,
        inputs=[tensor(name, 3, n_columns, dtype=dtype) for name in names],
        schedule={**ONLINE, "f.vector": vector, "f.threads": 64},
        families=("normal", "large"),
        sizes=({}, {"D": vector}),
    )
    assert [reads_of(checked, name) for name in names] == [1] * len(names)
    assert "in one pass over the row" in checked.text


TWO_SUMS = """
def f(x):
    log_p = F.log_softmax(x, -1)
    return (log_p.exp() * log_p).sum(-1), log_p.sum(-1)
"""
BOTH_WAYS = """
def f(x, y):
    log_p, log_q = F.log_softmax(x, -1), F.log_softmax(y, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1), (log_q.exp() * (log_q - log_p)).sum(-1)
"""


@pytest.mark.parametrize("text", [TWO_SUMS, BOTH_WAYS])
def test_several_weighted_sums_take_one_pass(text: str) -> None:
    names = ("x", "y") if text is BOTH_WAYS else ("x",)
    checked = check(text, inputs=[tensor(name, 3, 1048) for name in names], schedule=ONLINE)
    assert [reads_of(checked, name) for name in names] == [1] * len(names)


def test_a_later_pair_of_a_shared_row_finds_no_weighted_sums_again() -> None:
    text = """
def f(x):
    p = F.softmax(x, -1)
    return -(p * F.log_softmax(x, -1)).sum(-1), p.var(-1), p
"""
    way = {"f.cached": 1, "f.blocks": 2, "f.threads": 256, "f.vector": 4}
    checked = check(text, inputs=[tensor("x", 132, 8192)], schedule=way, sizes=({"B": 3},))
    assert "sum_to_peak_parts[2]" in checked.text
    assert "squares_parts[2]" in checked.text


def test_a_pass_of_weighted_sums_also_finds_a_maximum_of_its_own() -> None:
    text = "def f(x): return -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1), (x * x).amax(-1), x.argmax(-1)"
    check(text, inputs=[tensor("x", 3, 1048)], schedule=ONLINE)


def test_a_softmax_that_nothing_follows_has_no_shift_of_its_sums() -> None:
    checked = check("def f(x): return torch.logsumexp(x, -1)", inputs=[tensor("x", 3, 1048)], schedule=ONLINE)
    assert "const float shift" not in checked.text


@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize(("text", "dtype"), [(KL, "bf16"), (KL, "f32"), (SUM_OF_LOGARITHMS, "f32")])
def test_a_thread_loads_a_batch_of_packs_before_it_computes_any(text: str, dtype: str, batch: int) -> None:
    names = ("x", "y") if text is KL else ("x",)
    vector = 16 // (4 if dtype == "f32" else 2)
    checked = check(
        text,
        inputs=[tensor(name, 3, 256 * vector * 3 - vector, dtype=dtype) for name in names],
        schedule={**ONLINE, "f.vector": vector, "f.threads": 64, "f.batch": batch},
        families=("normal", "large"),
        sizes=({}, {"D": vector}, {"D": 64 * vector * batch}, {"D": 64 * vector * batch * 2 + vector}),
    )
    assert [reads_of(checked, name) for name in names] == [2] * len(names), "of batches, and of the packs left"
    assert "in one pass over the row" in checked.text


@pytest.mark.parametrize("threads", [8, 32, 256])
def test_a_weighted_sum_of_other_threads(threads: int) -> None:
    schedule = {**ONLINE, "f.threads": threads, "f.rows": 256 // threads if threads <= 32 else 1}
    check(KL, inputs=[tensor("x", 5, 515), tensor("y", 5, 515)], schedule=schedule)


def expected_divergence(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the KL divergences of rows as PyTorch has them, in fp64."""
    with np.errstate(all="ignore"):
        log_p, log_q = (row - row.max(-1, keepdims=True) for row in (x.astype(np.float64), y.astype(np.float64)))
        log_p, log_q = (row - np.log(np.exp(row).sum(-1, keepdims=True)) for row in (log_p, log_q))
        q = np.exp(log_q)
        own = np.where(np.isnan(q), np.nan, np.where(q == 0, 0.0, q * log_q))
        return (own - q * log_p).sum(-1)


def special_rows(n_columns: int) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Return rows of both inputs with masks, by what they hold."""
    random = np.random.default_rng(0)

    def row() -> np.ndarray:
        return random.normal(size=n_columns).astype(np.float32)

    def changed(places: slice | int, value: float) -> np.ndarray:
        values = row()
        values[places] = value
        return values

    first, last, one = slice(0, n_columns // 2), slice(n_columns // 2, None), 7
    return {
        "offset": (row() + 3000, row() - 5000),
        "teacher masked": (row(), changed(first, -np.inf)),
        "teacher masked at the end": (row(), changed(last, -np.inf)),
        "teacher masked by the lowest number": (row(), changed(first, LOWEST)),
        "student masked": (changed(one, -np.inf), row()),
        "both masked": (changed(first, -np.inf), changed(first, -np.inf)),
        "both masked by the lowest number": (changed(first, LOWEST), changed(first, LOWEST)),
        "student infinite": (changed(one, np.inf), row()),
        "teacher infinite": (row(), changed(one, np.inf)),
        "student NaN": (changed(one, np.nan), row()),
        "teacher NaN": (row(), changed(one, np.nan)),
        "all of the student masked": (changed(slice(None), -np.inf), row()),
        "all of the teacher masked": (row(), changed(slice(None), -np.inf)),
        "equal": (two := row(), two),
        "rising": (np.sort(row()) * 40, np.sort(row())[::-1] * 40),
    }


@pytest.mark.parametrize(
    ("cached", "blocks", "batch"), [(0, 1, 1), (0, 1, 2), (1, 1, 1), (0, 4, 1), (1, 4, 1), (1, 32, 1)]
)
def test_masks_and_infinities_of_a_divergence_are_as_pytorch_has_them(cached: int, blocks: int, batch: int) -> None:
    rows = special_rows(2080)
    n = len(rows)
    way = {"cached": cached, "online": 1 - cached, "blocks": blocks, "batch": batch, "threads": 64, "vector": 4}
    schedule = {f"f.{what}": value for what, value in way.items()}
    checked = check(KL, inputs=[tensor("x", n, 2080), tensor("y", n, 2080)], schedule=schedule)
    x, y = (np.stack([both[place] for both in rows.values()]) for place in (0, 1))
    found, expected = run(checked, {"x": x, "y": y})["out"], expected_divergence(x, y)
    for name, ours, theirs in zip(rows, found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("batch", [1, 4])
def test_masks_and_infinities_of_a_sum_of_logarithms_are_as_pytorch_has_them(batch: int) -> None:
    rows = [second for _, second in special_rows(520).values()]
    schedule = {**ONLINE, "f.threads": 64, "f.vector": 4, "f.batch": batch}
    checked = check(SUM_OF_LOGARITHMS, inputs=[tensor("x", len(rows), 520)], schedule=schedule)
    x = np.stack(rows)
    with np.errstate(all="ignore"):
        distance = x.astype(np.float64) - x.max(-1, keepdims=True).astype(np.float64)
        logarithms = distance - np.log(np.exp(distance).sum(-1, keepdims=True))
        expected = logarithms.sum(-1)
    finite = np.abs(expected) < np.finfo(np.float32).max
    expected = np.where(np.isfinite(expected) & ~finite, np.copysign(np.inf, expected), expected)
    np.testing.assert_allclose(run(checked, {"x": x})["out"], expected, rtol=1e-6)


CROSS_ENTROPY = "def f(x, t): return F.cross_entropy(x, t, label_smoothing=0.1, reduction='none')"
WITH_Z_LOSS = "def f(x, t): return F.cross_entropy(x, t, reduction='none') + torch.logsumexp(x, -1).pow(2)"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("text", [KL, CROSS_ENTROPY, WITH_Z_LOSS])
def test_long_rows_are_read_once_by_default(text: str, dtype: str) -> None:
    labels = tensor("t", 4096, dtype="i64", within=(0, 32000))
    rows = [tensor(name, 4096, 32000, dtype=dtype) for name in ("x", "y")]
    program = plan_text(text, inputs=rows if text is KL else [rows[0], labels])
    cuda = program.render({})
    kernel = next(
        each for each in cuda.split("// One block of")[1:] if "__launch_bounds__" in each and "x_packs" in each
    )
    assert "in one pass over the row" in kernel
    loads = re.findall(r"(x|y)_packs(?:_\d)?\[u\] = ", kernel)
    assert len(loads) == 2 * (2 if text is KL else 1), "of batches, and of the packs left"
