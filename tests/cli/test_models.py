"""`kernel-lsp optimize --model`, from the outside, against a scripted provider. It proves plumbing, not models."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ModelRecords
from tests.canonical_record import canonical_record
from tests.cli.commands import Ran, run, run_here, write
from tests.llm.chat_server import ChatServer, Refuses
from tests.llm.provider_script import INJECTION, TARGET, answer

KEY = "sk-cli-0123456789abcdefghijkl"
OPTIONS = ("optimize", "model.py::scale", "--device", "cpu", "--generations", "2", "--proposals", "3", "--json")
SETTINGS = {"KERNEL_LSP_MODEL_PRICES": "3:15", "KERNEL_LSP_EARLY_STOP": "off", "OPENAI_API_KEY": KEY}


def optimize(folder: Path, *more: str, base_url: str | None = "http://127.0.0.1:9/v1", **settings: str) -> Ran:
    write(folder, TARGET)
    write(folder, "", "pyproject.toml")
    address = {} if base_url is None else {"KERNEL_LSP_MODEL_BASE_URL": base_url}
    return run(folder, *OPTIONS, *more, **{**SETTINGS, **address, **settings})


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("live")
    with ChatServer(answer) as server:
        limits = ("--budget", "1", "--record", "recording.jsonl")
        return folder, optimize(folder, "--model", "openai/scripted", *limits, base_url=server.base_url)


def record_of(folder: Path) -> str:
    with Archive(folder) as archive:
        return canonical_record(archive, archive.run("last").run_id)


def test_it_ends_with_a_verified_kernel_and_what_it_cost(live: tuple[Path, Ran]) -> None:
    _, ran = live
    assert ran.status == 0, ran.stderr
    assert ran.json["candidate_id"] is not None
    assert ran.json["n_model_calls"] >= 6
    assert 0 < ran.json["cost_usd"] <= 1.0


def test_the_key_is_in_no_file_and_no_output(live: tuple[Path, Ran]) -> None:
    folder, ran = live
    assert KEY not in ran.stdout + ran.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".sqlite3" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_the_replay_of_its_replies_has_the_same_record(live: tuple[Path, Ran], tmp_path: Path) -> None:
    folder, _ = live
    ran = optimize(tmp_path, "--model", "openai/scripted", "--replay", str(folder / "recording.jsonl"))
    assert ran.status == 0, ran.stderr
    assert record_of(tmp_path) == record_of(folder)


def test_it_resumes_without_asking_anyone(live: tuple[Path, Ran]) -> None:
    folder, first = live
    again = run(folder, "optimize", "--resume", "last", "--json", **SETTINGS)
    assert again.status == 0, again.stderr
    assert again.json["candidate_id"] == first.json["candidate_id"]
    assert again.json["n_model_calls"] == first.json["n_model_calls"]


def test_every_proposal_and_reply_is_in_the_archive(live: tuple[Path, Ran]) -> None:
    folder, _ = live
    with sqlite3.connect(folder / ".kernel-lsp" / "archive.sqlite3") as db:
        assert db.execute("SELECT COUNT(DISTINCT slot) FROM proposals").fetchone() == (6,)
        assert db.execute("SELECT COUNT(*) FROM replies").fetchone()[0] >= 6


def test_what_the_users_code_says_to_models_is_in_no_prompt(live: tuple[Path, Ran]) -> None:
    folder, _ = live
    assert INJECTION in (folder / "model.py").read_text()
    with Archive(folder) as archive:
        replies = ModelRecords(archive, archive.run("last").run_id).replies()
    assert replies
    assert [recorded.key for recorded in replies if INJECTION in recorded.request.model_dump_json()] == []


def test_a_provider_that_refuses_ends_the_run_with_the_generators_kernel(tmp_path: Path) -> None:
    with ChatServer(lambda *_: Refuses(401, message=f"no such key {KEY}")) as server:
        ran = optimize(tmp_path, "--model", "openai/scripted", "--generations", "9", base_url=server.base_url)
    assert ran.status == 0, ran.stderr
    assert "no model can be asked" in ran.json["stopped"]
    assert ran.stderr.count("openai/scripted: authentication") == 1
    assert "proposal" not in ran.stderr
    assert KEY not in ran.stdout + ran.stderr


def test_without_a_key_the_generator_goes_on_and_the_variable_is_named_once(tmp_path: Path) -> None:
    ran = optimize(tmp_path, "--model", "openai/gpt-5", base_url=None, OPENAI_API_KEY="")
    assert ran.status == 0, ran.stderr
    message = "missing API key for openai/gpt-5: set OPENAI_API_KEY; this run continues with the generator"
    assert ran.stderr.count(message) == 1
    assert ran.stderr.count("OPENAI_API_KEY") == 1
    assert (ran.json["n_model_calls"], ran.json["stopped"]) == (0, "")
    assert ran.json["candidate_id"]


def test_a_resumed_run_refuses_options_that_it_would_ignore(tmp_path: Path) -> None:
    options = ("--resume", "last", "--gpu", "L4", "--budget", "2", "--backward")
    ran = run_here(tmp_path, "optimize", *options)
    assert ran.status == 2
    assert "--resume keeps the run's own options: --budget, --gpu, --backward cannot be changed" in ran.stderr


def test_the_files_of_a_manual_prompt_are_named_while_it_waits(tmp_path: Path) -> None:
    write(tmp_path, TARGET)
    options = ("optimize", "model.py::scale", "--device", "cpu", "--generations", "1", "--proposals", "1")
    ran = run(tmp_path, *options, "--model", "manual:chat", KERNEL_LSP_MANUAL_WAIT_S="0")
    assert ran.status == 130
    (prompt,) = (tmp_path / "chat").glob("*.prompt.md")
    reply = prompt.with_name(prompt.name.replace("prompt", "reply"))
    assert f"waiting for a reply: paste {prompt} into a chat, save the reply as {reply}" in ran.stderr


def test_a_run_whose_model_never_replies_says_so_in_its_report(tmp_path: Path) -> None:
    write(tmp_path, TARGET)
    options = ("optimize", "model.py::scale", "--device", "cpu", "--generations", "1", "--proposals", "1")
    said = '{"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}'
    with ChatServer(lambda *_: Refuses(401, said)) as server:
        settings = {"KERNEL_LSP_MODEL_BASE_URL": server.base_url, "OPENAI_API_KEY": KEY}
        ran = run(tmp_path, *options, "--model", "openai/x", **settings)
    failure = "openai/x: authentication: Incorrect API key provided; check OPENAI_API_KEY"
    assert f"1 call, no reply: {failure}" in ran.stdout
    assert ran.stderr.count(failure) == 1


def test_a_recording_of_another_run_is_said_to_lack_the_prompts(tmp_path: Path) -> None:
    write(tmp_path, "", "empty.jsonl")
    ran = optimize(tmp_path, "--model", "openai/scripted", "--replay", "empty.jsonl", "--generations", "9")
    assert ran.status == 0, ran.stderr
    assert "the recording has no reply to this prompt" in ran.json["stopped"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "pudge=x"), "no purpose 'pudge'"),
        (("--model", "editor"), "no editor with a language model"),
        (("--model", "openai/x", "--replay", "none.jsonl"), "none.jsonl"),
        (("--model", "openai/x", "--strategy", "luck"), "strategy = 'luck'"),
        (("--model", "command:no-such-program -x"), "there is no program no-such-program"),
        (("--replay", "none.jsonl"), "--replay without a model"),
        (("--budget", "1", "--record", "r.jsonl"), "--budget, --record without a model"),
    ],
)
def test_a_wrong_option_is_told_before_anything_runs(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    ran = optimize(tmp_path, *options)
    assert ran.status == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / ".kernel-lsp").exists()


@pytest.mark.parametrize("name", ["gpd-5", "openai", "openai/", "nobody/gpt-5"])
def test_a_model_without_a_provider_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    ran = optimize(tmp_path, "--model", name, base_url=None)
    assert ran.status == 2
    assert f"model '{name}': unknown provider" in ran.stderr
    assert "next: name PROVIDER/MODEL" in ran.stderr
    assert not (tmp_path / ".kernel-lsp").exists()


def test_a_budget_without_a_price_is_told(tmp_path: Path) -> None:
    ran = optimize(tmp_path, "--model", "openai/none-such", "--budget", "1", KERNEL_LSP_MODEL_PRICES="")
    assert ran.status == 2
    assert "price of openai/none-such is not known" in ran.stderr


def test_a_program_that_counts_no_tokens_is_not_said_to_have_cost_nothing(tmp_path: Path) -> None:
    write(tmp_path, TARGET)
    options = ("optimize", "model.py::scale", "--device", "cpu", "--generations", "1", "--proposals", "1")
    ran = run(tmp_path, *options, "--model", "command:cat")
    assert "tokens and cost not known here" in ran.stdout, ran.stdout + ran.stderr
