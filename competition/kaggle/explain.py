"""Explain common error messages of TPUs, Kaggle, gs:// and the environment: cause and fix."""

import re
from dataclasses import dataclass
from pathlib import Path

from competition.config.yaml_text import parse_yaml

FILE = Path(__file__).with_name("known_errors.yaml")


@dataclass(frozen=True)
class Explanation:
    error: str  # the part of the text that was recognised
    cause: str
    fix: str


def explain(text: str) -> Explanation | None:
    """Explain an error message; None if no pattern of known_errors.yaml matches."""
    for known in parse_yaml(FILE.read_text(encoding="utf-8"), str(FILE)):
        if match := re.search(known["pattern"], text):
            return Explanation(" ".join(match.group(0).split())[:200], known["cause"], known["fix"])
    return None
