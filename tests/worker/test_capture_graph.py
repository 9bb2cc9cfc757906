"""Check what a capture says of the user's code: arguments, sizes, nodes, lines and names."""

from __future__ import annotations

from typing import Any

from kernel_lsp.core.expression import parse
from kernel_lsp.core.task import Graph, Task
from tests.worker.capturing import capture_text, scalar, tensor

RMS_NORM = """
class RMSNorm(nn.Module):
    def __init__(self, dim=64, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return x * self.weight
"""
X = tensor("x", 4, 6, 8)


def ops(graph: Graph | None) -> list[str]:
    assert graph is not None
    return [node.op.removeprefix("aten.") for node in graph.nodes]


def shape_of(task: Task, name: str) -> tuple[str, ...]:
    return next(argument.type.shape for argument in task.tensors if argument.name == name)


def symbols(task: Task) -> dict[str, tuple[int, int, int | None]]:
    return {symbol.name: (symbol.captured, symbol.minimum, symbol.maximum) for symbol in task.symbols}


def check_expressions_parse(task: Task) -> None:
    for graph in (task.forward, task.backward):
        for node in graph.nodes if graph else ():
            for text in [*_expressions(node.arguments), *(s for t in node.types if t for s in t.shape)]:
                parse(text)


def _expressions(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["expression"]] if "expression" in value else []
    return [text for entry in value for text in _expressions(entry)] if isinstance(value, list | tuple) else []


def test_a_module_has_symbolic_inputs_and_fixed_parameters() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)])
    assert task.name == "rms_norm"
    assert shape_of(task, "x") == ("B", "T", "64")
    assert [(a.name, a.role, a.qualified_name) for a in task.tensors[1:]] == [("weight", "parameter", "weight")]
    assert ops(task.forward) == [
        "pow.Tensor_Scalar", "mean.dim", "add.Tensor", "rsqrt.default", "mul.Tensor", "mul.Tensor",
    ]  # fmt: skip
    check_expressions_parse(task)


def test_init_arguments_reach_the_constructor() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 32)], init={"dim": 32, "eps": 0.5})
    assert shape_of(task, "weight") == ("32",)
    assert 0.5 in [argument for node in task.forward.nodes for argument in node.arguments]


def test_an_object_is_constructed_for_the_constructor() -> None:
    config = "import collections\n\nclass Config:\n    def __init__(self, **given):\n        self.__dict__ = given\n"
    text = config + RMS_NORM.replace("dim=64, eps=1e-6", "config, counts").replace("(dim)", "(config.dim)")
    init = {"config": {"call": "Config(dim=32, eps=0.5)"}, "counts": {"call": "collections.Counter(a=[1, -2])"}}
    task = capture_text(text.replace("= eps", "= config.eps"), "RMSNorm", inputs=[tensor("x", 4, 32)], init=init)
    assert shape_of(task, "weight") == ("32",)
    assert 0.5 in [argument for node in task.forward.nodes for argument in node.arguments]


def test_what_a_configurations_constructor_ignores_is_set_after_it() -> None:
    text = """
    import dataclasses

    @dataclasses.dataclass
    class Config:
        dim: int
        kind = "eager"

        def __init__(self, dim, **others):
            self.dim = dim

    class Scale(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def forward(self, x):
            return x * 2 if self.config.kind == "fast" else x + 2
    """
    init = {"config": {"call": "Config(dim=32, kind='fast')"}}
    task = capture_text(text, "Scale", inputs=[tensor("x", 4, 32)], init=init)
    assert ops(task.forward) == ["mul.Tensor"]


def test_a_size_of_one_is_allowed_where_the_code_agrees_with_its_graph() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)])
    assert symbols(task) == {"B": (4, 1, None), "T": (6, 1, None)}


def test_a_branch_on_a_size_bounds_the_symbol() -> None:
    text = "def f(x):\n    if x.shape[0] > 3:\n        return x * 2\n    return x"
    assert symbols(capture_text(text, "f", inputs=[tensor("x", 4, 8)]))["B"] == (4, 4, None)
    assert symbols(capture_text(text, "f", inputs=[tensor("x", 3, 8)]))["B"] == (3, 1, 3)


def test_squeezing_a_dim_keeps_one_out_of_its_sizes() -> None:
    text = "def f(x):\n    return x.squeeze(0) * 2"
    assert symbols(capture_text(text, "f", inputs=[tensor("x", 4, 8)]))["B"] == (4, 2, None)


def test_a_divisibility_that_symbols_cannot_state_fixes_that_dim_alone() -> None:
    text = "def f(x):\n    B, T, C = x.shape\n    return x.view(B, T, 2, C // 2).transpose(1, 2)"
    task = capture_text(text, "f", inputs=[X])
    assert shape_of(task, "x") == ("B", "T", "8")
    assert "x.shape[2] = 8 (the code needs B * T * C == 2 * B * T * (C // 2))" in task.notes[0]


def test_a_pooled_size_is_an_expression() -> None:
    task = capture_text("def f(x):\n    return F.max_pool2d(x, 2)", "f", inputs=[tensor("x", 2, 3, 8, 12)])
    result = task.forward.outputs[0].type
    assert result is not None
    assert result.shape == ("B", "C", "H // 2", "W // 2")


def test_equal_sizes_stay_two_symbols() -> None:
    task = capture_text("def f(x):\n    return x.relu()", "f", inputs=[tensor("x", 64, 64)])
    assert shape_of(task, "x") == ("B", "D")


def test_sizes_that_must_be_equal_are_one_symbol() -> None:
    task = capture_text("def f(a, b):\n    return a + b", "f", inputs=[tensor("a", 4, 8), tensor("b", 8)])
    assert (shape_of(task, "a"), shape_of(task, "b")) == (("B", "D"), ("D",))


def test_dims_are_named_by_the_pragma_then_by_the_code_then_by_rank() -> None:
    text = "def f(x):\n    batch, time, _ = x.shape\n    return x + batch * time"
    task = capture_text(text, "f", inputs=[tensor("x", 4, 6, 8, dims=(None, "L", None))])
    assert shape_of(task, "x") == ("batch", "L", "D")


def test_names_avoid_cpp_and_each_other() -> None:
    task = capture_text("def f(new, B):\n    return new @ B", "f", inputs=[tensor("new", 4, 8), tensor("B", 8, 5)])
    assert [argument.name for argument in task.arguments] == ["new_", "B"]
    assert "B" not in symbols(task)


def test_parameters_are_named_by_their_path_and_do_not_clash_with_inputs() -> None:
    text = """
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = nn.Linear(8, 8)
            self.weight = nn.Parameter(torch.ones(8))
            self.register_buffer("mask", torch.tril(torch.ones(6, 6)))
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, x, weight):
            h = self.mask @ self.q_proj(x)
            return h * self.weight + weight
    """
    task = capture_text(text, "Block", inputs=[X, tensor("weight", 8)])
    assert [(a.name, a.role, a.qualified_name) for a in task.tensors] == [
        ("x", "input", None),
        ("weight", "input", None),
        ("weight_2", "parameter", "weight"),
        ("q_proj_weight", "parameter", "q_proj.weight"),
        ("q_proj_bias", "parameter", "q_proj.bias"),
        ("mask", "buffer", "mask"),
    ]


def test_numbers_are_listed_in_order_and_baked_into_the_graph() -> None:
    text = "def f(x, scale: float, weight):\n    return x * scale * weight"
    task = capture_text(text, "f", inputs=[tensor("x", 4, 8), scalar("scale", 0.125), tensor("weight", 8)])
    assert [(a.kind, a.name) for a in task.arguments] == [("tensor", "x"), ("scalar", "scale"), ("tensor", "weight")]
    assert task.forward.nodes[0].arguments[1] == 0.125


def test_an_input_that_nothing_reads_is_no_argument_and_said_so() -> None:
    task = capture_text("def f(x, y):\n    return x + 1", "f", inputs=[tensor("x", 4, 8), tensor("y", 3)])
    assert [argument.name for argument in task.tensors] == ["x"]
    assert task.notes == ("input 'y' is not used, so it is not an argument",)


def test_an_input_that_alone_knows_a_size_stays() -> None:
    task = capture_text("def f(x, y):\n    return x.expand_as(y)", "f", inputs=[tensor("x", 1, 8), tensor("y", 4, 8)])
    assert [argument.name for argument in task.tensors] == ["x", "y"]


def test_nodes_know_the_users_line_and_the_variable_it_assigns() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 64)])
    named = [(node.op.split(".")[1], node.user_name) for node in task.forward.nodes]
    assert named[1] == ("mean", "variance")
    assert named[4] == ("mul", "x")
    source = task.forward.nodes[1].source
    assert source is not None
    assert source.text == "variance = x.float().pow(2).mean(-1, keepdim=True)"


def test_a_helper_that_returns_hands_its_value_to_the_callers_variable() -> None:
    text = """
    def norm(v):
        return v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True))

    def f(x):
        h = norm(x)
        return h + 1
    """
    nodes = capture_text(text, "f", inputs=[tensor("x", 4, 8)]).forward.nodes
    assert [node.user_name for node in nodes] == [None, None, None, "h", None]
    assert nodes[3].source is not None
    assert nodes[3].source.text.startswith("return v *")


def test_an_op_made_inside_torch_has_the_users_line_and_the_submodule() -> None:
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())

        def forward(self, x):
            h = self.block(x)
            return h
    """
    nodes = capture_text(text, "Net", inputs=[tensor("x", 2, 3, 8, 8)]).forward.nodes
    assert [node.source.text for node in nodes if node.source] == ["h = self.block(x)"] * 2
    assert [node.module_path for node in nodes] == ["block.0", "block.1"]
    assert [node.user_name for node in nodes] == [None, "h"]


def test_a_method_of_a_module_is_captured_with_the_modules_parameters() -> None:
    text = """
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def gate(self, x):
            return self.fc(x).sigmoid()
    """
    task = capture_text(text, "Block.gate", inputs=[tensor("x", 2, 8)])
    assert task.name == "block_gate"
    assert [argument.name for argument in task.tensors] == ["x", "fc_weight", "fc_bias"]


def test_a_method_of_a_plain_class_is_captured() -> None:
    text = "class Act:\n    factor = 3\n    def apply(self, x):\n        return x * self.factor"
    assert ops(capture_text(text, "Act.apply", inputs=[X]).forward) == ["mul.Tensor"]


NORMED = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.bn = nn.BatchNorm2d(8)

        def forward(self, x):
            return self.bn(self.conv(x))
    """


def test_batch_norm_in_training_mode_updates_its_statistics() -> None:
    task = capture_text(NORMED, "Net", inputs=[tensor("x", 2, 3, 8, 8)], backward=True)
    assert [output.name for output in task.forward.outputs] == ["out", "new_bn_running_mean", "new_bn_running_var"]
    assert task.state_updates == {"bn.running_mean": "in place", "bn.running_var": "in place"}
    assert task.counters == {"bn.num_batches_tracked": 1}
    assert task.module_settings["bn.track_running_stats"] is True


def test_batch_norm_uses_the_batch_alone_where_its_statistics_have_no_constant_weight_and_says_so() -> None:
    text = NORMED.replace("BatchNorm2d(8)", "BatchNorm2d(8, momentum=None)")
    task = capture_text(text, "Net", inputs=[tensor("x", 2, 3, 8, 8)], backward=True)
    assert ops(task.forward) == ["convolution.default", "_native_batch_norm_legit.no_stats"]
    assert [a.name for a in task.tensors] == ["x", "conv_weight", "conv_bias", "bn_weight", "bn_bias"]
    assert "running ones are not updated" in task.notes[0]
    assert ops(task.backward)[1] == "_native_batch_norm_legit.no_stats"


def test_dropout_is_left_out_in_eval_mode_and_said_so() -> None:
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            return F.dropout(self.drop(x), 0.5, self.training) * 2
    """
    task = capture_text(text, "Net", inputs=[X])
    assert ops(task.forward) == ["mul.Tensor"]
    assert task.notes == ("captured in eval mode: training mode computes something else",)


def test_functional_dropout_that_follows_the_mode_is_left_out_too() -> None:
    text = "class Net(nn.Module):\n    def forward(self, x):\n        return F.dropout(x, 0.5, self.training) * 2"
    assert ops(capture_text(text, "Net", inputs=[X]).forward) == ["mul.Tensor"]


def test_a_buffer_that_the_module_updates_is_read_and_a_result() -> None:
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(8))

        def forward(self, x):
            self.total.add_(x.sum((0, 1)))
            return x + self.total
    """
    task = capture_text(text, "Net", inputs=[X])
    assert task.state_updates == {"total": "in place"}
    assert [output.name for output in task.forward.outputs] == ["out", "new_total"]


def test_outputs_keep_the_names_of_what_is_returned() -> None:
    returns = {
        "y, z": ["y", "z"],
        "y, z + 1": ["y", "out_1"],
        "{'a': y, 'b c': z, 'n': None}": ["a", "b_c"],
        "[y, (z, z)]": ["out_0", "out_1_0", "out_1_1"],
        "y": ["out"],
    }
    for text, names in returns.items():
        task = capture_text(f"def f(x):\n    y = x * 2\n    z = x.sum(-1)\n    return {text}", "f", inputs=[X])
        assert [output.name for output in task.forward.outputs] == names


def test_a_dataclass_of_tensors_is_an_output() -> None:
    text = """
    from dataclasses import dataclass

    @dataclass
    class Result:
        logits: torch.Tensor
        loss: torch.Tensor | None

    def f(x):
        return Result(x * 2, None)
    """
    assert [output.name for output in capture_text(text, "f", inputs=[X]).forward.outputs] == ["logits"]


def test_an_input_returned_as_it_is_needs_no_node() -> None:
    task = capture_text("def f(x):\n    return x", "f", inputs=[X])
    assert (task.forward.nodes, task.forward.outputs[0].node) == ((), "x")


def test_views_that_change_nothing_leave_no_nodes() -> None:
    text = "def f(x):\n    return x.view(x.shape).expand_as(x).clone().to(torch.float32)[:, :] + 1"
    assert ops(capture_text(text, "f", inputs=[X]).forward) == ["add.Tensor"]


def test_writing_into_a_slice_is_one_functional_node() -> None:
    text = "def f(x):\n    out = torch.zeros_like(x)\n    out[:, 1:] = x[:, :-1]\n    return out"
    assert ops(capture_text(text, "f", inputs=[X]).forward) == [
        "full_like.default", "slice.Tensor", "slice_scatter.default",
    ]  # fmt: skip


def test_results_of_a_split_are_items_of_one_node() -> None:
    task = capture_text("def f(x):\n    a, b = x.chunk(2, -1)\n    return a * b", "f", inputs=[X])
    assert len(task.forward.nodes[0].types) == 2
    assert task.forward.nodes[1].arguments == (
        {"node": "split_with_sizes", "item": 0},
        {"node": "split_with_sizes", "item": 1},
    )


def test_an_infinite_constant_is_json() -> None:
    task = capture_text("def f(x):\n    return x.masked_fill(x > 0, float('-inf'))", "f", inputs=[X])
    arguments = [argument for node in task.forward.nodes for argument in node.arguments]
    assert {"float": "-inf"} in arguments


def test_a_small_constant_is_a_node_and_a_larger_one_an_argument() -> None:
    one = capture_text("def f(x):\n    return x * torch.tensor(3.0)", "f", inputs=[X])
    assert one.forward.nodes[0].op == "aten.full.default"
    weights = capture_text("def f(x):\n    return x @ torch.tensor([[0.5, -1.0]] * 8)", "f", inputs=[X])
    assert (weights.forward.nodes[0].op, weights.tensors[1:]) == ("aten.tensor.default", ())
    assert weights.forward.nodes[0].arguments == ([0.5, -1.0] * 8,)
    text = f"def f(x):\n    return x + torch.tensor({[float(n) for n in range(40)]}).view(5, 8).sum(0)"
    many = capture_text(text, "f", inputs=[X])
    assert [(a.role, a.qualified_name) for a in many.tensors] == [("input", None), ("buffer", None)]


def test_labels_of_a_loss_stay_below_the_number_of_classes() -> None:
    text = "def f(logits, target):\n    return F.cross_entropy(logits, target)"
    task = capture_text(text, "f", inputs=[tensor("logits", 16, 10), tensor("target", 16, dtype="i64")])
    assert task.tensors[1].integer_range == (0, 10)
    assert shape_of(task, "logits") == ("B", "D")


def test_autocast_inside_becomes_casts() -> None:
    text = "def f(x):\n    with torch.autocast('cpu', dtype=torch.bfloat16):\n        return x @ x.transpose(1, 2)"
    task = capture_text(text, "f", inputs=[X])
    dtypes = [node.types[0].dtype.value for node in task.forward.nodes if node.types[0]]
    assert dtypes == ["f32", "bf16", "bf16", "bf16"]


def test_torch_compile_inside_does_not_matter() -> None:
    assert ops(capture_text("@torch.compile\ndef f(x):\n    return torch.relu(x)", "f", inputs=[X]).forward) == [
        "relu.default"
    ]


def test_code_that_asks_for_a_missing_gpu_is_captured_on_the_cpu() -> None:
    text = "def f(x):\n    return x.cuda() + torch.ones(8, device='cuda')"
    task = capture_text(text, "f", inputs=[X])
    assert ops(task.forward)[-1] == "add.Tensor"
    assert any("asks for a GPU" in note for note in task.notes)


def test_scalar_tensors_are_captured() -> None:
    task = capture_text("def f(x, y):\n    return (x * y).sum()", "f", inputs=[tensor("x"), tensor("y", 4)])
    assert shape_of(task, "x") == ()


def test_bool_and_half_inputs_are_captured() -> None:
    text = "def f(x, mask):\n    return x.masked_fill(mask, 0.0)"
    task = capture_text(text, "f", inputs=[tensor("x", 4, 8, dtype="bf16"), tensor("mask", 4, 8, dtype="bool")])
    assert [argument.type.dtype.value for argument in task.tensors] == ["bf16", "bool"]


def test_every_configuration_has_a_shape_for_every_argument() -> None:
    task = capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)])
    assert [configuration.shapes for configuration in task.configurations] == [{"x": (4, 6, 64), "weight": (64,)}]


def test_a_size_that_a_weight_settles_is_fixed_and_the_others_stay_free() -> None:
    text = """
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))

        def forward(self, x):
            return x * self.weight
    """
    task = capture_text(text, "Scaled", inputs=[tensor("x", 8, 4, 16)])
    assert [argument.type.shape for argument in task.arguments] == [("B", "T", "16"), ("16",)]


def test_distances_of_one_tensor_s_rows_are_no_products() -> None:
    """Those of two tensors are: by products they are faster."""
    inputs = [tensor("x", 30, 16), tensor("y", 40, 16)]
    found = [
        capture_text(f"def f(x, y):\n    return torch.cdist({given}) + y[:1, :1]", "f", inputs=inputs)
        for given in ("x, x", "x, y")
    ]
    assert [any(op == "mm.default" for op in ops(task.forward)) for task in found] == [False, True]
