"""`kernel-lsp judge calibrate`, from the outside. The judge is a script: this proves plumbing, not judges."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.commands import SCALE, Ran, run, write

RIGHT = """\
// kernel-lsp: 1
// task: model.py::scale
// op: scale(x: f32[B, D], weight: f32[D]) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, weight, out, B * D, D)

// SECRET LABEL
__global__ void k(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ out, int n, int D) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float value = fmaf(x[i], w[i % D], 1.0f);
    out[i] = value < 0.0f ? 0.0f : value;
}
"""
CORPUS = {
    "right.cu": RIGHT,
    "wrong.cu": RIGHT.replace("1.0f)", "1.5f)"),
    "broken.cu": RIGHT.replace("fmaf", "fmaff"),
    "outside.cu": RIGHT.replace("if (i >= n) return;", ""),
}
JUDGE = """
import pathlib, sys
prompt = sys.stdin.read()
with open(pathlib.Path(__file__).parent / "asked.txt", "a") as file:
    file.write(prompt + "\\n=====\\n")
faults = ["1.5f" in prompt, "fmaff" in prompt, "i >= n" not in prompt]
print("1. as the script says\\nPROBABILITY:", 0.1 if any(faults) else 0.9)
"""


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("judge")
    (folder / "corpus").mkdir()
    write(folder / "corpus", SCALE)
    for name, text in CORPUS.items():
        write(folder / "corpus", text, name)
    program = write(folder, JUDGE, "judge.py")
    write(folder, "", "pyproject.toml")
    judge = f"judge=command:{sys.executable} {program}"
    return folder, run(folder, "judge", "calibrate", "corpus", "--device", "cpu", "--model", judge, "--json")


def test_the_pipeline_tells_the_truth(calibrated: tuple[Path, Ran]) -> None:
    _, ran = calibrated
    assert ran.status == 0, ran.stderr
    assert ran.json["labels"] == {
        "corpus/broken.cu": "build_failed",
        "corpus/outside.cu": "crashed",
        "corpus/right.cu": "correct",
        "corpus/wrong.cu": "mismatch",
    }


def test_each_judge_is_scored_on_what_says_something_of_its_faults(calibrated: tuple[Path, Ran]) -> None:
    _, ran = calibrated
    scores = {score["judge"]: score for score in ran.json["scores"]}
    assert {judge: (score["n"], score["n_faulty"], score["recall"]) for judge, score in scores.items()} == {
        "compilation": (4, 1, 1.0),
        "memory": (2, 1, 1.0),
        "numerics": (2, 1, 1.0),
    }
    assert scores["compilation"]["n_lost"] == 2
    assert scores["memory"]["accuracy"] == 1.0


def test_judges_are_asked_only_about_what_the_truth_is_known_of(calibrated: tuple[Path, Ran]) -> None:
    folder, ran = calibrated
    prompts = (folder / "asked.txt").read_text().split("=====")
    does_not_compile = [prompt for prompt in prompts if "fmaff" in prompt]
    assert len(does_not_compile) == 1
    assert "builds and can be launched" in does_not_compile[0]
    assert ran.json["n_calls"] == sum(score["n"] for score in ran.json["scores"]) == 8


def test_judges_are_asked_blind(calibrated: tuple[Path, Ran]) -> None:
    folder, _ = calibrated
    asked = (folder / "asked.txt").read_text()
    assert asked.count("=====") == 8
    for leak in ("SECRET LABEL", "wrong.cu", "broken", "mismatch", "is undefined"):
        assert leak not in asked


def test_the_fits_are_kept_for_later_runs(calibrated: tuple[Path, Ran]) -> None:
    folder, ran = calibrated
    assert ran.json["file"] == str(folder / ".kernel-lsp" / "judges.json")
    assert len(json.loads(Path(ran.json["file"]).read_text())["fits"]) == 3


def test_a_folder_without_kernels_is_told(tmp_path: Path) -> None:
    ran = run(tmp_path, "judge", "calibrate", ".", "--model", "manual")
    assert ran.status == 2
    assert "holds no .cu file" in ran.stderr


def test_the_files_of_a_manual_prompt_are_named(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus", SCALE)
    write(tmp_path / "corpus", CORPUS["broken.cu"], "broken.cu")
    options = ("judge", "calibrate", "corpus", "--model", "manual:chat", "--device", "cpu")
    ran = run(tmp_path, *options, KERNEL_LSP_MANUAL_WAIT_S="0")
    prompts = list((tmp_path / "chat").glob("*.prompt.md"))
    assert prompts
    for prompt in prompts:
        assert f"waiting for a reply: paste {prompt} into a chat" in ran.stderr
