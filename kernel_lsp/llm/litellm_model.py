"""Access any vendor's model, a local server with OpenAI's protocol, or Ollama, through litellm, with API keys from the
environment or the keyring.

litellm takes seconds to import, so it is imported with the first call, only in the run's process. Its logging, its
price downloads and its retries are disabled.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import logging
import os
import re
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, Literal
from urllib.parse import urlsplit

from kernel_lsp.core.words import fitted
from kernel_lsp.errors import EnvironmentProblem, SettingError
from kernel_lsp.llm.request import Cause, ModelFailed, ModelRequest, OnText, Replied, Usage, ignore_text

KEYRING_SERVICE = "kernel-lsp"
HIDDEN = "[key]"
MIN_SECRET_CHARACTERS = 8
"""Shorter values are placeholders such as ``none`` or ``ollama``, and hiding them would garble prose."""

_SECRET_NAME = re.compile(r"(?:API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)", re.IGNORECASE)
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|rk|xai|gsk|hf)[-_][A-Za-z0-9_-]{16,}|\bAIza[A-Za-z0-9_-]{20,}|(?<=Bearer )[\w.~+/-]{8,}"
)
_found_in_keyring: set[str] = set()


def find_key(variable: str) -> str | None:
    """The key of that name: the environment variable, else the keyring's entry for it under ``kernel-lsp``."""
    return os.environ.get(variable) or _from_keyring(variable)


def hide_keys(message: str) -> str:
    """A provider's message with every key that we know of, and everything shaped like one, replaced."""
    return _LOOKS_SECRET.sub(HIDDEN, hide_known_keys(message))


def hide_known_keys(reply: str) -> str:
    """A reply with the keys that we know of replaced. Shapes are left alone: code has names like ``key_block_size``."""
    for secret in _secrets():
        reply = reply.replace(secret, HIDDEN)
    return reply


def _secrets() -> list[str]:
    named = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    found = (value for value in named | _found_in_keyring if len(value) >= MIN_SECRET_CHARACTERS)
    return sorted(found, key=len, reverse=True)


@lru_cache(maxsize=32)
def _from_keyring(variable: str) -> str | None:
    try:
        import keyring
    except ImportError:
        return None  # the keyring is optional
    try:
        value = keyring.get_password(KEYRING_SERVICE, variable)
    except keyring.errors.KeyringError:
        return None  # a locked or missing keyring is like one without the key
    if value:
        _found_in_keyring.add(value)
    return value or None


PROMPT_OVERHEAD_TOKENS = 64
"""Tokens of the chat format around the messages, for the bound on a prompt's tokens."""
BYTES_PER_TOKEN = 4
"""Bytes per token where a provider reports no usage: the usual average for English and code."""
FREE_PREFIXES = ("ollama/", "ollama_chat/", "llamafile/", "lm_studio/", "hosted_vllm/")
"""Providers that run on the user's own machines."""
_NAMED_AS_VENDOR = ("openai", "anthropic", "deepseek", "groq", "mistral", "openrouter", "xai")
KEYS_OF_VENDORS = {
    **{vendor: (f"{vendor.upper()}_API_KEY",) for vendor in _NAMED_AS_VENDOR},
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
"""Variables of API keys, any of which is enough: for these vendors a missing key is found without importing litellm."""
NO_KEY = "none"
"""Placeholder for local servers, which require a key but ignore it."""
N_MESSAGE_CHARACTERS = 500


@dataclass(frozen=True)
class Prices:
    """US dollars per token."""

    prompt_usd: float
    reply_usd: float

    def cost_usd(self, n_prompt_tokens: int, n_reply_tokens: int) -> float:
        return n_prompt_tokens * self.prompt_usd + n_reply_tokens * self.reply_usd


@dataclass(frozen=True)
class Endpoint:
    """Location of a model. `base_url` None means the vendor's own; `prices` None means litellm's table."""

    base_url: str | None = None
    prices: Prices | None = None
    deadline_s: float = 600.0
    idle_deadline_s: float = 120.0
    """Maximum time between two chunks of a streamed reply, in seconds."""


_PREFIXES = re.compile(r"^(?:litellm\.)?(?:\w+(?:Error|Exception)(?::\s*|\s+-\s+))*")
"""Class names that litellm puts before a provider's words."""
_JSON_MESSAGE = re.compile(r'"message":\s*"(?P<message>[^"\\]+)"')
_NO_CONNECTION = "Connection error."
"""End of the InternalServerError with which litellm reports an address that cannot be reached."""
_FINISHES: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


class LitellmModel:
    """`name` is in litellm's form: ``openai/gpt-...``, ``anthropic/...``, ``gemini/...``, ``ollama/...``."""

    def __init__(self, name: str, endpoint: Endpoint | None = None) -> None:
        self._name, self._endpoint = name, endpoint or Endpoint()
        if self._endpoint.base_url is not None:
            check_base_url(self._endpoint.base_url)

    @property
    def name(self) -> str:
        return self._name

    def worst_cost_usd(self, request: ModelRequest) -> float | None:
        """Return the upper bound of the cost: a token is at least one byte, and the reply ends at its limit."""
        prices = self._prices()
        if prices is None:
            return None
        n_bytes = sum(len(message.content.encode()) for message in request.messages)
        return prices.cost_usd(n_bytes + PROMPT_OVERHEAD_TOKENS, request.max_tokens)

    def check_name(self) -> None:
        """Raise SettingError for a name without a vendor: each proposal of a run would fail with it."""
        vendor, separator, model = self.name.partition("/")
        if self._endpoint.base_url is not None or (vendor in KEYS_OF_VENDORS and model):
            return
        try:
            with contextlib.redirect_stdout(None):  # it prints where it does not know the vendor
                if separator and vendor in _litellm().provider_list:  # for some, get_llm_provider logs the user in
                    is_known = bool(model)
                else:
                    is_known = bool(model or not separator) and bool(_litellm().get_llm_provider(self.name))
        except EnvironmentProblem:
            raise
        except Exception:  # litellm raises exceptions of several vendors' clients
            is_known = False
        if not is_known:
            raise SettingError(
                f"model '{self.name}': unknown provider",
                next_step="name PROVIDER/MODEL, e.g. openai/gpt-5 or ollama/qwen3; `manual` asks you for each reply",
            )

    def missing_key(self) -> str | None:
        """Return the variable of the API key that this model needs and that is set nowhere, or None."""
        if self._endpoint.base_url is not None or self.name.startswith(FREE_PREFIXES) or find_key(self._key_variable()):
            return None
        vendor, separator, _ = self.name.partition("/")
        if separator and vendor in KEYS_OF_VENDORS:
            known = KEYS_OF_VENDORS[vendor]
            return None if any(find_key(variable) for variable in known) else known[0]
        variables = _needed_keys(self.name)
        if os.environ.get(self._key_variable()) == "":  # litellm takes an empty variable for a key
            return self._key_variable()
        if any(find_key(variable) for variable in variables):
            return None
        return self._key_variable() if self._key_variable() in variables else next(iter(variables), None)

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        stream = _Stream(on_text)
        variable = self.missing_key()
        if variable is not None:
            return self._failed("authentication", f"missing API key: set {variable}", request, stream)
        try:
            async with asyncio.timeout(self._endpoint.deadline_s):
                await self._stream(request, stream)
        except TimeoutError:
            message = (
                f"no whole reply within {self._endpoint.deadline_s:.0f} s (or {self._endpoint.idle_deadline_s:.0f}"
            )
            return self._failed("timeout", f"{message} s without a word)", request, stream)
        except EnvironmentProblem:
            raise
        except Exception as error:  # litellm passes on any exception of a vendor's client; each becomes an outcome
            cause = _cause(error)
            return self._failed(cause, self._message(error, cause), request, stream, _retry_after_s(error))
        if not stream.finish:
            return self._failed("connection", "the stream ended before the reply did", request, stream)
        usage = self._usage(request, stream)
        return Replied(model=self.name, text=stream.text, usage=usage, finish=_FINISHES.get(stream.finish, "other"))

    async def _stream(self, request: ModelRequest, stream: _Stream) -> None:
        idle_s = self._endpoint.idle_deadline_s
        async with asyncio.timeout(idle_s):
            chunks = await _litellm().acompletion(
                model=self.name,
                messages=[message.model_dump() for message in request.messages],
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                stream=True,
                stream_options={"include_usage": True},
                drop_params=True,
                num_retries=0,
                max_retries=0,
                timeout=2 * idle_s,  # our deadline comes first, and its error names it
                **self._connection(),
            )
        iterator = aiter(chunks)
        while True:
            async with asyncio.timeout(idle_s):
                try:
                    chunk = await anext(iterator)
                except StopAsyncIteration:
                    return
            stream.take(chunk)

    def _message(self, error: Exception, cause: Cause) -> str:
        """Return the provider's words without litellm's class names, and what to check."""
        said = _PREFIXES.sub("", fitted(str(error), N_MESSAGE_CHARACTERS)) or type(error).__name__
        if found := _JSON_MESSAGE.search(said):
            said = found["message"]
        url = self._endpoint.base_url
        steps = {
            "authentication": f"check {self._key_variable()}",
            "refused": "check the model's name",
            "connection": f"check model_base_url ({url})" if url is not None else "check the network",
        }
        return f"{said.rstrip('.')}; {steps[cause]}" if cause in steps else said

    def _connection(self) -> dict[str, str]:
        """Return the address and the key. Without a base URL or a key, litellm reads the vendor's own variable."""
        key = find_key(self._key_variable())
        if self._endpoint.base_url is not None:
            return {"api_base": self._endpoint.base_url, "api_key": key or NO_KEY}
        return {"api_key": key} if key else {}

    def _key_variable(self) -> str:
        return f"{self.name.partition('/')[0].upper()}_API_KEY" if "/" in self.name else "OPENAI_API_KEY"

    def _prices(self) -> Prices | None:
        if self._endpoint.prices is not None:
            return self._endpoint.prices
        if self.name.startswith(FREE_PREFIXES):
            return Prices(0.0, 0.0)
        return None if self._endpoint.base_url is not None else _listed_prices(self.name)

    def _usage(self, request: ModelRequest, stream: _Stream) -> Usage:
        """Return the usage reported by the provider, else an estimate from the lengths."""
        n_prompt, n_reply = stream.n_prompt_tokens, stream.n_reply_tokens
        if not n_prompt and not n_reply:
            n_prompt = sum(len(message.content.encode()) for message in request.messages) // BYTES_PER_TOKEN
            n_reply = len(stream.text.encode()) // BYTES_PER_TOKEN
        prices = self._prices()
        cost_usd = prices.cost_usd(n_prompt, n_reply) if prices is not None else None
        return Usage(n_prompt_tokens=n_prompt, n_reply_tokens=n_reply, cost_usd=cost_usd)

    def _failed(
        self, cause: Cause, message: str, request: ModelRequest, stream: _Stream, retry_after_s: float | None = None
    ) -> ModelFailed:
        # A partially streamed reply is charged; a request that was rejected outright is not.
        usage = self._usage(request, stream) if stream.text else Usage()
        return ModelFailed(model=self.name, cause=cause, message=message, retry_after_s=retry_after_s, usage=usage)


def check_base_url(url: str) -> None:
    """Raise SettingError for an invalid address, or one that contains a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError(f"model_base_url = '{url}' is no address", next_step="e.g. http://localhost:8000/v1")
    if parts.username or parts.password:
        raise SettingError(
            "model_base_url has a user name or password in it",
            next_step="give the key in the environment: settings are kept with the run",
        )


class _Stream:
    """A streamed reply."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._pieces: list[str] = []
        self.finish = ""
        self.n_prompt_tokens = self.n_reply_tokens = 0

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, chunk: Any) -> None:
        usage = getattr(chunk, "usage", None)
        if usage is not None:
            self.n_prompt_tokens = int(usage.prompt_tokens or 0)
            self.n_reply_tokens = int(usage.completion_tokens or 0)
        for choice in chunk.choices[:1]:
            piece = getattr(choice.delta, "content", None) or ""
            if piece:
                self._pieces.append(piece)
                self._on_text(piece)
            self.finish = choice.finish_reason or self.finish


@cache
def _litellm() -> ModuleType:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = (
        "True"  # read during its import: prevents the download of a price table
    )
    os.environ.setdefault("LITELLM_LOG", "ERROR")
    try:
        with contextlib.redirect_stdout(None):  # stdout is reserved for the requested JSON
            import litellm
    except ImportError as error:
        raise EnvironmentProblem(
            f"litellm cannot be imported: {error}",
            next_step="pip install 'kernel_lsp[llm]', or use --model manual, command:... or editor",
        ) from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.turn_off_message_logging = True
    litellm.disable_streaming_logging = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their messages contain requests
    return litellm


@cache
def _listed_prices(name: str) -> Prices | None:
    """Return litellm's bundled price table."""
    try:
        found = _litellm().get_model_info(name)
    except Exception:  # litellm raises a plain Exception for an unknown model
        return None
    prompt_usd, reply_usd = found.get("input_cost_per_token"), found.get("output_cost_per_token")
    return Prices(prompt_usd, reply_usd) if prompt_usd is not None and reply_usd is not None else None


def _needed_keys(name: str) -> tuple[str, ...]:
    """Return the API keys that litellm misses for a model. Vendors that sign in by other means have none."""
    with contextlib.redirect_stdout(None):  # it prints where it does not know the vendor
        missing = _litellm().validate_environment(name)["missing_keys"]
    return tuple(variable for variable in missing if variable.endswith("_API_KEY"))


def _cause(error: Exception) -> Cause:
    status = getattr(error, "status_code", None)
    name = type(error).__name__
    if name == "InternalServerError" and str(error).endswith(_NO_CONNECTION):
        return "connection"
    if status == 429 or "RateLimit" in name:
        return "rate_limited"
    if status in (401, 403) or "Authentication" in name or "PermissionDenied" in name:
        return "authentication"
    if status == 408 or "Timeout" in name:
        return "timeout"
    if "Connection" in name or "MidStream" in name or isinstance(error, OSError) or status is None:
        return "connection"
    return "server" if int(status) >= 500 else "refused"


def _retry_after_s(error: Exception) -> float | None:
    """Parse seconds or a date (RFC 9110 section 10.2.3)."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after") or (getattr(error, "litellm_response_headers", None) or {}).get("retry-after")
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
