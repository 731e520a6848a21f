"""The relay between MPICH and SLURM: when it runs, what it changes, and that SLURM's socket is restored afterwards."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from hpccoll.processes import pmi_relay

MPICH = "MPICH 5.0.2"
BY_SRUN = {"PMI_FD": "11", "PMI_JOBID": "7.0", "PMI_SIZE": "8"}
OFFER = b"cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=%d\n"
SLURM_READS = 1024  # bytes of a line; the rest is lost


def test_a_rank_of_mpich_that_srun_started_talks_to_slurm():
    assert pmi_relay.find_slurm_socket(BY_SRUN, MPICH) == 11


@pytest.mark.parametrize(
    ("environ", "library"),
    [
        (BY_SRUN, "Open MPI 5.0.11"),
        (BY_SRUN | {"PMI_HOSTNAME": "node1"}, MPICH),  # an mpirun in a job of SLURM
        ({"PMI_FD": "5", "PMI_SIZE": "8"}, MPICH),  # an mpirun without SLURM
        (BY_SRUN | {"PMI_SIZE": "1"}, MPICH),
        (BY_SRUN | {"PMI_FD": "port"}, MPICH),
        ({"PMI_JOBID": "7.0", "PMI_SIZE": "8"}, MPICH),
        ({}, MPICH),
    ],
)
def test_other_processes_do_not(environ, library):
    assert pmi_relay.find_slurm_socket(environ, library) is None


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        (OFFER % 1024, OFFER % pmi_relay.MAX_VALUE_BYTES),
        (OFFER % 256, OFFER % 256),
        (b"cmd=maxes vallen_max=4096 rc=0\n", b"cmd=maxes vallen_max=%d rc=0\n" % pmi_relay.MAX_VALUE_BYTES),
        (b"cmd=maxes rc=0 vallen_max=\n", b"cmd=maxes rc=0 vallen_max=\n"),
        (b"cmd=get_result rc=0 value=vallen_max=1024\n", b"cmd=get_result rc=0 value=vallen_max=1024\n"),
    ],
)
def test_only_the_offered_length_of_values_is_changed(message, changed):
    assert pmi_relay.shorten_offer(message) == changed


def test_a_line_with_the_longest_names_fits_into_what_slurm_reads():
    value = "F" * pmi_relay.MAX_VALUE_BYTES
    line = f"cmd=put kvsname={2**32 - 1}.{2**32 - 1} key={'k' * 63} value={value}\n"
    assert len(line) <= SLURM_READS


@pytest.fixture
def sockets() -> Iterator[tuple[int, socket.socket]]:
    """The file descriptor that a rank inherits, and SLURM's end of the pair."""
    rank, slurm = socket.socketpair()
    descriptor = rank.detach()
    os.set_inheritable(descriptor, True)
    slurm.settimeout(20)
    with slurm:
        yield descriptor, slurm
    os.close(descriptor)


def make_environ(descriptor: int) -> dict[str, str]:
    """Return the environment of a rank that srun started with this descriptor."""
    return dict(os.environ) | BY_SRUN | {"PMI_FD": str(descriptor)}


def test_messages_pass_through_the_relay_and_then_reach_slurm_directly(sockets):
    rank, slurm = sockets
    heard: list[bytes] = []

    def answer() -> None:
        for reply in (OFFER % 1024, b"cmd=finalize_ack\n"):
            heard.append(slurm.recv(SLURM_READS))
            slurm.sendall(reply)

    server = threading.Thread(target=answer)
    server.start()
    with pmi_relay.shorten_pmi_values(make_environ(rank), MPICH):
        os.write(rank, b"cmd=get_maxes\n")
        assert os.read(rank, SLURM_READS) == OFFER % pmi_relay.MAX_VALUE_BYTES
    os.write(rank, b"cmd=finalize\n")
    assert os.read(rank, SLURM_READS) == b"cmd=finalize_ack\n"
    server.join(20)
    assert heard == [b"cmd=get_maxes\n", b"cmd=finalize\n"]


def test_the_last_message_of_a_rank_that_ends_reaches_slurm(sockets):
    rank, slurm = sockets
    with pmi_relay.shorten_pmi_values(make_environ(rank), MPICH):
        os.write(rank, b"cmd=abort\n")
        os.close(rank)  # as at the end of a process
        assert slurm.recv(SLURM_READS) == b"cmd=abort\n"
