"""Large parameters of a capture are drawn and written once; small ones have noise of their own in each case."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_lsp.worker.capture import captured
from kernel_lsp.worker.capture.captured import KeptParameters
from kernel_lsp.worker.cases.families import near_own_values, own_generator
from tests.worker.capturing import capture_text, make_case, tensor

CPU = torch.device("cpu")
LINEAR = """
class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(512, 1024))
        self.bias = nn.Parameter(torch.ones(512))
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
"""


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "LARGE_BYTES", 4 * 64)


def test_a_large_parameter_is_the_same_in_all_cases_and_near_its_own_values(tmp_path: Path) -> None:
    kept, own = KeptParameters(), torch.linspace(1.0, 2.0, 64)
    first, second = (kept.near("weight", own, seed) for seed in (1, 2))
    assert first is second
    assert 0.0 < float((first - own).abs().max()) < 1.0
    assert torch.equal(first, near_own_values(own, own_generator(0, "state", "weight")))
    entries = [kept.write(str(tmp_path / case / "weight.bin"), "weight", first) for case in ("a", "b")]
    assert entries[0] == entries[1]
    assert not (tmp_path / "b").exists()
    assert torch.equal(torch.frombuffer(bytearray(Path(entries[1]["path"]).read_bytes()), dtype=torch.float32), first)
    assert kept.on(first, CPU) is first


def test_a_parameter_that_was_written_into_is_made_anew(tmp_path: Path) -> None:
    kept, own = KeptParameters(), torch.linspace(1.0, 2.0, 64)
    first = kept.near("weight", own, 1)
    before = first.clone()
    path = kept.write(str(tmp_path / "a.bin"), "weight", first)["path"]
    first.add_(1.0)
    assert kept.write(str(tmp_path / "b.bin"), "weight", first)["path"] != path, "it holds other values now"
    assert torch.equal(kept.near("weight", own, 1), before)


def test_a_small_parameter_has_noise_of_its_own_in_each_case(tmp_path: Path) -> None:
    kept, own = KeptParameters(), torch.linspace(1.0, 2.0, 63)
    assert not torch.equal(kept.near("weight", own, 1), kept.near("weight", own, 2))
    for case in ("a", "b"):
        kept.write(str(tmp_path / f"{case}.bin"), "weight", kept.near("weight", own, 1))
        assert (tmp_path / f"{case}.bin").exists()


def test_a_network_s_weights_are_written_once_for_all_cases(tmp_path: Path) -> None:
    """Those of AlexNet, 244 MB, were drawn and written for each of the 35 cases of its full check."""
    capture_text(LINEAR, "Linear", inputs=[tensor("x", 4, 1024)])
    shapes = {"x": (4, 1024), "weight": (512, 1024), "bias": (512,)}
    cases = [make_case("forward", shapes, "normal", tmp_path / str(n), seed=n) for n in (1, 2)]
    first, second = ({each.name: each.path for each in case.inputs} for case in cases)
    assert first["weight"] == second["weight"]
    assert first["bias"] != second["bias"]
    assert first["x"] != second["x"]
