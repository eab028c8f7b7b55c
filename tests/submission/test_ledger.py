import json
from dataclasses import replace
from multiprocessing import get_context

import pytest
from builders import ledger_entry

from competition.ensemble.expected_score import ExpectedScore, interval
from competition.ensemble.external_check import NOT_OUT_OF_FOLD
from competition.submission import ledger
from competition.submission.ledger import Event, Ledger

ENTRY = ledger_entry(competition="digits", honest_score=0.989, test_rows=450, made="2026-01-02T03:04:05Z")


def event(kind, digest=ENTRY.digest, ref="", public=None, private=None, error="") -> Event:
    return Event(digest, kind, ref, public, private, error, "2026-01-02T03:05:00Z")


# How many bytes of the last line remain (-2: only its end is missing), and whether it is complete.
@pytest.mark.parametrize(("cut", "is_complete"), [(1, False), (30, False), (-2, False), (-1, True)])
def test_a_truncated_last_line_is_ignored_and_later_lines_are_intact(tmp_path, cut, is_complete):
    path = tmp_path / "ledger.jsonl"
    ledger.append(path, ENTRY)
    entry_line = path.read_bytes()
    path.write_bytes(entry_line + entry_line[:cut])
    assert ledger.read(path).unreadable == (not is_complete)
    ledger.append(path, event("scored", public=0.5))
    contents = ledger.read(path)
    assert (contents.entries, len(contents.events)) == ((ENTRY,) * (1 + is_complete), 1)


def append_events(path, name):
    for n in range(25):
        ledger.append(path, event("scored", digest=f"{name}{n}", error="x" * 5000))


def test_four_concurrent_processes_lose_no_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    processes = [get_context("fork").Process(target=append_events, args=(path, name)) for name in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    contents = ledger.read(path)
    assert {e.digest for e in contents.events} == {f"{name}{n}" for name in "abcd" for n in range(25)}
    assert contents.unreadable == 0


def test_a_line_of_an_earlier_or_a_later_version_is_read_with_the_fields_that_it_shares(tmp_path):
    """The ledger is the user's, and is never rewritten: lines of an earlier goldfold lack some fields."""
    path, point = tmp_path / "ledger.jsonl", ExpectedScore(450, 0.80, 0.02, 0.003, 1.0)
    ledger.append(path, replace(ENTRY, oof_digest="rows"))
    optional = ("oof_digest", "expected", "optimistic", "runs")
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k not in optional}) + "\n")
    contents = ledger.read(path)
    assert contents.entries == (ENTRY,) and ledger.noise_band(ENTRY, 0.3) is None
    path.unlink()
    ledger.append(path, replace(ENTRY, expected=(point,)))
    values = json.loads(path.read_text())
    values["expected"][0]["new"] = values["new"] = 1
    path.write_text(json.dumps(values) + "\n")
    assert ledger.read(path) == Ledger((replace(ENTRY, expected=(point,)),), (), 0)


def test_a_confirmed_blend_is_the_last_of_those_with_the_same_submission(tmp_path):
    """Three blends may give one submission: of other members, and with a doubt."""
    path, doubted = tmp_path / "ledger.jsonl", replace(ENTRY, honest_score=0.99, is_doubted=True)
    others = replace(ENTRY, members=("knn",))
    elsewhere = replace(ENTRY, competition="roses")  # the same images under another name
    for entry in (ENTRY, others, doubted, elsewhere):
        ledger.append_entry_once(path, entry)
    ledger.confirm_entry(path, "digits", result_of(doubted))  # it is the last of its competition
    assert ledger.read(path).entries == (ENTRY, others, doubted, elsewhere)
    for confirmed in (ENTRY, others):
        ledger.confirm_entry(path, "digits", result_of(confirmed))
        (row,) = ledger.submission_states(ledger.of_competition(ledger.read(path), "digits"))
        assert replace(row.entry, made=ENTRY.made) == confirmed


def result_of(entry):
    """What the manifest of its blend records of it."""
    members = {name: {} for name in entry.members}
    notes = [f"knn: {NOT_OUT_OF_FOLD}"] * entry.is_doubted
    scores = {"metric": entry.metric, "honest": entry.honest_score, "members": members, "notes": notes}
    return {"submission": entry.digest, **scores}


def test_an_entry_or_a_submission_of_another_competition_does_not_count():
    both = Ledger((ENTRY, replace(ENTRY, competition="roses")), (), 0)
    assert ledger.of_competition(both, "digits", "digits").entries == (ENTRY,)
    there = replace(event("scored", ref="1", public=0.5), slug="roses")
    contents = Ledger((ENTRY,), (there,), 0)
    assert ledger.already_sent(ledger.of_competition(contents, "digits", "flowers"), ENTRY.digest) is None
    of_roses = ledger.of_competition(contents, "digits", "kaggle.com/c/roses")
    assert ledger.already_sent(of_roses, ENTRY.digest) == there
    assert ledger.submission_states(of_roses)[0].public_score == 0.5
    (row,) = ledger.submission_states(ledger.of_competition(contents, "digits", "flowers"))
    assert (row.state, row.public_score) == ("made", None)


def test_events_are_assigned_to_their_entry_and_earlier_scores_are_kept(tmp_path):
    other = replace(ENTRY, digest="b" * 64)
    events = (
        event("submitted", ref="1"),
        event("scored", ref="1", public=0.98),
        event("scored", ref="1", private=0.97),
        event("failed", digest="b" * 64, error="Submission must have 450 rows"),
    )
    first, second = ledger.submission_states(Ledger((ENTRY, other), events, 0))
    assert (first.state, first.ref, first.public_score, first.private_score) == ("scored", "1", 0.98, 0.97)
    assert (second.state, second.error, second.public_score) == ("failed", "Submission must have 450 rows", None)
    (tmp_path / "grades.json").write_text(json.dumps({ENTRY.file: {"macro_f1": {"public": 0.97, "private": 0.96}}}))
    graded = ledger.with_local_grades([second], tmp_path / "grades.json")
    states = [line["state"] for line in ledger.table([second, *graded], 0.5, "macro_f1")]
    error = "Submission must have 450 rows"
    assert states == [f"failed: {error}", f'graded here: Kaggle reported "{error}"']


def test_the_newest_submission_is_the_last_row_even_if_it_was_made_before():
    other, again = replace(ENTRY, digest="b" * 64), replace(ENTRY, made="2026-01-03T03:04:05Z")
    assert [row.entry for row in ledger.submission_states(Ledger((ENTRY, other, again), (), 0))] == [other, again]


def test_of_two_metrics_that_gave_the_same_file_a_row_shows_the_last_one_and_a_blend_its_own():
    later, result = replace(ENTRY, metric="accuracy", honest_score=0.99), result_of(ENTRY)
    assert [row.entry for row in ledger.submission_states(Ledger((ENTRY, later, ENTRY, later), (), 0))] == [later]
    for known, own in (((ENTRY, later), ENTRY), ((later,), later), ((), None)):
        assert ledger.entry_of_blend(known, result) == own


def test_a_file_that_was_sent_before_is_detected_even_without_a_response():
    def already_sent(*events):
        return ledger.already_sent(Ledger((ENTRY,), events, 0), ENTRY.digest)

    assert already_sent() is None
    assert already_sent(event("submitted", digest="b" * 64, ref="1")) is None
    assert already_sent(event("failed", error="upload refused")) is None  # it has no number at Kaggle
    assert already_sent(event("sending")).what == "sending"
    assert already_sent(event("sending"), event("failed", error="upload refused")) is None
    assert already_sent(event("submitted", ref="1"), event("scored", ref="1", public=0.9)).public_score == 0.9


def test_the_noise_band_is_the_interval_of_the_blend_and_is_saved_in_the_ledger(tmp_path):
    points = (ExpectedScore(450, 0.80, 0.02, 0.003, 1.0), ExpectedScore(225, 0.75, 0.03, 0.003, 1.0))
    entry, path = replace(ENTRY, test_rows=450, expected=points), tmp_path / "ledger.jsonl"
    ledger.append(path, entry)
    (saved_entry,) = ledger.read(path).entries
    assert saved_entry == entry
    for share, rows in ((1.0, 450), (0.5, 225), (0.3, 135)):
        expected = [bound - ENTRY.honest_score for bound in interval(points, rows)]
        assert ledger.noise_band(saved_entry, share) == pytest.approx(expected)


def test_scores_of_two_metrics_or_of_a_doubted_blend_have_no_gap_or_no_noise(tmp_path):
    expected = (ExpectedScore(450, 0.80, 0.02, 0.003, 1.0),)
    entry, digest = replace(ENTRY, expected=expected), "b" * 64
    other = replace(entry, digest=digest, file="b.csv", metric="accuracy")
    events = [event("scored", each, ref="1", public=0.98) for each in (ENTRY.digest, digest)]
    rows = ledger.submission_states(Ledger((entry, other), tuple(events), 0))
    lines = ledger.table(rows, 0.5, "macro_f1")
    assert [line["gap"] for line in lines] == ["-0.0090", "-"] and lines[0]["noise"] != lines[1]["noise"] == "-"
    (line,) = ledger.table([replace(rows[0], entry=replace(entry, is_doubted=True))], 0.5, "macro_f1")
    assert (line["gap"], line["noise"]) == ("-0.0090", "-")  # nothing can be expected of a score that may know its rows
    grade = {"accuracy": {"public": 0.97, "private": 0.96}}
    (tmp_path / "grades.json").write_text(json.dumps({"b.csv": grade, ENTRY.file: grade}))
    graded = ledger.with_local_grades(ledger.submission_states(Ledger((entry, other), (), 0)), tmp_path / "grades.json")
    assert [line["private"] for line in ledger.table(graded, 0.5, "macro_f1")] == ["-", "0.96000"]
