"""Digests of parameters: plain JSON values and their sha256."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any


def digest_of(value: object) -> str:
    """Return the sha256 of the canonical JSON of plain values and dataclasses."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_plain(value: object) -> Any:
    """Convert dataclasses, mappings, sequences, sets, paths and NumPy scalars to JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, Path):
        return value.as_posix()
    return value.item() if hasattr(value, "item") else value
