"""Check what counts as impossible: only what every correct kernel has to do."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.measurement import TimeFloor
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, BoundTensor, TensorArgument
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, TensorType
from kernel_lsp.gpu.estimate import MARGIN, time_floor
from kernel_lsp.gpu.floor import EMPTY_KERNEL_US
from kernel_lsp.gpu.specs import find_gpu

H200 = find_gpu("H200")
BIG = 1 << 28


def tensor_type(*shape: int, dtype: DType = DType.F32) -> TensorType:
    return TensorType(dtype=dtype, shape=tuple(str(size) for size in shape))


def floor(op: str, inputs: dict[str, TensorType], output: TensorType, *more: GraphNode, result: str = "y") -> TimeFloor:
    references = tuple({"node": name} for name in inputs)
    first = GraphNode(name="y", op=f"aten.{op}", arguments=references, types=(output,))
    types = {node.name: node.types[0] for node in (first, *more)}
    graph = Graph(
        inputs=tuple(inputs),
        input_types=tuple(inputs.values()),
        nodes=(first, *more),
        outputs=(GraphOutput(name="out", node=result, type=types[result]),),
    )
    bound = BoundOperation(
        name="f",
        dims={},
        tensors=(
            *(_bound(name, type_, "input") for name, type_ in inputs.items()),
            _bound("out", types[result], "output"),
        ),
        steps=(),
    )
    return time_floor(graph, bound, H200)


def _bound(name: str, type_: TensorType | None, role: str) -> BoundTensor:
    assert type_ is not None
    return BoundTensor(name=name, dtype=type_.dtype, shape=tuple(int(dim) for dim in type_.shape), role=role)  # type: ignore[arg-type]


def test_a_pointwise_operation_reads_its_inputs_and_writes_its_outputs() -> None:
    big = tensor_type(BIG)
    assert floor("relu.default", {"x": big}, big).time_us == pytest.approx(2 * 4 * BIG / 4.3e12 * 1e6)


def test_the_impossible_is_at_the_datasheets_bandwidth_with_a_margin() -> None:
    big = tensor_type(BIG)
    certain = (4 * BIG + 4 * BIG - H200.l2_bytes) / 4.8e12 * 1e6
    assert floor("relu.default", {"x": big}, big).impossible_below_us == pytest.approx(MARGIN * certain)


def test_what_fits_in_l2_may_not_have_been_written_yet() -> None:
    small = tensor_type(1 << 20)
    found = floor("relu.default", {"x": small}, small)
    assert found.impossible_below_us == pytest.approx(MARGIN * 4 * (1 << 20) / 4.8e12 * 1e6)


def test_a_gather_may_leave_its_table_unread() -> None:
    table, indices = tensor_type(BIG, 4), tensor_type(8, dtype=DType.I64)
    assert floor("embedding.default", {"table": table, "i": indices}, tensor_type(8, 4)).impossible_below_us == 0


def test_what_is_cut_away_later_need_not_be_computed() -> None:
    big, few = tensor_type(BIG), tensor_type(16)
    cut = GraphNode(name="z", op="aten.slice.Tensor", arguments=({"node": "y"}, 0, 0, 16), types=(few,))
    assert floor("relu.default", {"x": big}, big, cut, result="z").impossible_below_us == 0


def test_a_reduction_reads_everything() -> None:
    big, one = tensor_type(BIG), tensor_type(1)
    total = GraphNode(name="z", op="aten.sum.default", arguments=({"node": "y"},), types=(one,))
    found = floor("exp.default", {"x": big}, big, total, result="z")
    assert found.impossible_below_us == pytest.approx(MARGIN * 4 * BIG / 4.8e12 * 1e6)


def test_a_large_product_is_bound_by_arithmetic() -> None:
    square = tensor_type(8192, 8192, dtype=DType.BF16)
    found = floor("mm.default", {"a": square, "b": square}, square)
    assert found.time_us == pytest.approx(2 * 8192**3 / 989.4e12 * 1e6)
    assert "GFLOP" in found.basis


def test_an_f32_product_may_be_made_of_tensor_core_products() -> None:
    """Three TF32 products make one in f32, and are the speed of light; fewer are not impossible."""
    square = tensor_type(8192, 8192)
    found = floor("mm.default", {"a": square, "b": square}, square)
    assert found.time_us == pytest.approx(2 * 8192**3 / (494.7e12 / 3) * 1e6)
    assert found.impossible_below_us < found.time_us / 2


def test_a_product_that_is_only_partly_asked_for_has_no_limit() -> None:
    square, few = tensor_type(8192, 8192), tensor_type(8192, 16)
    cut = GraphNode(name="z", op="aten.slice.Tensor", arguments=({"node": "y"}, 1, 0, 16), types=(few,))
    assert floor("mm.default", {"a": square, "b": square}, square, cut, result="z").impossible_below_us == 0


def test_a_product_that_is_only_summed_has_the_limit_of_its_factors() -> None:
    """A kernel of a linear layer behind which features are averaged took 187 us on an H200, and was refused, since "no
    correct kernel takes less than 500 us": it had summed the weight first."""
    square, row = tensor_type(8192, 8192), tensor_type(8192)
    shifted = GraphNode(name="s", op="aten.sub.Tensor", arguments=({"node": "y"}, 2.0), types=(square,))
    mean = GraphNode(name="z", op="aten.mean.dim", arguments=({"node": "s"}, [1]), types=(row,))
    gelu = GraphNode(name="g", op="aten.gelu.default", arguments=({"node": "y"},), types=(square,))
    other = GraphNode(name="z", op="aten.mean.dim", arguments=({"node": "g"}, [1]), types=(row,))
    factors = {"a": square, "b": square}
    found = floor("mm.default", factors, square, shifted, mean, result="z")
    assert found.impossible_below_us == pytest.approx(MARGIN * 2 * 4 * 8192**2 / 4.8e12 * 1e6)
    assert "MB" in found.basis
    assert floor("mm.default", factors, square, gelu, other, result="z").impossible_below_us > 1000


def test_a_gather_from_rows_that_are_normalized_is_shown_the_rows() -> None:
    """All labels may be ignored, so nothing is certain; a usual kernel reads the logits."""
    logits, picked = tensor_type(512, 4096), tensor_type(512, 1)
    pick = GraphNode(name="z", op="aten.gather.default", arguments=({"node": "y"}, 1, {"node": "i"}), types=(picked,))
    found = floor("_log_softmax.default", {"x": logits, "i": tensor_type(512, 1)}, logits, pick, result="z")
    assert found.time_us == pytest.approx(4 * (512 * 4096 + 2 * 512) / 4.3e12 * 1e6, rel=0.01)
    assert found.impossible_below_us == 0


def test_nothing_is_shown_a_floor_below_a_kernel_that_does_nothing() -> None:
    few = tensor_type(16)
    found = floor("relu.default", {"x": few}, few)
    assert found.time_us == EMPTY_KERNEL_US
    assert "does nothing" in found.basis


def test_inputs_that_only_the_forward_takes_are_not_read_by_its_backward() -> None:
    """The backward of a residual sum takes the sum: a time below that of both inputs is possible then."""
    type_ = tensor_type(BIG)
    names = ("grad_out", "x", "residual")
    first = GraphNode(
        name="total", op="aten.add.Tensor", arguments=({"node": "x"}, {"node": "residual"}), types=(type_,)
    )
    last = GraphNode(
        name="y", op="aten.mul.Tensor", arguments=({"node": "total"}, {"node": "grad_out"}), types=(type_,)
    )
    output = GraphOutput(name="grad_x", node="y", type=type_)
    graph = Graph(inputs=names, input_types=(type_,) * 3, nodes=(first, last), outputs=(output,))
    tensors = [*(_bound(name, type_, "input") for name in names), _bound("total", type_, "scratch")]
    bound = BoundOperation(
        name="f_backward",
        dims={},
        tensors=(*tensors, _bound("grad_x", type_, "output")),
        steps=(launch("x", "residual", "total"), launch("grad_out", "total", "grad_x")),
        n_before=1,
    )
    whole = time_floor(graph, bound.model_copy(update={"n_before": 0}), H200)
    found = time_floor(graph, bound, H200)
    assert found.time_us == pytest.approx(whole.time_us * 3 / 4)
    assert found.impossible_below_us < whole.impossible_below_us * 2 / 3


def launch(*tensors: str) -> BoundLaunch:
    arguments = tuple(TensorArgument(tensor=name) for name in tensors)
    return BoundLaunch(kernel="k", grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0, arguments=arguments)
