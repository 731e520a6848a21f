"""What every unit test gets: a registry as it was before, and output without a limit of its width."""

from __future__ import annotations

import pytest

from hpccoll.algorithms import registry


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it in its workers
    registry.list_algorithms()  # the first look-up registers the built-in algorithms, which must stay registered
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    yield
    registry.get_algorithm.cache_clear()
