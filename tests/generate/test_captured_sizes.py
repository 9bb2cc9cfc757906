"""Small programs have kernels for their captured sizes, beside those for any others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kernel_lsp.core.expression import Expression, evaluate
from kernel_lsp.core.plan import Fill, Launch, Operation
from kernel_lsp.generate.captured_sizes import MAX_CALLS, MAX_ELEMENTS, SUFFIX
from tests.generate.harness import check, plan_text, tensor

LINEAR = "def f(x, w, b): return F.relu(F.linear(x, w, b))"
LINEAR_INPUTS = [tensor("x", 64, 96), tensor("w", 40, 96), tensor("b", 40)]
POOL = "def f(x): return F.max_pool2d(x, 2)"
CONVOLUTION = "def f(x, w, b): return F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2)"
CROSS_ENTROPY = "def f(x, labels): return F.cross_entropy(x, labels)"


def launched(operation: Operation | None, sizes: Mapping[str, int]) -> list[str]:
    """Return the kernels that the operation launches at these sizes."""
    assert operation is not None
    launches = [step for step in operation.steps if isinstance(step, Launch)]
    return [launch.kernel for launch in launches if _holds(launch.condition, sizes)]


def _holds(condition: Expression | None, sizes: Mapping[str, int]) -> bool:
    return condition is None or bool(evaluate(condition, sizes))


def test_a_linear_layer_has_kernels_for_its_captured_sizes_and_for_others() -> None:
    sizes = ({}, {"B": 37}, {"D": 33}, {"B": 5, "B2": 7})
    found = check(LINEAR, inputs=LINEAR_INPUTS, backward=True, sizes=sizes, variants=True)
    captured = {symbol.name: symbol.captured for symbol in found.task.symbols}
    for operation in (found.plan.forward, found.plan.backward):
        assert not any(SUFFIX in kernel for kernel in launched(operation, captured))
        assert all(SUFFIX in kernel for kernel in launched(operation, {**captured, "B": 63}))
    assert len(launched(found.plan.backward, captured)) == 1, "the masked gradient is computed by each reader"
    assert f"{SUFFIX}{SUFFIX}" not in found.text


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (POOL, [tensor("x", 2, 3, 8, 8)]),
        (CONVOLUTION, [tensor("x", 3, 1, 12, 12), tensor("w", 8, 1, 3, 3), tensor("b", 8)]),
        (CROSS_ENTROPY, [tensor("x", 12, 10), tensor("labels", 12, dtype="i64", within=(0, 10))]),
        (
            "def f(x, w, b): return F.layer_norm(x, (x.shape[-1],), w, b)",
            [tensor("x", 6, 48), tensor("w", 48), tensor("b", 48)],
        ),
    ],
)
def test_variants_and_other_kernels_are_correct(text: str, inputs: list[object]) -> None:
    found = check(text, inputs=inputs, backward=True, sizes=({}, {"B": 5}), variants=True)
    assert SUFFIX in found.text


def test_a_schedule_is_that_of_the_variants() -> None:
    program = plan_text(LINEAR, inputs=LINEAR_INPUTS, variants=True)
    default, other = program.render({}), program.render({"f.addmm.contraction": "direct"})
    assert default.split("f_other_sizes(")[-1] == other.split("f_other_sizes(")[-1]
    assert default != other


def test_both_keep_the_same_for_the_backward() -> None:
    for level in (0, 1):
        found = check(POOL, inputs=[tensor("x", 2, 3, 8, 8)], backward=True, schedule={"f.keeps": level}, variants=True)
        assert len(found.plan.forward.kept) == level
        assert SUFFIX in found.text


def test_a_step_without_a_condition_leaves_one_set_of_kernels() -> None:
    """A scan over chained tiles sets its flags first, whichever kernel follows."""
    text, inputs = "def f(x): return x.cumsum(1)", [tensor("x", 5, 300)]
    schedule = {"f.chained": 1, "f.threads": 64, "f.items": 1}
    found = check(text, inputs=inputs, schedule=schedule, variants=True)
    assert SUFFIX not in found.text
    assert any(isinstance(step, Fill) for step in found.plan.forward.steps)


def test_large_programs_have_no_variants() -> None:
    program = plan_text("def f(x): return x.relu()", inputs=[tensor("x", MAX_ELEMENTS // 2 + 1, 1)], variants=True)
    assert SUFFIX not in program.render({})


def test_a_size_that_a_channel_count_fixes_is_in_no_condition() -> None:
    text = "def f(x): return (x.permute(0, 3, 1, 2).float() / 255 - 0.5) * 2"
    found = check(text, inputs=[tensor("x", 2, 8, 12, 3, dtype="u8")], sizes=({}, {"B": 3}), variants=True)
    assert SUFFIX in found.text


def test_networks_of_many_calls_have_no_variants() -> None:
    text = f"def f(x):\n    for _ in range({MAX_CALLS + 1}): x = x.sin()\n    return x"
    assert SUFFIX not in plan_text(text, inputs=[tensor("x", 4, 8)], variants=True).render({})


def test_channels_of_a_convolution_share_its_pixels() -> None:
    inputs = [tensor("x", 64, 1, 28, 28), tensor("w", 32, 1, 3, 3), tensor("b", 32)]
    program = plan_text(CONVOLUTION, inputs=inputs, variants=True)
    schedule = program.realize({}).schedule
    assert (schedule["f.box"], schedule["f.planes"], schedule["f.threads"]) == ("1x4x1x1", 0, 128)
    bounds = f"__launch_bounds__(128, {schedule['f.resident']}) f("
    assert bounds in program.render({}), "the compiler knows that all blocks run at once"
    assert bounds not in program.render({"f.resident": 0})


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (CONVOLUTION, [tensor("x", 3, 1, 14, 14), tensor("w", 8, 1, 3, 3), tensor("b", 8)]),
        (POOL, [tensor("x", 2, 4, 8, 8)]),
        ("def f(x): return F.avg_pool2d(x, 4, 2)", [tensor("x", 2, 4, 10, 10)]),
    ],
)
@pytest.mark.parametrize("box", ["1x1x2x2", "1x2x1x2"])
def test_rows_of_windows_of_constant_sizes_are_packs(text: str, inputs: list[object], box: str) -> None:
    """What several windows read, such as those of a pooling of a convolution, is loaded once."""
    found = check(text, inputs=inputs, schedule={"f.box": box}, sizes=({}, {"B": 5}), variants=True)
    captured = found.text.partition(f"f{SUFFIX}(")[0]
    assert "x_run[" in captured
    assert "x[" not in captured


def test_small_convolutions_of_many_channels_take_tensor_cores() -> None:
    inputs = [tensor("x", 8, 16, 32, 32), tensor("w", 16, 16, 3, 3)]
    program = plan_text("def f(x, w): return F.conv2d(x, w, padding=1)", inputs=inputs, variants=True)
    assert program.realize({}).schedule["f.convolution.contraction"] == "tensor_cores"


def test_one_block_of_few_rows_has_a_thread_for_each() -> None:
    inputs = [tensor("x", 64, 10), tensor("labels", 64, dtype="i64", within=(0, 10))]
    schedule = plan_text(CROSS_ENTROPY, inputs=inputs, variants=True).realize({}).schedule
    assert (schedule["f.block"], schedule["f_chosen.threads"]) == (256, 1)


def test_weights_behind_a_reduction_are_prefetched() -> None:
    text = "def f(x, w, b): return F.layer_norm(x, (x.shape[-1],), w, b)"
    inputs = [tensor("x", 6, 72), tensor("w", 72), tensor("b", 72)]
    found = check(text, inputs=inputs, sizes=({}, {"B": 5}, {"D": 7}), variants=True)
    captured, _, others = found.text.partition(f"f{SUFFIX}(")
    assert [captured.count(f"if (threadIdx.x < 3) prefetch({name} + threadIdx.x * 32);") for name in "wb"] == [1, 1]
    assert "prefetch(" not in others


def test_packs_of_large_windows_may_be_evicted_late() -> None:
    sizes = [{"B": 1, "C": 3}, {"B": 2, "C": 1, "H": 6, "W": 8}]
    found = check(POOL, inputs=[tensor("x", 64, 64, 28, 28)], backward=True, schedule={"f.streaming": 2}, sizes=sizes)
    assert "load_kept(&*packs<4>(x" in found.text
    program = plan_text(POOL, inputs=[tensor("x", 2, 4, 8, 8)])
    assert program.render({"f.streaming": 2}) == program.render({}), "small work is in the cache anyway"


@pytest.mark.parametrize(
    ("text", "inputs", "n_shared"),
    [
        (CROSS_ENTROPY, [tensor("x", 64, 10), tensor("labels", 64, dtype="i64", within=(0, 10))], 2),
        ("def f(x): s = x.sum(1); return s, (x - s[:, None]).exp().sum(0)", [tensor("x", 300, 3)], 1),
    ],
)
def test_stages_of_one_block_exchange_small_tensors_in_shared_memory(
    text: str, inputs: list[object], n_shared: int
) -> None:
    """Results among them are copied; the kernels for other sizes exchange what is as long as a size in scratch."""
    schedule = {"f.launches": "one_block"}
    sizes = ({}, {"B": 5})
    found = check(text, inputs=inputs, backward=True, schedule=schedule, sizes=sizes, variants=True)
    captured = found.text.partition(SUFFIX + "(")[0]
    assert captured.count("__shared__ __align__(16) float shared_") == n_shared
    assert all(tensor.name.endswith(SUFFIX) for tensor in found.plan.forward.scratch)


def test_loads_that_want_global_memory_keep_scratch() -> None:
    """A load with early eviction is an instruction for global memory."""
    text = "def f(x): return (x - x.sum(0)).exp().sum(1)"
    schedule = {"f.launches": "one_block", "f_out.streaming": 1, "f_out.vector": 2}
    found = check(text, inputs=[tensor("x", 8, 32)], schedule=schedule, variants=True)
    captured = found.text.partition(SUFFIX + "(")[0]
    assert "load_once(&" in captured
    assert "float shared_" not in captured
