"""Formats a recorded job as a GOAL schedule, which LogGOPSim and ATLAHS simulate: computing times and messages.

Because the algorithm of the MPI library is unknown, a collective is written as messages of its size that are sent as in
a dissemination barrier: ceil(log2 n) rounds on n ranks. A receive is written at the call that completes it. The tag of
a message is the number of the message or collective. Computing times are nanoseconds. Source: Hoefler, Schneider and
Lumsdaine, "LogGOPSim", LSAP 2010.
"""

from __future__ import annotations

from hpccoll.plan import IntArray
from hpccoll.plan.interchange.goal import GoalProgram, format_programs
from hpccoll.profile.dependencies import CallGraph


def format_goal(graph: CallGraph) -> str:
    """Return a recorded job as the text of a GOAL schedule, which the simulator LogGOPSim reads."""
    senders = graph.matches.find_senders()
    programs = [GoalProgram() for _ in range(graph.profile.size)]
    for call, rank in enumerate(graph.rank.tolist()):
        _add_call(programs[rank], graph, call, senders)
    return format_programs(programs)


def _add_call(program: GoalProgram, graph: CallGraph, call: int, senders: IntArray) -> None:
    """Append the computing before the call with index `call`, and the messages of this call, to a rank's program.

    `senders` has the index of the call that sends each message, by the number of the message.
    """
    matches, rank = graph.matches, int(graph.rank[call])
    _add_round(program, f"calc {round(1e9 * float(graph.gap_s[call]))}")
    if matches.enters[call] >= 0 and graph.comm[call] >= 0:
        members, nbytes = graph.profile.comms[graph.comm[call]], max(int(graph.nbytes[call]), 1)
        own, distance, tag = members.index(rank), 1, matches.enters[call]
        while distance < len(members):
            to, source = (members[(own + step) % len(members)] for step in (distance, -distance))
            _add_round(program, f"send {nbytes}b to {to} tag {tag}", f"recv {nbytes}b from {source} tag {tag}")
            distance *= 2
        return
    operations = []
    for verb, number in (("send", matches.sent[call]), ("recv", matches.received[call])):
        other = int(graph.dest[call] if verb == "send" else graph.rank[senders[number]])
        if number >= 0 and other != rank:
            nbytes, where = max(int(graph.nbytes[senders[number]]), 1), "to" if verb == "send" else "from"
            operations.append(f"{verb} {nbytes}b {where} {other} tag {number}")
    _add_round(program, *operations)


def _add_round(program: GoalProgram, *operations: str) -> None:
    """Append lines of GOAL whose operations may run at the same time, after all earlier operations of the rank."""
    following = program.round + 1
    for operation in operations:
        program.add(following, operation)
