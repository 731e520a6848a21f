"""Rules that select a library's algorithm by operation and message size, for communicators of one number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpccoll.plan import Operation
from hpccoll.units import format_size


@dataclass(frozen=True, slots=True)
class LibraryAlgorithm:
    """An algorithm of an MPI library or of NCCL, as the library names it.

    Attributes:
        name: the name of the algorithm; empty if the library selects one within `composition`.
        number: Open MPI's number of the algorithm; 0 lets the component `tuned` select one.
        composition: MPICH's composition of the levels between and within nodes (`alpha`, `beta`, ...); Open MPI's
            component; NCCL's protocol.
    """

    name: str
    number: int = 0
    composition: str = ""

    @property
    def label(self) -> str:
        """The composition and the name, joined by a slash, such as `beta/ring`; `default` if both are empty."""
        return "/".join(filter(None, (self.composition, self.name))) or "default"


DEFAULT = LibraryAlgorithm("")  # the choice of the library without any rule


@dataclass(frozen=True, slots=True)
class LibraryRule:
    """The algorithm that a library should use for an operation with messages of `first` to `last` bytes.

    Sizes are those of nccl-tests, as everywhere in hpccoll; `last` is None if there is no upper limit. `speedups` has
    the median time of the library's default divided by that of the algorithm, at each measured size.
    """

    operation: Operation
    first: int
    last: int | None
    algorithm: LibraryAlgorithm
    speedups: tuple[float, ...]

    @property
    def description(self) -> str:
        """The rule in words: operation, sizes, algorithm and speed-up, for the comments of a file."""
        sizes = f"{format_size(self.first)} to {'any size' if self.last is None else format_size(self.last)}"
        least, most = min(self.speedups), max(self.speedups)
        ratio = f"{least:.2f}x" if f"{least:.2f}" == f"{most:.2f}" else f"{least:.2f}x to {most:.2f}x"
        return f"{self.operation.value} {sizes}: {self.algorithm.label}, {ratio} as fast as the default"


@dataclass(frozen=True, slots=True)
class LibraryRules:
    """The rules of one library for communicators of `ranks` ranks on `nodes` nodes.

    `origin` has sentences on the measurement (library, hosts, date, command), for the comments of a file. The rules of
    an operation are in the order of their sizes and do not overlap.
    """

    origin: tuple[str, ...]
    ranks: int
    nodes: int
    rules: tuple[LibraryRule, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that have a rule."""
        return tuple(dict.fromkeys(rule.operation for rule in self.rules))

    def list_rules(self, operation: Operation) -> list[LibraryRule]:
        """Return the rules of an operation in ascending order of message size."""
        return [rule for rule in self.rules if rule.operation is operation]

    def list_segments(self, operation: Operation) -> Iterator[tuple[int, LibraryRule | None]]:
        """Yield consecutive ranges of message sizes, each with its first size in bytes and the operation's rule.

        The rule is None for a range without a rule. The first range begins at size 0; the last one has no upper limit.
        """
        position = 0
        for rule in self.list_rules(operation):
            if rule.first > position:
                yield position, None
            yield rule.first, rule
            if rule.last is None:
                return
            position = rule.last + 1
        yield position, None

    def describe(self) -> list[str]:
        """Return lines on the origin of the rules and on each rule, for the comments of a file."""
        where = f"communicators of {self.ranks} ranks on {self.nodes} node{'s' * (self.nodes > 1)}"
        return [*self.origin, f"Rules for {where}:", *(rule.description for rule in self.rules)]
