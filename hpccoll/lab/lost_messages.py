"""Ends job steps whose ranks cannot start, because SLURM's plugin mpi/pmi2 lost the end of a message of MPICH.

The plugin loses the ends of messages of more than 1,024 bytes (hpccoll/processes/pmi_relay.py describes why MPICH sends
messages of this size). After a loss, some ranks of the job step wait forever. The plugin writes an error to the log of
the node's slurmd.
"""

from __future__ import annotations

import re
import subprocess

from hpccoll.lab.cluster import Lab

_LOST = re.compile(rb"\[(\d+\.\d+)\] error: mpi/pmi2: [^\n]*client request")
SCANCEL_S = 30.0


class LostMessageWatch:
    """Finds job steps that cannot start, because SLURM's plugin mpi/pmi2 lost the end of a message, and ends them.

    Reads only lines that a lab's nodes write to their logs after the construction of this object.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._logs = [lab.client.paths.log(name) for name in lab.spec.names]
        self._read = {log: log.stat().st_size if log.exists() else 0 for log in self._logs}
        self._ended: set[str] = set()

    def end_broken_steps(self) -> list[str]:
        """End the job steps that lost a message since the last call, and return their numbers, such as `12.0`."""
        steps: set[str] = set()
        for log in self._logs:
            try:
                with log.open("rb") as file:
                    file.seek(self._read[log])
                    text = file.read()
            except OSError:  # the lab ends
                continue
            complete = text.rfind(b"\n") + 1
            self._read[log] += complete
            steps |= {match.decode() for match in _LOST.findall(text[:complete])}
        new = sorted(steps - self._ended)
        self._ended |= steps
        for step in new:
            command = self._lab.wrap_command(["scancel", "--quiet", "--signal=KILL", step])
            environ = self._lab.build_environment()
            subprocess.run(command, env=environ, capture_output=True, timeout=SCANCEL_S, check=False)
        return new


def describe_lost_message(step: str) -> str:
    """Return the error message, with a remedy, for a job step that was ended because it lost a message."""
    return (
        f"Error: the ranks of step {step} could not start, and the step was ended: SLURM's plugin mpi/pmi2 lost the "
        "end of a message of MPICH of more than 1,024 bytes. Start the program by MPICH's mpirun (hpccoll lab run -- "
        "salloc -N4 -n8 mpirun PROGRAM), or call hpccoll.Communicator() in it before it imports mpi4py.MPI"
    )
