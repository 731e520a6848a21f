"""Predictions of changes, against run times that are known, and the exports of a job."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Link, Machine, Operation
from hpccoll.profile.chakra import encode_execution_trace
from hpccoll.profile.dependencies import build_graph
from hpccoll.profile.exports import export_profile, format_csv, format_perfetto
from hpccoll.profile.goal import format_goal
from hpccoll.profile.layout import EntryFlag, read_itemsizes
from hpccoll.profile.network_model import NetworkModel, find_fastest, scale_transfers, simulate_kind
from hpccoll.profile.replay_steps import make_steps
from hpccoll.profile.transfer_kinds import ModelledTransfer, RecordedTransfer, classify_transfers, measure_transfers
from hpccoll.profile.what_if import DEFAULT_CHANGES, WhatIf, format_configuration
from hpccoll.selection.tuning_files import write_table
from hpccoll.selection.tuning_table import (
    BufferKind,
    CandidateTiming,
    TuningPoint,
    TuningSeries,
    TuningSite,
    TuningTable,
)
from hpccoll.units import parse_size
from tests.unit.profile.traces import TraceBuilder, make_profile

ALPHA_S, BETA, RANKS, STEPS = 20e-6, 1e-9, 4, 5
SIZES = (8, 4096, 65536, 2**20)


def make_graph(alpha_s=ALPHA_S, beta=BETA, slow=1.0, algorithm=None):
    """Return the graph of a job on a network that is exactly the model, where rank 3 computes `slow` times as long.

    `algorithm` is one that the user has chosen for all sizes; without it, the user has chosen a fast one for each size.
    """
    builders, clock = [TraceBuilder() for _ in range(RANKS)], 0.0
    for _ in range(STEPS):
        for nbytes in SIZES:
            kind = ModelledTransfer("all_reduce", RANKS, nbytes)
            machine = Machine.flat(alpha_s, beta, 0.0)
            fast = "recursive_doubling" if nbytes < 10000 else "rabenseifner"
            transfer_s = simulate_kind(kind, machine, algorithm or fast)
            end = clock + 2e-3 * slow + transfer_s
            for rank, builder in enumerate(builders):
                builder.add("all_reduce", clock + 2e-3 * (slow if rank == 3 else 1), end, nbytes=nbytes)
            clock = end
    fast = "all_reduce:0-10000=recursive_doubling,all_reduce:10000-=rabenseifner"
    chosen = f"all_reduce={algorithm}" if algorithm else fast
    return build_graph(replace(make_profile(builders, clock), algorithms=chosen))


def get_bounds(predicted):
    """Return the bounds of a prediction, which must have some."""
    assert predicted.bounds_s is not None
    return predicted.bounds_s


@pytest.mark.parametrize(("used", "other"), [("ring", "recursive_doubling"), ("recursive_doubling", "ring")])
def test_the_bounds_of_another_algorithm_contain_its_time(used, other):
    what_if = WhatIf(make_graph(algorithm=used))
    assert what_if.network_error < 0.01
    predicted = what_if.predict([f"algorithm=all_reduce/{other}"])[0]
    low_s, high_s = get_bounds(predicted)
    assert low_s < make_graph(algorithm=other).run_s < high_s


def test_a_large_saving_of_another_algorithm_is_predicted():
    latency_s = 1e-3
    predicted = WhatIf(make_graph(latency_s, algorithm="ring")).predict(["algorithm=all_reduce/recursive_doubling"])[0]
    expected_s = make_graph(latency_s, algorithm="recursive_doubling").run_s
    assert predicted.seconds == pytest.approx(expected_s, rel=0.02)


@pytest.mark.parametrize(
    ("change", "network"), [("bandwidth=4", (ALPHA_S, BETA / 4)), ("latency=0.25", (ALPHA_S / 4, BETA))]
)
def test_a_better_network_is_predicted(change, network):
    predicted = WhatIf(make_graph()).predict([change])[0]
    assert predicted.seconds == pytest.approx(make_graph(*network).run_s, rel=0.02)
    assert predicted.error < 0.05


NEAR, FAR = (2e-6, 1e-10), (30e-6, 4e-9)
HOSTS = ("first", "first", "second", "second")
MACHINE = """
name = "other cluster"
ranks_per_node = 8
nics_per_node = 1
reduce_GBps = 1e9
sources = ["assumed"]
[within]
alpha_us = 5.0
overhead_us = 5.0
bandwidth_GBps = 4.0
[between]
alpha_us = 10.0
overhead_us = 10.0
bandwidth_GBps = 1.0
"""
OTHER_NEAR, OTHER_FAR = (5e-6, 1 / 4e9), (10e-6, 1 / 1e9)


def make_two_level_graph(near=NEAR, far=FAR, hosts=HOSTS):
    """Return the graph of a job on two nodes: messages to ranks 1 and 3 from their own and the other node."""
    builders, clock = [TraceBuilder() for _ in range(4)], np.zeros(4)
    links = {(0, 1): near, (0, 3): far, (2, 3): near, (2, 1): far}
    machine = Machine("two levels", 2, Link.one_port(*near), Link.one_port(*far), 1, 0.0)
    for nbytes in SIZES * 2:
        for (source, dest), (alpha_s, beta) in links.items():
            clock[source] += 1e-3
            builders[source].add("send", clock[source], clock[source], peer=dest, nbytes=nbytes)
            begin, clock[dest] = clock[dest], max(clock[dest], clock[source]) + alpha_s + beta * nbytes
            builders[dest].add("recv", begin, clock[dest], peer=source, nbytes=nbytes)
        end = clock.max() + find_fastest(ModelledTransfer("all_reduce", 4, nbytes, 2), machine)[1]
        for builder, begin in zip(builders, clock, strict=True):
            builder.add("all_reduce", begin, end, nbytes=nbytes)
        clock[:] = end
    return build_graph(make_profile(builders, float(clock[0]), hosts=hosts))


def test_the_links_within_and_between_nodes_are_told_apart():
    what_if = WhatIf(make_two_level_graph())
    network = what_if.network
    assert (network.alpha_s, network.beta_s_per_byte) == pytest.approx(FAR, rel=0.1)
    assert (network.within.alpha_s, network.within.beta_s_per_byte) == pytest.approx(NEAR, rel=0.25)
    faster = make_two_level_graph(far=(FAR[0], FAR[1] / 4)).run_s
    bandwidth, balance = what_if.predict(["bandwidth=4", "balance"])
    assert bandwidth.seconds == pytest.approx(faster, rel=0.02)
    assert bandwidth.error == what_if.network_error > balance.error == what_if.error


def test_a_machine_with_levels_carries_each_message_on_its_level(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(MACHINE)
    predicted = WhatIf(make_two_level_graph()).predict([f"machine={file}"])[0]
    moved = make_two_level_graph(OTHER_NEAR, OTHER_FAR).run_s
    assert predicted.seconds == pytest.approx(moved, rel=0.02)
    assert predicted.assumption == "ranks are on nodes as recorded"


def test_the_ranks_of_one_node_fill_the_nodes_of_a_machine(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(MACHINE.replace("ranks_per_node = 8", "ranks_per_node = 2"))
    link = (3e-6, 2e-10)
    one_node = make_two_level_graph(link, link, ("host",) * 4)
    predicted = WhatIf(one_node).predict([f"machine={file}"])[0]
    assert predicted.seconds == pytest.approx(make_two_level_graph(OTHER_NEAR, OTHER_FAR).run_s, rel=0.02)
    low_s, high_s = get_bounds(predicted)  # of several networks that explain the recorded transfers
    assert low_s < predicted.seconds < high_s
    assert predicted.assumption == "2 ranks per node"


def test_healing_and_balancing_a_late_rank():
    graph = make_graph(slow=2.0)
    healed, balanced = WhatIf(graph).predict(["heal=3", "balance"])
    assert healed.seconds == pytest.approx(make_graph().run_s)
    assert balanced.seconds == pytest.approx(graph.run_s - STEPS * len(SIZES) * 2e-3 * (2 - 5 / 4))
    assert healed.saving == pytest.approx(1 - healed.seconds / graph.run_s)


def test_more_ranks_and_other_algorithms():
    what_if = WhatIf(make_graph())
    weak, strong, ring, best = what_if.predict(
        ["ranks=4x", "ranks=4x:strong", "algorithm=all_reduce/ring", "algorithm=auto"]
    )
    savings = [each.saving for each in (weak, strong, best) if each.saving is not None]
    assert savings[0] < 0 < savings[1]
    assert savings[2] >= 0
    assert get_bounds(ring)[1] > what_if.graph.run_s
    script = format_configuration(what_if.choose_algorithms())
    assert re.fullmatch(r"export HPCCOLL_MPI4PY_ALGORITHMS=all_reduce:\d+-\d+=\w+(,all_reduce:\d+-\d*=\w+)*\n", script)


def test_algorithms_are_chosen_for_the_sizes_of_the_largest_communicators():
    builders = [TraceBuilder().add("all_reduce", 0, 1, nbytes=8) for _ in range(3)]
    for builder in builders[:2]:
        builder.add("all_reduce", 1, 2, nbytes=64, comm=1)
    chosen = WhatIf(build_graph(make_profile(builders, 2, ((0, 1),)))).choose_algorithms()
    assert [nbytes for nbytes, _ in chosen["all_reduce"]] == [8]


def test_the_drop_in_reads_the_configuration():
    from hpccoll.mpi4py.configuration import read_choices

    given = format_configuration(WhatIf(make_graph()).choose_algorithms()).partition("=")[2].strip()
    choices = read_choices(given)
    assert [choice.least for choice in choices] == sorted(map(int, SIZES))
    assert choices[-1].includes(parse_size("1G"))


@pytest.mark.parametrize(
    "change", ["bandwidth=0", "bandwidth=x", "heal=9", "ranks=0x", "ranks=2x:odd", "algorithm=ring", "faster"]
)
def test_a_wrong_change_is_refused(change):
    with pytest.raises(UsageError, match=re.escape(f"--what-if {change}")):
        WhatIf(make_graph()).predict([change])


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(UnknownNameError, match="rign"):
        WhatIf(make_graph()).predict(["algorithm=all_reduce/rign"])


def make_one_size_graph(nbytes, algorithm="ring", seconds=5e-3, method="all_reduce", slow_first=1.0, members=None):
    """Return the graph of 50 all_reduces of `seconds`; the first one takes `slow_first` times as long.

    `members` are the ranks of the communicator, if these are not all ranks.
    """
    builders, clock = [TraceBuilder() for _ in range(RANKS)], 0.0
    for number in range(50):
        end = clock + 1e-3 + seconds * (1.0 if number else slow_first)
        for rank in members or range(RANKS):
            builders[rank].add("all_reduce", clock + 1e-3, end, nbytes=nbytes, comm=int(members is not None))
        clock = end
    profile = make_profile(builders, clock, (members,) if members else ())
    chosen = None if algorithm == "mpi" else f"all_reduce={algorithm}"
    names = tuple(name.replace("all_reduce", method) for name in profile.names)
    site = TuningSite("MPICH 5", "processor", "4 ranks on 1 node")
    return build_graph(replace(profile, algorithms=chosen, names=names, tuning_site=site))


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TUNING", "off")


def test_latency_decides_on_small_messages_and_one_size_does_not_decide_on_large_ones():
    small = WhatIf(make_one_size_graph(8)).predict(["algorithm=all_reduce/recursive_doubling"])[0]
    assert small.seconds == pytest.approx(50 * (1e-3 + 5e-3 / 3), rel=0.02)  # 2 steps in place of 6
    large = WhatIf(make_one_size_graph(2**18))
    for change in ("algorithm=all_reduce/recursive_doubling", "bandwidth=2", "latency=0.5"):
        predicted = large.predict([change])[0]
        assert predicted.seconds is None
        assert predicted.saving is None
        low_s, high_s = get_bounds(predicted)
        assert low_s < high_s
        assert predicted.saving_bounds == (1 - high_s / large.graph.run_s, 1 - low_s / large.graph.run_s)
        assert " to " in predicted.format_values()[1]
    assert "hpccoll tune all_reduce" in large.predict(["algorithm=all_reduce/recursive_doubling"])[0].assumption


def test_the_effect_of_another_algorithm_than_that_of_the_mpi_library_is_not_known_without_measured_times():
    predicted = WhatIf(make_one_size_graph(8, "mpi", method="Allreduce")).predict(["algorithm=all_reduce/ring"])[0]
    assert (predicted.seconds, predicted.bounds_s) == (None, None)
    assert predicted.format_values() == ("not known", "not known")


@pytest.mark.parametrize(
    ("library", "remedy"),
    [
        ("", "hpccoll replay RECORDING --engine mpi,all_reduce/ring --save -n 12 measures this job"),
        ("gloo", "not known closely: mpirun -n 4 hpccoll replay RECORDING --engine gloo,all_reduce/ring --save"),
        ("nccl", "not known closely: the recorded algorithms are unknown"),
    ],
)
def test_only_measurements_that_help_are_suggested(library, remedy):
    graph = make_one_size_graph(8, "mpi", method="Allreduce")
    recorded = replace(graph, profile=replace(graph.profile, library=library))
    assumption = WhatIf(recorded).predict(["algorithm=all_reduce/ring"])[0].assumption
    assert remedy in assumption
    assert ("hpccoll tune" in assumption) == (library == "")


def predict_with_table(
    used, method, tmp_path, monkeypatch, *, seconds=2e-4, error=0.0, buffer=BufferKind.HOST, members=None
):
    """Return the recorded job and the predictions for `tree` and the fastest algorithm, with a tuning table.

    `seconds` is the recorded time of an all_reduce, and `error` half the relative width of the table's intervals.
    """
    points = tuple(
        TuningPoint(
            nbytes,
            "today",
            tuple(CandidateTiming(name, us, us * (1 - error), us * (1 + error)) for name, us in times.items()),
        )
        for nbytes, times in ((2**16, {used: 100.0, "tree": 25.0}), (2**20, {used: 400.0, "tree": 200.0, "scan": 1.0}))
    )
    graph = make_one_size_graph(2**18, used, seconds, method, slow_first=100.0, members=members)
    series = TuningSeries(Operation.ALL_REDUCE, 4, buffer, points)
    assert graph.profile.tuning_site is not None
    write_table(tmp_path / "table.json", TuningTable(graph.profile.tuning_site, (series,)))
    monkeypatch.setenv("HPCCOLL_TUNING", str(tmp_path / "table.json"))
    return graph, WhatIf(graph).predict(["algorithm=all_reduce/tree", "algorithm=auto"])


@pytest.mark.parametrize(("used", "method"), [("ring", "all_reduce"), ("mpi", "Allreduce")])
def test_a_tuning_table_of_the_recorded_site_predicts_another_algorithm(used, method, tmp_path, monkeypatch):
    graph, (tree, best) = predict_with_table(used, method, tmp_path, monkeypatch)
    ratio = (25 * 200 / (100 * 400)) ** 0.5  # in the middle of the logarithms of sizes and times
    usual_s = (49 + 3) * 2e-4  # of the first transfer, the part beyond three times the median stays
    assert tree.seconds == pytest.approx(graph.run_s - (1 - ratio) * usual_s, rel=1e-6)
    assert best.seconds == pytest.approx(tree.seconds, rel=1e-6)
    assert "tuning table" in tree.assumption


@pytest.mark.parametrize(("itemsize", "ratio"), [(8, 0.5), (4, 0.25), (0, 0.25)])
def test_the_tuning_table_of_the_recorded_element_size_is_used(itemsize, ratio, tmp_path, monkeypatch):
    graph = make_one_size_graph(2**18, "ring", 2e-4)
    ring = CandidateTiming("ring", 200, 200, 200)
    points = {4: CandidateTiming("tree", 50, 50, 50), 8: CandidateTiming("tree", 100, 100, 100)}
    series = tuple(
        TuningSeries(Operation.ALL_REDUCE, size, BufferKind.HOST, (TuningPoint(2**18, "today", (ring, tree)),))
        for size, tree in points.items()
    )
    assert graph.profile.tuning_site is not None
    write_table(tmp_path / "table.json", TuningTable(graph.profile.tuning_site, series))
    monkeypatch.setenv("HPCCOLL_TUNING", str(tmp_path / "table.json"))
    sized = replace(graph, itemsize=np.where(graph.nbytes == 2**18, itemsize, 0))
    predicted = WhatIf(sized).predict(["algorithm=all_reduce/tree"])[0]
    assert predicted.seconds == pytest.approx(graph.run_s - 50 * 2e-4 * (1 - ratio), rel=1e-3)


def test_element_sizes_are_read_from_flags():
    sizes = [0, 1, 2, 4, 8, 16, 32, 64]
    flags = np.array([code << 8 | EntryFlag.COLLECTIVE for code in range(8)], np.int16)
    assert read_itemsizes(flags).tolist() == sizes


@pytest.mark.parametrize("doubt", [{"error": 0.5}, {"seconds": 2e-3}])
def test_a_tuning_table_of_wide_intervals_or_other_times_gives_bounds_only(doubt, tmp_path, monkeypatch):
    tree = predict_with_table("ring", "all_reduce", tmp_path, monkeypatch, **doubt)[1][0]
    assert tree.seconds is None
    low_s, high_s = get_bounds(tree)
    assert low_s < high_s


@pytest.mark.parametrize("other", [{"buffer": BufferKind.SYMMETRIC}, {"members": (0, 1)}])
def test_a_tuning_table_of_other_memory_or_other_ranks_is_not_used(other, tmp_path, monkeypatch):
    tree = predict_with_table("mpi", "Allreduce", tmp_path, monkeypatch, **other)[1][0]
    assert tree.bounds_s is None


@pytest.mark.parametrize(("method", "algorithms"), [("all_reduce", None), ("Allreduce", "")])
def test_the_algorithms_of_torch_and_of_auto_are_unknown(method, algorithms, tmp_path, monkeypatch):
    graph = predict_with_table("mpi", method, tmp_path, monkeypatch)[0]
    unknown = replace(graph, profile=replace(graph.profile, algorithms=algorithms))
    assert WhatIf(unknown).predict(["algorithm=all_reduce/tree"])[0].bounds_s is None


@pytest.mark.parametrize("pair", [("ring", "shared_one_shot"), ("shared_one_shot", "ring")])
def test_algorithms_in_shared_memory_are_not_simulated(pair):
    used, other = pair
    balanced, changed = WhatIf(make_one_size_graph(8, used)).predict(["balance", f"algorithm=all_reduce/{other}"])
    assert balanced.seconds is not None
    assert (changed.seconds, changed.bounds_s) == (None, None)
    assert f"--engine all_reduce/{used},all_reduce/{other} --save" in changed.assumption


def test_ranks_that_share_cores_are_not_simulated():
    graph = make_one_size_graph(8)
    shared = replace(graph, profile=replace(graph.profile, is_oversubscribed=True))
    change = "algorithm=all_reduce/recursive_doubling"
    assert [WhatIf(each).predict([change])[0].bounds_s is None for each in (graph, shared)] == [False, True]


def test_the_last_choice_for_a_size_holds():
    from hpccoll.mpi4py.configuration import read_choices

    network = NetworkModel(1e-6, 1e-9, choices=tuple(read_choices("all_reduce=ring,all_reduce:0-100=tree")))
    chosen = {nbytes: network.find_choice(ModelledTransfer("all_reduce", 4, nbytes)) for nbytes in (8, 200)}
    assert chosen == {8: "tree", 200: "ring"}
    assert network.find_choice(ModelledTransfer("broadcast", 4, 8)) is None


def test_a_collective_takes_the_longest_transfer_and_a_message_that_of_its_receive():
    first = TraceBuilder().add("send", 0, 2, peer=1).add("all_reduce", 3, 5)
    second = TraceBuilder().add("recv", 0, 1, peer=0).add("all_reduce", 3, 4)
    graph = build_graph(make_profile([first, second], 5))
    transfers = classify_transfers(graph)
    measured = dict(zip((kind.operation for kind in transfers.kinds), measure_transfers(graph, transfers), strict=True))
    assert measured == {"send": RecordedTransfer(1.0, 1.0, 1), "all_reduce": RecordedTransfer(2.0, 2.0, 1)}


def test_a_gathered_array_grows_with_the_ranks():
    builders = [TraceBuilder().add("all_gather", 0, 3, nbytes=2**20) for _ in range(4)]
    graph = build_graph(make_profile(builders, 3))
    network = NetworkModel(1e-9, 1e-9)
    changed_s = scale_transfers(graph, classify_transfers(graph), network, network, factor=2)
    assert changed_s.max() == pytest.approx(7.0, rel=1e-3)  # each rank receives 7 blocks in place of 3


def test_operations_that_one_wait_completes_take_equal_parts_of_its_transfer():
    builders = [
        TraceBuilder()
        .add("all_reduce", 0, 0, nbytes=8, flags=EntryFlag.START, request=1)
        .add("all_reduce", 0, 0, nbytes=64, flags=EntryFlag.START, request=2)
        .add("wait", 1, 1, flags=EntryFlag.COMPLETE, request=1)
        .add("wait", 1, 5, flags=EntryFlag.COMPLETE | EntryFlag.MORE, request=2)
        for _ in range(2)
    ]
    graph = build_graph(make_profile(builders, 5))
    transfers = classify_transfers(graph)
    measured = dict(zip((kind.nbytes for kind in transfers.kinds), measure_transfers(graph, transfers), strict=True))
    assert measured[64].seconds == pytest.approx(2.0)


def test_operations_that_two_waits_complete_have_transfers_of_their_own():
    builders = [
        TraceBuilder()
        .add("all_reduce", 0, 0, nbytes=8, flags=EntryFlag.START, request=1)
        .add("all_reduce", 0, 0, nbytes=64, flags=EntryFlag.START, request=2)
        .add("wait", 1, 2, flags=EntryFlag.COMPLETE, request=1)
        .add("wait", 2, 5, flags=EntryFlag.COMPLETE, request=2)
        for _ in range(2)
    ]
    graph = build_graph(make_profile(builders, 5))
    transfers = classify_transfers(graph)
    measured = dict(zip((kind.nbytes for kind in transfers.kinds), measure_transfers(graph, transfers), strict=True))
    assert {nbytes: transfer.seconds for nbytes, transfer in measured.items()} == pytest.approx({8: 1.0, 64: 3.0})


def test_gloo_takes_its_ring_and_runs_one_collective_after_the_other():
    builders = [
        TraceBuilder().add("all_reduce", 0, 0, flags=EntryFlag.START, request=1)
        .add("all_reduce", 0, 0, flags=EntryFlag.START, request=2)
        .add("wait", 0, 2, flags=EntryFlag.COMPLETE, request=1)
        .add("wait", 2, 4, flags=EntryFlag.COMPLETE, request=2)
        for _ in range(2)
    ]  # fmt: skip
    hosts = ("first", "second")
    what_if = WhatIf(build_graph(replace(make_profile(builders, 4, hosts=hosts), library="gloo")))
    assert what_if.network.alpha_s == pytest.approx(1.0, rel=0.01)  # a ring of 2 ranks has 2 steps
    predicted = what_if.predict(["ranks=2x"])[0]
    assert predicted.seconds == pytest.approx(12.0, rel=0.01)  # 6 steps for each
    assert predicted.error < 0.01


def test_rare_transfers_do_not_change_the_fitted_network():
    builders, ends = [TraceBuilder() for _ in range(2)], [*range(1, 51), 150]
    for begin, end in zip([0, *ends], ends, strict=False):
        for builder in builders:
            builder.add("all_reduce", begin, end, nbytes=8 if end < 150 else 16)
    network = WhatIf(build_graph(make_profile(builders, 150))).network
    assert network.predict_s(ModelledTransfer("all_reduce", 2, 8)) == pytest.approx(1.0, rel=0.01)


def test_an_all_reduce_of_pickled_objects_takes_the_time_of_a_reduce_and_a_broadcast():
    builders = [TraceBuilder() for _ in range(2)]
    for step in range(20):
        for builder in builders:
            builder.add("all_reduce", step, step + 1, nbytes=8)
    profile = make_profile(builders, 20)
    profile = replace(profile, pickles=tuple(name == "all_reduce" for name in profile.operations))
    what_if = WhatIf(build_graph(profile))
    assert what_if.network.alpha_s == pytest.approx(0.5, rel=0.01)  # a message to the root, and one back
    assert what_if.predict(["ranks=2x"])[0].seconds == pytest.approx(40.0, rel=0.01)  # two rounds to the root, two back


def test_broadcasts_that_arrive_before_the_ranks_enter_do_not_change_the_fitted_network():
    builders = [TraceBuilder() for _ in range(2)]
    for step in range(20):
        for rank, builder in enumerate(builders):
            begin = 2 * step + rank / 4
            builder.add("broadcast", begin, begin + 1e-3, nbytes=8, peer=0)  # rank 1 enters after the root
            builder.add("all_reduce", 2 * step + 1, 2 * step + 2, nbytes=8)
    network = WhatIf(build_graph(make_profile(builders, 40))).network
    assert network.predict_s(ModelledTransfer("all_reduce", 2, 8)) == pytest.approx(1.0, rel=0.01)


def make_messages():
    first = TraceBuilder().add("send", 1, 1.1, peer=1, nbytes=80).add("all_reduce", 2, 4)
    return build_graph(make_profile([first, TraceBuilder().add("recv", 0, 1.2, peer=0).add("all_reduce", 3, 4)], 4))


def test_exports(tmp_path):
    graph = make_messages()
    events = json.loads(format_perfetto(graph))["traceEvents"]
    assert [event["name"] for event in events if event["name"].startswith("wait") and event["tid"] == 0] == [
        "wait for rank 1"
    ]
    rows = list(csv.DictReader(io.StringIO(format_csv(graph))))
    assert [row["operation"] for row in rows] == ["send", "all_reduce", "recv", "all_reduce"]
    assert float(rows[1]["wait_us"]) == pytest.approx(1e6)
    goal = format_goal(graph)
    assert goal.startswith("num_ranks 2\n")
    assert "send 80b to 1 tag 1" in goal
    assert "recv 80b from 0 tag 1" in goal
    for name in ("trace.json", "calls.csv", "job.goal", "job.et"):
        export_profile(graph, str(tmp_path / name))
    assert len(list(tmp_path.iterdir())) == 5
    with pytest.raises(UsageError, match=r"\.xml is no format"):
        export_profile(graph, str(tmp_path / "job.xml"))


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at


def test_a_chakra_trace_has_a_node_per_call_and_computation():
    data, at, kinds = encode_execution_trace(make_messages(), 0), 0, []
    while at < len(data):
        size, at = read_varint(data, at)
        message, at = data[at : at + size], at + size
        fields, place = {}, 0
        while place < len(message):
            key, place = read_varint(message, place)
            value, place = read_varint(message, place)
            if key & 7 == 2:
                place += value
            fields[key >> 3] = value
        kinds.append(fields.get(3))
    assert kinds == [None, 4, 5, 4, 7]  # metadata, computation, send, computation, collective


def test_the_steps_of_a_replay_agree_between_ranks():
    first, second = (make_steps(make_messages(), rank) for rank in range(2))
    assert [step.operation for step in first] == ["send", "all_reduce", "none"]
    assert [step.operation for step in second] == ["start_recv", "wait", "all_reduce", "none"]
    assert np.isclose(first[1].gap_s, 0.9)


def test_the_default_changes_are_valid():
    assert len(WhatIf(make_graph()).predict(DEFAULT_CHANGES)) == len(DEFAULT_CHANGES)
