"""A group of commands whose error about an unknown command names the commands that there are."""

from __future__ import annotations

import click

from hpccoll.errors import UnknownNameError


class CommandGroup(click.Group):
    """A click group whose error about an unknown command names the commands that there are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name and the object of the command that `args` begins with, and its own arguments.

        Raises UnknownNameError for an unknown command, unless the shell asks for completions.
        """
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names and not ctx.resilient_parsing:
            raise UnknownNameError("command", args[0], names)
        return super().resolve_command(ctx, args)
