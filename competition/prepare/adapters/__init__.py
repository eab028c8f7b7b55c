"""Adapters: one module per kind of competition, all with the same five functions (docs/adding_a_competition.md)."""

from typing import Any

from competition.config.errors import UserError, did_you_mean
from competition.config.plugins import plugin_named
from competition.prepare.adapters import digits, flowers, folder, plants

ADAPTERS: dict[str, Any] = {
    "digits": digits,
    "noisy_digits": digits,
    "flowers": flowers,
    "plants": plants,
    "folder": folder,
}


def adapter_named(name: str) -> Any:
    """The adapter of this name, the project's or the user's: an object with the five functions as attributes."""
    adapter = plugin_named("ADAPTERS", name, ADAPTERS) or ADAPTERS.get(name)
    if adapter is None:
        raise UserError(f"competition.adapter: {name!r} is not known{did_you_mean(name, ADAPTERS)}")
    return adapter
