"""Message sizes from the options -b, -e and -f."""

from __future__ import annotations

import pytest

from hpccoll.errors import UsageError
from hpccoll.units import KiB, MiB, list_message_sizes


def test_the_default_sizes_are_round_and_contain_both_ends():
    sizes = list_message_sizes(None, "64M", 4)
    assert sizes[:5] == [8, 16, 64, 256, KiB]
    assert {64 * KiB, MiB, 64 * MiB} <= set(sizes)
    assert len(sizes) == 13


@pytest.mark.parametrize(
    ("smallest", "largest", "factor", "sizes"),
    [
        ("8", "64M", 4, [*(8 * 4**k for k in range(12)), 64 * MiB]),
        (None, "64", 2, [8, 16, 32, 64]),
        (None, "100", 8, [8, 64, 100]),
        (None, "8", 4, [8]),
        (None, "12", 4, [8, 12]),
        ("0", "8", 4, [0, 4, 8]),
    ],
)
def test_the_largest_size_is_always_measured(smallest, largest, factor, sizes):
    assert list_message_sizes(smallest, largest, factor) == sizes


@pytest.mark.parametrize(("smallest", "largest", "factor"), [(None, "4", 4), (None, "64", 1), ("8", "4", 2)])
def test_empty_ranges_are_refused(smallest, largest, factor):
    with pytest.raises(UsageError, match="--min-bytes"):
        list_message_sizes(smallest, largest, factor)
