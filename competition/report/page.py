"""The report page: a head and sections made of a few kinds of blocks, as one HTML file that needs nothing else."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # blend states sentences of the report without writing the page: it works without jinja2
    from markupsafe import Markup

TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Text:
    """Paragraphs. warning: set apart."""

    kind: ClassVar = "text"
    lines: Sequence[str]
    warning: bool = False


@dataclass(frozen=True)
class Table:
    """Cells as they are shown; the first `words` columns are words, the others figures.  folded: opened by a click."""

    kind: ClassVar = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    note: str = ""
    folded: str = ""


@dataclass(frozen=True)
class Charts:
    """Drawings side by side, made of markup that is safe."""

    kind: ClassVar = "charts"
    drawings: "Sequence[Markup]"
    note: str = ""
    name: str = ""


@dataclass(frozen=True)
class Tile:
    address: str  # data: with the picture in it; "" where it could not be read
    hard_pixels: bool
    lines: Sequence[str]


@dataclass(frozen=True)
class Sheet:
    kind: ClassVar = "sheet"
    tiles: Sequence[Tile]
    note: str = ""


Block = Text | Table | Charts | Sheet


@dataclass(frozen=True)
class Section:
    key: str  # the anchor
    title: str
    sources: str  # the files it is made from, and the command that makes them
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Figure:
    """One of the large figures at the top."""

    name: str
    value: str
    note: str = ""
    main: bool = False


@dataclass(frozen=True)
class Head:
    title: str
    line: str
    figures: Sequence[Figure]
    warnings: Sequence[str]
    made: str


def render(head: Head, sections: Sequence[Section]) -> str:
    """The whole page. Every text is escaped; only drawings are markup."""
    from jinja2 import Environment, StrictUndefined

    world = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    world.filters["code"] = _code
    return world.from_string(TEMPLATE.read_text(encoding="utf-8")).render(head=head, sections=sections)


def _code(text: str) -> "Markup":
    """`make report` as on a terminal -> in the type of a terminal."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
