"""Modules that keep a hidden state, draw random tensors, or compute what they do not return."""

from __future__ import annotations

import pytest

from kernel_lsp.errors import TargetError
from tests.generate.harness import check, tensor

CELL = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = torch.randn(4, 5)
            self.cell = nn.Linear(8 + 5, 5)

        def forward(self, x, given=None):
            if given is not None:
                self.hidden.copy_(given)
            self.hidden = torch.tanh(self.cell(torch.cat((x, self.hidden), dim=1)))
            return self.hidden * 2
"""
RECURRENT = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(6, 5, batch_first=True)
            self.head = nn.Linear(5, 3)

        def forward(self, x):
            h, c = torch.randn(1, x.size(0), 5), torch.randn(1, x.size(0), 5)
            out, state = self.layer(x, (h, c))
            y = self.head(out[:, -1])
            return state[0]
"""


def test_an_assigned_attribute_is_a_buffer() -> None:
    checked = check(CELL, symbol="Model", inputs=[tensor("x", 4, 8)])
    assert {argument.name: argument.role for argument in checked.task.tensors}["hidden"] == "buffer"
    assert any("hidden" in note for note in checked.task.notes)


def test_a_given_state_replaces_that_of_the_module() -> None:
    checked = check(CELL, symbol="Model", inputs=[tensor("x", 4, 8), tensor("given", 4, 5)])
    assert "hidden" not in {argument.name for argument in checked.task.tensors}


def test_random_states_are_inputs_in_the_order_of_their_draws() -> None:
    checked = check(RECURRENT, symbol="Model", inputs=[tensor("x", 3, 4, 6)], sizes=({}, {"B": 2}))
    assert [name for name in checked.task.forward.inputs if name.startswith("randn")] == ["randn_0", "randn_1"]


def test_integers_of_a_constant_range_are_inputs() -> None:
    text = """
    def f(x, table):
        t = torch.randint(0, table.shape[0], (x.shape[0],))
        return x * table[t][:, None] + torch.randint(3, (4,))[0]
    """
    inputs = [tensor("x", 6, 20), tensor("table", 100)]
    checked = check(text.replace("table.shape[0]", "100"), inputs=inputs, sizes=({}, {"B": 3, "D": 7}))
    assert [(each.name, each.integer_range) for each in checked.task.tensors[2:]] == [
        ("randint_0", (0, 100)),
        ("randint_1", (0, 3)),
    ]
    with pytest.raises(TargetError, match="the code is random"):
        check(text, inputs=inputs)


def test_noise_and_dropout_are_inputs() -> None:
    text = "def f(x): return F.dropout(x + torch.randn_like(x), 0.25, True)"
    checked = check(text, inputs=[tensor("x", 6, 20)], backward=True, sizes=({}, {"B": 3, "D": 7}))
    assert checked.task.forward.inputs[1:] == ("randn_like_0", "kept_0")
    assert checked.task.draws == ("randn_like_0", "kept_0")
