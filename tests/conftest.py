"""Share fixtures and settings among all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


DIRECTORY = os.getcwd()


@pytest.fixture(autouse=True)
def _same_directory() -> Iterator[None]:
    """Loading a user's file makes its folder the current one, as Python would: the next test is back."""
    yield
    os.chdir(DIRECTORY)
