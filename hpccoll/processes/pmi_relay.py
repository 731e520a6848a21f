"""Makes MPICH's messages to SLURM's plugin mpi/pmi2 short enough for the plugin to read.

While MPI_Init runs, ranks publish their addresses by PMI 1, in lines of text on the socket PMI_FD. SLURM's plugin reads
a line by one call that returns at most 1,024 bytes (MAX_READLINE in src/plugins/mpi/pmi2/pmi1.c, SLURM 22.05 to 26.11),
but the plugin offers values of 1,024 bytes (`vallen_max`), to which MPICH adds the names of a command and a key. The
plugin loses the rest of a longer line, prints `value not properly terminated in client request`, and some ranks wait
forever.

MPICH 4.1 to 5.0 with UCX publish 4,096 bytes of memory that begin with the address of a rank (MPID_MAX_BC_SIZE in
ucx_init.c), with zeros compressed. The length of a line therefore depends on the bytes after the address, which differ
between programs and between runs.

`shorten_pmi_values` starts a process that relays messages between MPICH and SLURM during MPI_Init, and lowers the
length of values that SLURM offers. MPICH then publishes shorter values in more lines. A thread cannot relay, because
mpi4py holds Python's global lock during MPI_Init. The relay runs this file as a program, without importing other
modules of hpccoll.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# The plugin reads 1,024 bytes. "cmd=put kvsname=N key=K value=V\n" has 28 besides N (up to 21), K (up to 63) and V.
MAX_VALUE_BYTES = 896
_READ_BYTES = 65536
_MAXES, _LENGTH = b"cmd=maxes ", b"vallen_max="


def find_slurm_socket(environ: Mapping[str, str], library: str) -> int | None:
    """Return the file descriptor on which an MPICH rank talks to SLURM's mpi/pmi2; None for any other process.

    `library` is the MPI library's name and version, such as `MPICH 5.0.2`.
    """
    descriptor = environ.get("PMI_FD", "")
    # SLURM sets PMI_JOBID, which ranks of an mpirun in a SLURM job inherit; PMI_HOSTNAME shows that mpirun started
    # them.
    is_srun = "PMI_JOBID" in environ and "PMI_HOSTNAME" not in environ
    if not (library.startswith("MPICH") and is_srun and descriptor.isdecimal() and environ.get("PMI_SIZE") != "1"):
        return None
    return int(descriptor)


@contextmanager
def shorten_pmi_values(environ: Mapping[str, str], library: str) -> Iterator[None]:
    """Context manager for MPI_Init: if this is an MPICH rank that srun started, relay its messages to SLURM.

    Cost: the start of a Python process without packages (20 ms). The relay process ends when the context is left or
    when this process ends.
    """
    descriptor = find_slurm_socket(environ, library)
    if descriptor is None or not sys.executable:
        yield
        return
    import socket

    rank_end, relay_end = socket.socketpair()
    slurm_end = os.dup(descriptor)
    with rank_end, relay_end:
        os.set_inheritable(relay_end.fileno(), True)
        program = [sys.executable, "-I", "-S", __file__, str(relay_end.fileno()), str(descriptor)]
        try:
            pid = os.posix_spawn(sys.executable, program, dict(environ))
        except OSError:  # too many processes, for instance; most programs start without the relay, too
            os.close(slurm_end)
            yield
            return
        os.dup2(rank_end.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(slurm_end, descriptor)  # closes the rank's end of the pair, upon which the relay ends
        os.close(slurm_end)
        os.waitpid(pid, 0)


def relay_messages(rank_end: int, slurm_end: int) -> None:
    """Copy messages between two sockets, and shorten the values that SLURM offers, until either socket closes."""
    while True:
        for source in select.select([rank_end, slurm_end], [], [])[0]:
            message = os.read(source, _READ_BYTES)
            if not message:
                return
            if source == slurm_end:
                message = shorten_offer(message)
            rest = memoryview(message)
            while rest:
                rest = rest[os.write(rank_end if source == slurm_end else slurm_end, rest) :]


def shorten_offer(message: bytes) -> bytes:
    """Return SLURM's message with at most MAX_VALUE_BYTES as the length of values; other messages are unchanged."""
    before, name, after = message.partition(_LENGTH)
    digits = b"".join(after.split(maxsplit=1)[:1])
    if not (message.startswith(_MAXES) and digits.isdigit()):
        return message
    return before + name + str(min(int(digits), MAX_VALUE_BYTES)).encode() + after[len(digits) :]


if __name__ == "__main__":
    try:
        relay_messages(int(sys.argv[1]), int(sys.argv[2]))
    except OSError:  # the rank or SLURM has ended
        sys.exit(1)
