"""Finds out, from the recordings of a job's ranks, why the job hung or crashed, and which ranks caused it.

Start with analysis.py: `analyze` looks first for ranks that made different calls (disagreement.py), then for processes
that ended or were stopped, then for the ranks for which the others wait (wait_graph.py). All functions of the
package are pure; evidence.py defines their input. text.py formats the result for people.
"""

from hpccoll.crash.analysis import CrashAnalysis, Reason, analyze
from hpccoll.crash.disagreement import Disagreement
from hpccoll.crash.evidence import CallRecord, JobEvidence, ProcessState, RankEvidence
from hpccoll.crash.text import format_analysis, format_call, format_disagreement, format_last_operations, format_ranks

__all__ = [
    "CallRecord",
    "CrashAnalysis",
    "Disagreement",
    "JobEvidence",
    "ProcessState",
    "RankEvidence",
    "Reason",
    "analyze",
    "format_analysis",
    "format_call",
    "format_disagreement",
    "format_last_operations",
    "format_ranks",
]
