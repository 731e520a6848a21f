"""Parses and formats sizes in bytes (binary units, 1M = 2**20) and ranges of numbers; MB is 1e6, GB 1e9 bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpccoll.errors import UsageError

KiB, MiB, GiB = 2**10, 2**20, 2**30
MB, GB = 10**6, 10**9
_SUFFIXES = {"": 1, "K": KiB, "M": MiB, "G": GiB, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return a size such as `8`, `64K`, `1.5M` or `2GiB` in bytes; raise UsageError for another string."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size; write bytes with an optional suffix, such as 8, 64K, 1.5M or 2G")
    return int(float(match[1]) * _SUFFIXES[match[2].upper()])


def format_size(nbytes: int) -> str:
    """Return `nbytes` as a string in the largest fitting binary unit, such as `8 B`, `64 KiB` or `1.5 MiB`."""
    for unit, name in ((1024 * GiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 rank` or `2 ranks`; the plural of `noun` ends in s."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_nearest_multiples(number: int, divisor: int) -> str:
    """Return the multiples of `divisor` around `number` as a string, such as `28 or 32`; one may be `number`.

    If the lower multiple is 0, the string has only the upper one.
    """
    below = number // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def format_nearest_divisors(number: int, total: int) -> str:
    """Return the divisors of `total` just below and above `number` (above 1) as a string, such as `2 or 4`."""
    divisors = [divisor for divisor in range(1, total + 1) if total % divisor == 0]
    nearest = [
        max(divisor for divisor in divisors if divisor < number),
        *[divisor for divisor in divisors if divisor > number][:1],
    ]
    return " or ".join(map(str, nearest))


def parse_rank_counts(text: str) -> list[int]:
    """Return the rank counts in a string such as `8`, `1:128` (last included) or `1,2,4:6`, ascending, each once.

    Raises UsageError for another string.
    """
    counts: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?::(\d+))?", part.strip())
        if match is None:
            raise UsageError(f"{text!r} is not a list of rank counts; write numbers or FIRST:LAST, such as 1,2,4:128")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last:
            raise UsageError(f"range of ranks {part!r} is empty or starts below 1; need 1 <= FIRST <= LAST")
        counts.update(range(first, last + 1))
    return sorted(counts)


def sizes_between(smallest: int, largest: int, factor: int) -> list[int]:
    """Return sizes from `smallest` to `largest`, each `factor` times the one before; 0 is followed by `factor`.

    The last size is `largest`, also if it is not a multiple of the size before. Raises UsageError if the range is empty
    or `factor` is below 2.
    """
    if smallest > largest or smallest < 0 or factor < 2:
        raise UsageError(
            f"sizes from {smallest} to {largest} bytes by factor {factor} are empty: "
            "need 0 <= --min-bytes <= --max-bytes and --factor >= 2"
        )
    sizes = [smallest]
    while max(sizes[-1], 1) * factor <= largest:
        sizes.append(max(sizes[-1], 1) * factor)
    return sizes if sizes[-1] == largest else [*sizes, largest]


def list_message_sizes(smallest: str | None, largest: str, factor: int) -> list[int]:
    """Return message sizes in bytes; the arguments are the values of --min-bytes, --max-bytes and --factor.

    If `smallest` is None, the sizes are 8, the powers of the factor above 8, and `largest`.
    """
    last = parse_size(largest)
    if smallest is not None or factor < 2 or last <= 8:
        return sizes_between(parse_size(smallest or "8"), last, factor)
    first = factor
    while first <= 8:
        first *= factor
    return [8, *(sizes_between(first, last, factor) if first <= last else [last])]


def format_list(items: Sequence[object], most: int = 8) -> str:
    """Return the first `most` items joined by commas, followed by `and N more` if there are more items."""
    shown = ", ".join(map(str, items[:most]))
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def split_into_runs(numbers: Iterable[int]) -> list[list[int]]:
    """Return `numbers` in their order as lists of consecutive numbers: [[0, 1, 2], [7]] for 0, 1, 2, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def format_ranges(numbers: Iterable[int], dash: str = "-", comma: str = ",") -> str:
    """Return `numbers` as a string in their order, with consecutive numbers as a range, such as `0-3,7`."""
    runs = split_into_runs(numbers)
    return comma.join(str(run[0]) if len(run) == 1 else f"{run[0]}{dash}{run[-1]}" for run in runs)
