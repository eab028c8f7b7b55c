"""Several runs of one member: kept, blended, returned to, adopted and pruned."""

import re
from pathlib import Path

from stages import Workspace

from competition.ensemble.chain import Chain
from competition.submission import ledger

SECOND = "members.slim.train.learning_rate=0.02 members.slim.train.epochs=1"
# The code of a later version of goldfold, whose trained models are others.
NEXT_VERSION = """
import sys
from competition.training.versions import TRAINING
for module in [module for name, module in sys.modules.items() if name.startswith(("competition.", "pipelines."))]:
    if hasattr(module, "TRAINING"):
        module.TRAINING = TRAINING + 1
"""
APPENDED_OR_POINTERS = {"ledger.jsonl", "newest.txt", "report.html"}


def assert_kept(before: dict[str, tuple[int, int]], workspace: Workspace) -> None:
    """No result was replaced, changed or removed."""
    after = workspace.files()
    changed = {path for path, state in before.items() if after.get(path) != state}
    assert {path for path in changed if Path(path).name not in APPENDED_OR_POINTERS} == set()


def label_of(workspace: Workspace, *others: str) -> str:
    """Name of the only other run of slim, e.g. slim@1a2b3c4d."""
    labels = {f"slim@{folder.name[:8]}" for folder in (workspace.work / "members" / "slim").iterdir()}
    (label,) = labels - set(others)
    return label


def test_two_runs_are_trained_blended_and_returned_to_without_training_or_losing_anything(workspace: Workspace) -> None:
    (first_submission,) = workspace.submissions.glob("*.csv")
    first, first_blend, start = label_of(workspace), workspace.blend, workspace.files()

    # The second run. Without training, it has no predictions, and the sentence says what differs.
    error = workspace.refused_here("predict", SECOND)
    assert f"(its run {first} differs: member.train." in error and "learning_rate: 0.004 -> 0.02" in error
    output = workspace.do("train", "--member", "slim", sets=SECOND)
    second = label_of(workspace, first)
    assert f"train slim: run {second} on" in output and "3 folds, mean held-out score" in output
    trained = workspace.files()
    assert_kept(start, workspace)
    assert len([path for path in trained.keys() - start.keys() if path.endswith("weights.npz")]) == 3

    # Both runs of slim and the other member in one blend.
    both = f"{SECOND} blend.members='[slim, {first}, wide]' blend.name=both"
    workspace.do("predict", sets=both)
    workspace.here("blend", sets=both)
    assert set(Chain.load(workspace.blend / "chain.json").blend.weights) == {"slim", first, "wide"}
    assert workspace.blend.name.startswith("both-")
    entry = ledger.read(workspace.submissions / "ledger.jsonl").entries[-1]
    assert entry.members == ("slim", first, "wide") and set(entry.runs) >= {first, second}

    # Other views of a member: its predictions are others, and no model is.
    before = workspace.files()
    output = workspace.do_in_one_process("train", "predict", arguments=("--set", "members.wide.views=[identity]"))
    assert "predict slim: 3 of 3 fold models current" in output and "1 view of 3 fold models" in output
    assert_kept(before, workspace)
    assert all("/views/" in path for path in workspace.files().keys() - before.keys())

    # Another metric and another blend: data, models and predictions are current; only the blend is another one.
    metric = "competition.metric=accuracy blend.methods=[best]"
    output = workspace.here("prepare", "train", "predict", sets=metric)
    for stage in ("prepare", "train slim", "train wide", "predict slim", "predict wide"):
        assert re.search(f"^{stage}: .*current", output, re.MULTILINE), output
    assert "made again" not in output
    assert "accuracy" in workspace.here("blend", sets=metric) and workspace.scores["metric"] == "accuracy"

    # Back to the first run: everything is found at once.
    before = workspace.files()
    output = workspace.here("train", "predict", "blend")
    assert "made again" not in output and "blend: current" in output
    assert workspace.blend == first_blend and first_submission.exists()
    assert_kept(before, workspace)
    assert_kept(start, workspace)
    assert before.keys() == workspace.files().keys()


def test_a_run_of_another_version_of_training_keeps_its_predictions(workspace: Workspace) -> None:
    label, before = label_of(workspace), workspace.files()
    stored = f"blend.members=['{label}']"  # its stored predictions still count
    for stage, sets, words in (
        ("predict", "", f"member slim lacks fold 0 (not trained)|its run {label} differs: training_version: "),
        ("predict", stored, "current"),
        ("blend", stored, "submission: "),
        ("predict", f"{stored} predict.views=[identity,shift_down]", f"run {label} was trained with other version"),
    ):
        ran = workspace.run(stage, sets=sets, code=NEXT_VERSION)
        assert all(part in ran.out + ran.err for part in words.split("|"))
    assert_kept(before, workspace)


def test_the_parameters_of_a_run_are_adopted_and_unused_runs_are_pruned(workspace: Workspace) -> None:
    first, text = label_of(workspace), workspace.params.read_text()
    workspace.do("train", "--member", "slim", "--fold", "0", sets=SECOND)
    second = label_of(workspace, first)
    workspace.here("adopt", run=second)
    line = "  slim: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none"
    adopted = text.replace(line, f"{line}, train: {{epochs: 1, learning_rate: 0.02}}")
    assert workspace.params.read_text() == adopted
    assert "train slim: fold 0 current" in workspace.here("train", member="slim", fold="0")

    assert "every run is used" in workspace.here("prune")  # the first by a submission, the second by the parameters
    workspace.params.write_text(text)
    listed = workspace.here("prune")
    folder = next((workspace.work / "members" / "slim").glob(f"{second.partition('@')[2]}*"))
    assert f"{folder.name}: " in listed and "1 folder, " in listed and folder.exists()
    before = workspace.files()
    assert "removed 1 folder, " in workspace.here("prune", force=True)
    removed = before.keys() - workspace.files().keys()
    assert not folder.exists() and removed == {path for path in before if f"/{folder.name}/" in path}
