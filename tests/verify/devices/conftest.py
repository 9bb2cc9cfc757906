"""The sshd of the tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .sshd import SSHD, Sshd, running


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if not SSHD:
        pytest.skip("there is no sshd: apt-get install openssh-server")
    with running(tmp_path_factory.mktemp("sshd") / "s") as found:
        yield found
