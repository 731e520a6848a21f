"""Words that the shell completes: operations, algorithms, schedules, examples, models and machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete_from(list_words: Callable[[], Iterable[str]]) -> Complete:
    """Return a function for click's `shell_complete`; it proposes words of `list_words`, or files if none fits."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that begin with `incomplete`; file names if no word does."""
        words = [CompletionItem(word) for word in list_words() if word.startswith(incomplete)]
        return words or [CompletionItem(incomplete, type="file")]

    return complete


def _list_operations() -> list[str]:
    """Return the names of the collective operations."""
    from hpccoll.plan import Operation

    return [operation.value for operation in Operation]


def _list_plans() -> list[str]:
    """Return the names that complete a plan's name: operations, `OPERATION/ALGORITHM` and pipeline schedules."""
    from hpccoll.algorithms import list_algorithms
    from hpccoll.schedules import list_schedule_names

    return [*_list_operations(), *(algorithm.full_name for algorithm in list_algorithms()), *list_schedule_names()]


def _list_examples() -> list[str]:
    """Return the names of the examples of `hpccoll demo`."""
    from hpccoll.demo.examples import EXAMPLES

    return [example.name for example in EXAMPLES]


def _list_presets() -> list[str]:
    """Return the names of the published models of `hpccoll estimate`."""
    from hpccoll.sizing.transformer_shape import list_presets

    return list_presets()


def _list_machines() -> list[str]:
    """Return the names of the built-in machine models."""
    from hpccoll.predict.machine_catalogue import list_machines

    return list_machines()


def _list_strategies() -> list[str]:
    """Return the words of which a STRATEGY of `hpccoll train` consists: dp, tp, pp, cp, ep, zero1 to zero3, and sp."""
    from hpccoll.parallel.mesh import AXES, SEQUENCE_PARALLEL, ZERO_LEVELS

    return [*AXES, *ZERO_LEVELS, SEQUENCE_PARALLEL]


complete_operations = _complete_from(_list_operations)
complete_plans = _complete_from(_list_plans)
complete_examples = _complete_from(_list_examples)
complete_presets = _complete_from(_list_presets)
complete_machines = _complete_from(_list_machines)
complete_strategies = _complete_from(_list_strategies)
