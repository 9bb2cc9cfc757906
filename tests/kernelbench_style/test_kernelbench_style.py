"""The corpus itself: each good file runs in plain PyTorch, each bad one is bad for the reason it gives."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
GOOD = sorted(HERE.glob("level*/*.py"))
BAD = sorted(HERE.glob("bad/*.py"))
UNREADABLE = ("empty", "not_utf8")
MAX_ELEMENTS = 300_000
"""Limit of any tensor, so that a whole check takes seconds on a CPU."""


@pytest.mark.parametrize("file", GOOD, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_good_file_runs_in_plain_pytorch(file: Path) -> None:
    inputs, output = run(file)
    assert isinstance(output, torch.Tensor)
    assert not output.is_floating_point() or bool(output.isfinite().all())
    assert max(tensor.numel() for tensor in (*inputs, output)) <= MAX_ELEMENTS


@pytest.mark.parametrize("file", [file for file in BAD if file.stem not in UNREADABLE], ids=lambda file: file.stem)
def test_a_bad_file_says_what_is_bad_about_it(file: Path) -> None:
    assert file.read_text().startswith('"""')


def test_the_corpus_has_both_levels() -> None:
    assert {file.parent.name for file in GOOD} == {"level1", "level2"}
    assert len(GOOD) >= 60


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("syntax_error", SyntaxError),
        ("indentation_error", SyntaxError),
        ("raises_on_import", RuntimeError),
        ("missing_import", ModuleNotFoundError),
        ("exits_on_import", SystemExit),
        ("no_get_inputs", KeyError),
        ("no_model", KeyError),
        ("missing_init_inputs", KeyError),
        ("raises_in_init", ValueError),
        ("raises_in_get_inputs", FileNotFoundError),
        ("raises_in_forward", RuntimeError),
        ("wrong_number_of_inputs", TypeError),
    ],
)
def test_a_bad_file_fails_in_plain_pytorch_too(name: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        run(HERE / "bad" / f"{name}.py")


@pytest.mark.parametrize("name", ["zero_size", "zero_dim", "non_contiguous_input", "expanded_input", "unsupported_op"])
def test_an_unusual_file_runs_in_plain_pytorch(name: str) -> None:
    _, output = run(HERE / "bad" / f"{name}.py")
    assert isinstance(output, torch.Tensor)


def run(file: Path) -> tuple[list[torch.Tensor], object]:
    """Inputs and output of a KernelBench file."""
    torch.manual_seed(0)
    names = runpy.run_path(str(file))
    model = names["Model"](*names["get_init_inputs"]())
    inputs = names["get_inputs"]()
    with torch.no_grad():
        return inputs, model(*inputs)
