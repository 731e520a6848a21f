"""Findings of a report: problems and remarks, each with evidence and a remedy. Start in collect.py."""
