"""The output of `hpccoll train`: records as steps finish, progress, and tables and a summary at the end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.output import is_printing_rank, print_table, print_text
from hpccoll.cli.run_output import RunOutput
from hpccoll.measure.results.result_file import RecordWriter, read_records
from hpccoll.train.options import TrainOptions
from hpccoll.units import format_count

if TYPE_CHECKING:
    from hpccoll.records import TrainCompareRecord, TrainRecoveryRecord, TrainStepRecord, TrainSummaryRecord
    from hpccoll.train.start import TrainingStart

MAX_TABLE_STEPS = 12
HEADINGS = ("step", "loss", "grad norm", "step ms", "comm ms", "bubble", "peak MiB")


class TrainOutput(RunOutput):
    """On one rank, writes the records of a training run as steps finish, and prints a table of steps at the end.

    The constructor writes the run record and shows a progress bar. When the caller closes the ExitStack `stack`,
    `print_results` is called, also if the run fails. The attribute `steps` has the records of all steps, on each rank.

    Args:
        json_file: the value of --json.
        run: the record of kind `run`.
        start: the state from which the training starts, with the number of steps done before.
        appends: whether records are appended to the file of --json.
        prints: whether this rank writes and prints; None stands for rank 0.
    """

    def __init__(
        self,
        stack: ExitStack,
        json_file: str | None,
        run: dict[str, Any],
        start: TrainingStart,
        options: TrainOptions,
        *,
        appends: bool,
        prints: bool | None = None,
    ) -> None:
        prints = is_printing_rank() if prints is None else prints
        # With --checkpoint, the file of --json may have the records of an earlier part of this training.
        super().__init__(stack, run, RecordWriter(json_file if prints else None, resume=appends), json_file)
        self._unit, self._stack, self._json_file, self._prints = options.model.unit, stack, json_file, prints
        stack.callback(self.print_results)  # after the progress bar has ended
        if prints:
            self.show_progress(stack, "steps", max(options.steps - start.step, 0))
        self.steps: list[TrainStepRecord] = []
        self._summary: TrainSummaryRecord | None = None
        self._comparison: TrainCompareRecord | None = None

    def take_over(self) -> None:
        """From now on, write and print on this rank in place of a dead one; append records to the file of --json."""
        if not self._prints:
            self._prints = True
            self._writer = self._stack.enter_context(RecordWriter(self._json_file, resume=True))

    def complete_steps(self, last: TrainStepRecord) -> None:
        """Keep and write `last`, the record of the last step before ranks died, unless that is already done.

        A rank that died may already have written this record to the file of --json.
        """
        is_known = any(step.step == last.step for step in self.steps)
        if not is_known:
            self.steps.append(last)
        if self._prints and self._json_file is not None and not self.has_records_on_stdout:
            written = [
                record for record in read_records(self._json_file, "--json").records if record["kind"] == last.kind
            ]
            is_known = bool(written) and written[-1]["step"] == last.step
        if not is_known:
            self.write(last)

    def add_recovery(self, record: TrainRecoveryRecord) -> None:
        """Write the record of a recovery from the death of ranks, and print it as a warning."""
        self.write(record)
        self.warn(format_recovery(record))

    def add_step(self, record: TrainStepRecord) -> None:
        """Write a step's record to the file of --json, advance the progress bar, and keep the record."""
        self.write(record, format_progress(record, self._unit))
        self.steps.append(record)

    def warn(self, message: str) -> None:
        """Print a warning to standard error, on the rank that prints."""
        if self._prints:
            click.echo(f"# {message}", err=True)

    def add_summary(self, summary: TrainSummaryRecord) -> None:
        """Write the summary record to the file of --json, and keep it for `print_results`."""
        self._summary = summary
        self.write(summary)

    def add_comparison(self, comparison: TrainCompareRecord) -> None:
        """Write the comparison with torch to the file of --json, and keep it for `print_results`."""
        self._comparison = comparison
        self.write(comparison)

    def print_results(self) -> None:
        """Print a table of at most MAX_TABLE_STEPS evenly spaced steps, and the summary; nothing with `--json -`."""
        if not self._prints or self.has_records_on_stdout:
            return
        if self.steps:
            shown = self.steps[: -1 : -(-len(self.steps) // MAX_TABLE_STEPS)] + self.steps[-1:]
            print_table("Steps", HEADINGS, [_format_step(step) for step in shown], numbers=HEADINGS, prints=True)
        if self._comparison is not None:
            print_comparison(self._comparison)
        if self._summary is not None:
            print_text(_format_summary(self._summary), prints=True)


def print_comparison(compared: TrainCompareRecord) -> None:
    """Print the median step times of hpccoll and of torch with 95 % intervals, and how much their losses differ."""
    headings = ("training by", "step ms", "95 % interval", "ratio", "its interval")
    own, other = (
        [f"{1e3 * median:.3f}", f"{1e3 * low:.3f} to {1e3 * high:.3f}"]
        for median, low, high in (
            (compared.step_s, compared.step_low_s, compared.step_high_s),
            (compared.torch_step_s, compared.torch_step_low_s, compared.torch_step_high_s),
        )
    )
    rows = [
        ["hpccoll", *own, f"{compared.ratio:.3f}", f"{compared.ratio_low:.3f} to {compared.ratio_high:.3f}"],
        [compared.torch, *other, "1", ""],
    ]
    title = f"{compared.strategy}, {compared.model}: {format_count(compared.steps, 'step')} of each side in turns"
    print_table(title, headings, rows, numbers=headings[1:])
    print_text(
        f"largest difference of the losses: {compared.loss_difference:.1g} of torch's loss; of the first gradients: "
        f"{compared.gradient_difference:.1g} of the parameter's largest"
    )


def format_progress(step: TrainStepRecord, unit: str) -> str:
    """Return loss and times of a step as the text beside the progress bar; `unit` is a noun for the model's tokens."""
    words = [f"loss {step.loss:.4g}", f"{step.tokens_per_s:,.0f} {unit}/s", f"step {1e3 * step.step_s:.3g} ms"]
    words.append(f"comm {1e3 * step.comm_s:.3g} ms ({1e3 * step.exposed_comm_s:.3g} exposed)")
    if step.bubble is not None:
        words.append(f"bubble {step.bubble:.2f}")
    return ", ".join([*words, f"{step.peak_bytes / 2**20:.0f} MiB"])


def _format_step(step: TrainStepRecord) -> list[str]:
    """Return the table cells of a training step, in the order of HEADINGS."""
    bubble = "-" if step.bubble is None else f"{step.bubble:.2f}"
    times = (f"{1e3 * step.step_s:.2f}", f"{1e3 * step.comm_s:.2f}", bubble)
    return [str(step.step), f"{step.loss:.5f}", f"{step.grad_norm:.4f}", *times, f"{step.peak_bytes / 2**20:.0f}"]


def _format_summary(summary: TrainSummaryRecord) -> str:
    """Return the summary of a training run as one line: steps, median time, accuracy, wrong gradients, checkpoint."""
    words = [f"{summary.strategy} on {format_count(summary.ranks, 'rank')}: {format_count(summary.steps, 'step')}"]
    if summary.median_step_s is not None:
        words.append(f"median step {1e3 * summary.median_step_s:.2f} ms")
    if summary.accuracy is not None:
        words.append(f"accuracy {100 * summary.accuracy:.1f} % on held-out samples")
    elif summary.held_out_loss is not None:
        words.append(f"loss {summary.held_out_loss:.4g} on held-out samples")
    if summary.wrong is not None:
        words.append(
            f"{format_count(summary.wrong, 'gradient')} wrong (largest relative error {summary.max_error:.1g})"
        )
    if summary.checkpoint is not None:
        words.append(f"checkpoint {summary.checkpoint}")
    if summary.stop != "complete":
        words.append("stopped; run the same command again to resume")
    return "; ".join(words)


def format_recovery(record: TrainRecoveryRecord) -> str:
    """Return one line about the death of ranks and the mesh on which the training continues."""
    noun = "rank" if len(record.lost_ranks) == 1 else "ranks"
    dead = ", ".join(f"{rank} ({host})" for rank, host in zip(record.lost_ranks, record.lost_hosts, strict=True))
    return (
        f"lost {noun} {dead}; {record.strategy} on {format_count(record.ranks, 'rank')} continues after step "
        f"{record.steps} from {record.source}; recovery took {record.recovery_s:.2f} s"
    )
