"""Descriptions of machines: the built-in ones, a user's own, and invalid files."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Machine
from hpccoll.predict.machine_catalogue import (
    MachineError,
    build_machine,
    list_machines,
    load_machine,
    parse_machine,
    require_capacity,
)

GOOD = """
name = "two nodes"
ranks_per_node = 4
nics_per_node = 2
reduce_GBps = 10
call_us = 2
sources = ["measured"]
[within]
alpha_us = 1.5
bandwidth_GBps = 20
[between]
alpha_us = 10
overhead_us = 2.5
bandwidth_GBps = 12.5
"""


def test_a_description_becomes_a_machine():
    machine = parse_machine(GOOD, "file")
    near, wide = machine.within, machine.between
    assert [near.alpha_s, near.beta_s_per_byte, near.overhead_s] == pytest.approx([1.5e-6, 5e-11, 1.5e-6])
    assert [wide.alpha_s, wide.beta_s_per_byte, wide.overhead_s] == pytest.approx([1e-5, 8e-11, 2.5e-6])
    assert (machine.name, machine.ranks_per_node, machine.nics_per_node) == ("two nodes", 4, 2)
    assert [machine.gamma_s_per_byte, machine.call_s] == pytest.approx([1e-10, 2e-6])
    assert machine.sources == ("measured",)
    assert machine.count_nodes(9) == 3
    assert machine.with_ranks_per_node(1).nics_per_node == 1


def test_the_machines_that_come_along_have_sources_and_are_plausible():
    assert list_machines() == ["dgx-h100", "h200", "laptop", "summit", "workstation"]
    for name in list_machines():
        machine = load_machine(name)
        assert len(machine.sources) >= 3, name
        assert 1e-7 < machine.within.alpha_s < machine.between.alpha_s < 1e-3, name
        assert machine.within.beta_s_per_byte < machine.between.beta_s_per_byte, name
    summit = load_machine("summit")
    assert (summit.ranks_per_node, summit.nics_per_node) == (6, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ranks_per_node = 4", ""), "missing required field `ranks_per_node`"),
        (("ranks_per_node = 4", "ranks_per_node = 0"), "ranks_per_node is '0': Expected `int` >= 1"),
        (("ranks_per_node = 4", "ranks_per_node = true"), "ranks_per_node is 'True': Expected `int`, got `bool`"),
        (("nics_per_node = 2", "nics_per_node = 5"), "nics_per_node = 5 is more than ranks_per_node = 4"),
        (('name = "two nodes"', "name = 2"), "name is '2': Expected `str`, got `int`"),
        (("call_us = 2", "call_us = -1"), "call_us is '-1': Expected `float` >= 0"),
        (("call_us = 2", "colour = 2"), "unknown field `colour`; the known keys are name, ranks_per_node"),
        (("reduce_GBps = 10", "reduce_GBps = 0"), "reduce_GBps is '0': Expected `float` > "),
        (('["measured"]', "3"), "sources is '3': Expected `array`, got `int`"),
        (("[within]", "[inside]"), "unknown field `inside`"),
        (("alpha_us = 1.5", "alpha_us = nan"), r"within.alpha_us is 'nan': Expected `float` >= 0"),
        (("alpha_us = 1.5", 'alpha_us = "1"'), r"within.alpha_us is '1': Expected `float`, got `str`"),
        (("alpha_us = 1.5", "alpha_us = -1.5"), r"within.alpha_us is '-1.5': Expected `float` >= 0"),
        (("overhead_us = 2.5", "overhead_us = 11"), r"\[between\]: need 0 <= overhead_us <= alpha_us; found 11 and 10"),
        (("overhead_us = 2.5", "alpah_us = 1"), r"unknown field `alpah_us`; .* in a link alpha_us, bandwidth_GBps"),
        (("[within]", "[within"), "is not TOML"),
    ],
)
def test_what_cannot_be_meant_is_named(change, message):
    assert change[0] in GOOD
    with pytest.raises(MachineError, match=rf"my\.toml.*{message}"):
        parse_machine(GOOD.replace(*change), "my.toml")


def test_missing_links_are_named():
    with pytest.raises(MachineError, match=r"missing required field `between`"):
        parse_machine(GOOD.partition("[between]")[0], "my.toml")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("cray", UnknownNameError, "unknown machine 'cray'; choose one of: FILE.toml, dgx-h100, fit:FILE"),
        ("/nowhere/my.toml", UsageError, r"--machine /nowhere/my\.toml: cannot read it \(No such file"),
        ("nul\0.toml", UsageError, "cannot read it"),
    ],
)
def test_names_that_are_none(name, error, message):
    with pytest.raises(error, match=message):
        load_machine(name)


def test_files_that_are_no_text(tmp_path):
    path = tmp_path / "my.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(MachineError, match="is not UTF-8 text"):
        load_machine(str(path))
    path.write_text(GOOD)
    assert load_machine(str(path)).name == "two nodes"


def is_sound(machine: Machine) -> bool:
    """Whether all costs of a machine model are finite and not negative."""
    times = [machine.gamma_s_per_byte, machine.call_s]
    for link in (machine.within, machine.between):
        times += [link.alpha_s, link.beta_s_per_byte, link.overhead_s, link.alpha_s - link.overhead_s]
    counts = machine.ranks_per_node >= machine.nics_per_node >= 1
    return counts and all(value >= 0 and math.isfinite(value) for value in times)


def sound_or_refused(describe: Callable[[], Machine]) -> bool:
    """Any other exception is one that a user would see."""
    try:
        return is_sound(describe())
    except MachineError as error:
        return str(error).startswith("drawn")


@given(st.text(max_size=300))
def test_any_text_is_a_machine_or_an_error_of_ours(text):
    assert sound_or_refused(lambda: parse_machine(text, "drawn"))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=2),
)
NUMBERS = st.one_of(st.integers(1, 8), st.floats(0, 1e3), VALUES)
LINK = st.dictionaries(st.sampled_from(["alpha_us", "overhead_us", "bandwidth_GBps", "x"]), NUMBERS)


@given(
    st.dictionaries(
        st.sampled_from([*tomllib.loads(GOOD), "x"]),
        st.one_of(NUMBERS, LINK),
    ),
    st.booleans(),
)
def test_any_mapping_is_a_machine_or_an_error_of_ours(found, mended):
    if mended:  # most of what is drawn is wrong in several places: here in few
        found = tomllib.loads(GOOD) | found
    assert sound_or_refused(lambda: build_machine(found, "drawn"))


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, f"x = {'9' * 10_000}", "a" * 2_000_000])
def test_texts_that_are_out_of_all_proportion(text):
    with pytest.raises(MachineError, match=r"my\.toml"):
        parse_machine(text, "my.toml")


def test_the_missing_keys_of_a_machine_are_named():
    laptop = load_machine("laptop")
    with pytest.raises(UsageError, match="machine laptop has no peak_TFLOPS and no memory_GB"):
        require_capacity(laptop, "memory_bytes")
    with pytest.raises(UsageError, match="has no peak_TFLOPS, which"):
        require_capacity(replace(laptop, memory_bytes=1e9), "peak_flop_per_s")
