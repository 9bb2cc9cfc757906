"""Loops over time that an export unrolls: one kernel for what steps pass on, whatever their number."""

from __future__ import annotations

import re

import pytest

from tests.generate.harness import check, check_program, plan_text, tensor

RNN = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.i2h, self.h2o = nn.Linear(6 + 8, 8), nn.Linear(8, 5)

        def forward(self, x, h):
            out = []
            for t in range(x.shape[0]):
                h = torch.tanh(self.i2h(torch.cat((x[t], h), 1)))
                out.append(self.h2o(h))
            return torch.stack(out), h
"""
RNN_INPUTS = [tensor("x", 9, 3, 6), tensor("h", 3, 8)]


def test_a_recurrent_network_by_hand_has_a_kernel_for_its_state_and_products_of_all_steps() -> None:
    assert check(RNN, symbol="Model", inputs=RNN_INPUTS).n_kernels <= 4


def test_blocks_of_a_cluster_share_the_elements_of_a_state() -> None:
    program = plan_text(RNN, symbol="Model", inputs=RNN_INPUTS)
    (knob,) = [knob.name for knob in program.knobs if knob.description == "blocks per place along the batch"]
    assert "cluster=2" in check_program(program, schedule={knob: 2}).text


def test_gradients_of_a_recurrent_network_are_a_loop_and_sums_over_its_steps() -> None:
    checked = check(RNN, symbol="Model", inputs=RNN_INPUTS, backward=True)
    assert checked.text.count("__global__") <= 14


LOOPS = {
    "moving average": """
        def f(x):
            h, out = x[:, 0], [x[:, 0]]
            for t in range(1, 12):
                h = 0.9 * h + 0.1 * x[:, t]
                out.append(h)
            return torch.stack(out, 1)
    """,
    "filter of two states": """
        def f(x):
            y1 = y2 = x1 = torch.zeros_like(x[:, 0])
            out = []
            for t in range(12):
                y = x[:, t] + 0.5 * x1 - 0.3 * y1 + 0.2 * y2
                x1, y1, y2 = x[:, t], y, y1
                out.append(y)
            return torch.stack(out, 1)
    """,
    "from the last to the first": """
        def f(x):
            a, out = torch.zeros_like(x[:, 0]), []
            for t in reversed(range(12)):
                a = x[:, t] + 0.9 * torch.sigmoid(x[:, t]) * a
                out.append(a)
            return torch.stack(out[::-1], 1)
    """,
    "sums of exponentials": """
        def f(x):
            a = x[:, 0]
            for t in range(1, 12):
                a = torch.logsumexp(a[:, :, None] + x[0, :4], 1) + x[:, t]
            return a
    """,
    "products with a matrix of each step": """
        def f(x):
            s, out = x.new_zeros(x.shape[0], 4, 4), []
            for t in range(12):
                k = x[:, t]
                s = s * 0.5 + k[:, :, None] * (k - (s * k[:, :, None]).sum(1))[:, None]
                out.append((s * k[:, :, None]).sum(1))
            return torch.cat(out, 1)
    """,
}


@pytest.mark.parametrize("name", LOOPS)
def test_values_of_a_loop(name: str) -> None:
    checked = check(LOOPS[name], inputs=[tensor("x", 3, 12, 4)])
    assert checked.n_kernels <= 4
    assert "for (int step = 0; step < 1" in checked.text


READOUTS = {
    "delta rule": LOOPS["products with a matrix of each step"],
    "selective scan": """
        def f(x):
            a, b = torch.exp(-(x[..., None] ** 2) * torch.arange(1, 4)), x[:, :, None, 1:]
            s, out = x.new_zeros(x.shape[0], 4, 3), []
            for t in range(12):
                s = a[:, t] * s + x[:, t, :, None] * b[:, t]
                out.append(torch.einsum("bdn,bn->bd", s, b[:, t, 0]))
            return torch.stack(out, 1) + x
    """,
    "state before its update": """
        def f(x):
            s, out = x.new_zeros(x.shape[0], 4, 4), []
            for t in range(12):
                k = x[:, t]
                kv = k[:, :, None] * k[:, None]
                out.append(((s + 0.5 * kv) * torch.tanh(k)[:, :, None]).sum(-2))
                s = s * 0.9 + kv
            return torch.stack(out, 1)
    """,
}


READ_PARTS = {
    "diagonal": ("torch.einsum('biik,bk->bi', s, x[:, t, 0, 0])", [tensor("x", 2, 12, 4, 4, 3)]),
    "first rows": ("(s[:, :2] * x[:, t, :2]).sum(-1)", [tensor("x", 2, 12, 4, 5)]),
}


@pytest.mark.parametrize("name", READ_PARTS)
def test_a_readout_of_a_part_of_a_state_takes_none_of_its_axes_for_the_batch(name: str) -> None:
    """The diagonal has one axis for two of the state, and the first rows are fewer than all."""
    value, inputs = READ_PARTS[name]
    text = f"""
        def f(x):
            s, out = torch.zeros_like(x[:, 0]), []
            for t in range(12):
                s = 0.9 * s + x[:, t]
                out.append({value})
            return torch.stack(out, 1)
    """
    assert "for (int step = 0; step < 12" in check(text, inputs=inputs).text


@pytest.mark.parametrize("name", READOUTS)
def test_what_steps_read_out_of_a_matrix_is_computed_where_it_lies_in_registers(name: str) -> None:
    """A thread has a column of the state, and the states of all steps are nowhere in memory."""
    checked = check(READOUTS[name], inputs=[tensor("x", 3, 12, 4)], families=("normal", "special_nan", "special_inf"))
    loop = checked.text.split("for (int step = 0;")[0].split("__global__")[-1]
    assert re.search(r"float s\w*\[[34]\];", loop)
    assert "__shared__" not in loop
    assert not re.search(r"scratch: \w+: f32\[(?!1,).*, 4, [34]\]", checked.text)


def test_of_a_state_that_is_returned_the_last_step_alone_is_stored() -> None:
    text = """
        def f(x):
            h = x[:, 0]
            for t in range(1, 12):
                h = 0.9 * h + x[:, t]
            return h
    """
    checked = check(text, inputs=[tensor("x", 3, 12, 4)])
    assert "if (step == 10)" in checked.text
    assert "f32[11" not in checked.text


def test_a_block_may_have_a_column_of_the_state() -> None:
    program = plan_text(READOUTS["delta rule"], inputs=[tensor("x", 3, 12, 4)])
    (knob,) = [knob.name for knob in program.knobs if knob.description == "blocks per place along the batch"]
    assert "__shared__ float s[4]" in check_program(program, schedule={knob: 1}).text


def test_a_gated_cell_in_a_loop_takes_one_barrier_per_step() -> None:
    text = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(6, 8)

            def forward(self, x):
                h = x.new_zeros(x.shape[0], 8)
                for t in range(10):
                    h = self.cell(x[:, t], h)
                return h
    """
    checked = check(text, symbol="Model", inputs=[tensor("x", 3, 10, 6)])
    loop = checked.text.split("for (int step = 0;")[1].split("__global__")[0]
    assert loop.count("__syncthreads();") == 1


def test_layers_with_weights_of_their_own_are_no_loop() -> None:
    text = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(9))

            def forward(self, x):
                for layer in self.layers:
                    x = torch.tanh(layer(x))
                return x
    """
    assert "for (int step = 0;" not in plan_text(text, symbol="Model", inputs=[tensor("x", 3, 8)]).render({})


def test_a_state_that_a_block_cannot_keep_is_no_loop() -> None:
    text = """
        def f(x):
            for _ in range(9):
                x = x / (x.sum(1, keepdim=True) + x.sum(2, keepdim=True))
            return x
    """
    assert "for (int step = 0;" not in plan_text(text, inputs=[tensor("x", 2, 128, 128)]).render({})


STACKED = """
    def f(a, b):
        h, out = torch.zeros_like(a[:, 0]), []
        for t in range(12):
            h = a[:, t] * h + b[:, t]
            out.append(h)
        return torch.stack(out, {axis}){more}
"""
STACKED_INPUTS = [tensor("a", 3, 12, 5), tensor("b", 3, 12, 5)]


@pytest.mark.parametrize(("axis", "more", "n_kernels"), [(1, "", 1), (1, ", h", 2), (1, " * 2", 2), (2, "", 2)])
def test_a_loop_writes_the_stack_of_its_steps(axis: int, more: str, n_kernels: int) -> None:
    """Along the last axis threads would write far apart: another kernel has the stack."""
    checked = check(STACKED.format(axis=axis, more=more), inputs=STACKED_INPUTS)
    assert checked.text.count("// launch:") == n_kernels
    assert ("// scratch:" in checked.text) == (n_kernels > 1)
