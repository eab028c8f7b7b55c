"""submissions/ledger.jsonl: what every submission was made from, and what became of it. Lines are only ever added.

One JSON object a line, of three kinds: an entry (a file was made), an event (something happened to it on Kaggle) and a
look (the private solution of a local competition was opened).
A line is added under a lock and flushed to disk; a last line torn by a killed process is set aside before the next.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from competition.artifacts.manifest import to_plain
from competition.ensemble.leaderboard import ExpectedScore, from_standard_error, interval


@dataclass(frozen=True)
class Entry:
    """A submission file was made."""

    digest: str  # sha256 of the file
    file: str  # its name
    competition: str
    members: tuple[str, ...]
    weights: tuple[float, ...]  # one for each member
    views: tuple[str, ...]
    params_digest: str
    git_commit: str  # "" outside a repository; "+" at the end: with changes
    metric: str
    oof_score: float | None  # on the rows the blend was chosen on
    honest_score: float | None  # on rows that took no part in the choice
    standard_error: float | None  # of honest_score
    oof_rows: int
    test_rows: int
    partial: str  # "" = every fold model took part, else which did: "4of5"
    made: str  # UTC, ISO 8601
    # Entries of earlier versions lack what follows.
    oof_digest: str = ""  # of ids and labels of the rows that the blend was chosen on
    trials: int = 0  # tuning trials finished before, of all members
    expected: tuple[ExpectedScore, ...] = ()  # of test rows; () = a line of an older version
    optimistic: bool = False  # every row chose hyperparameters: honest_score is not honest


What = Literal["sending", "submitted", "scored", "failed"]


@dataclass(frozen=True)
class Event:
    """Something happened to a submission."""

    digest: str
    what: What
    ref: str  # Kaggle's number of the submission; "" before there is one
    public_score: float | None
    private_score: float | None  # until the deadline Kaggle does not tell
    error: str  # Kaggle's words
    at: str  # UTC, ISO 8601


@dataclass(frozen=True)
class Look:
    """The private solution of a local competition was opened to score a submission."""

    competition: str
    file: str  # the submission's name
    at: str  # UTC, ISO 8601


@dataclass(frozen=True)
class Ledger:
    entries: tuple[Entry, ...]
    events: tuple[Event, ...]
    unreadable: int  # lines of no known kind: left where they are
    looks: tuple[Look, ...] = ()


KINDS: dict[str, type[Entry] | type[Event] | type[Look]] = {"entry": Entry, "event": Event, "look": Look}


@dataclass(frozen=True)
class Row:
    """An entry with all that happened to it, the last word first."""

    entry: Entry
    state: str  # "made", or the last event's `what`
    ref: str
    public_score: float | None
    private_score: float | None
    error: str


def append(path: Path, line: Entry | Event | Look) -> None:
    """Add one line; when this returns it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = next(name for name, of in KINDS.items() if isinstance(line, of))
    data = (json.dumps({"kind": kind, **to_plain(line)}, ensure_ascii=False, allow_nan=False) + "\n").encode()
    with FileLock(_lock(path), timeout=60), path.open("ab+") as file:
        _mend_tail(file, path)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> Ledger:
    """All that is whole. A missing file is an empty ledger."""
    entries: list[Entry] = []
    events: list[Event] = []
    looks: list[Look] = []
    unreadable = 0
    text = path.read_bytes().decode("utf-8", errors="replace") if path.exists() else ""
    for raw in filter(str.strip, text.split("\n")):
        line = _parse(raw)
        if isinstance(line, Entry):
            entries.append(line)
        elif isinstance(line, Event):
            events.append(line)
        elif isinstance(line, Look):
            looks.append(line)
        else:
            unreadable += 1
    return Ledger(tuple(entries), tuple(events), unreadable, tuple(looks))


def rows(ledger: Ledger) -> list[Row]:
    """One row for each digest, in the order in which they were first made; the newest entry of a digest counts."""
    newest = {entry.digest: entry for entry in ledger.entries}
    return [_row(entry, [e for e in ledger.events if e.digest == entry.digest]) for entry in newest.values()]


def of_competition(ledger: Ledger, competition: str) -> list[Row]:
    return [row for row in rows(ledger) if row.entry.competition == competition]


def looks_at_solution(path: Path, competition: str, earlier: Path) -> int:
    """How often the private solution was opened.

    earlier: the JSON file that earlier versions counted in, under work/, where it could be deleted.
    """
    try:
        before = len(json.loads(earlier.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        before = 0
    return before + sum(look.competition == competition for look in read(path).looks)


def already_sent(ledger: Ledger, digest: str) -> Event | None:
    """The last event of this very file on Kaggle, or "sending" if that is the last word on it; None if it never got there.

    A later try that Kaggle did not take ("failed" without a number) hides nothing that happened before.
    """
    events = [event for event in ledger.events if event.digest == digest]
    if events and events[-1].what == "sending":
        return events[-1]
    return next((event for event in reversed(events) if event.ref), None)


def refs(ledger: Ledger, digest: str) -> frozenset[int]:
    """Kaggle's numbers of all submissions of this very file that the ledger knows."""
    return frozenset(int(event.ref) for event in ledger.events if event.digest == digest and event.ref)


def noise_band(entry: Entry, public_share: float) -> tuple[float, float] | None:
    """95 % interval of public minus honest score by chance alone, from `leaderboard.interval`.

    public_share: of the test rows, counted by the public score.
    """
    public_rows = entry.test_rows * public_share
    if entry.honest_score is None or entry.standard_error is None or public_rows <= 0:
        return None
    expected = entry.expected or (from_standard_error(entry.honest_score, entry.standard_error, entry.oof_rows),)
    low, high = interval(expected, public_rows)
    return low - entry.honest_score, high - entry.honest_score


def table(found: Sequence[Row], public_share: float) -> list[dict[str, str]]:
    """The ledger as a person reads it: one dictionary of short texts for each submission.

    cv: OOF score; honest: with its standard error; gap: public minus honest; noise: 95 % interval of the gap by chance.
    """
    lines = []
    for row in found:
        entry, band = row.entry, noise_band(row.entry, public_share)
        honest = entry.honest_score
        gap = row.public_score - honest if row.public_score is not None and honest is not None else None
        error = f" +- {entry.standard_error:.4f}" if entry.standard_error is not None else ""
        lines.append(
            {
                "digest": entry.digest[:12],
                "made": entry.made[:16],
                "members": "+".join(entry.members) + (f" ({entry.partial})" if entry.partial else ""),
                "cv": _score(entry.oof_score),
                "honest": _score(honest) + error,
                "public": _score(row.public_score),
                "private": _score(row.private_score),
                "gap": f"{gap:+.4f}" if gap is not None else "-",
                "noise": f"{band[0]:+.4f} to {band[1]:+.4f}" if band is not None else "-",
                "state": row.state + (f": {row.error}" if row.error else ""),
            }
        )
    return lines


def _row(entry: Entry, events: list[Event]) -> Row:
    """Scores that were once known stay known; state and error are the last word."""
    last = events[-1] if events else None
    public = [event.public_score for event in events if event.public_score is not None]
    private = [event.private_score for event in events if event.private_score is not None]
    refs = [event.ref for event in events if event.ref]
    return Row(
        entry,
        last.what if last else "made",
        refs[-1] if refs else "",
        public[-1] if public else None,
        private[-1] if private else None,
        last.error if last else "",
    )


def _parse(raw: str) -> Entry | Event | Look | None:
    try:
        values = json.loads(raw)
        kind: Any = KINDS[values.pop("kind")]
        known = {field.name for field in fields(kind)}  # a later version may say more
        if "expected" in values:
            values["expected"] = [ExpectedScore(**point) for point in values["expected"]]
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _mend_tail(file: Any, path: Path) -> None:
    """End the last line: keep it when it is whole, else move it to `<ledger>.torn` so that nothing is lost."""
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return
    start = data.rfind(b"\n") + 1
    if _parse(data[start:].decode("utf-8", errors="replace")) is not None:
        file.write(b"\n")
        return
    with path.with_name(path.name + ".torn").open("ab") as torn:
        torn.write(data[start:] + b"\n")
        os.fsync(torn.fileno())
    file.truncate(start)


def _lock(path: Path) -> str:
    return str(path.with_name(f".{path.name}.lock"))


def _score(value: float | None) -> str:
    return f"{value:.5f}" if value is not None else "-"
