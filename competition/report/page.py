"""The report page: a head and sections of blocks, rendered as one self-contained HTML file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # `blend` imports this module but must not need jinja2
    from markupsafe import Markup

TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Text:
    """Paragraphs.  warning: highlighted."""

    kind: ClassVar = "text"
    lines: Sequence[str]
    warning: bool = False


@dataclass(frozen=True)
class Table:
    """A table of formatted cells.  words: number of left-aligned text columns.  folded: summary of a collapsed table."""

    kind: ClassVar = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    note: str = ""
    folded: str = ""


@dataclass(frozen=True)
class Charts:
    """Charts side by side, as escaped markup."""

    kind: ClassVar = "charts"
    drawings: "Sequence[Markup]"
    note: str = ""
    name: str = ""


@dataclass(frozen=True)
class Tile:
    """A picture with its caption."""

    address: str  # data: URI; "" = no picture
    pixelated: bool  # enlarge without smoothing
    lines: Sequence[str]


@dataclass(frozen=True)
class Sheet:
    """A grid of pictures."""

    kind: ClassVar = "sheet"
    tiles: Sequence[Tile]
    note: str = ""


Block = Text | Table | Charts | Sheet


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    key: str  # the anchor
    title: str
    sources: str  # input files and the command that writes them
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Figure:
    """A figure at the top of the page."""

    name: str
    value: str
    note: str = ""
    main: bool = False


@dataclass(frozen=True)
class Head:
    """Title, subtitle, figures and warnings above the sections; `made` is the footer."""

    title: str
    line: str
    figures: Sequence[Figure]
    warnings: Sequence[str]
    made: str


def render(head: Head, sections: Sequence[Section]) -> str:
    """Render the page. Every text is escaped; only charts are markup."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = _code
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(head=head, sections=sections)


def _code(text: str) -> "Markup":
    """Turn text between backticks into <code> elements and escape everything."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
