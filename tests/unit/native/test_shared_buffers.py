"""The registry of memory that other ranks can address finds buffers by any address in them until they are freed."""

from __future__ import annotations

import random
import sys

import pytest

from hpccoll.native import SharedBuffers


@pytest.fixture
def shared():
    return SharedBuffers()


def add(shared, address, nbytes):
    buffer = object()
    shared.add(address, nbytes, 1 << 63, None, [], buffer)
    return buffer


def test_a_buffer_is_found_by_every_address_in_it(shared):
    first, second = add(shared, 1000, 8), add(shared, 1008, 1)
    found = [shared.find(address) for address in (999, 1000, 1007, 1008, 1009)]
    assert found == [None, first, first, second, None]
    assert len(shared) == 2


def test_an_empty_buffer_has_no_address(shared):
    add(shared, 1000, 0)
    assert shared.find(1000) is None
    assert len(shared) == 1


def test_buffers_come_and_go_in_any_order(shared):
    draw = random.Random(3)
    kept: dict[int, object] = {}
    for _ in range(2000):
        address = 16 * draw.randrange(40)
        if address in kept:
            assert shared.remove(address) is kept.pop(address)
        else:
            kept[address] = add(shared, address, 1 + draw.randrange(16))
        assert len(shared) == len(kept)
    for address in range(0, 640, 16):
        assert shared.find(address) is kept.get(address)


def test_a_freed_buffer_is_still_found_until_it_is_removed(shared):
    buffer = add(shared, 1000, 8)
    shared.free(1000)
    assert shared.find(1004) is buffer
    assert shared.remove(1000) is buffer
    assert shared.find(1004) is None


@pytest.mark.parametrize("method", ["remove", "free"])
def test_an_address_inside_of_a_buffer_is_not_its_beginning(shared, method):
    add(shared, 1000, 8)
    with pytest.raises(KeyError, match="no buffer begins at this address"):
        getattr(shared, method)(1004)


def test_a_removed_buffer_is_released(shared):
    buffer = add(shared, 1000, 8)
    before = sys.getrefcount(buffer)
    shared.remove(1000)
    assert sys.getrefcount(buffer) == before - 1


def test_wrong_arguments_are_refused(shared):
    with pytest.raises(TypeError):
        shared.add(1000, 8, 1, None, (1,), None)
    with pytest.raises(TypeError):
        shared.add(1000, 8, 1, None, ["1"], None)
    assert len(shared) == 0
