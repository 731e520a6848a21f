"""The rows that mixtures of experts exchange in a training step, counted in a run.

A row is the features of a token, sent to one of its experts. A router chooses the experts of each token, so the rows
between two ranks depend on the data. An estimate without counted rows assumes that tokens choose experts evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.plan import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRouting:
    """The rows (a token's features, sent to one expert) that ranks exchange in the passes of a mixture of experts.

    `rows[k, g, i, r, s]` is the number of rows that rank r sends to experts of rank s in forward pass i, after choices
    beyond the capacity have been dropped; both ranks are in group g, of p ranks that share experts, of those with the
    index k along pp. Passes that recompute activations count, too.
    """

    rows: IntArray  # (pp, groups, q, p, p)

    def find_part(self, rank: int) -> ExpertRouting:
        """Return the rows that are exchanged among the ranks with the index `rank` along pp."""
        return ExpertRouting(self.rows[rank : rank + 1])

    @property
    def passes(self) -> int:
        """The number of forward passes of a mixture of experts in a step."""
        return int(self.rows.shape[2])

    @property
    def kept(self) -> int:
        """The most rows that a rank sends to experts in all passes, including its own experts."""
        return int(self.rows.sum(axis=(-3, -1)).max())

    @property
    def exchanged(self) -> int:
        """The most rows that a rank sends to other ranks in all passes: to their experts, and back from its own."""
        sent, received = self.rows.sum(-1), self.rows.sum(-2)  # (pp, groups, q, p) each
        own = self.rows.diagonal(axis1=-2, axis2=-1)
        return int((sent + received - 2 * own).sum(-2).max())

    def find_busiest(self, *, in_one_pass: bool) -> tuple[float, float]:
        """Return the rows that the busiest rank sends to experts, and the rows that its own experts receive.

        The busiest rank is the one whose experts receive most, in the mean over the passes or in a single pass.
        """
        sent, received = (self.rows.sum(axis) if in_one_pass else self.rows.sum(axis).mean(-2) for axis in (-1, -2))
        busiest = received.argmax()
        return float(sent.flat[busiest]), float(received.flat[busiest])
