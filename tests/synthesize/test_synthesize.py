"""Synthesis: the filters in order, the settling by index, the journal, the index, and one small run."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from kernel_lsp.cli.synthesize import most_frequent_reason
from kernel_lsp.config import Settings
from kernel_lsp.core.task import Graph
from kernel_lsp.errors import UserError
from kernel_lsp.synthesize.attempt import Attempt, HeldOut, Trace, inefficiencies, similarity
from kernel_lsp.synthesize.index import open_journal, task_name, write_index
from kernel_lsp.synthesize.request import SynthesisFolder, SynthesisRequest
from kernel_lsp.synthesize.run import MIN_ATTEMPTS, Synthesis, summarize, synthesize

REQUEST = SynthesisRequest(seed=0, scale="cpu")


def attempt(index: int, graph: str = "", dropped_by: str = "") -> Attempt:
    trace = Trace(graph_hash=graph or f"graph {index}", grams=("^ aten.relu",), ops=("aten.relu",))
    return Attempt(index=index, text="x = 1\n", operators=("torch.relu",), trace=trace, dropped_by=dropped_by)


def settled(*attempts: Attempt) -> Synthesis:
    synthesis = Synthesis(3, REQUEST)
    for each in attempts:
        synthesis.settle(each)
    return synthesis


def trace(*grams: str, graph: str = "g") -> Trace:
    return Trace(graph_hash=graph, grams=grams, ops=())


def node(name: str, op: str, *arguments: object) -> dict[str, object]:
    return {"name": name, "op": f"aten.{op}.default", "arguments": list(arguments), "types": []}


def of(name: str) -> dict[str, str]:
    return {"node": name}


def graph(*nodes: dict[str, object]) -> Graph:
    output = {"name": "out", "node": nodes[-1]["name"], "type": {"dtype": "f32", "shape": ["N"]}}
    return Graph.model_validate({"inputs": [], "input_types": [], "nodes": nodes, "outputs": [output]})


def test_the_first_of_equal_graphs_stays() -> None:
    synthesis = settled(attempt(0, "a"), attempt(1, "b"), attempt(2, "a"))
    assert [each.index for each in synthesis.accepted] == [0, 1]
    assert [each.dropped_by for each in synthesis.dropped] == ["duplicate"]


def test_it_ends_when_fewer_than_one_in_thirty_pass() -> None:
    synthesis = Synthesis(6000, REQUEST)
    for index in range(MIN_ATTEMPTS):
        assert not synthesis.is_exhausted
        synthesis.settle(attempt(index, dropped_by="runs-compiled"))
    assert synthesis.is_exhausted
    for index in range(MIN_ATTEMPTS, MIN_ATTEMPTS + 10):
        synthesis.settle(attempt(index))
    assert not synthesis.is_exhausted


async def test_a_held_out_path_that_is_none_is_refused(tmp_path: Path) -> None:
    request = REQUEST.model_copy(update={"held_out": (str(tmp_path / "nowhere"),)})
    with pytest.raises(UserError, match="no such file or folder"):
        await synthesize(1, request, SynthesisFolder(tmp_path / "out"), Settings(), 1, lambda _: None)
    assert not (tmp_path / "out").exists()


def test_a_dropped_task_reaches_no_later_filter() -> None:
    summary = summarize(settled(attempt(0), attempt(1, dropped_by="held-out")), SynthesisFolder(Path("x")))
    counts = {count.filter: (count.n_reached, count.n_dropped) for count in summary.filters}
    assert counts["held-out"] == (2, 1)
    assert counts["redundancy"] == (1, 0)


def test_the_most_frequent_reason_is_named_where_too_few_passed() -> None:
    broken = [attempt(n, dropped_by="runs-eager").model_copy(update={"reason": "Invalid backend"}) for n in range(2)]
    said = most_frequent_reason([*broken, attempt(2, dropped_by="range")])
    assert said == "2 of 3 by runs-eager: Invalid backend"


def test_the_same_graph_is_wholly_similar_and_other_grams_count() -> None:
    assert similarity(trace("a"), trace("b")) == 1.0
    assert similarity(trace("a", "b"), trace("b", "c", graph="h")) == pytest.approx(1 / 3)
    assert HeldOut({"far": trace("z", graph="f"), "near": trace("a", graph="n")}).nearest(trace("a")) == ("near", 1.0)


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        ([node("a", "mm", of("x"), of("w")), node("b", "mm", of("a"), of("v"))], "two linear maps"),
        ([node("a", "mm", of("x"), of("w")), node("b", "sum", of("a"), [1])], "weights can be summed"),
        ([node("a", "add", of("x"), 2.0), node("b", "_softmax", of("a"), 1, False)], "removes the constant"),
        ([node("a", "mul", of("x"), 2.0), node("b", "mul", of("a"), 3.0)], "in a row is one"),
        ([node("a", "sigmoid", of("x")), node("b", "argmax", of("a"), 1)], "keeps the order"),
        ([node("a", "diag_embed", of("x")), node("b", "mm", of("a"), of("y"))], "diagonal"),
        ([node("a", "mm", of("x"), of("w")), node("r", "relu", of("a")), node("b", "mm", of("r"), of("v"))], ""),
        ([node("a", "add", of("x"), of("y")), node("b", "_softmax", of("a"), 1, False)], ""),
    ],
)
def test_an_inefficient_baseline_is_named(nodes: list[dict[str, object]], part: str) -> None:
    found = inefficiencies(graph(*nodes))
    assert part in found[0] if part else not found


def test_a_journal_resumes_past_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with open_journal(path, REQUEST) as journal:
        journal.add(attempt(0))
    path.write_text(path.read_text() + '{"index": 1, "te')
    with open_journal(path, REQUEST) as journal:
        journal.add(attempt(1))
    with open_journal(path, REQUEST) as journal:
        assert set(journal.attempts) == {0, 1}


def test_another_synthesis_in_the_folder_is_refused(tmp_path: Path) -> None:
    with open_journal(tmp_path / "journal.jsonl", REQUEST):
        pass
    other = REQUEST.model_copy(update={"seed": 1})
    with pytest.raises(UserError, match="another seed"), open_journal(tmp_path / "journal.jsonl", other):
        pass


def test_the_index_names_each_file_and_its_origin(tmp_path: Path) -> None:
    write_index(SynthesisFolder(tmp_path), REQUEST, [attempt(7)])
    table = pyarrow.parquet.read_table(tmp_path / "index.parquet")
    row = table.to_pylist()[0]
    assert row["file"] == f"tasks/{task_name(attempt(7))}" == "tasks/000007_relu.py"
    assert (row["seed"], row["index"], row["proposer"], row["graph_hash"]) == (0, 7, "rules", "graph 7")
    assert json.loads(table.schema.metadata[b"kernel_lsp"])["seed"] == 0
    assert [str(table.schema.field(name).type) for name in ("opinion", "n_flops")] == ["double", "int64"]
    assert table.schema.field("judges").type.value_type == "string", "an index without a judge reads beside one with"
