"""Play a new user's journeys in the oldest and the newest Neovim that is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.editors_nvim.playing import HERE, MARKS, NEOVIMS, play, workspace

PROJECT = HERE.parent / "editors" / "project"
ORIGINS = [origin for origin in ("distribution", "sid") if origin in NEOVIMS]
Journey = Callable[[str], dict[str, Any]]

pytestmark = MARKS


@pytest.fixture(scope="module", params=ORIGINS)
def journey(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """Play parts of the journeys in one workspace."""
    root = workspace(tmp_path_factory.mktemp("journeys"))
    shutil.copytree(PROJECT, root, dirs_exist_ok=True)
    return lambda part: play(NEOVIMS[request.param], "journeys.lua", root, PART=part, TRUSTED="yes")


def trained(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "train.py"], cwd=root, capture_output=True, text=True, check=True)


def test_the_first_click_ends_in_an_operator_that_computes_the_same_bits(journey: Journey) -> None:
    expected = trained(PROJECT).stdout
    seen = journey("first")
    assert seen["prompts"][0].startswith("Standardize declares no shapes. Inferred")
    program = trained(seen["folder"])
    assert program.stdout == expected
    assert (program.stderr.count("readings is not a non-empty f32[B, 1024]"), "eps" in program.stderr) == (1, False)


def test_a_recorded_run_ranks_the_targets_and_the_first_is_optimized(journey: Journey) -> None:
    seen = journey("record")
    assert seen["spots"][0].startswith("GatedBlock: ")
    assert "gated_block" in seen["label"]


def test_a_run_that_was_left_is_offered_again_and_goes_on(journey: Journey) -> None:
    journey("leave")
    seen = journey("come_back")
    assert "model.py::GatedBlock was interrupted" in seen["prompts"][0]
    assert "gated_block" in seen["label"]


def test_cuda_files_without_a_plan_have_findings_and_compiler_errors(journey: Journey) -> None:
    journey("cuda")
