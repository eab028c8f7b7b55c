"""Looks up error sentences of this project on docs/troubleshooting.md, which is generated from the source."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from pipelines.versions import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
SECTION = re.compile(
    r"^## (?P<title>[^\n]+)\n\nMore: \[[^\n]+\]\((?P<guide>[^\n)]+)\)\n\n```text\n(?P<sentences>.+?)\n```",
    re.M | re.S,
)
PREFIX = re.compile(r"^\s*goldfold: ", re.M)
VALUE = re.compile(r"<\w+>")  # as the page writes a value
SURE = 0.9  # share of a sentence's words above which it cannot be another one
LIKELY = 0.55  # above which it is the sentence, shortened or retyped
FEWEST_WORDS = 4  # of a likely sentence


@dataclass(frozen=True)
class OwnError:
    """An error sentence of this project that occurs in a text."""

    sentence: str  # with the values of the text if it is complete there, else with <name> for each value
    section: str
    guide: str  # page of docs/ with more about it
    share: float  # of the sentence's words that are in the text, in their order

    @property
    def fix(self) -> str:
        """What to do: the last part of the sentence."""
        return re.split(r"; |: (?=expected)|, (?=expected)", self.sentence)[-1]


def find_own_error(text: str, page: Path = PAGE) -> OwnError | None:
    """The error sentence that the text has most words of; None if it has none, or if the page is not installed."""
    text = " ".join(PREFIX.split(text)[-1].split())
    words = words_of(text)
    best: tuple[int, float, OwnError] | None = None
    for section, guide, template in sentences(page):
        own = words_of(VALUE.sub(" ", template))
        most = min(len(own), len(words))  # the text may have only the beginning of the sentence
        if not most or len({*own} & {*words}) < LIKELY * len({*(own if most == len(own) else words)}):
            continue
        common = common_words(own, words)
        share = common / len(own)
        if common < LIKELY * most or (common < FEWEST_WORDS and share < 1):
            continue
        if best is None or (common, share) > best[:2]:
            best = common, share, OwnError(completed(template, text), section, guide, share)
    return best[2] if best else None


def sentences(page: Path) -> Iterator[tuple[str, str, str]]:
    """(section, guide, sentence) of every error sentence on the page."""
    content = page.read_text(encoding="utf-8") if page.is_file() else ""
    for section in SECTION.finditer(content):
        for sentence in section["sentences"].splitlines():
            yield section["title"], section["guide"], sentence


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def common_words(own: list[str], words: list[str]) -> int:
    """Number of words of a sentence that are in the text in the same order."""
    return sum(block.size for block in SequenceMatcher(None, own, words, autojunk=False).get_matching_blocks())


def completed(template: str, text: str) -> str:
    """The sentence with its values, if the text has all of it; else the template."""
    parts = [re.escape(part) for part in VALUE.split(template)]
    match = re.search("(.{0,200}?)".join(parts) + r"$", text)
    return match[0] if match else template
