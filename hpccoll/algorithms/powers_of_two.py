"""The powers of two just above and just below a number of ranks."""

from __future__ import annotations


def ceil_log2(n: int) -> int:
    """Return the smallest h with 2**h >= n (n >= 1)."""
    return (n - 1).bit_length()


def floor_power_of_two(n: int) -> int:
    """Return the largest power of two that is <= n (n >= 1)."""
    return 1 << (n.bit_length() - 1)
