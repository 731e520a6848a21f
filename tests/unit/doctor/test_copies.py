"""The check of the C library's copies."""

from __future__ import annotations

from hpccoll.doctor.copies import check_copies, judge_copies
from hpccoll.doctor.finding import Severity


def test_copies_are_measured_and_judged():
    (finding,) = check_copies()
    assert finding.severity in (Severity.OK, Severity.WARNING)
    assert " GB/s" in finding.evidence


def test_copies_that_are_slow_at_some_offsets_are_a_warning_with_a_remedy():
    finding = judge_copies(50e9, 2e9)
    assert finding.severity is Severity.WARNING
    assert "25 times as slow" in finding.found
    assert "GLIBC_TUNABLES=" in finding.remedy
    assert judge_copies(50e9, 20e9).severity is Severity.OK
