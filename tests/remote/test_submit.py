import hashlib

import pytest

from competition.errors import Refusal
from competition.remote import submit
from competition.remote.kaggle_client import KaggleRefusal
from competition.submission.ledger import Event, already_sent, append, read

CSV = b"id,label\na,1\nb,2\n"
DIGEST = hashlib.sha256(CSV).hexdigest()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "submission.csv"
    path.write_bytes(CSV)
    return path


def send(client, file, again=False):
    return submit.submit(client, "flowers", file, DIGEST, "two members", again)


def follow(client, ref, seconds=20.0):
    waited = []
    return submit.follow(client, "flowers", ref, seconds, 0.01, 0.05, waited.append), waited


def test_a_file_is_submitted_and_followed_to_its_score(kaggle, client, file):
    kaggle.contests["flowers"].score = lambda data: (
        ("COMPLETE", "0.91234", "", "") if data == CSV else ("ERROR", "", "", "?")
    )
    ref = send(client, file)
    scored, waited = follow(client, ref)
    assert (scored.ref, scored.status, scored.public, scored.private, scored.error) == (
        ref,
        "COMPLETE",
        0.91234,
        None,
        "",
    )
    assert scored.message == f"two members | goldfold {DIGEST[:16]}"
    assert len(waited) >= 1  # it was PENDING at first
    assert submit.limits(client, "flowers").left == 4


def test_kaggles_own_words_come_back_when_it_refuses_the_file(kaggle, client, file):
    kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Submission must have 7382 rows")
    scored, _ = follow(client, send(client, file))
    assert (scored.status, scored.error, scored.public) == ("ERROR", "Submission must have 7382 rows", None)


def test_the_same_file_is_not_sent_twice_unless_asked_for(kaggle, client, file):
    first = send(client, file)
    assert send(client, file) == first
    assert len(kaggle.submissions) == 1
    assert send(client, file, again=True) != first
    assert len(kaggle.submissions) == 2


@pytest.mark.parametrize(
    ("method", "faults"),
    [
        ("upload", ["500"]),
        ("upload", ["404"]),
        ("upload", ["drop"] * 3),
        ("StartSubmissionUpload", ["429:1"]),
        ("CreateSubmission", ["500"]),
        ("CreateSubmission", ["lost"]),  # Kaggle has it, the answer never came
    ],
)
def test_whatever_fails_once_the_file_is_submitted_exactly_once(kaggle, client, file, method, faults):
    kaggle.faults[method] = list(faults)
    ref = send(client, file)
    assert [(made["ref"], made["sha256"]) for made in kaggle.submissions] == [(ref, DIGEST)]


@pytest.mark.parametrize(
    ("method", "fault", "kind", "message"),
    [
        ("upload", "500", "upload", "upload to flowers was refused .*: nothing was submitted"),
        (
            "CreateSubmission",
            "400:Submission not allowed: daily limit",
            "client",
            "400 Submission not allowed: daily limit",
        ),
        ("StartSubmissionUpload", "403:You must accept this competition's rules", "rules", "accept them at"),
        ("StartSubmissionUpload", "404", "missing", "Kaggle knows no flowers"),
        ("ListSubmissions", "401", "credentials", "does not accept the credential"),
    ],
)
def test_what_fails_for_good_is_a_sentence_and_no_submission(kaggle, client, file, method, fault, kind, message):
    kaggle.faults[method] = [fault] * 20
    with pytest.raises(KaggleRefusal, match=message) as refusal:
        send(client, file)
    assert refusal.value.kind == kind
    assert kaggle.submissions == []


def test_the_daily_limit_is_known_before_the_upload(kaggle, client, file):
    kaggle.contests["flowers"].daily = 1
    assert submit.refuse_when_used_up(client, "flowers").left == 1
    send(client, file)
    with pytest.raises(Refusal, match=r"no submission to flowers is left today \(1 were made\)"):
        submit.refuse_when_used_up(client, "flowers")


def test_a_submission_that_stays_pending_is_not_called_done(kaggle, client, file):
    kaggle.pending_polls = 10**9
    scored, waited = follow(client, send(client, file), seconds=1.0)
    assert (scored.status, scored.public) == ("PENDING", None)
    assert waited


def test_not_yet_known_counts_as_pending(kaggle, client, file):
    ref = send(client, file)
    kaggle.faults["GetSubmission"] = ["404"]
    assert follow(client, ref)[0].status == "COMPLETE"


def deliver(client, file, ledger, again=False):
    def record(what, ref, public, private, error):
        append(ledger, Event(DIGEST, what, ref, public, private, error, "2026-01-01T00:00:00Z"))

    return submit.deliver(client, "flowers", file, DIGEST, "", again, record, 20, 0.01, 0.05, lambda waited: None)


def events(ledger):
    return [(event.what, event.public_score, event.error) for event in read(ledger).events]


def test_every_step_is_in_the_ledger(kaggle, client, file, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    deliver(client, file, ledger)
    assert events(ledger) == [("sending", None, ""), ("submitted", None, ""), ("scored", 0.9, "")]
    assert already_sent(read(ledger), DIGEST).ref == str(kaggle.submissions[0]["ref"])
    kaggle.contests["flowers"].score = lambda data: ("ERROR", "", "", "Required column 'label' could not be found")
    deliver(client, file, ledger, again=True)
    assert events(ledger)[-1] == ("failed", None, "Required column 'label' could not be found")


def test_a_file_that_never_arrived_may_be_sent_again(kaggle, client, file, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    kaggle.faults["upload"] = ["500"] * 3
    with pytest.raises(KaggleRefusal, match="nothing was submitted"):
        deliver(client, file, ledger)
    assert already_sent(read(ledger), DIGEST) is None
    deliver(client, file, ledger)
    assert [what for what, _, _ in events(ledger)] == ["sending", "failed", "sending", "submitted", "scored"]
