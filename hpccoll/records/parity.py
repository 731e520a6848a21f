"""Records of `hpccoll parity`: kind `parity`, one per tensor and mesh, and `parity_summary`, one per mesh."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from hpccoll.records.record import Amount, Natural, Positive, Record, about

Quantity = Literal["initial parameter", "buffer", "loss", "gradient", "gradient norm", "parameter"]


class ParityRecord(Record, frozen=True):
    """One tensor or loss of training on a mesh of ranks, compared with that of the same training in one process."""

    kind: ClassVar[str] = "parity"

    name: Annotated[str, about("Name of the parameter or buffer in the whole model, or the quantity itself.")]
    mesh: Annotated[str, about("Axes of the mesh with more than one rank, such as dp=2,tp=2.")]
    quantity: Annotated[Quantity, about("What is compared.")]
    step: Annotated[Natural, about("Step of the largest difference, from 1; 0 before the first step.")]
    relative_error: Annotated[
        Amount | None,
        about("Largest difference over ranks and elements, relative to the largest magnitude; null if not finite."),
    ]
    tolerance: Annotated[Amount, about("Largest relative error that rounding explains.")]
    fault: Annotated[
        str | None, about("Kind of the likely fault; `unknown` if none fits; null if the tensor is right.")
    ]
    explanation: Annotated[str | None, about("The likely fault in words; null if the tensor is right.")]


class ParitySummaryRecord(Record, frozen=True):
    """Whether training on a mesh of ranks gives the same tensors as one process, and the first that differs, if any."""

    kind: ClassVar[str] = "parity_summary"

    mesh: Annotated[str, about("Axes of the mesh with more than one rank, such as dp=2,tp=2.")]
    ranks: Positive
    tensors: Annotated[Natural, about("Number of compared tensors.")]
    wrong: Annotated[Natural, about("Number of tensors that differ.")]
    max_error: Annotated[Amount | None, about("Largest relative error; null if it is not finite.")]
    first: Annotated[str | None, about("First tensor that differs, in the order of the model; null if none does.")]
    quantity: Annotated[Quantity | None, about("What differs first.")]
    step: Annotated[Natural | None, about("Step in which it differs, from 1; 0 before the first step.")]
    first_error: Annotated[Amount | None, about("Relative error of the first tensor that differs.")]
    fault: Annotated[str | None, about("Kind of the likely fault; `unknown` if none fits; null if all is right.")]
    explanation: Annotated[str | None, about("The likely fault in words.")]
    seen_at: Annotated[str | None, about("The tensor that shows the fault: the last one that it explains.")]
