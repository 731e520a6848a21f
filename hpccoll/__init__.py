"""Collective communication, written once as a plan: proven, replayed, run over MPI and measured beside its peers."""

from __future__ import annotations

__version__ = "0.1.0"
