"""Fixtures: a stub of a provider, and ``instrument()`` that is undone after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tracekit
from tests.support.stub_provider import StubProvider, stub_provider


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with stub_provider() as server:
        yield server


@pytest.fixture
def instrumented() -> Iterator[None]:
    tracekit.instrument()
    yield
    tracekit.uninstrument()
