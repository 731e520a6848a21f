"""Options are declared once, as fields of a class, and keep their order and their values."""

from __future__ import annotations

from dataclasses import dataclass

import click
from click.testing import CliRunner

from hpccoll.cli.options import argument, option, option_group, take_options


@dataclass(frozen=True)
class InnerOptions:
    """The options of a part of a command."""

    clock: str | None = option("--clock")


@dataclass(frozen=True)
class OuterOptions:
    """The options of a command."""

    names: tuple[str, ...] = argument(nargs=-1)
    min_bytes: int = option("-b", "--smallest", default=8)
    starting: InnerOptions = option_group(InnerOptions)
    seed: int = option("--seed", default=0)
    blocks: int = 3


@click.command()
@click.option("--other")
@take_options(OuterOptions)
def command(options: OuterOptions, other: str | None) -> None:
    """Print the options."""
    click.echo(f"{options.names} {options.min_bytes} {options.starting.clock} {options.blocks} {other}")


def test_a_command_gets_its_options_as_one_object():
    result = CliRunner().invoke(command, ["x", "y", "-b", "16", "--clock", "hca3", "--other", "z"])
    assert result.output == "('x', 'y') 16 hca3 3 z\n"
    assert [each.name for each in command.params] == ["other", "names", "min_bytes", "clock", "seed"]
