"""The providers beside litellm, what names mean, recordings, and the ledger."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kernel_lsp.errors import SettingError, UserError
from kernel_lsp.llm.litellm_model import LitellmModel, hide_keys, hide_known_keys
from kernel_lsp.llm.manual import CallbackModel, ManualModel, ManualPrompt, open_reply, read_reply
from kernel_lsp.llm.patience import Ledger, Pace, PatientModel
from kernel_lsp.llm.recording import RecordedReply, RecordedValue, ReplayModel, read_recording, write_recording
from kernel_lsp.llm.request import Message, ModelFailed, ModelOutcome, ModelRequest, Replied, Usage
from kernel_lsp.llm.specs import CommandModel, Surroundings, check_prices, open_roster, parse_prices, split_spec
from tests.scripted_model import ScriptedModel

REQUEST = ModelRequest(purpose="propose", messages=(Message(role="user", content="hello"),))
SECRET = "s3cret-value-of-a-key"


def around(folder: Path) -> Surroundings:
    return Surroundings(directory=folder, manual_folder=folder / "manual")


# --- requests


def test_equal_prompts_of_two_samples_have_two_keys() -> None:
    assert REQUEST.key != REQUEST.model_copy(update={"sample": 1}).key


def test_temperature_and_limit_are_not_in_the_key() -> None:
    assert REQUEST.key == REQUEST.model_copy(update={"temperature": 0.0, "max_tokens": 1}).key


# --- manual


async def test_manual_writes_the_prompt_and_reads_the_reply(tmp_path: Path) -> None:
    model = ManualModel(tmp_path, wait_s=20.0, poll_s=0.01)
    asking = asyncio.create_task(model.reply(REQUEST))
    prompt = tmp_path / f"{REQUEST.key}.prompt.md"
    async with asyncio.timeout(10):
        while not prompt.exists():
            await asyncio.sleep(0.01)
    assert prompt.read_text() == "hello\n"
    (tmp_path / f"{REQUEST.key}.reply.md").write_text("hi\n")
    assert await asking == Replied(model="manual", text="hi\n")


async def test_manual_takes_a_reply_that_is_there_already(tmp_path: Path) -> None:
    (tmp_path / f"{REQUEST.key}.reply.md").write_text("hi")
    outcome = await ManualModel(tmp_path, wait_s=20.0, poll_s=0.01).reply(REQUEST)
    assert isinstance(outcome, Replied)


async def test_manual_waits_no_longer_than_it_was_told_to(tmp_path: Path) -> None:
    outcome = await ManualModel(tmp_path, wait_s=0.05, poll_s=0.01).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "awaited"


async def test_manual_without_any_time_takes_a_reply_that_is_there(tmp_path: Path) -> None:
    (tmp_path / f"{REQUEST.key}.reply.md").write_text("hi")
    outcome = await ManualModel(tmp_path, wait_s=0.0, poll_s=0.01).reply(REQUEST)
    assert outcome == Replied(model="manual", text="hi")


async def test_manual_without_any_time_writes_the_prompt_and_waits_for_nobody(tmp_path: Path) -> None:
    outcome = await ManualModel(tmp_path, wait_s=0.0, poll_s=3600.0).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert (tmp_path / f"{REQUEST.key}.prompt.md").read_text() == "hello\n"


async def test_manual_tells_of_a_prompt_that_waits_and_of_its_end(tmp_path: Path) -> None:
    told: list[ManualPrompt] = []
    await ManualModel(tmp_path, wait_s=0.05, poll_s=0.01, on_prompt=told.append).reply(REQUEST)
    assert [each.is_waiting for each in told] == [True, False]
    assert told[0].prompt.read_text() == "hello\n"


async def test_manual_does_not_tell_of_a_prompt_that_has_its_reply(tmp_path: Path) -> None:
    (tmp_path / f"{REQUEST.key}.reply.md").write_text("hi")
    told: list[ManualPrompt] = []
    await ManualModel(tmp_path, wait_s=20.0, poll_s=0.01, on_prompt=told.append).reply(REQUEST)
    assert [each.is_waiting for each in told] == [False]


def test_the_line_that_says_where_to_paste_is_no_reply(tmp_path: Path) -> None:
    prompt = ManualPrompt(tmp_path / "k.prompt.md", tmp_path / "k.reply.md", is_waiting=True)
    open_reply(prompt)
    assert "k.prompt.md" in prompt.reply.read_text()
    assert read_reply(prompt.reply) == ""
    prompt.reply.write_text(prompt.reply.read_text() + "\n  \n")
    assert read_reply(prompt.reply) == ""
    prompt.reply.write_text(prompt.reply.read_text() + "CODE")
    assert read_reply(prompt.reply) == "\n  \nCODE"


def test_a_reply_without_that_line_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "k.reply.md").write_text("<!-- mine -->\nCODE\n")
    assert read_reply(tmp_path / "k.reply.md") == "<!-- mine -->\nCODE\n"


# --- command


def program(text: str, deadline_s: float = 20.0) -> CommandModel:
    return CommandModel([sys.executable, "-c", text], deadline_s)


async def test_a_command_gets_the_prompt_and_gives_the_reply() -> None:
    outcome = await program("import sys; print(sys.stdin.read().upper(), end='')").reply(REQUEST)
    assert isinstance(outcome, Replied)
    assert outcome.text == "HELLO\n"


async def test_a_command_sees_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    outcome = await program("import os; print(sorted(os.environ))").reply(REQUEST)
    assert isinstance(outcome, Replied)
    assert "OPENAI_API_KEY" not in outcome.text


async def test_a_command_that_fails_says_what_it_printed() -> None:
    outcome = await program("import sys; sys.exit('no model loaded')").reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert "no model loaded" in outcome.message


async def test_a_command_that_hangs_is_a_timeout() -> None:
    outcome = await program("import time; time.sleep(60)", deadline_s=0.5).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "timeout"


async def test_a_command_that_does_not_exist_is_unavailable() -> None:
    outcome = await CommandModel(["/no/such/program"], 5.0).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "unavailable"


# --- callback


async def test_a_callback_that_never_answers_is_a_timeout() -> None:
    async def never(_: ModelRequest) -> Replied:
        await asyncio.sleep(60)
        raise AssertionError

    outcome = await CallbackModel("editor", never, 0.05).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "timeout"


# --- recordings


def recorded(outcome: ModelOutcome) -> RecordedReply:
    return RecordedReply(key=REQUEST.key, model="m", request=REQUEST, outcome=outcome)


async def test_a_recording_answers_as_it_was_answered(tmp_path: Path) -> None:
    reply = Replied(model="m", text="exactly\r\nthis \u2028", usage=Usage(n_reply_tokens=3, cost_usd=0.5))
    write_recording(tmp_path / "r", [RecordedValue(name="related", value="[]")], [recorded(reply)])
    recording = read_recording(tmp_path / "r")
    assert await ReplayModel(recording.outcomes).reply(REQUEST) == reply
    assert recording.values == {"related": "[]"}


async def test_a_prompt_that_was_not_recorded_gets_no_reply() -> None:
    outcome = await ReplayModel({}).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "no_recording"


def test_a_recorded_request_that_was_changed_is_refused(tmp_path: Path) -> None:
    entry = recorded(Replied(model="m", text="x"))
    (tmp_path / "r").write_text(entry.model_dump_json().replace("hello", "hullo") + "\n")
    with pytest.raises(UserError, match="key is not that of the request") as caught:
        read_recording(tmp_path / "r")
    assert caught.value.line == 1


@pytest.mark.parametrize("text", ["no json", "{}", '{"key": 1}'])
def test_a_broken_recording_names_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(f"\n{text}\n")
    with pytest.raises(UserError) as caught:
        read_recording(tmp_path / "r")
    assert caught.value.line == 2


# --- names


def test_a_name_is_of_its_purpose_or_of_all() -> None:
    assert split_spec("judge=ollama/qwen3") == ("judge", "ollama/qwen3")
    assert split_spec("openai/gpt-5") == ("", "openai/gpt-5")
    assert split_spec("command:ask --mode=fast") == ("", "command:ask --mode=fast")


@pytest.mark.parametrize("spec", ["pudge=ollama/x", "judge=", "", "command:", "command:'x", "editor"])
def test_a_bad_name_is_a_setting_error(tmp_path: Path, spec: str) -> None:
    with pytest.raises(SettingError):
        open_roster([spec], around(tmp_path))


def test_each_purpose_has_its_own_models_else_the_common_ones(tmp_path: Path) -> None:
    roster = open_roster(["manual", "judge=ollama/x", "translate=command:cat"], around(tmp_path))
    names = {purpose: roster.of(purpose)[0].name for purpose in ("propose", "judge", "translate", "repair", "reformat")}
    assert names == {
        "propose": "manual",
        "judge": "ollama/x",
        "translate": "command:cat",
        "repair": "command:cat",
        "reformat": "manual",
    }


def test_a_budget_needs_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")  # a model without its key is not asked
    roster = open_roster(["openai/no-such-model-of-anyone"], around(tmp_path))
    with pytest.raises(SettingError, match="price of openai/no-such-model-of-anyone is not known"):
        check_prices(roster, 1.0)
    check_prices(roster, None)


@pytest.mark.parametrize("text", ["3", "a:b", "-1:2", "3:15:1", "nan:1"])
def test_bad_prices_are_a_setting_error(text: str) -> None:
    with pytest.raises(SettingError):
        parse_prices(text)


def test_a_litellm_name_is_opened_without_importing_litellm(tmp_path: Path) -> None:
    (model,) = open_roster(["anthropic/some-model"], around(tmp_path)).of("propose")
    assert isinstance(model, LitellmModel)


# --- keys


def test_a_key_of_the_environment_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    assert SECRET not in hide_keys(f"the key {SECRET} is wrong")
    assert SECRET not in hide_known_keys(f"my key is {SECRET}")


def test_what_looks_like_a_key_is_hidden_in_messages_alone() -> None:
    assert "abcdefghijklmnop" not in hide_keys("Incorrect API key provided: sk-abcdefghijklmnop1234")
    assert hide_known_keys("int sk_abcdefghijklmnop1234;") == "int sk_abcdefghijklmnop1234;"


# --- the ledger


def test_a_budget_allows_just_what_fits() -> None:
    ledger = Ledger(1.0)
    assert ledger.reserve(0.6)
    assert not ledger.reserve(0.6)
    ledger.settle(0.6, Usage(cost_usd=0.1), failed=False)
    assert ledger.reserve(0.6)
    assert ledger.spending.cost_usd == 0.1


def test_what_is_not_called_is_given_back() -> None:
    ledger = Ledger(1.0)
    assert ledger.reserve(1.0)
    ledger.release(1.0)
    assert ledger.reserve(1.0)


async def test_calls_at_once_never_pass_the_budget() -> None:
    model = ScriptedModel(lambda _: "x", cost_usd=0.3, delay_s=0.01)
    ledger = Ledger(1.0)
    patient = PatientModel(model, ledger, Pace(n_at_once=10))
    outcomes = await asyncio.gather(*(patient.ask(REQUEST) for _ in range(10)))
    assert sum(isinstance(outcome, Replied) for outcome in outcomes) == 3
    assert ledger.spending.cost_usd == pytest.approx(0.9)


async def test_no_more_calls_at_once_than_the_pace_allows() -> None:
    running = most = 0

    async def ask(_: ModelRequest) -> Replied:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return Replied(model="m", text="x")

    patient = PatientModel(CallbackModel("m", ask, 5.0), Ledger(None), Pace(n_at_once=2))
    await asyncio.gather(*(patient.ask(REQUEST) for _ in range(6)))
    assert most == 2
