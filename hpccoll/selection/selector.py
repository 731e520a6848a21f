"""The selector behind `algorithm="auto"`, and the log of its selections (`HPCCOLL_LOG=1`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithm_names
from hpccoll.algorithms.registry import RATES_MARK
from hpccoll.plan import Operation
from hpccoll.selection.cost_model import choose_chunk_count, find_fastest_algorithm
from hpccoll.selection.rules import find_rule_candidates
from hpccoll.selection.tuning_table import MPI_LIBRARY, BufferKind, MeasuredWinner, TuningTable
from hpccoll.units import KiB, format_size

LOG_VARIABLE = "HPCCOLL_LOG"
SHARED_MEMORY_PLANS = "shared_two_shot", "shared"  # the names of each operation's fastest plan for long messages
COST_MODEL: Final = "cost model"  # reasons of selections, or the beginnings of reasons
MEASURED: Final = "measured"
WRITERS: Final = "measured by hpccoll preflight --save or hpccoll tune"
UNEQUAL_LINKS: Final = "links of unequal rates"
LEAST_WEIGHTED = 512 * KiB  # bytes of an all_reduce; shorter messages are limited by latency
LEAST_GAIN = 1.1  # least speed-up of a weighted all_reduce over a ring, by their bytes on the slowest link
LEADING_BITS = 3  # sizes that agree in their leading three bits share one selection


@dataclass(frozen=True, slots=True)
class Selection:
    """The algorithm selected for a call (None: the MPI library's own collective), its chunk count, and the reason."""

    algorithm: Algorithm | None
    chunks: int
    why: str

    @property
    def source(self) -> Literal["table", "links", "rules", "model"]:
        """The source of the selection: the tuning table, rates of links, the fixed rules or the cost model."""
        if self.why == COST_MODEL:
            return "model"
        if self.why.startswith(UNEQUAL_LINKS):
            return "links"
        return "table" if self.why.startswith(MEASURED) else "rules"

    @property
    def name(self) -> str:
        """The selected algorithm's name, or `mpi` for the MPI library's own collective."""
        return self.algorithm.name if self.algorithm else MPI_LIBRARY


class SelectionKey(NamedTuple):
    """The properties of a call on which the selection of its algorithm depends, the same on every rank.

    The properties are the operation, the sizes of message and element in bytes, the kind of memory, whether the MPI
    library gives the same result (`library`), whether the ranks of a node share memory, and whether the call blocks.
    """

    operation: Operation
    nbytes: int  # message size as nccl-tests counts it, rounded by `round_message_size`
    itemsize: int  # bytes per element
    buffer: BufferKind
    library: bool  # whether the MPI library's own collective gives the same result for this dtype and reduction
    shared: bool  # whether the ranks of each node share memory, as shared-memory algorithms need
    is_blocking: bool = True  # whether the call is blocking or prepared, so that one plan serves many calls


class Selector:
    """Selects algorithms for `ranks` ranks on `nodes` nodes: by measured times, else by rules, else by the cost model.

    `table` holds the measured times, or is None; all ranks must pass the same table, so that they select the same
    algorithms. Message sizes whose leading three bits agree share one selection, made for the smallest of them. A
    repeated selection takes 0.5 us. `mixed_forms` states that some ranks may call a collective blocking while others
    call it asynchronously. With `mixed_forms`, plans of messages are prepared anew in every call, which takes 80 us; on
    one node, `auto` avoids plans of messages. `rates` are the relative rates of the nodes' links if they differ; a long
    all_reduce is then weighted by them.
    """

    def __init__(
        self,
        ranks: int,
        nodes: int,
        table: TuningTable | None = None,
        *,
        mixed_forms: bool = False,
        rates: tuple[int, ...] | None = None,
    ) -> None:
        self._ranks, self._nodes, self._table, self._mixed_forms = ranks, nodes, table, mixed_forms
        self._rates = rates if rates is not None and compute_weighted_gain(rates) >= LEAST_GAIN else None
        self._selections: dict[SelectionKey, Selection] = {}

    def select(self, key: SelectionKey) -> Selection:
        """Return the `Selection` for a call with the properties `key`, without communication; cached by `key`."""
        selection = self._selections.get(key)
        if selection is None:
            selection = self._selections[key] = self._select_new(key)
        return selection

    def _select_new(self, key: SelectionKey) -> Selection:
        """Return a selection by the rates of links, the table, the rules or the cost model, without the cache."""
        operation, nbytes, shared = key.operation, key.nbytes, key.shared
        allowed = self._list_allowed(operation, library=key.library, shared=shared)
        if self._rates and shared and operation is Operation.ALL_REDUCE and nbytes >= LEAST_WEIGHTED:
            name = f"hierarchical_weighted{RATES_MARK}{':'.join(map(str, self._rates))}"
            return self._make_selection(operation, name, nbytes, f"{UNEQUAL_LINKS}, {WRITERS}")
        if self._table is not None:
            winner = self._table.find_winner(operation, key.itemsize, key.buffer, nbytes, allowed)
            if winner is not None:
                return self._make_selection(operation, winner.fastest.name, nbytes, _format_reason(winner, nbytes))
        if self._ranks > 1:
            candidates = find_rule_candidates(
                operation, key.buffer, nbytes, self._ranks, self._nodes, is_blocking=key.is_blocking
            )
            for name in candidates:
                if name in allowed:
                    return self._make_selection(operation, name, nbytes, "rule of thumb")
            for name in SHARED_MEMORY_PLANS if self._avoids_messages(shared=shared) else ():
                if name in allowed:
                    return self._make_selection(operation, name, nbytes, "blocking and asynchronous calls may meet")
        name = find_fastest_algorithm(operation, self._ranks, nbytes).name
        return self._make_selection(operation, name, nbytes, COST_MODEL)

    def _list_allowed(self, operation: Operation, *, library: bool, shared: bool) -> set[str]:
        """Return the names of the algorithms that can run, with `mpi` if `library` states that the MPI library can.

        `shared` states whether the ranks of each node share memory.
        """
        allowed = {MPI_LIBRARY} if library else set()
        for name in list_algorithm_names(operation):
            candidate = get_algorithm(operation, name)
            if candidate.uses_shared_memory:
                is_allowed = shared and (candidate.is_two_level or self._nodes == 1)
            else:
                is_allowed = not self._avoids_messages(shared=shared)
            if is_allowed:
                allowed.add(name)
        return allowed

    def _avoids_messages(self, *, shared: bool) -> bool:
        """Whether `auto` avoids plans of messages: on one node with shared memory, and if forms of calls are mixed.

        Forms are mixed if some ranks may call a collective blocking while others call it asynchronously. `shared`
        states whether the ranks of each node share memory.
        """
        return self._mixed_forms and shared and self._nodes == 1

    def _make_selection(self, operation: Operation, name: str, nbytes: int, why: str) -> Selection:
        """Return the selection of the algorithm `name` with its chunk count, for the reason `why`."""
        if name == MPI_LIBRARY:
            return Selection(None, 1, why)
        algorithm = get_algorithm(operation, name)
        return Selection(algorithm, choose_chunk_count(algorithm, self._ranks, nbytes), why)


def compute_weighted_gain(rates: tuple[int, ...]) -> float:
    """Return the estimated speed of an all_reduce weighted by `rates`, as a multiple of the speed of a ring.

    The speeds are estimated by the bytes on the slowest link. `rates` are the bandwidths of the nodes' links, in any
    unit.
    """
    n, slowest = len(rates), min(rates)
    return 2 * (n - 1) / n / slowest / max(1 / slowest, 2 * (n - 1) / sum(rates))


def _format_reason(winner: MeasuredWinner, nbytes: int) -> str:
    """Return the reason for a selection by measured times, such as `measured 2026-03-01 (412 us; next ring 880 us)`."""
    fastest, runner_up, point = winner.fastest, winner.runner_up, winner.point
    measured_size = "" if point.nbytes == nbytes else f" at {format_size(point.nbytes)}"
    second = f"; next {runner_up.name} {_format_us(runner_up.us)}" if runner_up else ""
    return f"{MEASURED} {point.measured}{measured_size} ({_format_us(fastest.us)}{second})"


def _format_us(microseconds: float) -> str:
    """Return a time as a string: microseconds with three digits, or without decimals from 100 us."""
    return f"{microseconds:.3g} us" if microseconds < 100 else f"{microseconds:.0f} us"


def round_message_size(nbytes: int) -> int:
    """Return the smallest size of as many bits as `nbytes` with the same leading three bits, such as 80 for 95."""
    low_bits = nbytes.bit_length() - LEADING_BITS
    return nbytes >> low_bits << low_bits if low_bits > 0 else nbytes


class SelectionLog:
    """Prints the selections of algorithms for jobs of `ranks` ranks to standard error, each distinct line once."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._printed: set[str] = set()

    def __call__(
        self, operation: Operation, nbytes: int, buffer: BufferKind, selection: Selection, dtype: str, redop: str = ""
    ) -> None:
        """Print one line about `selection`, unless the same line was printed before."""
        words = [operation.value, format_size(nbytes), dtype, redop if operation.reduces else ""]
        line = (
            f"hpccoll: {' '.join(word for word in words if word)} on {self._ranks} ranks ({buffer}): "
            f"{selection.name}, {selection.why}"
        )
        if line not in self._printed:
            self._printed.add(line)
            sys.stderr.write(line + "\n")


def make_selection_log(rank: int, ranks: int, environ: Mapping[str, str] = os.environ) -> SelectionLog | None:
    """Return a log that prints selections, on rank 0 if `HPCCOLL_LOG` is set to anything but 0, else None."""
    wanted = environ.get(LOG_VARIABLE, "0") not in ("", "0")
    return SelectionLog(ranks) if wanted and rank == 0 else None
