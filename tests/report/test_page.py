"""The page is valid HTML, needs no other files and shows texts of users unchanged."""

import re
from html.parser import HTMLParser

import numpy as np

from competition.report.charts import Point, bar_chart, legend, public_score_chart, reliability_chart, score_chart
from competition.report.class_charts import confusion_chart
from competition.report.members import Line, epoch_chart
from competition.report.mistakes import reliability
from competition.report.page import (
    Charts,
    Figure,
    Head,
    Image,
    PointMap,
    Section,
    Sheet,
    SideBySide,
    Table,
    Text,
    Tile,
    content_security_policy,
    render,
)
from competition.report.row_map import MapPoints, map_chart, map_legend

EVIL = "<b>rose</b> & \"co\" 'x' {{ 99 * 991 }}"
VOID = {"meta", "img", "br", "link", "input"}


class Reading(HTMLParser):
    """Checks that tags are closed in order; collects the text and the requested addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        self.text += [value or "" for name, value in attrs if name == "aria-label"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text.append(data)


def read(page: str) -> Reading:
    reading = Reading()
    reading.feed(page)
    reading.close()
    assert reading.open == []
    return reading


def head(**changes) -> Head:
    figures = [Figure("honest", "0.9", "note", main=True)]
    return Head(**{"title": "t", "line": "l", "figures": figures, "warnings": [], "footer": "now", **changes})


def test_texts_of_users_are_shown_unchanged() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8]])
    charts = [
        *score_chart([Point(EVIL, 0.5, 0.1, True, EVIL)], (0.4, 0.6), EVIL),
        epoch_chart([Line(EVIL, np.array([[0.1], [0.5], [0.7]]), 0)], EVIL),
        public_score_chart([(EVIL, 0.5, 0.1, 0.6, 0.4, 0.8)], EVIL),
        legend([EVIL]),
        map_legend([EVIL], {0: 0}),
        map_chart(MapPoints(np.eye(2), np.array([EVIL, "i"]), *np.zeros((2, 2), int), np.full(2, -1)), [EVIL], {0: 0}),
        confusion_chart(np.array([[3, 1], [0, 2]]), [EVIL, "plain"]),
        reliability_chart(reliability(np.array([0, 1]), scores)[0]),
        *bar_chart([3, 1], [EVIL, EVIL], EVIL),
    ]
    blocks = [
        Text([EVIL]),
        Text([EVIL], warning=True),
        Table([EVIL], [[EVIL]], note=EVIL, folded=EVIL, title=EVIL),
        Charts(charts, EVIL, EVIL),
        Sheet([Tile("", False, [EVIL])], EVIL, EVIL),
        SideBySide(EVIL, [(EVIL, [Tile("data:,", False, [EVIL])])]),
        PointMap(charts[-1], charts[-1], [Tile("data:,", False, [EVIL])], EVIL),
        Image("data:,", EVIL),
    ]
    shown = head(title=EVIL, line=EVIL, figures=[Figure(EVIL, EVIL, EVIL)], warnings=[EVIL], footer=EVIL)
    page = render(shown, [Section("key", EVIL, EVIL, blocks)])
    assert "<b>rose" not in page
    assert "98109" not in page
    assert "".join(read(page).text).count(EVIL) >= 20


def test_a_page_requests_no_other_files_and_its_policy_allows_its_own_style_and_script_alone() -> None:
    blocks = [
        Charts(score_chart([Point("a", 0.5, 0.1, True)], None, "m")),
        Sheet([Tile("data:image/png;base64,AA", True, ["x"])]),
    ]
    page = render(head(), [Section("key", "Title", "file", blocks)])
    reading = read(page)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in reading.addresses)
    assert not reading.tags & {"link", "iframe", "object"}
    assert not re.search(r"url\((?!#)", page) and "@import" not in page and "http" not in page.replace("http-equiv", "")
    (style,), (script,) = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script"))
    policy = content_security_policy(style, script)
    assert f'content="{policy}"' in page.replace("&#39;", "'") and "unsafe" not in policy
    assert not re.search(r"<[^>]*\s(style|on\w+)=", page)  # the policy would block them


def test_commands_between_backticks_and_beside_titles_are_completed() -> None:
    sections = [Section("key", "Title", "<file> · make tune", [Text(["make tune, `make train`"])])]
    completed = render(head(), sections, complete=lambda text: f"{text} PARAMS='a.yaml'")
    assert "make tune, <code>make train PARAMS=&#39;a.yaml&#39;</code>" in completed
    assert '<span class="sources">&lt;file&gt; · make tune PARAMS=&#39;a.yaml&#39;</span>' in completed
