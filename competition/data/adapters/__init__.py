"""Adapters: one module per kind of competition, all with the same five functions (docs/adding_a_competition.md)."""

from types import ModuleType

from competition.data.adapters import digits, flowers, folder, plants

ADAPTERS: dict[str, ModuleType] = {"digits": digits, "flowers": flowers, "plants": plants, "folder": folder}
