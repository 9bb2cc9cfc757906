"""The worker's half: signatures, uses, draws and traces, on a small catalogue."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernel_lsp.config import load_settings
from kernel_lsp.synthesize.request import SynthesisFolder, SynthesisRequest
from kernel_lsp.synthesize.run import Synthesis, synthesize
from kernel_lsp.worker.synthesis.compose import Step, draw_task, task_text
from kernel_lsp.worker.synthesis.crawl import find_uses, function_arguments, module_arguments, resolve_operator
from kernel_lsp.worker.synthesis.tensors import Operand
from kernel_lsp.worker.synthesis.trace import describe_graph

NAMES = ("torch.nn.Conv2d", "torch.nn.GroupNorm", "torch.nn.functional.gelu", "torch.add", "torch.amax", "torch.log")


def entry(name: str) -> dict[str, Any]:
    namespace, _, last = name.rpartition(".")
    short = name.replace("torch.nn.functional", "F").replace("torch.nn", "nn")
    found: dict[str, Any] = {"name": last, "namespace": namespace, "short": short}
    is_module = namespace == "torch.nn"
    operator = resolve_operator(found)
    arguments = module_arguments(operator) if is_module else function_arguments(operator, last)  # type: ignore[arg-type]
    return {**found, "kind": "module" if is_module else "function", "arguments": arguments}


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    entries = [entry(name) for name in NAMES]
    operators = [{**each, "uses": find_uses(each, resolve_operator(each))} for each in entries]
    path = tmp_path_factory.mktemp("catalogue") / "operators.json"
    path.write_text(json.dumps({"operators": operators, "torch_version": torch.__version__}))
    return {"path": str(path), "uses": {each["short"]: each["uses"] for each in operators}}


def draw(catalogue: dict[str, Any], index: int) -> dict[str, Any]:
    sizes = {"elements": [4096, 65536], "max_flops": 1e9, "max_operators": 5}
    return draw_task({"catalogue": catalogue["path"], "seed": 3, "index": index, **sizes})


def test_the_target_of_a_loss_is_not_learned() -> None:
    own = Operand((8,), "normal", is_parameter=True)
    loss = entry("torch.nn.SoftMarginLoss")
    step = Step.of("h1", loss, "x", {}, {"target2": own}, {"target": "target2"})
    text = task_text([("x", Operand((4, 8), "normal"))], [step], "a test")
    space: dict[str, Any] = {}
    exec(text, space)
    space["Model"]()(torch.randn(4, 8))  # has no gradient for the target: a parameter would raise
    assert "target2" in dict(space["Model"]().named_buffers())


def traced(call: Any, *shapes: tuple[int, ...]) -> dict[str, Any]:
    graph = make_fx(call, tracing_mode="fake")(*(torch.empty(shape) for shape in shapes)).graph
    return describe_graph(graph)


def test_a_probe_finds_ranks_and_ranges(catalogue: dict[str, Any]) -> None:
    uses = catalogue["uses"]
    assert {use["rank"] for use in uses["nn.Conv2d"]} <= {3, 4}
    assert {use["values"] for use in uses["torch.log"]} == {"positive"}
    assert {use["strategies"][0] for use in uses["torch.add"]} >= {"same", "row"}


def test_a_draw_depends_on_seed_and_index_alone(catalogue: dict[str, Any]) -> None:
    texts = [draw(catalogue, index).get("text") for index in range(6)]
    assert texts == [draw(catalogue, index).get("text") for index in range(6)]
    assert len(set(texts)) > 3


def test_a_drawn_task_runs_and_has_the_declared_inputs(catalogue: dict[str, Any]) -> None:
    drawn = next(found for index in range(9) if "text" in (found := draw(catalogue, index)))
    ast.parse(drawn["text"])
    module: dict[str, Any] = {}
    exec(drawn["text"], module)
    inputs = module["get_inputs"]()
    assert [list(given.shape) for given in inputs] == drawn["shapes"]
    assert torch.isfinite(module["Model"](*module["get_init_inputs"]())(*inputs)).all()


def test_numbers_sizes_and_the_order_of_terms_leave_the_hash() -> None:
    one = traced(lambda x, y: torch.relu(x) * 2.0 + y, (4, 8), (4, 8))
    other = traced(lambda x, y: y + torch.relu(x) * 0.5, (16, 3), (16, 3))
    assert one["graph_hash"] == other["graph_hash"]


def test_other_operators_operands_and_ranks_change_the_hash() -> None:
    calls = [lambda x, y: torch.relu(x) * y, lambda x, y: torch.relu(x) * x, lambda x, y: torch.tanh(x) * y]
    hashes = {traced(call, (4, 8), (4, 8))["graph_hash"] for call in calls}
    assert len(hashes | {traced(calls[0], (8,), (8,))["graph_hash"]}) == 4


def test_grams_follow_the_data() -> None:
    assert set(traced(lambda x: torch.tanh(torch.relu(x)), (4,))["grams"]) == {
        *("^ aten.relu", "^ aten.relu aten.tanh", "aten.relu aten.tanh", "aten.relu aten.tanh $", "aten.tanh $"),
    }


def test_a_synthesis_writes_tasks_and_resumes(catalogue: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "operators.json").write_text(Path(catalogue["path"]).read_text())
    first = run(tmp_path, 1)
    again = run(tmp_path, 1)
    assert first.is_complete
    assert [each.index for each in again.accepted] == [each.index for each in first.accepted]
    assert again.n_resumed == len(first.accepted) + len(first.dropped)
    rows = pyarrow.parquet.read_table(tmp_path / "index.parquet").to_pylist()
    assert [(tmp_path / row["file"]).read_text() for row in rows] == [row["text"] for row in rows]


def test_a_task_like_one_of_a_held_out_folder_is_dropped(catalogue: dict[str, Any], tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        (folder / "operators.json").write_text(Path(catalogue["path"]).read_text())
    first = run(folders[0], 1)
    second = run(folders[1], 1, held_out=(str(folders[0] / "tasks"),))
    again = next(each for each in second.dropped if each.index == first.accepted[0].index)
    assert (again.dropped_by, again.similarity) == ("held-out", 1.0)
    assert again.nearest.startswith(str(folders[0]))


def run(folder: Path, n_tasks: int, held_out: tuple[str, ...] = ()) -> Synthesis:
    request, settings = SynthesisRequest(seed=3, scale="cpu", held_out=held_out), load_settings(folder, {})
    return asyncio.run(synthesize(n_tasks, request, SynthesisFolder(folder), settings, 1, lambda _: None))
