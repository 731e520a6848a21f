"""The loop of one rank: gradients over the mesh, a step of gradient descent, and what it cost."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpccoll.errors import UnavailableError, WrongResultError
from hpccoll.parallel.channel import Channels
from hpccoll.parallel.data import Buckets
from hpccoll.parallel.mesh import Mesh, shares
from hpccoll.parallel.pipeline import Stage
from hpccoll.train import digits, state
from hpccoll.train.check import TOLERANCE, Verdict, compare, expected, replicas_apart, with_replicas
from hpccoll.train.checkpoint import Checkpoint, Folder
from hpccoll.train.model import Layers, initial
from hpccoll.train.record import Share, TrainRecord
from hpccoll.train.settings import Settings, micro_slices

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins: steps done, samples seen, and the whole parameters."""

    step: int
    samples: int
    full: dict[str, Any]
    resumed: bool


class Trainer:
    """One rank's part of a run. Everything but the properties is collective over `comm`.

    Args:
        comm: all ranks of the mesh.
        mesh: how they lie.
        settings: what to do; `Settings.require` has passed.
        device: where tensors are, such as `cpu` or `cuda:1`.
        start: where to begin; default at step 0 with what the seed gives.
    """

    def __init__(
        self, comm: Communicator, mesh: Mesh, settings: Settings, device: str = "cpu", start: Start | None = None
    ) -> None:
        self.comm, self.mesh, self.settings, self.device = comm, mesh, settings, device
        self.dtype = getattr(torch, settings.dtype)
        start = start or Start(0, 0, initial(settings.model, settings.seed, self.dtype), resumed=False)
        self.step, self.samples = start.step, start.samples
        self.channels = Channels.open(comm, mesh)
        self.layers = Layers(settings.model, mesh, comm.rank, self.channels.tp, start.full, device)
        self.buckets = Buckets(self.layers.parameters)
        self.train, self.held_out = digits.load()
        self.place = mesh.place(comm.rank)

    def run(self, stop_file: str | None = None) -> Iterator[TrainRecord]:
        """Take the steps that are left, and tell of each; end after one in which rank 0 found the stop file.

        Raises:
            WrongResultError: the loss is no number any more.
        """
        while self.step < self.settings.steps:
            self.channels.restart_clocks()
            begin = time.perf_counter()
            loss = self.gradients()
            self.descend()
            if self.device != "cpu":
                torch.cuda.synchronize()  # kernels that were queued belong to this step's time
            record = self._agree(loss, time.perf_counter() - begin, stop_file)
            yield record
            if record.stop:
                return

    def gradients(self) -> float:
        """Leave in each parameter's `grad` its part of the gradient of the next batch's mean loss.

        Returns:
            This rank's part of the loss: nought but on the last stage.
        """
        images, labels = self.next_batch()
        micros = [
            (self._tensor(images[part]), torch.from_numpy(labels[part]).to(self.device))
            for part in micro_slices(self.settings.batch, self.mesh, self.place["dp"], self.settings.micros(self.mesh))
        ]
        self.buckets.zero()
        loss = self._stage([label for _, label in micros]).run(self.settings.schedule, [data for data, _ in micros])
        self.buckets.all_reduce(self.channels.dp)
        return loss

    def next_batch(self) -> tuple[Any, Any]:
        """Return images and labels of the whole next batch, alike on all ranks; asking again gives the same."""
        return self.train.batch(self.settings.seed, self.samples, self.settings.batch)

    def descend(self) -> None:
        """Take the step that the gradients say."""
        with torch.no_grad():
            for parameter in self.layers.parameters:
                parameter.sub_(parameter.grad, alpha=self.settings.lr)
        self.step += 1
        self.samples += self.settings.batch

    def check(self) -> Verdict:
        """Compare every rank's gradients of the next batch with one process's, on rank 0; all ranks get the verdict."""
        self.gradients()
        model = self.settings.model
        found = state.collect(self.comm, self.mesh, model, [each.grad for each in self.layers.parameters])
        parameters = state.collect(self.comm, self.mesh, model, self.layers.parameters)
        verdict = Verdict(0, 0.0, None)
        if found is not None and parameters is not None:
            verdict = self._verdict(found, parameters)
        wrong, error = self.comm.broadcast(np.array([float(verdict.wrong), verdict.error]))
        return Verdict(int(wrong), float(error), verdict.first)

    def _verdict(self, found: list[list[Any]], parameters: list[list[Any]]) -> Verdict:
        model = self.settings.model
        full = state.assembled(self.mesh, model, parameters)
        images, labels = self.next_batch()
        wanted = expected(model, full, torch.from_numpy(images).to(self.dtype), torch.from_numpy(labels))
        verdict = compare(model, self.mesh, found, wanted, TOLERANCE[self.settings.dtype])
        return with_replicas(verdict, replicas_apart(model, self.mesh, parameters, full))

    def accuracy(self) -> float:
        """Return the share of the held-out samples that the model gets right."""
        held = self.held_out
        mine = shares(len(held), self.mesh.dp)[self.place["dp"]]
        labels = torch.from_numpy(held.labels[mine]).to(self.device)
        stage = self._stage([labels])
        with torch.no_grad():
            y = self.layers(stage.enter(self._tensor(held.images[mine])).detach())
            stage.pass_on(y)
        self.channels.pp.finish_sends()
        counts = stage.is_last and self.place["tp"] == 0
        right = int((y.argmax(1) == labels).sum()) if counts else 0
        return float(self.comm.all_reduce(np.array([float(right)]))[0]) / len(held)

    def save(self, folder: Folder | None) -> Path | None:
        """Write a checkpoint (rank 0, who has the folder) of all ranks' parameters; return its file there."""
        model = self.settings.model
        by_rank = state.collect(self.comm, self.mesh, model, self.layers.parameters)
        if by_rank is None or folder is None:
            return None
        full = state.assembled(self.mesh, model, by_rank)
        arrays = {name: each.numpy() for name, each in full.items()}
        return folder.save(Checkpoint(self.step, self.samples, self.settings.identity(), arrays))

    def close(self) -> None:
        """Give the groups back."""
        self.channels.close()

    def _stage(self, labels: list[Any]) -> Stage:
        # A sum over the micro-batch over the whole batch: these add up to the batch's mean, whatever the sizes.
        def loss(y: Any, micro: int) -> Any:
            return torch.nn.functional.cross_entropy(y, labels[micro], reduction="sum") / self.settings.batch

        like = torch.zeros((), dtype=self.dtype, device=self.device)
        return Stage(self.layers, loss, self.layers.entering, self.channels.pp, like)

    def _tensor(self, images: Any) -> Any:
        return torch.from_numpy(images).to(self.device, self.dtype)

    def _agree(self, loss: float, step_s: float, stop_file: str | None) -> TrainRecord:
        """Tell each other of a step, and whether to stop: only rank 0 looks, for files show late on some nodes."""
        told = self.comm.rank == 0 and stop_file is not None and Path(stop_file).exists()
        once = self.place["tp"] == 0
        share = Share(
            loss if once else 0.0,
            self._square(),
            step_s,
            self.channels.seconds,
            self.channels.pp.seconds,
            self._peak_bytes(),
            told,
        )
        rows = self.comm.all_gather(np.array(share.numbers()))
        record = TrainRecord.of(self.step, self.mesh, self.settings.batch, rows)
        if not np.isfinite([record.loss, record.grad_norm]).all():
            raise WrongResultError(
                f"step {self.step}: the loss is {record.loss} and the gradient's norm {record.grad_norm}; "
                f"give a smaller --lr than {self.settings.lr:g}"
            )
        return record

    def _square(self) -> float:
        """The square of the norm of those gradients that no rank with a lower index has as well."""
        if self.place["dp"]:
            return 0.0
        pairs = zip(self.layers.pieces, self.layers.parameters, strict=True)
        own = [each.grad for piece, each in pairs if not (piece.shared and self.place["tp"])]
        return float(sum(float(grad.double().square().sum()) for grad in own))

    def _peak_bytes(self) -> int:
        if self.device != "cpu":
            return int(torch.cuda.max_memory_allocated(self.device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def begin(comm: Communicator, settings: Settings, folder: Folder | None) -> tuple[Start, list[str]]:
    """Return where to begin, from rank 0's newest whole checkpoint or from the seed, and what is to be told of it.

    Collective; `folder` is given on rank 0 only, and None there, too, where no checkpoint was asked for.
    """
    dtype = getattr(torch, settings.dtype)
    found, damaged = folder.newest(settings.identity()) if folder is not None else (None, [])
    place = np.array([found.step, found.samples] if found else [-1, -1])
    comm.broadcast(place)
    step, samples = map(int, place)
    if step < 0:
        return Start(0, 0, initial(settings.model, settings.seed, dtype), resumed=False), damaged
    whole = {name: torch.from_numpy(each) for name, each in found.parameters.items()} if found else None
    return Start(step, samples, state.spread(comm, settings.model, whole, dtype), resumed=True), damaged


def device_of(settings: Settings, local_rank: int) -> str:
    """Return the device of a rank, the GPUs of a node in turn; raise UnavailableError where there is none."""
    if settings.device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise UnavailableError(
            "--device cuda: torch finds no CUDA device here; run on a node with GPUs, or leave it out"
        )
    device = f"cuda:{local_rank % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    return device


def limit_threads(environ: Mapping[str, str]) -> None:
    """Let a rank compute with one thread unless OMP_NUM_THREADS says otherwise: torch would take every core in each."""
    if not environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)
