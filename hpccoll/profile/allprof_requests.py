"""Finds the requests that the calls of a liballprof trace start and complete.

A trace states the address of a request, and the addresses of the requests for which a call waits. It does not state
whether a test, or a wait for some of several requests (MPI_Waitany), has completed a request: the last such call for a
request is taken as its completion.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.profile.allprof_trace import AllprofCall, AllprofTrace


@dataclass(slots=True)
class RequestMatches:
    """The requests that the calls of a trace start and complete.

    Args:
        started: for each call, the addresses of the requests that it starts.
        completed: for each call, pairs of the index of a starting call and the address of its request.
        copies: the number of calls with copies of requests, at addresses where no request was made. Such a call is
            assumed to start or complete the oldest requests.
    """

    started: list[list[int]]
    completed: list[list[tuple[int, int]]]
    copies: int = 0


def match_requests(trace: AllprofTrace) -> RequestMatches:
    """Return the requests that each call of a trace starts and completes."""
    matches = RequestMatches([[] for _ in trace.calls], [[] for _ in trace.calls])
    made: set[int] = set()  # the addresses of all requests so far
    persistent: dict[int, None] = {}  # the addresses of persistent requests in their order
    starts: dict[int, int] = {}  # the index of the starting call, by the address of an open request
    tests: dict[int, int] = {}  # the index of the last test of an open request
    for index, call in enumerate(trace.calls):
        addresses = _list_addresses(trace, call) if "q" in call.arguments else []
        if "m" in call.arguments and made and made.isdisjoint(addresses):
            oldest = [address for address in persistent if address not in starts] if call.is_start else list(starts)
            addresses, matches.copies = oldest[: len(addresses)], matches.copies + 1
        is_made = call.name.endswith("_init")
        if call.is_start or is_made or call.is_wait:
            for address in [address for address in addresses if address in starts]:
                start, by = starts.pop(address), tests.pop(address, -1)
                if call.is_wait or by >= 0:
                    matches.completed[index if call.is_wait else by].append((start, address))
        else:
            tests |= dict.fromkeys((address for address in addresses if address in starts), index)
        if is_made:
            persistent |= dict.fromkeys(addresses)
        if is_made or call.is_start:
            made.update(addresses)
        if call.is_start:
            starts |= dict.fromkeys(addresses, index)
            matches.started[index] = addresses
    for address, by in tests.items():
        matches.completed[by].append((starts[address], address))
    return matches


def _list_addresses(trace: AllprofTrace, call: AllprofCall) -> list[int]:
    """Return the addresses of the requests of a call."""
    count = call.get_int("m") if "m" in call.arguments else 1
    return [call.get_int("q") + trace.request_bytes * place for place in range(count)]
