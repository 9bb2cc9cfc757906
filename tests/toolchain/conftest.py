"""The real compiler, started once for all tests here."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.nvrtc.discovery import Toolchain, find_toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return find_toolchain()
