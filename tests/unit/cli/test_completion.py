"""Shell completion, with the variables that click's scripts set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpccoll.cli import completion


@pytest.mark.parametrize(
    ("complete", "typed", "words"),
    [
        (completion.complete_operations, "all_g", ["all_gather"]),
        (completion.complete_plans, "1f", ["1f1b"]),
        (completion.complete_plans, "all_gather/ri", ["all_gather/ring"]),
        (completion.complete_examples, "broadc", ["broadcast"]),
        (completion.complete_presets, "llama-3-8", ["llama-3-8b"]),
        (completion.complete_machines, "dgx", ["dgx-h100"]),
        (completion.complete_strategies, "zero", ["zero1", "zero2", "zero3"]),
        (completion.complete_plans, "mine.", ["mine."]),  # a file
    ],
)
def test_words_that_begin_with_what_was_typed(complete, typed, words):
    assert [item.value for item in complete(None, None, typed)] == words


def test_the_command_answers_the_shell():
    variables = {"_HPCCOLL_COMPLETE": "bash_complete", "COMP_WORDS": "hpccoll which all_r", "COMP_CWORD": "2"}
    code = "from hpccoll.cli.main import hpccoll; hpccoll(prog_name='hpccoll')"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["plain,all_reduce"]
