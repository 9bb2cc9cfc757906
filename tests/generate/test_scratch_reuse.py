"""Intermediates that share memory: fewer of them, and the same results."""

from __future__ import annotations

import pytest

from kernel_lsp.core.plan import Launch, Operation, touched
from kernel_lsp.generate import scratch_reuse
from tests.generate.harness import check, plan_text, tensor

NETWORK = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8, 8, 8))
    def forward(self, x):
        first = F.relu(self.a(x))
        last = self.d(F.max_pool2d(F.relu(self.c(F.relu(self.b(first)))), 3, stride=1, padding=1))
        return last + first
"""
INPUTS = [tensor("x", 2, 3, 6, 6)]


def forward(text: str = NETWORK) -> Operation:
    return check(text, symbol="M", inputs=INPUTS).plan.forward


def test_few_bytes_stay_apart() -> None:
    program = plan_text(NETWORK, symbol="M", inputs=INPUTS)
    assert program.render({}).count("// scratch:") >= 4


def test_intermediates_of_a_network_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = forward()
    monkeypatch.setattr(scratch_reuse, "MIN_BYTES", 1)
    shared = forward()
    assert len(shared.scratch) < len(apart.scratch)
    assert {each.name for each in shared.scratch} < {each.name for each in apart.scratch}
    for one, other in zip(apart.steps, shared.steps, strict=True):
        assert len(touched(one)) == len(touched(other))  # nothing is read where it is written


def test_what_is_read_later_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_reuse, "MIN_BYTES", 1)
    steps = [step for step in forward().steps if isinstance(step, Launch)]
    residual = [name for name in touched(steps[-1]) & touched(steps[1]) if name.startswith("first")]
    assert len(residual) == 1
    between = [name for step in steps[2:-1] for name in touched(step)]
    assert residual[0] not in between
