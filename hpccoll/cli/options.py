"""Options of commands, each declared once: the fields of a dataclass, with click's declaration of their option.

A command under the decorator `take_options(CLASS)` gets an object of the class as its parameter `options`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import wraps
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_DECORATE, _GROUP = "decorate", "group"  # keys of a field's metadata


def option(*names: str, **settings: Any) -> Any:
    """Return a field for an option; the arguments are those of `click.option`, without the name of the parameter."""
    return declare(lambda name: click.option(name, *names, **settings))


def argument(**settings: Any) -> Any:
    """Return a field for an argument; `settings` are those of `click.argument`."""
    return declare(lambda name: click.argument(name, **settings))


def declare(decorate: Callable[[str], Decorator]) -> Any:
    """Return a field whose options the function `decorate` adds, given the field's name."""
    return field(metadata={_DECORATE: decorate})


def option_group(kind: type[Any]) -> Any:
    """Return a field for an object of another class of options."""
    return field(metadata={_GROUP: kind})


def take_options(kind: type[Any]) -> Decorator:
    """Return a decorator that adds the options of a class to a command, which gets them as the parameter `options`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as a command with the options of the class."""

        @wraps(function)
        def command(**values: Any) -> Any:
            """Call the function with the values of the options as one object."""
            return function(options=make_options(kind, values), **values)

        return _add_options(kind, command)

    return decorate


def make_options(kind: type[Any], values: dict[str, Any]) -> Any:
    """Remove the values of the options of a class from `values`, and return them as an object of the class."""
    own = {}
    for declared in fields(kind):
        if _GROUP in declared.metadata:
            own[declared.name] = make_options(declared.metadata[_GROUP], values)
        elif _DECORATE in declared.metadata:
            own[declared.name] = values.pop(declared.name)
    return kind(**own)


def _add_options(kind: type[Any], command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the options of a class, in the order of its fields."""
    for declared in reversed(fields(kind)):
        if _GROUP in declared.metadata:
            command = _add_options(declared.metadata[_GROUP], command)
        elif _DECORATE in declared.metadata:
            command = declared.metadata[_DECORATE](declared.name)(command)
    return command
