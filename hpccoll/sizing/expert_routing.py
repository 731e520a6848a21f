"""The rows that ranks exchange for mixtures of experts in a training step, as counted in a run.

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
    beyond the capacity have been dropped; r and s are indices within group g of the ranks with index k along pp. The p
    ranks of a group share the experts. Passes that recompute activations are included.
    """

    rows: IntArray  # (pp, groups, q, p, p)

    def find_part(self, rank: int) -> ExpertRouting:
        """Return the routing of only the rows that ranks with the index `rank` along pp exchange."""
        return ExpertRouting(self.rows[rank : rank + 1])

    @property
    def passes(self) -> int:
        """The number of forward passes of a rank through all its mixtures of experts in a step, with recomputation."""
        return int(self.rows.shape[2])

    @property
    def kept(self) -> int:
        """The number of rows that a rank sends to experts, its own included, in a step: the maximum over ranks."""
        return int(self.rows.sum(axis=(-3, -1)).max())

    @property
    def exchanged(self) -> int:
        """The number of rows that a rank sends to other ranks in the forward passes of a step: the maximum over ranks.

        The rows are the inputs of other ranks' experts, and the outputs of the rank's own experts.
        """
        sent, received = self.rows.sum(-1), self.rows.sum(-2)  # (pp, groups, q, p) each
        own = self.rows.diagonal(axis1=-2, axis2=-1)
        return int((sent + received - 2 * own).sum(-2).max())

    def find_busiest(self, *, in_one_pass: bool) -> tuple[float, float]:
        """Return the numbers of rows per pass that the busiest rank sends to experts, and that its own experts receive.

        The busiest rank is the rank whose experts receive most rows: in a single pass if `in_one_pass`, else in the
        mean over the passes.
        """
        sent, received = (self.rows.sum(axis) if in_one_pass else self.rows.sum(axis).mean(-2) for axis in (-1, -2))
        busiest = received.argmax()
        return float(sent.flat[busiest]), float(received.flat[busiest])
