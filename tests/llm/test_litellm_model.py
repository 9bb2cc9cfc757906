"""Models through litellm, against a real HTTP server that does what providers do. It proves plumbing, not models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from kernel_lsp.errors import SettingError
from kernel_lsp.llm.litellm_model import KEYS_OF_VENDORS, Endpoint, LitellmModel, Prices, _needed_keys
from kernel_lsp.llm.patience import Ledger, Pace, PatientModel
from kernel_lsp.llm.request import Message, ModelFailed, ModelRequest, Replied
from tests.llm.chat_server import ChatServer, Refuses, Says, Script

KEY = "sk-test-0123456789abcdef"
REQUEST = ModelRequest(
    purpose="propose", messages=(Message(role="user", content="a kernel, please"),), max_tokens=100, temperature=0.2
)
PRICES = Prices(1e-6, 2e-6)
TEXT = "NAME: x\n" + "some text " * 40


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def model(server: ChatServer, **endpoint: Any) -> LitellmModel:
    return LitellmModel("openai/scripted", Endpoint(base_url=server.base_url, prices=PRICES, **endpoint))


async def ask(script: Script | Says | Refuses, **endpoint: Any) -> Replied | ModelFailed:
    with ChatServer(script if callable(script) else lambda *_: script) as server:
        return await model(server, **endpoint).reply(REQUEST)


async def ask_patiently(script: Script, ledger: Ledger | None = None) -> tuple[Replied | ModelFailed, list[float], int]:
    """The outcome, the waits, how many requests were made."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with ChatServer(script) as server:
        patient = PatientModel(model(server), ledger or Ledger(None), Pace(), sleep)
        outcome = await patient.ask(REQUEST)
        return outcome, waits, len(server.requests)


async def test_a_streamed_reply_comes_whole_and_exactly_as_sent() -> None:
    assert (await ask(Says(TEXT))).text == TEXT  # type: ignore[union-attr]


async def test_pieces_are_seen_as_they_come() -> None:
    pieces: list[str] = []
    with ChatServer(lambda *_: Says(TEXT)) as server:
        await model(server).reply(REQUEST, pieces.append)
    assert len(pieces) > 1
    assert "".join(pieces) == TEXT


async def test_the_request_carries_temperature_limit_and_messages() -> None:
    with ChatServer(lambda *_: Says(TEXT)) as server:
        await model(server).reply(REQUEST)
    (request,) = server.requests
    assert (request["temperature"], request["max_tokens"], request["model"]) == (0.2, 100, "scripted")
    assert request["messages"] == [{"role": "user", "content": "a kernel, please"}]
    assert server.keys == {KEY}


async def test_usage_is_what_the_provider_reports_at_the_given_prices() -> None:
    usage = (await ask(Says(TEXT))).usage
    assert usage.n_reply_tokens == len(TEXT) // 4
    assert usage.cost_usd == pytest.approx(usage.n_prompt_tokens * 1e-6 + usage.n_reply_tokens * 2e-6)


async def test_usage_is_estimated_where_none_is_reported() -> None:
    usage = (await ask(Says(TEXT, has_usage=False))).usage
    assert usage.n_prompt_tokens > 0
    assert usage.cost_usd is not None
    assert usage.cost_usd > 0


async def test_a_reply_that_hit_the_limit_says_so() -> None:
    outcome = await ask(Says(TEXT, finish="length"))
    assert isinstance(outcome, Replied)
    assert outcome.finish == "length"


async def test_a_dropped_connection_is_a_failure_that_costs_what_was_streamed() -> None:
    outcome = await ask(Says(TEXT, drop_after=2))
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "connection"
    assert outcome.usage.n_reply_tokens > 0


async def test_a_stream_that_stalls_is_a_timeout() -> None:
    outcome = await ask(Says(TEXT, pause_s=5.0), idle_deadline_s=0.3)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "timeout"


async def test_a_stream_that_crawls_ends_at_the_deadline() -> None:
    outcome = await ask(Says(TEXT, pause_s=0.2), deadline_s=0.7, idle_deadline_s=5.0)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "timeout"


@pytest.mark.parametrize(
    ("status", "cause"),
    [(429, "rate_limited"), (500, "server"), (503, "server"), (401, "authentication"), (400, "refused")],
)
async def test_an_http_error_is_an_outcome_with_its_cause(status: int, cause: str) -> None:
    outcome = await ask(Refuses(status))
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == cause


async def test_nobody_listening_is_a_failure() -> None:
    outcome = await LitellmModel("openai/x", Endpoint(base_url="http://127.0.0.1:9/v1")).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "connection"
    assert outcome.message == "Connection error; check model_base_url (http://127.0.0.1:9/v1)"


async def test_retry_after_is_waited_for() -> None:
    def script(request: dict[str, Any], n_before: int) -> Says | Refuses:
        return Says(TEXT) if n_before else Refuses(429, headers={"retry-after": "7"})

    outcome, waits, n_requests = await ask_patiently(script)
    assert isinstance(outcome, Replied)
    assert n_requests == 2
    assert max(waits) >= 7.0


async def test_a_server_error_is_retried_with_growing_waits() -> None:
    outcome, waits, _ = await ask_patiently(lambda _, n: Says(TEXT) if n == 3 else Refuses(500))
    assert isinstance(outcome, Replied)
    assert len(waits) == 3
    assert waits[0] < waits[2]


async def test_long_waits_are_told_with_the_failed_attempt() -> None:
    told: list[tuple[str, float]] = []
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with ChatServer(lambda *_: Refuses(500)) as server:
        patient = PatientModel(model(server), Ledger(None), Pace(), sleep)
        await patient.ask(REQUEST, on_wait=lambda failed, wait_s: told.append((failed.cause, wait_s)))
    assert told == [("server", wait_s) for wait_s in waits if wait_s >= 5.0]
    assert 0 < len(told) < len(waits)


async def test_a_bad_request_is_not_retried() -> None:
    outcome, waits, n_requests = await ask_patiently(lambda *_: Refuses(400))
    assert isinstance(outcome, ModelFailed)
    assert (n_requests, waits) == (1, [])


async def test_a_wrong_key_is_not_retried() -> None:
    outcome, _, n_requests = await ask_patiently(lambda *_: Refuses(401))
    assert isinstance(outcome, ModelFailed)
    assert n_requests == 1


async def test_a_model_without_its_key_is_not_called_and_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    outcome = await LitellmModel("openai/gpt-5").reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert (outcome.cause, outcome.message) == ("authentication", "missing API key: set OPENAI_API_KEY")


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gpt-5", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-pro", "GEMINI_API_KEY"),
        ("bedrock/anthropic.claude", None),
        ("ollama/qwen3", None),
        ("a-vendor-of-nobody/x", None),
    ],
)
def test_the_missing_key_is_the_vendors(name: str, variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(known, raising=False)
    assert LitellmModel(name).missing_key() == variable


@pytest.mark.parametrize(("vendor", "variables"), KEYS_OF_VENDORS.items())
def test_the_keys_of_known_vendors_are_those_that_litellm_wants(
    vendor: str, variables: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    needed = _needed_keys(f"{vendor}/a-model")
    assert variables[0] in needed
    assert set(needed) <= set(variables)
    for variable in variables:
        monkeypatch.setenv(variable, "a key")
        assert LitellmModel(f"{vendor}/a-model").missing_key() is None
        monkeypatch.delenv(variable)
    assert LitellmModel(f"{vendor}/a-model").missing_key() == variables[0]


def test_a_missing_key_is_found_before_litellm_is_imported() -> None:
    """The import takes seconds, and the budget of a model that cannot be asked needs no price."""
    program = (
        "import sys\nfrom kernel_lsp.llm.litellm_model import LitellmModel\n"
        "from kernel_lsp.llm.specs import Roster, check_prices\n"
        "roster = Roster({'': (LitellmModel('openai/gpt-5'),)})\ncheck_prices(roster, 2.0)\n"
        "print(dict(roster.missing_keys()), 'litellm' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() == "{'openai/gpt-5': 'OPENAI_API_KEY'} False"


def test_a_local_server_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert LitellmModel("openai/local", Endpoint(base_url="http://localhost:1/v1")).missing_key() is None


async def test_trying_ends() -> None:
    outcome, _, n_requests = await ask_patiently(lambda *_: Refuses(503))
    assert isinstance(outcome, ModelFailed)
    assert n_requests == Pace().n_attempts


async def test_a_key_in_a_providers_message_is_hidden() -> None:
    outcome, _, _ = await ask_patiently(lambda *_: Refuses(400, message=f"bad key {KEY}"))
    assert isinstance(outcome, ModelFailed)
    assert KEY not in outcome.message


async def test_a_call_that_could_pass_the_budget_is_not_made() -> None:
    outcome, _, n_requests = await ask_patiently(lambda *_: Says(TEXT), Ledger(1e-5))
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "budget"
    assert n_requests == 0


async def test_what_failed_attempts_cost_is_counted() -> None:
    ledger = Ledger(None)
    await ask_patiently(lambda _, n: Says(TEXT, drop_after=None if n else 2), ledger)
    assert ledger.spending.n_calls == 2
    assert ledger.spending.n_failed == 1
    assert ledger.spending.n_reply_tokens > len(TEXT) // 4


def test_a_call_costs_at_most_what_was_set_aside() -> None:
    worst = LitellmModel("openai/x", Endpoint(prices=PRICES)).worst_cost_usd(REQUEST)
    assert worst is not None
    assert worst >= 16 * 1e-6 + 100 * 2e-6


def test_a_model_nobody_knows_has_no_price() -> None:
    assert LitellmModel("openai/no-such-model-of-anyone").worst_cost_usd(REQUEST) is None


def test_a_listed_model_has_its_price() -> None:
    worst = LitellmModel("openai/gpt-4o").worst_cost_usd(REQUEST)
    assert worst is not None
    assert worst > 0


def test_a_local_model_costs_nothing() -> None:
    assert LitellmModel("ollama/qwen3").worst_cost_usd(REQUEST) == 0.0


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://me:secret@host/v1"])
def test_a_bad_address_is_a_setting_error(url: str) -> None:
    with pytest.raises(SettingError):
        LitellmModel("openai/x", Endpoint(base_url=url))


def test_importing_litellm_prints_nothing_and_asks_no_network_for_prices() -> None:
    program = (
        "import os, json, sys\n"
        "from kernel_lsp.llm.litellm_model import LitellmModel\n"
        "assert 'litellm' not in sys.modules\n"
        "m = LitellmModel('openai/gpt-4o'); m._prices()\n"
        "sys.stderr.write(json.dumps([os.environ['LITELLM_LOCAL_MODEL_COST_MAP'], 'litellm' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ""
    assert json.loads(done.stderr.splitlines()[-1]) == ["True", True]


def test_a_provider_that_logs_in_is_known_without_a_login() -> None:
    """litellm asks for a code on a web page to resolve such a name, on the stdout that is hidden meanwhile."""
    LitellmModel("github_copilot/gpt-4o").check_name()
