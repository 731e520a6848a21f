"""The busiest link of a schedule's messages, and published schedules beside the optimum of a network."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from hpccoll.cli import main as cli
from hpccoll.synthesis import NetworkBuilder, NetworkError
from hpccoll.synthesis.traffic import find_busiest_link

PUBLISHED = Path(__file__).parents[2] / "data" / "published"


def read_lines(path):
    """Return the records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def make_network():
    """Return three ranks: a fast link between 0 and 1, and two switches, of which the first one is the faster."""
    network = NetworkBuilder("three ranks", ["r0", "r1", "r2"])
    network.connect("r0", "r1", Fraction(8))
    for rank in ("r0", "r1", "r2"):
        network.connect(rank, "fast", Fraction(2))
        network.connect(rank, "slow", Fraction(1))
    return network.build()


def test_the_busiest_link_carries_the_messages_of_shortest_and_widest_paths():
    network = make_network()
    fast = network.vertices.index("fast")
    assert find_busiest_link(network, {(0, 1): Fraction(4)}) == (Fraction(1, 2), (0, 1))
    assert find_busiest_link(network, {(0, 1): Fraction(4), (0, 2): Fraction(3)}) == (Fraction(3, 2), (fast, 2))
    assert find_busiest_link(network, {(0, 2): Fraction(3), (1, 2): Fraction(3)}) == (Fraction(3), (fast, 2))


def test_ranks_forward_nothing():
    line = NetworkBuilder("a line", ["r0", "r1", "r2"])
    line.connect("r0", "r1", Fraction(1))
    line.connect("r1", "r2", Fraction(1))
    with pytest.raises(NetworkError, match="from rank 0 to rank 2"):
        find_busiest_link(line.build(), {(0, 2): Fraction(1)})


def test_a_published_schedule_is_compared_with_the_optimum(tmp_path, capsys):
    """Both ranks of `reduce_pack` send the whole message once, as in the optimum."""
    network, out = tmp_path / "two.toml", tmp_path / "out.jsonl"
    network.write_text('name = "two"\nranks = ["a", "b"]\nlinks = [{between = ["a", "b"], GBps = 10}]\n')
    file = str(PUBLISHED / "reduce_pack.json")
    assert cli.main(["verify", file, "--machine", str(network), "--json", str(out)]) == 0
    assert (
        "100 % of the speed that this network allows (time of the largest known lower bound" in capsys.readouterr().out
    )
    (record,) = (each for each in read_lines(out) if each["kind"] == "published_schedule")
    assert record["optimum_share"] == 1
    assert cli.main(["verify", str(PUBLISHED / "ar_tree_12_LL.xml"), "--machine", str(network)]) == 2
    assert "--machine" in capsys.readouterr().err
