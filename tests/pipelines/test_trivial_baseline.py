"""Every verb that prints scores prints beside them what an answer without a look at the images would get."""

import re
import shutil

from stages import Workspace

CALLS = (
    ("train",), ("noise", "--member", "slim", "--seeds", "2", "--set", "train.epochs=1"), ("list-blends",), ("runs",),
    ("submit",), ("submissions",), ("grade",),
)  # fmt: skip


def test_scores_stand_beside_the_trivial_baseline(workspace: Workspace) -> None:
    scores = {}
    for call in CALLS:
        match = re.search(r"the trivial baseline.* scores (?:(?:public|private) )?(\d\.\d+)", workspace.do(*call))
        assert match, call
        scores[call[0]] = match[1]
    del scores["grade"]  # of test rows; the others are of all training rows
    assert len(set(scores.values())) == 1, scores


def test_a_result_that_is_not_better_says_so(workspace: Workspace) -> None:
    """Without a single useful step a network answers as the baseline does; here on two devices, without decoded images."""
    shutil.rmtree(workspace.work / "cache")
    useless = "train.epochs=1 train.learning_rate=1e-9 tune.trials=1 device.logical_devices=2"
    assert "NOT BEATEN" in workspace.do("tune", "--member", "slim", sets=useless)
    (file,) = workspace.submissions.glob("*.csv")
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *(f"{row.split(',')[0]},0" for row in rows), ""]))
    assert "NOT BEATEN" in workspace.do("grade")
