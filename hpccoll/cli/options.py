"""Declares each command-line option once, as a field of a dataclass; the field holds the arguments for click.

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
    """Return a dataclass field that declares a command-line option, as `click.option(*names, **settings)` does.

    The field's name becomes the name of the option's parameter. `take_options` adds a dataclass's options to a command.
    """
    return declare(lambda name: click.option(name, *names, **settings))


def argument(**settings: Any) -> Any:
    """Return a dataclass field that declares a command-line argument, as `click.argument(**settings)` does."""
    return declare(lambda name: click.argument(name, **settings))


def declare(decorate: Callable[[str], Decorator]) -> Any:
    """Return a dataclass field for which a decorator adds command-line options.

    `decorate` maps the name of the field to the decorator of the click command.
    """
    return field(metadata={_DECORATE: decorate})


def option_group(kind: type[Any]) -> Any:
    """Return a dataclass field whose value is an object of `kind`, another dataclass that declares options."""
    return field(metadata={_GROUP: kind})


def take_options(kind: type[Any]) -> Decorator:
    """Return a decorator that adds the options that the dataclass `kind` declares to a click command.

    The decorated function gets the values of the options as one object of `kind`, in its parameter `options`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for click, with the declared options, that calls `function` with one object of `kind`."""

        @wraps(function)
        def command(**values: Any) -> Any:
            """Call the function with an object of `kind` made of `values`, the options by parameter."""
            return function(options=make_options(kind, values), **values)

        return _add_options(kind, command)

    return decorate


def make_options(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return an object of the dataclass `kind`, made of the options that `kind` declares.

    `values` maps the names of a command's parameters to their values; the options of `kind` are removed from `values`.
    """
    own = {}
    for declared in fields(kind):
        if _GROUP in declared.metadata:
            own[declared.name] = make_options(declared.metadata[_GROUP], values)
        elif _DECORATE in declared.metadata:
            own[declared.name] = values.pop(declared.name)
    return kind(**own)


def _add_options(kind: type[Any], command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that the dataclass `kind` declares to the function of a click command; return the function."""
    for declared in reversed(fields(kind)):
        if _GROUP in declared.metadata:
            command = _add_options(declared.metadata[_GROUP], command)
        elif _DECORATE in declared.metadata:
            command = declared.metadata[_DECORATE](declared.name)(command)
    return command
