"""The message sizes of `hpccoll bench -m` are those of the OSU benchmarks."""

from __future__ import annotations

import pytest

from hpccoll.cli.bench import BenchOptions, bench
from hpccoll.cli.options import make_options
from hpccoll.errors import UsageError
from hpccoll.units import KiB


def take(*arguments: str, ranks: int = 4) -> list[int]:
    """Return the sizes in bytes of a command line on so many ranks."""
    parameters = bench.make_context("bench", list(arguments)).params
    parameters.pop("overwrite")  # which the decorator of --json takes
    options: BenchOptions = make_options(BenchOptions, parameters)
    return options.take_message_size(ranks).sizes


def test_sizes_are_those_of_an_array():
    assert take("-m", "8:1024") == [8, 32, 128, 512, 1024] == take("-b", "8", "-e", "1024")
    assert take("reduce_scatter", "broadcast", "-m", "1K:16K", "-f", "16") == [KiB, 16 * KiB]
    assert take("-m", "1K") == take("-e", "1K")


@pytest.mark.parametrize("operation", ["all_gather", "allgather", "gather", "scatter", "all_to_all"])
def test_sizes_are_those_of_a_block_where_each_rank_has_one(operation):
    assert take(operation, "-m", "1K:4K") == [4 * KiB, 16 * KiB]
    assert take(operation, "-b", "1K", "-e", "4K") == [KiB, 4 * KiB]
    assert take(operation, "-m", "1K:1K", ranks=3) == [3 * KiB]


def test_operations_that_count_differently_are_refused_together():
    with pytest.raises(UsageError, match="-m 1K is the size of a block in gather, and that of a whole array"):
        take("gather", "all_reduce", "-m", "1K")


def test_two_options_that_choose_the_smallest_size_are_refused():
    with pytest.raises(UsageError, match="-m 8:1K and -b 8 both choose the sizes"):
        take("-m", "8:1K", "-b", "8")
