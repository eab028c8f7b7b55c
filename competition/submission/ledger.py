"""submissions/ledger.jsonl: origin and outcome of every submission file. Lines are appended, never changed.

One JSON object per line, of three kinds: an entry (a submission file was written), an event (a step of an attempt to submit it
to Kaggle) and a "look" (the private solution of a local competition was opened).
A line is appended under a lock and flushed to disk; an incomplete line of a killed process is ignored.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from pydantic import TypeAdapter

from competition.config.digests import to_plain
from competition.config.errors import counted
from competition.config.faults import fault_point
from competition.ensemble.expected_score import ExpectedScore, interval
from competition.ensemble.external_check import doubts_of
from competition.kaggle.client import competition_slug


@dataclass(frozen=True)
class Entry:
    """A submission file was written."""

    digest: str  # sha256 of the submission file; the blend's digest without test images
    file: str  # its name
    competition: str
    members: tuple[str, ...]
    weights: tuple[float, ...]  # one for each member
    views: tuple[str, ...]
    params_digest: str
    git_commit: str  # "" outside a repository; "+" at the end: with changes
    metric: str
    oof_score: float | None  # on the rows that the blend was fitted on
    honest_score: float | None  # on rows that took no part in the fit
    standard_error: float | None  # of honest_score
    oof_rows: int  # that honest_score is on
    test_rows: int
    partial: str  # "" = all fold models took part, else their share, e.g. "4of5"
    made: str  # UTC, ISO 8601
    oof_digest: str = ""  # of ids and labels of the rows that the blend was fitted on
    expected: tuple[ExpectedScore, ...] = ()  # score expected on the test rows; () = no test rows
    optimistic: bool = False  # True: all rows were used to tune hyperparameters, honest_score is optimistic
    runs: tuple[str, ...] = ()  # runs whose predictions are mixed, as member@digits
    is_doubted: bool = False  # a member probably knew the rows of honest_score, or its test rows have the ids of others
    grouping: str = ""  # which rows share a fold, as in scores.json; "" = not recorded


GRADED = "graded here"  # the state of a submission file with the scores of `make grade`
What = Literal["sending", "submitted", "scored", "failed"]


@dataclass(frozen=True)
class Event:
    """A step of an attempt to submit a file to Kaggle."""

    digest: str  # sha256 of the submission file
    what: What
    ref: str = ""  # Kaggle's number of the attempt; "" before there is one
    public_score: float | None = None
    private_score: float | None = None  # None until the deadline
    error: str = ""  # Kaggle's message
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    slug: str = ""  # of the competition on Kaggle; "" = of any


@dataclass(frozen=True)
class SolutionAccess:
    """The private solution of a local competition was opened to score a submission."""

    competition: str
    file: str  # name of the submission file
    at: str  # UTC, ISO 8601


@dataclass(frozen=True)
class Ledger:
    entries: tuple[Entry, ...]
    events: tuple[Event, ...]
    unreadable: int  # number of lines of unknown kind, which are ignored
    solution_accesses: tuple[SolutionAccess, ...] = ()


# The key `kind` of a stored line -> its type.
KINDS: dict[str, type[Entry] | type[Event] | type[SolutionAccess]] = {
    "entry": Entry,
    "event": Event,
    "look": SolutionAccess,  # the word that stored lines have
}
READERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(line_type) for kind, line_type in KINDS.items()}


@dataclass(frozen=True)
class SubmissionState:
    """A submission file: its newest entry, and its latest state and scores."""

    entry: Entry
    state: str  # "made" or "cross-validation" (no test images), or the last event's `what`
    ref: str
    public_score: float | None
    private_score: float | None
    error: str
    first_time: str  # UTC, ISO 8601, of its oldest entry
    refs: frozenset[str] = frozenset()  # Kaggle's numbers of all attempts


def append(path: Path, line: Entry | Event | SolutionAccess) -> None:
    """Append one line and flush it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = next(name for name, line_type in KINDS.items() if isinstance(line, line_type))
    text = json.dumps({"kind": kind, **to_plain(line)})
    values = json.loads(text, parse_constant=lambda name: None)  # JSON has no NaN
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=60), path.open("ab") as file:
        if path.read_bytes()[-1:] not in (b"", b"\n"):  # a killed process left a part of a line
            file.write(b"\n")
        fault_point("ledger.before_line", path)
        file.write((json.dumps(values, ensure_ascii=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
    fault_point("ledger.after_line", path)


def append_entry_once(path: Path, entry: Entry) -> None:
    """Append the entry unless the last entry of its submission file is equal: a process killed after its line makes it again."""
    earlier = [each for each in read(path).entries if each.file == entry.file]
    if not earlier or replace(earlier[-1], made="") != replace(entry, made=""):
        append(path, entry)


def confirm_entry(path: Path, competition: str, result: Mapping[str, Any]) -> None:
    """If another blend with an equal submission file was recorded later, append this blend's entry again, so that it is the newest.

    result: of the blend's manifest.
    """
    recorded = of_competition(read(path), competition).entries
    entries = [entry for entry in recorded if entry.digest == result["submission"]]
    own = entry_of_blend(entries, result)
    if own is not None and own is not entries[-1]:
        append(path, replace(own, made=datetime.now(UTC).isoformat(timespec="seconds")))


def entry_of_blend(entries: Sequence[Entry], result: Mapping[str, Any]) -> Entry | None:
    """The last entry of exactly this blend. If it has none, the last entry with the same submission file (different blends can give
    equal files). None if there is neither.

    entries: of the blend's competition.  result: of the blend's manifest.
    """
    same_file = [entry for entry in entries if entry.digest == result["submission"]]
    of_blend = (result["metric"], result["honest"], {*result["members"]}, bool(doubts_of(result)))
    own = [e for e in same_file if (e.metric, e.honest_score, {*e.members}, e.is_doubted) == of_blend]
    return next(reversed(own or same_file), None)


def read(path: Path) -> Ledger:
    """Read all complete lines. A missing file is an empty ledger."""
    text = path.read_bytes().decode("utf-8", errors="replace") if path.exists() else ""
    lines = [_parse(line) for line in text.split("\n") if line.strip()]
    entries = tuple(line for line in lines if isinstance(line, Entry))
    events = tuple(line for line in lines if isinstance(line, Event))
    return Ledger(entries, events, lines.count(None), tuple(line for line in lines if isinstance(line, SolutionAccess)))


def submission_states(ledger: Ledger) -> list[SubmissionState]:
    """One state per submission file (digest), in the order of their newest entries."""
    newest: dict[str, Entry] = {}
    first_times: dict[str, str] = {}
    for entry in ledger.entries:
        newest.pop(entry.digest, None)  # to the end
        newest[entry.digest] = entry
        first_times.setdefault(entry.digest, entry.made)
    by_digest = {
        digest: SubmissionState(
            entry, "made" if entry.test_rows else "cross-validation", "", None, None, "", first_times[digest]
        )
        for digest, entry in newest.items()
    }
    for event in ledger.events:  # the last state and error, and the last known scores
        if row := by_digest.get(event.digest):
            public = row.public_score if event.public_score is None else event.public_score
            private = row.private_score if event.private_score is None else event.private_score
            scored = replace(row, state=event.what, public_score=public, private_score=private)
            refs = row.refs | ({event.ref} - {""})
            by_digest[event.digest] = replace(scored, ref=event.ref or row.ref, error=event.error, refs=refs)
    return list(by_digest.values())


def of_competition(ledger: Ledger, competition: str, slug: str = "") -> Ledger:
    """The lines of a competition, without attempts at others on Kaggle than `slug`, which may be a link; "" = at any."""
    slug = competition_slug(slug) if slug else ""
    return replace(
        ledger,
        entries=tuple(one for one in ledger.entries if one.competition == competition),
        events=tuple(one for one in ledger.events if not slug or one.slug in ("", slug)),
        solution_accesses=tuple(one for one in ledger.solution_accesses if one.competition == competition),
    )


def local_grade(file: Path, entry: Entry) -> Mapping[str, Any] | None:
    """What `make grade` gave the entry's submission file by the entry's metric; None if it did not.

    file: grades.json, may be missing.
    """
    grades = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    grade: Mapping[str, Any] | None = grades.get(entry.file, {}).get(entry.metric)
    return grade


def with_local_grades(rows: Sequence[SubmissionState], file: Path) -> list[SubmissionState]:
    """The rows, those without a public score with the scores of `make grade`.  file: see local_grade."""
    graded = []
    for row in rows:
        grade = local_grade(file, row.entry)
        if row.public_score is None and grade is not None:
            error = f'Kaggle reported "{row.error}"' if row.error else ""
            row = replace(row, state=GRADED, error=error, public_score=grade["public"], private_score=grade["private"])
        graded.append(row)
    return graded


def already_sent(ledger: Ledger, digest: str) -> Event | None:
    """The last event of a submission file with a Kaggle number, or "sending" if that is its last event; None if neither exists.

    A later attempt that Kaggle rejected ("failed" without a number) does not hide earlier events.
    """
    events = [event for event in ledger.events if event.digest == digest]
    if events and events[-1].what == "sending":
        return events[-1]
    return next((event for event in reversed(events) if event.ref), None)


def noise_band(entry: Entry, public_share: float) -> tuple[float, float] | None:
    """95 % interval of public minus honest score by chance alone, from `expected_score.interval`.

    public_share: share of the test rows that the public score uses.
    """
    public_rows = entry.test_rows * public_share
    if entry.honest_score is None or not entry.expected or public_rows <= 0:
        return None
    low, high = interval(entry.expected, public_rows)
    return low - entry.honest_score, high - entry.honest_score


def table(rows: Sequence[SubmissionState], public_share: float, metric: str) -> list[dict[str, str]]:
    """Table of the ledger: one dictionary (column -> text) per row.

    metric: of Kaggle's scores.  A column `metric` is there if the entries have more than one.
    cv: OOF score; honest: with its standard error, and whether it is doubted; gap: public minus honest; noise: 95 % interval of
    the gap by chance, "-" of a doubted score. Both only where the two scores are of one metric; a local grade is of the entry's.
    """
    lines, has_metrics = [], len({row.entry.metric for row in rows}) > 1
    for row in rows:
        entry, honest = row.entry, row.entry.honest_score
        is_comparable = entry.metric == metric or row.state == GRADED
        band = noise_band(entry, public_share) if is_comparable and not entry.is_doubted else None
        public = row.public_score if is_comparable else None
        gap = public - honest if public is not None and honest is not None else None
        error = f" ± {entry.standard_error:.4f}" if entry.standard_error is not None else ""
        cv, honest_text = (f"{score:.4f}" if score is not None else "-" for score in (entry.oof_score, honest))
        # As many decimals as on Kaggle.
        public_text, private_text = (
            f"{score:.5f}" if score is not None else "-" for score in (row.public_score, row.private_score)
        )
        lines.append(
            {
                "digest": entry.digest[:12],
                "made": row.first_time[:16],
                "members": "+".join(entry.members) + (f" ({entry.partial})" if entry.partial else ""),
                **({"metric": entry.metric} if has_metrics else {}),
                "cv": cv,
                "honest": honest_text + error + (" DOUBTED" if entry.is_doubted else ""),
                "public": public_text,
                "private": private_text,
                "gap": f"{gap:+.4f}" if gap is not None else "-",
                "noise": f"{band[0]:+.4f} to {band[1]:+.4f}" if band is not None else "-",
                "state": row.state + (f": {row.error}" if row.error else ""),
            }
        )
    return lines


def honest_rows_text(rows: Sequence[SubmissionState]) -> str:
    """Which submission files have their honest score on which number of rows; "" if it is the same for all."""
    names: dict[int, list[str]] = {}
    for row in rows:
        names.setdefault(row.entry.oof_rows, []).append(row.entry.digest[:4])
    parts = [f"{', '.join(digests)} on {counted(size, 'row')}" for size, digests in names.items()]
    return f"Honest scores are on different rows: {'; '.join(parts)}." if len(names) > 1 else ""


def _parse(raw: str) -> Entry | Event | SolutionAccess | None:
    """A line with the fields that this version knows: a later one may have written more."""
    try:
        values = json.loads(raw, parse_constant=lambda name: None)
        if "expected" in values:
            measured = ("rows", "middle", "spread", "error")  # the limits of a metric may be unknown
            values["expected"] = [point for point in values["expected"] if None not in map(point.get, measured)]
        return READERS[values["kind"]].validate_python(values)
    except (ValueError, KeyError, TypeError, AttributeError):  # ValidationError is a ValueError
        return None
