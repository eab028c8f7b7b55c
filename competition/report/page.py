"""The report page: a head and sections of blocks, rendered as one self-contained HTML file.

One style sheet and one script (page.css, page.js) are inside the file. The content-security policy allows these two by
their digests and pictures as data: URIs, and nothing else: no other script, no inline style, no request.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `blend` imports this module but must not need jinja2
    from markupsafe import Markup

TEMPLATE, STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.css", "page.js"))

OPEN_SECTIONS = 3  # the others are folded until they are asked for


@dataclass(frozen=True)
class Text:
    """Paragraphs.  warning: highlighted.  name: heading above them."""

    lines: Sequence[str]
    warning: bool = False
    name: str = ""


@dataclass(frozen=True)
class Table:
    """A table of formatted cells.

    words: number of left-aligned text columns.  folded: summary of a collapsed table.  title: its visible caption; without
    one, a caption for screen readers is made from the section's title.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    note: str = ""
    folded: str = ""
    title: str = ""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], words: int = 1, note: str = "", title: str = "") -> "Table":
        """A table of one or more rows that map the columns to their cells."""
        return cls(list(rows[0]), [list(row.values()) for row in rows], words, note, title=title)


@dataclass(frozen=True)
class Charts:
    """Charts side by side, as escaped markup.  zoom: in their own size in a box that scrolls, with buttons to zoom."""

    drawings: "Sequence[Markup]"
    note: str = ""
    name: str = ""
    zoom: bool = False


@dataclass(frozen=True)
class Tile:
    """A picture with its caption."""

    address: str  # data: URI; "" = no picture
    pixelated: bool  # enlarge without smoothing
    lines: Sequence[str]


@dataclass(frozen=True)
class Sheet:
    """A grid of pictures."""

    tiles: Sequence[Tile]
    note: str = ""
    name: str = ""


@dataclass(frozen=True)
class SideBySide:
    """Groups of pictures beside each other, each with its title."""

    name: str
    groups: Sequence[tuple[str, Sequence[Tile]]]


@dataclass(frozen=True)
class PointMap:
    """A chart of many points; the point under the pointer, or nearest to a tap, is named beside it, with its picture.

    drawing: of `row_map.map_chart`, whose points have the numbers of their pictures.  tiles: the pictures; also folded below the chart.
    """

    drawing: "Markup"
    legend: "Markup"
    tiles: Sequence[Tile]
    note: str


@dataclass(frozen=True)
class Image:
    """One wide picture, such as a contact sheet."""

    address: str  # data: URI
    caption: str


Block = Text | Table | Charts | Sheet | SideBySide | PointMap | Image


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
    """Title, subtitle, figures and warnings above the sections, and the footer below them."""

    title: str
    line: str
    figures: Sequence[Figure]
    warnings: Sequence[str]
    footer: str
    verdict: str = ""  # the result in one sentence


def render(head: Head, sections: Sequence[Section], complete: Callable[[str], str] = lambda text: text) -> str:
    """Render the page. Every text is escaped; only charts are markup.

    complete: adds to sources and to texts between backticks what a command lacks, such as PARAMS.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "code": partial(_code, complete),
        "complete": complete,
        "kind": lambda block: type(block).__name__,
    }
    style, script = (file.read_text(encoding="utf-8") for file in (STYLE, SCRIPT))
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        head=head,
        sections=sections,
        open_sections=OPEN_SECTIONS,
        style=Markup(style),  # files of this package
        script=Markup(script),
        policy=content_security_policy(style, script),
    )


def content_security_policy(style: str, script: str) -> str:
    """Allow this style sheet, this script and pictures inside the page; nothing is requested, submitted or framed."""
    allowed = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src {allowed[0]}; script-src {allowed[1]}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _code(complete: Callable[[str], str], text: str) -> "Markup":
    """Turn text between backticks into <code> elements and escape everything."""
    from markupsafe import Markup, escape

    parts = re.split(r"`([^`]+)`", text)  # every other one was between backticks
    marked = (f"<code>{escape(complete(part))}</code>" if n % 2 else str(escape(part)) for n, part in enumerate(parts))
    return Markup("".join(marked))
