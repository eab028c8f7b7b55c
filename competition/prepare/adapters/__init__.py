"""Adapters: one module per kind of competition, all with the same three functions (docs/adding_a_competition.md)."""

from typing import Any

from competition.config.plugins import Plugins
from competition.prepare.adapters import digits, flowers, folder, plants

ADAPTERS: dict[str, Any] = {
    "digits": digits,
    "noisy_digits": digits,
    "flowers": flowers,
    "plants": plants,
    "folder": folder,
}


def adapter_named(name: str, plugins: Plugins) -> Any:
    """The adapter of this name, the project's or the user's: an object with the three functions as attributes."""
    return plugins.named("ADAPTERS", name, ADAPTERS) or ADAPTERS[name]
