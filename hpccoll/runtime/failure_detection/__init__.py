"""Ends a job that cannot finish, with a report: a rank failed, ended early or hangs.

Start with endings.py, whose thread watches the open communicators of this process. departures.py finds ranks that wait
for a rank whose program has ended, process_watch.py the ends of other processes, and watchdog.py calls that do not
finish within HPCCOLL_TIMEOUT. job_evidence.py makes the input of the crash analysis (hpccoll/crash) from recordings.
"""
