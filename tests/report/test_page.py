"""The page is valid HTML, needs no other files and shows texts of users unchanged."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
from builders import ROOT

from competition.config.params_file import load_params
from competition.report.charts import Point, bar_chart, legend, public_score_chart, reliability_chart, score_chart
from competition.report.class_charts import clustered_order, confusion_chart
from competition.report.members import Line, curves_note, curves_text, epoch_chart, overfitting
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
        map_chart(
            MapPoints(np.eye(2), np.array([EVIL, "i"]), np.zeros(2, int), np.zeros(2, int), np.full(2, -1)),
            [EVIL],
            {0: 0},
        ),
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


def test_a_page_requests_no_other_files() -> None:
    page = render(head(), [Section("key", "Title", "file", [Sheet([Tile("data:image/png;base64,AA", True, ["x"])])])])
    reading = read(page)
    assert reading.addresses == ["#key", "#key", "data:image/png;base64,AA"]
    assert not reading.tags & {"link", "iframe", "object"}
    assert not re.search(r"url\((?!#)", page) and "@import" not in page and "http" not in page.replace("http-equiv", "")


def test_the_policy_allows_the_style_sheet_and_the_script_of_the_page_and_no_other() -> None:
    page = render(head(), [Section("key", "T", "f", [Charts(score_chart([Point("a", 0.5, 0.1, True)], None, "m"))])])
    (style,), (script,) = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script"))
    policy = content_security_policy(style, script)
    assert f'content="{policy}"' in page.replace("&#39;", "'") and "unsafe" not in policy
    assert not re.search(r"<[^>]*\s(style|on\w+)=", page)  # the policy would block them


def test_a_command_in_a_sentence_is_set_as_code_and_nothing_in_it_is_markup() -> None:
    sections = [Section("key", "Title", "file", [Text(["make tune, `make train` and `<i>`"])])]
    assert "<code>make train</code> and <code>&lt;i&gt;</code>" in render(head(), sections)


def test_commands_between_backticks_and_beside_titles_are_completed() -> None:
    sections = [Section("key", "Title", "<file> · make tune", [Text(["make tune, `make train`"])])]
    completed = render(head(), sections, complete=lambda text: f"{text} PARAMS='a.yaml'")
    assert "make tune, <code>make train PARAMS=&#39;a.yaml&#39;</code>" in completed
    assert '<span class="sources">&lt;file&gt; · make tune PARAMS=&#39;a.yaml&#39;</span>' in completed


def test_texts_of_users_are_not_read_as_math_or_colours() -> None:
    name = r"$x^2$ \frac #000004"
    chart = score_chart([Point(name, 0.5, None, True)], None, name)[0]
    assert f">{name}</text>" in chart
    assert not re.findall(r'="[^"]*#0000[^"]*"', chart.replace(f'aria-label="{name}', ""))  # every colour is a variable


def test_a_point_without_an_error_has_no_bar_and_an_optimistic_one_is_hollow() -> None:
    chart = score_chart([Point("claimed", 0.9, None, False), Point("honest", 0.8, 0.01, True)], None, "macro_f1")[0]
    assert chart.count('class="hollow"') == 1 and chart.count('class="dot"') == 1
    assert chart.count('class="whisker"') == 1
    assert "0.8000 ± 0.0100" in chart
    read(score_chart([Point("a", 1.0, 0.0, True), Point("b", 1.0, None, True)], None, "accuracy")[0])  # equal scores


def test_overfitting_starts_where_the_held_out_loss_rises_in_all_folds_and_noise_is_not_called_so() -> None:
    falling, rng = np.linspace(1, 0.5, 6)[:, None], np.random.default_rng(0)
    rising = np.concatenate([falling[:4], falling[3] + np.array([[0.1], [0.3]])]) + rng.normal(0, 0.005, (6, 5))
    start = overfitting(rising)
    assert start is not None and start.is_clear and start.best == 4 and 0.25 < start.rise < 0.35
    noisy = overfitting(0.5 + rng.normal(0, 0.1, (6, 5)))
    assert noisy is not None and not noisy.is_clear
    still = overfitting(np.repeat(falling, 5, axis=1))
    assert still is not None and not still.is_clear and still.best == still.last == 6
    assert overfitting(rising[:, :1]) is None and overfitting(rising[:2]) is None
    gaps = np.full((12, 5), np.nan)
    gaps[1::2] = rising  # every second epoch was scored
    assert (spaced := overfitting(gaps)) is not None and (spaced.best, spaced.last) == (8, 12)
    assert spaced.rise == start.rise and overfitting(gaps[:-1]) is None


def test_a_fold_whose_own_held_out_loss_was_clearly_lower_before_is_named_beside_that_of_the_mean() -> None:
    losses = np.linspace(1, 0.5, 6)[:, None] + np.zeros((6, 3))
    assert "In fold" not in curves_text(losses, losses, overfitting(losses), [0, 2, 4])
    losses[3, 1] = 0.45  # the second of them ends at 0.5
    text = curves_text(losses, losses, overfitting(losses), [0, 2, 4])
    assert (
        "No overfitting: in the mean of the folds the held-out loss is lowest after the last epoch. In fold 2 alone"
        in text
    )


def test_the_note_of_the_curves_says_what_the_training_loss_is_of() -> None:
    training = replace(load_params(ROOT / "params.yaml").train, label_smoothing=0.1, mixup=0.0, cutmix=0.0)
    plain = dict.fromkeys(
        ("shift", "zoom", "rotate", "brightness", "contrast", "saturation", "erase", "label_smoothing"), 0.0
    )
    assert ", of augmented images and smoothed labels;" in curves_note([training])
    assert "smoothed" not in curves_note([replace(training, label_smoothing=0.0)])
    assert (
        ", of"
        not in curves_note([replace(training, **plain, flip="none", crop=1.0, augment={})]).partition("So")[0][60:]
    )


def test_classes_that_are_confused_stand_together_in_a_large_matrix() -> None:
    confusion = np.diag(np.full(40, 20))
    for a, b in ((0, 39), (5, 20)):
        confusion[a, b] = confusion[b, a] = 6
    order = clustered_order(confusion).tolist()
    assert sorted(order) == list(range(40))
    assert all(abs(order.index(a) - order.index(b)) == 1 for a, b in ((0, 39), (5, 20)))
