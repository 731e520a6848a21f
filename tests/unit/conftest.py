"""Fixtures of all unit tests: they restore the registry, and print without a limit of the line width."""

from __future__ import annotations

import pytest

from hpccoll.algorithms import catalogue, registry


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Restore the registry after a test."""
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it in its workers
    catalogue.list_algorithms()  # the first look-up registers the built-in algorithms, which must stay registered
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))
    yield
    catalogue.get_algorithm.cache_clear()
