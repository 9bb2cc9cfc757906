"""The protocol's end of the server: a client, the state, and the handler of each message."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from kernel_lsp import __version__
from kernel_lsp.server.client import Client
from kernel_lsp.server.handlers import HANDLERS, REACTIONS
from kernel_lsp.server.protocol.handshake import Initialized
from kernel_lsp.server.protocol.rpc import Protocol
from kernel_lsp.server.state import State

logger = logging.getLogger(__name__)


class KernelLanguageServer(LanguageServer):
    """One client's server. Handlers get the state, and reach the client through it: nothing here."""

    protocol: Protocol

    def __init__(self, initialized: Initialized) -> None:
        super().__init__("kernel-lsp", __version__, protocol_cls=Protocol)
        self.state = State(Client(self, self.protocol, initialized), initialized, REACTIONS)
        for method, handler in HANDLERS.items():
            self.feature(method)(partial(handler, self.state))

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log the error only: the requester already has a reply."""
        is_ours = not isinstance(error, JsonRpcInvalidParams)
        logger.log(logging.ERROR if is_ours else logging.INFO, "%s: %s", getattr(source, "__name__", source), error)
