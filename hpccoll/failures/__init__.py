"""Ends the job with a report when a rank fails, ends early, hangs or dies; or lets the job continue after a death.

Start with endings.py, whose thread watches the open communicators of this process. departures.py finds ranks that wait
for a rank whose program has ended, call_comparison.py finds ranks in different calls, process_watch.py finds the ends
of other processes, and watchdog.py explains, from the recordings of all ranks, why a call has not finished within
HPCCOLL_TIMEOUT. If the program continues after a death, survival.py asks MPI for dead ranks and kills ranks that do not
answer, rank_losses.py makes the calls of the survivors raise RankLostError, survivor_calls.py calls MPI's shrink and
agreement, and surviving_creation.py makes communicators while ranks may die.
"""
