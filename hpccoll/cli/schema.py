"""`hpccoll schema`: the JSON Schema of the records that other commands write with --json."""

from __future__ import annotations

import json

import click

from hpccoll.cli.output import is_printing_rank
from hpccoll.records import make_json_schema


@click.command(epilog="Example: hpccoll schema > hpccoll.schema.json")
def schema() -> None:
    """Print the JSON Schema of the records; each line of a result file is one record."""
    if is_printing_rank():
        click.echo(json.dumps(make_json_schema(), indent=2))
