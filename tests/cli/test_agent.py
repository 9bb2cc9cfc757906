"""An agent's tools over MCP and its folder, from the outside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import SCALE, command, environment, run, write

DEADLINE_S = 240.0
KERNEL = """\
// kernel-lsp: 1
// op: scale(x: f32[B, D], weight: f32[D]) -> (RESULT: f32[B, D])
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, weight, RESULT, B * D, D)

__global__ void k(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ out, int n, int D) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float value = fmaf(x[i], w[i % D], 1.0f);
    out[i] = value < 0.0f ? 0.0f : value;
}
"""


def request(id_: int, method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})


def call(id_: int, tool: str, **arguments: str) -> str:
    return request(id_, "tools/call", name=tool, arguments=arguments)


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
    """One session: what each request was answered with. The target's file is changed while it lasts."""
    folder = tmp_path_factory.mktemp("agent")
    model = write(folder, SCALE)
    process = subprocess.Popen(
        command("mcp", "model.py::scale", "--device", "cpu"),
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request(1, "initialize", protocolVersion="2025-03-26") + "\n")
    process.stdin.flush()
    first = process.stdout.readline()
    model.write_text(SCALE.replace("torch.relu(x * weight + 1.0)", "x"))
    kernel = KERNEL.replace("RESULT", "out")
    lines = [
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        request(2, "tools/list"),
        call(3, "task"),
        call(4, "compile", code=kernel),
        call(5, "compile", code=kernel.replace("fmaf", "fmaff")),
        call(6, "check", code=kernel),
        call(7, "check", code=kernel.replace("1.0f", "1.01f")),
        call(8, "explain", finding="KL201"),
        call(9, "dance"),
        call(10, "check"),
        request(11, "resources/list"),
        "no json",
        request(12, "ping"),
    ]
    try:
        rest, _ = process.communicate("\n".join(lines) + "\n", timeout=DEADLINE_S)
    finally:
        process.kill()
    found = [json.loads(line) for line in [first, *rest.splitlines()]]
    return {reply["id"]: reply for reply in found}


def text_of(replies: dict[Any, dict[str, Any]], id_: int) -> str:
    return str(replies[id_]["result"]["content"][0]["text"])


def test_it_speaks_the_version_that_was_asked_for(replies: dict[Any, dict[str, Any]]) -> None:
    assert replies[1]["result"]["protocolVersion"] == "2025-03-26"
    assert replies[12]["result"] == {}


def test_its_tools_have_schemas(replies: dict[Any, dict[str, Any]]) -> None:
    tools = {tool["name"]: tool for tool in replies[2]["result"]["tools"]}
    assert set(tools) == {"task", "compile", "check", "time", "profile", "explain"}
    assert tools["check"]["inputSchema"]["required"] == ["code"]


def test_the_task_is_described_with_the_format(replies: dict[Any, dict[str, Any]]) -> None:
    text = text_of(replies, 3)
    assert "op: scale(x: f32[B, D], weight: f32[D])" in text
    assert "// kernel-lsp: 1" in text


def test_compiling_says_what_is_wrong_with_its_line(replies: dict[Any, dict[str, Any]]) -> None:
    assert text_of(replies, 4).startswith("It builds.")
    assert "fmaff" in text_of(replies, 5)
    assert "line" in text_of(replies, 5)


def test_a_right_kernel_is_right_though_the_file_was_changed_meanwhile(replies: dict[Any, dict[str, Any]]) -> None:
    assert "It is correct" in text_of(replies, 6)
    assert "Reward: 2 (estimated times)" in text_of(replies, 6)


def test_a_wrong_kernel_earns_minus_one(replies: dict[Any, dict[str, Any]]) -> None:
    assert "Reward: -1" in text_of(replies, 7)
    assert "instead of" in text_of(replies, 7)


def test_a_finding_is_explained(replies: dict[Any, dict[str, Any]]) -> None:
    assert text_of(replies, 8).startswith("KL201")


def test_wrong_calls_are_errors_of_the_call(replies: dict[Any, dict[str, Any]]) -> None:
    assert replies[9]["result"]["isError"]
    assert "check takes code" in text_of(replies, 10)
    assert replies[11]["error"]["code"] == -32601
    assert replies[None]["error"]["code"] == -32700


def test_a_workspace_has_skill_task_and_tools(tmp_path: Path) -> None:
    write(tmp_path, SCALE)
    ran = run(tmp_path, "workspace", "model.py::scale", "agent", "--device", "cpu")
    assert ran.status == 0, ran.stderr
    folder = tmp_path / "agent"
    assert sorted(path.name for path in folder.iterdir()) == [".mcp.json", "SKILL.md", "TASK.md", "kernels"]
    assert "scale(x: f32[B, D]" in (folder / "TASK.md").read_text()
    server = json.loads((folder / ".mcp.json").read_text())["mcpServers"]["kernel-lsp"]
    assert server["args"][:4] == ["-m", "kernel_lsp", "mcp", "model.py::scale"]
    assert server["cwd"] == str(tmp_path)
    again = run(tmp_path, "workspace", "model.py::scale", "agent", "--device", "cpu")
    assert again.status == 2
    assert "is not empty" in again.stderr
