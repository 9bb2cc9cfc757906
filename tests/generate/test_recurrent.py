"""Recurrent layers: LSTM, GRU and plain ones, with layers and directions."""

from __future__ import annotations

import re
import time

import pytest

from tests.generate.harness import check, check_program, plan_text, tensor

CAPTURE_BOUND_S = 60
"""Maximum seconds to capture 4096 steps on busy cores; one by one, 512 of them take 43 s."""


@pytest.mark.parametrize(
    "layer",
    [
        "nn.LSTM(6, 8, 2, batch_first=True)",
        "nn.LSTM(6, 5, bidirectional=True)",
        "nn.GRU(6, 8, 2, bidirectional=True)",
        "nn.GRU(6, 3, bias=False)",
        "nn.RNN(6, 8)",
        "nn.RNN(6, 4, nonlinearity='relu')",
    ],
)
def test_states_of_all_times_and_the_last(layer: str) -> None:
    text = f"""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = {layer}

            def forward(self, x):
                return self.layer(x)
    """
    checked = check(text, symbol="Model", inputs=[tensor("x", 3, 4, 6)])
    assert any(node.op.endswith(".input") for node in checked.task.forward.nodes)


def test_no_state_is_read_where_those_of_the_other_direction_are_taken() -> None:
    text = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.GRU(6, 64, 2, bidirectional=True)

            def forward(self, x):
                return self.layer(x)[0]
    """
    checked = check(text, symbol="Model", inputs=[tensor("x", 3, 4, 6)])
    reads = [line for line in checked.text.splitlines() if re.search(r"\(?states_1\)?\[", line)]
    shifted = [line for line in reads if "-" in line]
    assert shifted
    assert all("?" in line.split("states_1")[0] for line in shifted)


def test_a_layer_of_many_steps_is_captured_without_its_steps() -> None:
    text = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.LSTM(6, 8, batch_first=True)

            def forward(self, x):
                return self.layer(x)[0]
    """
    started = time.monotonic()
    program = plan_text(text, symbol="Model", inputs=[tensor("x", 2, 4096, 6)])
    assert any(node.op == "aten.lstm.input" for node in program.task.forward.nodes)
    assert time.monotonic() - started < CAPTURE_BOUND_S


def test_gradients_of_a_layer() -> None:
    text = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.GRU(4, 3)

            def forward(self, x):
                return self.layer(x)[0]
    """
    check(text, symbol="Model", inputs=[tensor("x", 2, 3, 4)], backward=True)


LSTM = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(6, 6)

        def forward(self, x):
            return self.layer(x)
"""


def test_weights_are_in_registers_where_they_divide_among_the_threads() -> None:
    program = plan_text(LSTM, symbol="Model", inputs=[tensor("x", 3, 4, 6)])
    (parts,) = [knob.name for knob in program.realize({}).knobs if knob.name.endswith(".parts")]
    assert "own[gate][k] =" in program.realize({parts: 2}).text
    assert "own[gate][k] =" not in program.realize({parts: 4}).text
    check_program(program, schedule={parts: 4})
    check_program(program, schedule={parts: 2})


def test_the_text_of_unrolled_steps_grows_with_their_number_alone() -> None:
    """A kernel that computed the states of all steps had each state before it inlined in each product: 10,280 lines of
    code for 6 steps, which compiled for minutes."""
    text = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(4, 4)

            def forward(self, x):
                states = [x[:, 0]]
                for step in range(x.shape[1]):
                    states.append(self.cell(x[:, step], states[-1]))
                return torch.stack(states, 1)
    """
    lines = [check(text, symbol="Model", inputs=[tensor("x", 3, n, 4)]).text.count("\n") for n in (2, 4, 6)]
    assert lines[2] - lines[1] < 2 * (lines[1] - lines[0])
