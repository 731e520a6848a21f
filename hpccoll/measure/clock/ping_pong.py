"""Timestamps of messages between a client rank and a reference rank, which give the offset between their clocks.

The client reads its clock, sends an empty message, receives the answer and reads its clock again; the reference reads
its clock between receiving and answering. The same code sends the messages of both directions, because unequal message
times make the measured offset wrong. Timestamps are exchanged after the last ping-pong.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from hpccoll.measure.clock.local_clock import LocalClock
from hpccoll.runtime.backoff import Backoff

if TYPE_CHECKING:
    from mpi4py import MPI

TAG = 11
Times = NDArray[np.float64]
FAST, FAST_BATCHES, MOST_MORE = 1.5, 3, 3  # a fast exchange takes at most 1.5 times as long as the fastest
JITTER = 0.03  # standard deviation of the offset that the fastest exchange gives, divided by its round trip
DELAY_SHARE = 12**-0.5  # standard deviation of the offset that a slower exchange gives, divided by its delay
_MORE, _ENOUGH = np.array([1], np.uint8), np.array([0], np.uint8)
FEWEST_TO_FIT = 5  # batches; with fewer points, the standard error of a line says little
UNTIMED = 4  # exchanges at the start of a batch, in which ranks that slept before are slow


@dataclass(frozen=True, slots=True)
class PingPongs:
    """The times at which two ranks, client and reference, sent, answered and received ping-pong messages, in seconds.

    Each array of times has one row per batch and one column per ping-pong of the batch. `sent` and `received` are times
    of the client's clock, and `answered` of the reference's clock.
    """

    sent: Times
    answered: Times
    received: Times

    @property
    def round_trips_s(self) -> Times:
        """The seconds from sending to receiving of each ping-pong, on the client's clock."""
        return self.received - self.sent

    @property
    def middles_s(self) -> Times:
        """The time in the middle between sending and receiving of each ping-pong, on the client's clock."""
        return (self.sent + self.received) / 2

    @property
    def offsets_s(self) -> Times:
        """The reference's clock minus the client's in seconds, by ping-pong; wrong by at most half a round trip."""
        return self.answered - self.middles_s

    def extend(self, later: PingPongs) -> PingPongs:
        """Return the batches of this object, followed by those of `later`."""
        return PingPongs(
            np.concatenate((self.sent, later.sent)),
            np.concatenate((self.answered, later.answered)),
            np.concatenate((self.received, later.received)),
        )

    def forget_before(self, client_s: float) -> PingPongs:
        """Return only the batches that began at or after the time `client_s` of the client's clock."""
        rows = self.sent[:, 0] >= client_s
        return PingPongs(self.sent[rows], self.answered[rows], self.received[rows])

    def map_client(self, convert: Callable[[Times], Times]) -> PingPongs:
        """Return the same ping-pongs with `sent` and `received` mapped to another clock by `convert`."""
        return PingPongs(convert(self.sent), self.answered, convert(self.received))


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How many ping-pongs to exchange: `batches` batches of `exchanges` each, with pauses of `pause_s` seconds between.

    If a rank loses its core, all ping-pongs of a batch are slow. After `batches` batches, more follow, up to MOST_MORE
    times `batches` in all, until FAST_BATCHES batches have a ping-pong that takes at most FAST times as long as the
    fastest, and the error of the drift over `horizon_s` seconds is at most an eighth of the fastest round trip. Once
    there are FEWEST_TO_FIT batches, as many as a fit needs, no batch follows one that began more than `limit_s` seconds
    after the first one.
    """

    batches: int
    exchanges: int
    pause_s: float
    horizon_s: float = 0.0
    limit_s: float = float("inf")

    def needs_more(self, begun_s: Sequence[float], best_s: Sequence[float], fastest_s: float) -> bool:
        """Whether to measure more batches of ping-pongs.

        Args:
            begun_s: the times at which the batches so far began.
            best_s: the fastest round trip of each batch so far.
            fastest_s: the fastest round trip of all batches, including those of earlier measurements.
        """
        made = len(best_s)
        if made >= FEWEST_TO_FIT and begun_s[-1] - begun_s[0] > self.limit_s:
            return False
        if made < self.batches or made >= MOST_MORE * self.batches:
            return made < self.batches
        if sum(batch_s <= FAST * fastest_s for batch_s in best_s) < min(FAST_BATCHES, self.batches):
            return True
        weights = compute_deviations_s(np.array(best_s), fastest_s) ** -2
        around_s = np.array(begun_s) - np.average(begun_s, weights=weights)
        return 8 * self.horizon_s * 2 * float(weights @ around_s**2) ** -0.5 > fastest_s if self.horizon_s else False


class PingPongPartner:
    """Exchanges ping-pong messages with rank `peer` of `comm`, and reads `local`, the clock of this rank.

    Each of the two ranks makes a `PingPongPartner` and uses it as a context manager. One rank calls `measure_as_client`
    while the other one calls `measure_as_reference` with the same plan.
    """

    def __init__(self, comm: MPI.Intracomm, peer: int, local: LocalClock) -> None:
        nothing = np.empty(0, np.uint8)
        self._comm, self._peer, self._local = comm, peer, local
        self._requests = comm.Send_init(nothing, peer, TAG), comm.Recv_init(nothing, peer, TAG)

    def __enter__(self) -> Self:
        """Return this partner."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the persistent requests."""
        for request in self._requests:
            request.Free()

    def measure_as_client(self, plan: BatchPlan, earlier: PingPongs | None = None) -> PingPongs:
        """Exchange batches of ping-pongs with the reference until `plan` needs no more, and return the timestamps.

        `earlier` has earlier ping-pongs of the same two ranks, whose fastest round trip counts as the fastest so far.
        """
        fastest_s = float("inf") if earlier is None else float(earlier.round_trips_s.min())
        batches: list[tuple[list[float], list[float]]] = []
        best_s: list[float] = []
        while plan.needs_more([sent[0] for sent, _ in batches], best_s, fastest_s):
            self._comm.Send(_MORE, self._peer, TAG)
            time.sleep(plan.pause_s if batches else 0.0)
            batches.append(self._run_client_batch(plan.exchanges))
            best_s.append(min(map(operator.sub, *reversed(batches[-1]))))
            fastest_s = min(fastest_s, best_s[-1])
        self._comm.Send(_ENOUGH, self._peer, TAG)
        sent, received = np.array(batches).swapaxes(0, 1)
        answered = np.empty_like(sent)
        self._comm.Recv(answered, self._peer, TAG)
        return PingPongs(sent, answered, received)

    def measure_as_reference(self, plan: BatchPlan) -> None:
        """Answer the messages of the partner's `measure_as_client`, then send the partner the times of the answers."""
        batches: list[list[float]] = []
        wanted = np.empty_like(_MORE)
        while True:
            self._comm.Recv(wanted, self._peer, TAG)
            if wanted == _ENOUGH:
                break
            time.sleep(plan.pause_s if batches else 0.0)
            batches.append(self._run_reference_batch(plan.exchanges))
        self._comm.Send(np.array(batches), self._peer, TAG)

    def _run_client_batch(self, exchanges: int) -> tuple[list[float], list[float]]:
        """Exchange one batch of ping-pongs as the client; return the times before sending and after receiving each."""
        send, receive, read = *self._bind_messages(), self._local
        sent, received = [0.0] * exchanges, [0.0] * exchanges
        for _ in range(UNTIMED):
            send()
            receive()
        for i in range(exchanges):
            sent[i] = read()
            send()
            receive()
            received[i] = read()
        return sent, received

    def _run_reference_batch(self, exchanges: int) -> list[float]:
        """Exchange one batch of ping-pongs as the reference; return the time of each answer on this rank's clock."""
        send, receive, read = *self._bind_messages(), self._local
        answered = [0.0] * exchanges
        for _ in range(UNTIMED):
            receive()
            send()
        for i in range(exchanges):
            receive()
            answered[i] = read()
            send()
        return answered

    def _bind_messages(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return two functions: one sends an empty message to the partner, and the other receives one."""
        sending, receiving = self._requests
        start_send, wait_send, start_receive, wait_receive = (
            *(sending.Start, sending.Wait),
            *(receiving.Start, receiving.Wait),
        )

        def send() -> None:
            """Send an empty message to the partner."""
            start_send()
            wait_send()

        def receive() -> None:
            """Receive an empty message from the partner."""
            start_receive()
            wait_receive()

        return send, receive


def compute_deviations_s(round_trips_s: Times, fastest_s: float) -> Times:
    """Return the standard deviation, in seconds, of the clock difference that each ping-pong gives.

    A slow ping-pong is less precise. `round_trips_s` has the round trip of each ping-pong, and `fastest_s` is the
    fastest round trip between the same two ranks.
    """
    return np.hypot(JITTER * fastest_s, DELAY_SHARE * (round_trips_s - fastest_s))


def wait_quietly(comm: MPI.Intracomm) -> None:
    """Block until all ranks of `comm` have called this function; a rank that waits sleeps. Collective."""
    arrival, backoff = comm.Ibarrier(), Backoff(spins=False)
    while not arrival.Test():
        backoff.pause()
