"""The rows that mixtures of experts exchange in a training step, counted in a run.

A row is the features of a token, sent to one of its experts. A router chooses the experts of each token, so the rows
between two ranks depend on the data. An estimate without counted rows assumes that tokens choose experts evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.plan import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRouting:
    """The rows of each group of p ranks that share experts, in each of q forward passes of a mixture in a step.

    `rows[g, i, r, s]` is the number of rows that rank r of group g sends to experts of rank s in pass i, after choices
    beyond the capacity have been dropped. Passes that recompute activations count, too.
    """

    rows: IntArray  # (groups, q, p, p)

    @property
    def passes(self) -> int:
        """The number q of forward passes."""
        return int(self.rows.shape[1])

    @property
    def kept(self) -> int:
        """The most rows that a rank sends to experts in all passes, including its own experts."""
        return int(self.rows.sum(axis=(1, 3)).max())

    @property
    def exchanged(self) -> int:
        """The most rows that a rank sends to other ranks in all passes: to their experts, and back from its own."""
        sent, received = self.rows.sum(3), self.rows.sum(2)  # (groups, q, p) each
        own = self.rows.diagonal(axis1=2, axis2=3)
        return int((sent + received - 2 * own).sum(1).max())

    def find_busiest(self, *, in_one_pass: bool) -> tuple[float, float]:
        """Return the rows that the busiest rank sends to experts, and the rows that its own experts receive.

        The busiest rank is the one whose experts receive most, in the mean over the passes or in a single pass.
        """
        sent, received = (self.rows.sum(axis) if in_one_pass else self.rows.sum(axis).mean(1) for axis in (3, 2))
        busiest = received.argmax()
        return float(sent.flat[busiest]), float(received.flat[busiest])
