"""Copies of the training state: the ranks that are left put the same state together that a checkpoint has."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

import hpccoll

torch = pytest.importorskip("torch")

from hpccoll.parallel.mesh import Mesh  # noqa: E402 - torch may not be here
from hpccoll.train.checkpoint import CheckpointDirectory  # noqa: E402
from hpccoll.train.options import OPTIMIZERS, ExpertConfig, GptConfig, MlpConfig, TrainOptions, split_strategy  # noqa: E402
from hpccoll.train.recovery import SurvivorReport, recover  # noqa: E402
from hpccoll.train.start import load_start  # noqa: E402
from hpccoll.train.trainer import Trainer  # noqa: E402

# Neither the ranks nor the shards divide the parameters.
MLP = TrainOptions(MlpConfig(width=11), 4, batch=19, dtype="float64", survive=True)
SMALL = GptConfig(context=4, width=8, heads=2)
GPT = replace(MLP, model=SMALL, batch=24, optimizer=replace(OPTIMIZERS["adamw"], warmup=1))
EXPERTS = replace(GPT, model=replace(SMALL, experts=ExpertConfig(4)))
CASES = {
    2: [("dp", MLP), ("zero1", GPT), ("zero3", MLP), ("tp", GPT), ("pp", GPT), ("ep", EXPERTS)],
    3: [("dp", GPT), ("zero2", MLP)],
    4: [("dp=2,tp=2", GPT), ("dp=2,tp=2,zero2,sp", GPT), ("dp=2,pp=2,zero1", GPT), ("dp=2,ep=2,zero3", EXPERTS)],
}


def test_the_state_is_that_of_a_checkpoint(comm, tmp_path):
    """A rank without copies, the first and the last one in turn, stands for a spare in the place of the dead rank."""
    torch.set_num_threads(1)
    with hpccoll.Communicator(comm) as hpc:
        directory = CheckpointDirectory(tmp_path / "state") if hpc.rank == 0 else None
        for number, (strategy, base) in enumerate(CASES.get(hpc.size, [])):
            axes, options = split_strategy(strategy, replace(base, seed=number))
            trainer = Trainer(hpc, Mesh.parse(axes, hpc.size), options)
            (_, record) = islice(trainer.run_steps(), 2)
            trainer.save_checkpoint(directory)
            expected = load_start(hpc, options, directory)[0]
            assert trainer.state_copies is not None
            lost = 0 if number % 2 else hpc.size - 1
            copies = [] if hpc.rank == lost else trainer.state_copies.copies
            held = {copy.key: tuple(copy.by_rank) for copy in copies}
            report = SurvivorReport(2, record, 0, held) if copies else SurvivorReport()
            found = recover(hpc, options, report, copies)
            trainer.close()
            assert found.start is not None, strategy
            assert (found.start.step, found.start.samples, found.generation) == (2, expected.samples, 1)
            assert found.reports[0].record == record
            states = [("", found.start.full, expected.full)]
            states += [(name, own, expected.optimizer_state[name]) for name, own in found.start.optimizer_state.items()]
            assert len(states) == 1 + len(options.optimizer.state_names)
            for name, own, other in states:
                assert own.keys() == other.keys()
                assert all(torch.equal(own[key], other[key]) for key in own), (strategy, name)
