"""Objects survive being encoded and decoded: type, values, shape and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.mpi4py.nested_arrays import ArrayPlace, may_hold_arrays, put_arrays_back, take_arrays_out
from hpccoll.mpi4py.objects import HEADER_BYTES, PICKLE, ObjectHeader, decode, encode
from hpccoll.native import SmallObjects

ARRAY = np.arange(600.0)
OBJECTS: list[Any] = [
    *(3, -(2**63), 2**63, True, 2.5, 1j, None, "text", b"", np.float32(2), np.bool_(True), np.complex128(1j)),
    *(ARRAY, ARRAY[::2], np.zeros((0, 3)), np.array(2.0), np.ones(3, bool), ARRAY.astype(">f8"), np.array(["a", "b"])),
    *(np.asfortranarray(np.ones((3, 4))), np.ones((1, 2, 1, 2, 1, 2, 3)), np.ma.masked_array([1, 2], [True, False])),
    *((ARRAY, 1), {"a": ARRAY, "b": [ARRAY[:100], {"c": (ARRAY,)}]}, [ARRAY] * 3, [1] * 500, ((), [])),
]


def encode_and_decode(obj):
    """Return an object after it was encoded and decoded."""
    encoded = encode(obj)
    slot = memoryview(bytearray(HEADER_BYTES + encoded.nbytes))
    encoded.write(slot)
    header = ObjectHeader(slot)
    assert header.nbytes == encoded.nbytes
    return decode(header, slot, HEADER_BYTES)


def require_same(got, expected):
    """Assert that two objects have equal types, values, shapes and orders."""
    assert type(got) is type(expected)
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert got.flags.f_contiguous == (expected.flags.f_contiguous or not expected.flags.contiguous)
        assert got.flags.writeable
        np.testing.assert_array_equal(got, expected)
    elif isinstance(expected, tuple | list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            require_same(one, other)
    elif isinstance(expected, dict):
        require_same(list(got.items()), list(expected.items()))
    else:
        assert got == expected


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: f"{type(obj).__name__}-{str(obj)[:12]}")
def test_an_object_comes_back_as_it_was(obj):
    if isinstance(obj, np.ndarray) and not obj.flags.contiguous:
        obj = obj.copy()
    require_same(encode_and_decode(obj), obj)


def test_arrays_in_containers_are_not_pickled():
    assert encode((ARRAY, {"a": [ARRAY]})).header[0] != PICKLE
    assert encode([1, 2]).header[0] == PICKLE
    rest, arrays = take_arrays_out({"a": [ARRAY, 5], "b": ARRAY}, 512)
    assert [array is ARRAY for array in arrays] == [True]
    assert isinstance(rest["a"][0], ArrayPlace)
    assert rest["a"][0] is rest["b"]


def test_one_object_at_two_places_stays_one_object():
    shared = [ARRAY]
    got = encode_and_decode((shared, shared, ARRAY))
    assert got[0] is got[1]
    assert got[0][0] is got[2]


def test_a_container_that_contains_itself_is_pickled_as_a_whole():
    loop: list[Any] = [ARRAY]
    loop.append(loop)
    assert take_arrays_out(loop, 512) == (loop, [])
    got = encode_and_decode(loop)
    assert got[1] is got


def test_the_users_containers_are_not_changed():
    given: dict[str, Any] = {"a": [ARRAY, (ARRAY, 1)]}
    put_arrays_back(*take_arrays_out(given, 512))
    assert given["a"][0] is ARRAY
    assert given["a"][1][0] is ARRAY


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"a": 1, "b": [2.0, "c", None]}, False),
        ({"a": 1, "b": [2.0, ("c", ARRAY)]}, True),
        ([object(), {1, 2}], False),
        ([ARRAY] * 300, False),
        ((), False),
    ],
)
def test_containers_without_arrays_are_not_searched(container, expected):
    assert may_hold_arrays(container) is expected
    assert bool(take_arrays_out(container, 512)[1]) is expected


def test_a_container_that_contains_itself_has_no_arrays():
    container: list[Any] = [1]
    container.append(container)
    assert not may_hold_arrays(container)


SMALL: list[Any] = [
    *(0, 3, -(2**63), 2**63 - 1, 2**63, True, None, 2.5, float("-inf"), -0.0, 1j, "text", "x" * 150, b"", b"\0"),
    *((), (1, [2.0, {"a": (None, b"c"), 3: "d"}]), {"a": 1, "b": [1, 2]}),
]
FOR_PYTHON: list[Any] = [
    *(
        "x" * 193,
        b"x" * 193,
        ["x" * 99, "y" * 99],
        [1] * 64,
        [[[[[[[[[[1]]]]]]]]]],
        ARRAY,
        [ARRAY[:2]],
        np.float64(1),
        {1},
        {"a": {1}},
    ),
    *(range(3), {(1, ARRAY.tobytes()): 2}),
]


def make_small_objects() -> tuple[SmallObjects, bytearray]:
    """Return a writer of small objects, and memory for three slots."""
    return SmallObjects(HEADER_BYTES + 4096, 192, MPI.pickle), bytearray(3 * (HEADER_BYTES + 4096))


@pytest.mark.parametrize("obj", SMALL, ids=lambda obj: f"{type(obj).__name__}-{str(obj)[:12]}")
def test_native_code_writes_and_reads_small_objects(obj):
    small, slots = make_small_objects()
    assert small.write_all(slots, [obj] * 3)
    assert slots[HEADER_BYTES - 1] == 1
    assert not small.write_all(slots, [obj] * 2)
    assert all(small.write(slots, rank * len(slots) // 3, obj) for rank in range(3))
    assert slots[HEADER_BYTES - 1] == 0
    require_same(small.read(slots), obj)
    require_same(small.read_all(slots), [obj] * 3)
    assert small.are_all_small(slots)
    assert str(small.read(slots)) == str(obj)  # also the sign of zero
    require_same(decode(ObjectHeader(slots), slots, HEADER_BYTES), obj)


@pytest.mark.parametrize("obj", FOR_PYTHON, ids=lambda obj: f"{type(obj).__name__}-{str(obj)[:12]}")
def test_native_code_leaves_other_objects_to_python(obj):
    small, slots = make_small_objects()
    assert not small.write(slots, 0, obj)
    assert not any(slots)
    assert not small.write_all(slots, [obj] * 3)
    encode(obj).write(memoryview(slots))
    assert small.read(slots) is NotImplemented
    assert small.read_all(slots) is NotImplemented
    assert not small.are_all_small(slots)


def test_a_slot_without_room_for_a_small_object_is_left_to_python():
    small = SmallObjects(HEADER_BYTES + 100, 100, MPI.pickle)
    slots = bytearray(HEADER_BYTES + 100)
    assert not small.write(slots, 0, "x" * 100)
    for wrong in (-1, 1):
        with pytest.raises(ValueError, match="outside"):
            small.write(slots, wrong, 1)
    with pytest.raises(ValueError, match="outside"):
        small.read(slots[:100])
    slots[0], slots[8:16] = 6, (10**6).to_bytes(8, "little")
    with pytest.raises(ValueError, match="no object"):
        small.read(slots)
