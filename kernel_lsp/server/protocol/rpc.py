"""JSON-RPC over pygls that answers every request, including malformed, early, late and repeated ones."""

from __future__ import annotations

import contextvars
import json
import logging
import re
from concurrent.futures import Future, InvalidStateError
from functools import cache
from typing import Any, TypeVar

import attrs
from cattrs import Converter
from lsprotocol import types
from pygls.protocol import LanguageServerProtocol

from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.protocol.handshake import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

METHOD_NOT_FOUND = -32601
MAX_REASON_CHARACTERS = 300
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Protocol(LanguageServerProtocol):
    """Processes the whole messages that `receive` gets. The built-in features of pygls are disabled."""

    def _register_builtin_features(self) -> None:
        self._asked: dict[str, Future[Any]] = {}

    def receive(self, body: bytes) -> None:
        """Handle one message. Never raises on client input."""
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            self._refuse(None, PARSE_ERROR, "this is no JSON")
            return
        if not isinstance(message, dict) or message.get("jsonrpc") != self.VERSION:
            self._refuse(_id_in(message), INVALID_REQUEST, "this is no JSON-RPC 2.0 message")
        elif isinstance(message.get("method"), str):
            self._receive_call(message, message["method"])
        elif "result" in message or "error" in message:
            self._receive_response(message)
        else:
            self._refuse(_id_in(message), INVALID_REQUEST, "this has neither a method nor a result")

    def shut_down(self) -> None:
        """Refuse every request but `exit` from now on."""
        self._shutdown = True

    def send_request(self, method: str, params: Any = None, callback: Any = None, msg_id: Any = None) -> Future[Any]:
        """Send a request, and remember its id as ours: a client cannot answer its own requests."""
        future = super().send_request(method, params, callback, msg_id)
        self._asked = {id_: asked for id_, asked in self._asked.items() if not asked.done()}
        self._asked.update({str(id_): asked for id_, asked in self._request_futures.items() if asked is future})
        return future

    def _receive_call(self, message: dict[str, Any], method: str) -> None:
        is_request = "id" in message
        id_ = _id_in(message)
        if is_request and id_ is None:
            self._refuse(None, INVALID_REQUEST, "an id is a string or a number")
        elif is_request and id_ in self._request_futures:
            self._refuse(id_, INVALID_REQUEST, f"a request with the id {id_!r} is under way")
        elif self._shutdown and method != types.EXIT:
            self._refuse_request(is_request, id_, INVALID_REQUEST, "the server is shutting down")
        elif method == types.CANCEL_REQUEST:
            self._cancel(message.get("params"))
        elif method not in self.fm.features:
            self._refuse_request(is_request, id_, METHOD_NOT_FOUND, f"there is no method {method!r}")
        else:
            self._call(message, method, id_)

    def _call(self, message: dict[str, Any], method: str, id_: int | str | None) -> None:
        try:
            params = self._params(message, method)
        except Exception as error:  # converters raise arbitrary exceptions on malformed values
            self._refuse_request(id_ is not None, id_, INVALID_PARAMS, f"{method}: {_reason(error)}")
            return
        context = contextvars.copy_context()
        if id_ is None:
            context.run(self._handle_notification, method, params)
        else:
            context.run(self._handle_request, id_, method, params)

    def _params(self, message: dict[str, Any], method: str) -> Any:
        own = next((known for known in protocol.METHODS if known.name == method), None)
        if own is not None:
            return structure_strictly(message.get("params") or {}, own.params)
        known = self.get_message_type(method)
        assert known is not None, "only methods of the protocol are registered"
        filled = {"id": 0, "params": None, **message} if "id" in attrs.fields_dict(known) else message
        return getattr(self._converter.structure(filled, known), "params", None)

    def _cancel(self, params: Any) -> None:
        id_ = _id_in(params)
        if id_ is not None and id_ in self._request_futures and str(id_) not in self._asked:
            self._handle_cancel_notification(id_)

    def _receive_response(self, message: dict[str, Any]) -> None:
        future = self._asked.pop(str(message.get("id")), None)
        if future is None or future.done():
            logger.info("a response to nothing we asked: %r", message.get("id"))
            return
        self._request_futures.pop(message["id"], None)
        result_type = self._result_types.pop(message["id"], None)
        try:
            if "error" in message:
                future.set_exception(ClientRefused(str(message["error"])))
            else:
                future.set_result(self._result(message, result_type))
        except InvalidStateError:
            pass
        except Exception as error:  # see `_call`
            future.set_exception(ClientRefused(_reason(error)))

    def _result(self, message: dict[str, Any], result_type: Any) -> Any:
        return message["result"] if result_type is None else self._converter.structure(message, result_type).result

    def _refuse_request(self, is_request: bool, id_: int | str | None, code: int, reason: str) -> None:
        if is_request:
            self._refuse(id_, code, reason)
        else:
            logger.info("ignored: %s", reason)

    def _refuse(self, id_: int | str | None, code: int, reason: str) -> None:
        error = {"code": code, "message": reason[:MAX_REASON_CHARACTERS]}
        self._send_data({"jsonrpc": self.VERSION, "id": id_, "error": error})


def structure_strictly(value: Any, type_: type[T]) -> T:
    """Convert a value to one of our types. Raises on another form: no coercion, since a string must not grant trust."""
    if not isinstance(value, dict):
        raise TypeError("one object is expected")
    return _strict_converter().structure({_snake(name): inner for name, inner in value.items()}, type_)


class ClientRefused(Exception):
    """The client answered our request with an error or a malformed result."""


@cache
def _strict_converter() -> Converter:
    converter = Converter()
    for primitive in (bool, int, str):
        converter.register_structure_hook(primitive, _exactly)
    return converter


def _snake(name: Any) -> Any:
    """``firstLine`` is our ``first_line``."""
    return _CAPITAL.sub("_", name).lower() if isinstance(name, str) else name


def _exactly(value: Any, type_: type) -> Any:
    if type(value) is not type_:
        raise TypeError(f"{type_.__name__} is expected, not {type(value).__name__}")
    return value


def _id_in(message: Any) -> int | str | None:
    id_ = message.get("id") if isinstance(message, dict) else None
    return id_ if isinstance(id_, int | str) and not isinstance(id_, bool) else None


def _reason(error: Exception) -> str:
    """Return the converter's innermost error, which names the field."""
    inner = getattr(error, "exceptions", None)
    return _reason(inner[0]) if inner else f"{type(error).__name__}: {error}"
