"""The call cache: entries by array end with the array, entries by address are freed when there are too many."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest

from hpccoll.native import CallTable
from hpccoll.runtime import call_cache
from hpccoll.runtime.call_cache import CallCache


class FakeExecutable:
    """Counts how often it was freed."""

    def __init__(self):
        self.live, self.freed, self.abandoned = True, 0, False

    def free(self):
        self.live = False
        self.freed += 1

    def abandon(self):
        self.abandoned = True


@pytest.fixture
def cache():
    return CallCache(CallTable(np.ndarray, {}, []))


def test_a_call_with_the_same_arrays_finds_its_executable(cache):
    x, out, executable = np.ones(3), np.ones(3), FakeExecutable()
    cache.add_by_array("key", executable, x, out)
    assert cache.find_by_array("key", x, out) is executable
    assert cache.find_by_array("other", x, out) is None
    cache.add_by_array("in place", executable, x, None)
    assert cache.find_by_array("in place", x, None) is executable


def test_a_call_on_arrays_of_numpy_and_torch_is_found_until_the_tensor_moves(cache):
    torch = pytest.importorskip("torch")
    x, out, executable = np.ones(3), torch.ones(3), FakeExecutable()
    for name, arrays in (("out", (x, out)), ("x", (out, x))):
        cache.add_by_array(name, executable, *arrays)
        assert cache.find_by_array(name, *arrays) is executable
    out.set_(torch.ones(3))
    assert cache.find_by_array("out", x, out) is None
    assert cache.find_by_array("x", out, x) is None


def test_a_call_without_input_is_found_by_its_output(cache):
    out, executable = np.ones(3), FakeExecutable()
    cache.add_by_array("key", executable, None, out)
    assert cache.find_by_array("key", "ignored", out) is executable
    assert cache.find_by_array("key", None, np.ones(3, np.float32)) is None
    del out
    assert not cache.by_array


@pytest.mark.parametrize("dropped", ["x", "out"])
def test_an_entry_ends_with_either_of_its_arrays(cache, dropped):
    arrays = {"x": np.ones(3), "out": np.ones(3)}
    cache.add_by_array("key", FakeExecutable(), arrays["x"], arrays["out"])
    del arrays[dropped]
    gc.collect()
    assert not cache.by_array


def test_the_cache_does_not_keep_arrays_alive(cache):
    x = np.ones(3)
    cache.add_by_array("key", FakeExecutable(), x, None)
    gone = weakref.ref(x)
    del x
    assert gone() is None


@pytest.mark.parametrize("changed", ["x", "out"])
def test_an_array_that_changed_its_dtype_is_not_found(cache, changed):
    arrays: dict[str, Any] = {"x": np.zeros(4, np.float32), "out": np.zeros(4, np.float32)}
    bound = tuple(arrays.values())  # kept alive, otherwise the entry would end with them
    cache.add_by_array("key", FakeExecutable(), *bound)
    arrays[changed] = Retyped(arrays[changed])
    assert cache.find_by_array("key", arrays["x"], arrays["out"]) is None


class Retyped:
    """Stands for an array of the same id whose dtype was set anew."""

    def __init__(self, array):
        self.dtype = np.dtype(f"i{array.itemsize}")


def test_a_tensor_that_moved_is_not_found(cache, monkeypatch):
    class Tensor:
        dtype, nbytes, at = "float32", 16, 1024

        def data_ptr(self):
            return self.at

        def is_contiguous(self):
            return True

    monkeypatch.setattr(call_cache, "is_torch_tensor", lambda array: isinstance(array, Tensor))
    x, executable = Tensor(), FakeExecutable()
    cache.add_by_array("key", executable, x, None)
    assert cache.find_by_array("key", x, None) is executable
    x.at = 2048
    assert cache.find_by_array("key", x, None) is None
    x.at, x.nbytes = 1024, 32
    assert cache.find_by_array("key", x, None) is None


def test_a_freed_executable_is_not_found(cache):
    x, executable = np.ones(3), FakeExecutable()
    cache.add_by_array("key", executable, x, None)
    cache.add_by_address("key", executable)
    executable.free()
    assert cache.find_by_array("key", x, None) is None
    assert cache.find_by_address("key") is None


def test_entries_by_array_are_dropped_when_there_are_too_many(cache, monkeypatch):
    monkeypatch.setattr(call_cache, "ARRAY_CAPACITY", 3)
    x, executable = np.ones(3), FakeExecutable()
    for key in range(5):
        cache.add_by_array(key, executable, x, None)
        assert cache.find_by_array(key, x, None) is executable
        assert len(cache.by_array) <= 3
    assert executable.live


def test_the_least_recently_used_executable_is_freed(cache, monkeypatch):
    monkeypatch.setattr(call_cache, "CAPACITY", 2)
    made = {name: FakeExecutable() for name in "abc"}
    cache.add_by_address("a", made["a"])
    cache.add_by_address("b", made["b"])
    assert cache.find_by_address("a") is made["a"]
    cache.add_by_address("c", made["c"])
    assert [executable.freed for executable in made.values()] == [0, 1, 0]
    assert len(cache) == 2
    assert cache.find_by_address("b") is None


def test_clear_frees_kept_executables_once_each(cache):
    x, by_address, prepared = np.ones(3), FakeExecutable(), FakeExecutable()
    cache.add_by_array("key", by_address, x, None)
    cache.add_by_address("key", by_address)
    cache.keep(prepared)
    cache.clear()
    cache.clear()
    assert (by_address.freed, prepared.freed) == (1, 1)
    assert not cache.by_array
    assert len(cache) == 0


def test_an_executable_that_its_user_freed_is_no_longer_kept(cache):
    freed, kept = FakeExecutable(), FakeExecutable()
    cache.keep(freed)
    freed.free()
    cache.keep(kept)
    gone = weakref.ref(freed)
    del freed
    assert gone() is None
    cache.clear()
    assert kept.freed == 1


def test_forgetting_arrays_keeps_executables_by_address(cache):
    x, executable = np.ones(3), FakeExecutable()
    cache.add_by_array("key", executable, x, None)
    cache.add_by_address("key", executable)
    cache.forget_arrays()
    assert cache.find_by_array("key", x, None) is None
    assert cache.find_by_address("key") is executable


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_forgets_arrays(cache):
    """So that its next call is checked, and refused: MPI cannot be used after a fork."""
    x = np.ones(3)
    cache.add_by_array("key", FakeExecutable(), x, None)
    cache.by_kind["kind"] = "collective"
    prepared = FakeExecutable()
    cache.keep(prepared)
    child = os.fork()
    if not child:
        is_empty = cache.find_by_array("key", x, None) is None and not cache.by_kind
        os._exit(3 if is_empty and prepared.abandoned and not prepared.freed else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert cache.find_by_array("key", x, None) is not None
    assert not prepared.abandoned
