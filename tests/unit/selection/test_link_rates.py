"""Stored rates of links, and the weighted all_reduce that `auto` selects by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.selection import BufferKind, SelectionKey, Selector
from hpccoll.selection.link_rates import (
    find_links_path,
    load_relative_rates,
    read_links,
    save_links,
)

RATES = {"node1": (0.05, 0.051), "node2": (0.049, 0.05), "node3": (0.05, 0.0125)}


def test_rates_are_added_to_those_of_other_hosts(tmp_path: Path) -> None:
    path = tmp_path / "of a user" / "links.json"
    assert read_links(path) == {}
    save_links(path, RATES)
    save_links(path, {"node2": (0.1, 0.1), "node9": (1.0, 2.0)})
    assert read_links(path) == RATES | {"node2": (0.1, 0.1), "node9": (1.0, 2.0)}


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "[" * 10**5, '{"schema": "other/1"}']
    + [
        f'{{"schema": "hpccoll-links/1", "rates_GBps": {{"node1": {rates}, "node2": [1, 1]}}}}'
        for rates in ("1", "[NaN, 1]", "[1, Infinity]", "[0, 1]", "[-1, 1]")
    ],
)
def test_damaged_file_is_reported_and_not_used(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "links.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="holds no link rates"):
        read_links(path)
    monkeypatch.setenv("HPCCOLL_LINKS", str(path))
    assert load_relative_rates(["node1", "node2"]) is None


def test_file_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_links_path({"HPCCOLL_LINKS": "off"}) is None
    path = tmp_path / "links.json"
    save_links(path, RATES)
    monkeypatch.setenv("HPCCOLL_LINKS", str(path))
    assert load_relative_rates(["node1.cluster", "node3", "node2"]) == (40, 10, 39)


def test_relative_rates_need_known_hosts_and_unequal_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "links.json"
    save_links(path, RATES)
    monkeypatch.setenv("HPCCOLL_LINKS", str(path))
    assert load_relative_rates(["node1", "node2", "node3"]) == (40, 39, 10)
    assert load_relative_rates(["node1", "node2"]) is None  # equal
    assert load_relative_rates(["node1", "node7"]) is None  # not measured
    assert load_relative_rates(["node3"]) is None
    assert load_relative_rates(["node1", "node3", "node3"]) is None  # two nodes share a host's link
    monkeypatch.setenv("HPCCOLL_LINKS", "off")
    assert load_relative_rates(["node1", "node3"]) is None


def select(
    rates: tuple[int, ...] | None, nbytes: int, operation: Operation = Operation.ALL_REDUCE, *, shared: bool = True
) -> str:
    selector = Selector(4, 4, None, rates=rates)
    return selector.select(SelectionKey(operation, nbytes, 4, BufferKind.HOST, True, shared)).name


def test_auto_weights_long_all_reduces_by_unequal_links() -> None:
    assert select((40, 40, 40, 10), 2**24) == "hierarchical_weighted@40:40:40:10"
    assert select((40, 40, 40, 10), 2**18) == select(None, 2**18)
    assert select((40, 40, 40, 10), 2**24, shared=False) == "ring"
    assert select((40, 40, 40, 10), 2**24, Operation.ALL_GATHER) == "ring"
    assert select((12, 12, 12, 10), 2**24) == "hierarchical_weighted@12:12:12:10"
    assert select((10, 10, 10, 12), 2**24) == "ring"  # a weighted all_reduce would gain 5 %


def test_reason_names_the_links() -> None:
    selector = Selector(4, 4, None, rates=(40, 40, 40, 10))
    selection = selector.select(SelectionKey(Operation.ALL_REDUCE, 2**24, 4, BufferKind.HOST, True, True))
    assert selection.source == "links"
    assert "preflight --save" in selection.why
