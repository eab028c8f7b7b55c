"""`make tune` with real trainings: trials, adoption, dashboard, workers, and a study that keeps the own values."""

import json
import re
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from builders import ROOT
from stages import FEWER_DIGITS, Workspace, new_workspace

from competition.config.search_space import own_values
from competition.files.manifest import read_manifest
from competition.report.tuning import tuning_section
from competition.workspace.runs import runs_of
from competition.workspace.studies import member_with_tuned_values, used_study
from pipelines.execution.equal_runs import equal_runs
from pipelines.main_job.tune import members_to_tune

SEARCH = "{learning_rate: {low: 0.001, high: 0.03, log: true}, batch: {choices: [32, 8]}}"
SETS = f"tune.trials=4 tune.members=[slim] tune.confirm_seeds=1 tune.pruner=none train.epochs=1 'tune.search={SEARCH}'"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """A workspace after a study of slim, and what `tune` printed. Not to be changed."""
    workspace = new_workspace(tmp_path_factory.mktemp("tune"))
    workspace.do_in_one_process("download", "prepare", code=FEWER_DIGITS)
    return workspace, workspace.do("tune", sets=SETS)


def best_of(workspace: Workspace) -> dict:
    (path,) = workspace.work.glob("tune/slim/*/best.json")
    return json.loads(path.read_text())


def test_every_trial_is_one_line_and_the_end_says_what_training_uses(tuned) -> None:
    workspace, output = tuned
    lines = re.findall(r"tune slim: trial (\d+) complete 0\.\d{4} \(learning_rate .*?, batch \d+\); best", output)
    assert sorted(lines) == ["0", "1", "2", "3"]
    assert "best of 4 trials" in output and re.search(r"`make train.*` uses learning_rate", output)
    best = best_of(workspace)
    assert best["trials"] == 4 and best["folds"] == [0, 1]
    assert best["own_values"] == {"learning_rate": 0.004, "batch": 32}
    assert "tune slim: current" in workspace.here("tune", sets=SETS)
    (text,) = tuning_section(workspace.job(SETS).workspace).blocks
    assert f"The best trial has macro_f1 {best['score']:.4f}, optimistic" in text.lines[0]
    # A person may name another member than tune.members; two folds leave nothing for an honest score.
    assert members_to_tune(workspace.job(SETS, member="wide")) == ["wide"]
    student = workspace.here("tune", sets=f"{SETS} members.wide.teacher=[slim]", member="wide")
    assert "nothing to do: tuned are members without a teacher" in student
    assert "tune: not done, because with 2 folds" in workspace.here("tune", sets=f"{SETS} prepare.folds=2")


def test_set_replaces_the_tuned_value_of_its_own_key_and_member(tuned) -> None:
    for override, learning_rate, batch in (
        ("members.wide.train.learning_rate=0.5", "tuned", "tuned"),  # of another member
        ("members.slim.train.learning_rate=0.5", "SET", "tuned"),
        ("train.batch=64", "tuned", "SET"),
    ):
        results = tuned[0].job(f"{SETS} {override}").workspace
        assert used_study(results, "slim") is not None
        member, origins = member_with_tuned_values(results, "slim")
        assert member.tuned_folds == (0, 1)  # also if the own values are kept
        assert f"({learning_rate}" in origins["learning_rate"] and f"({batch}" in origins["batch"]


def test_a_trial_is_adopted_with_its_folds_and_not_tuned_again(tuned, tmp_path: Path) -> None:
    workspace = tuned[0].copy_to(tmp_path)
    refused = workspace.refused_here("adopt", SETS, trial="slim:99")
    assert "no finished trial 99; expected one of slim:0, slim:1" in refused
    workspace.params.write_text(workspace.params.read_text().replace("epochs: 4", "epochs: 1"))
    best, sets = best_of(workspace), SETS.replace("train.epochs=1 ", "")
    for trial in ("2", "0"):  # the own values too, whichever trial won
        assert "has the parameters of trial slim:" in workspace.here("adopt", trial=f"slim:{trial}")
        results = workspace.job().workspace
        assert results.params.members["slim"].tuned_folds == (0, 1)
        assert own_values(member_with_tuned_values(results, "slim")[0], best["own_values"]) == best["tried"][trial]
        assert "nothing to do: tuned are members without a teacher and tuned_folds" in workspace.here("tune", sets=sets)


def test_the_dashboard_listens_on_this_machine_only(tuned) -> None:
    pytest.importorskip("optuna_dashboard")
    refused = tuned[0].refused("dashboard", "--address", "0.0.0.0:8080", sets=SETS)
    assert "listens on 127.0.0.1 only" in refused
    command = tuned[0].command("dashboard", "--address", "127.0.0.1:0", sets=SETS)
    process = subprocess.Popen(command, cwd=ROOT, stdout=-1, stderr=-1, text=True)
    try:
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        with urllib.request.urlopen(f"{url}/api/studies", timeout=30) as response:
            (study,) = json.load(response)["study_summaries"]
        assert study["study_name"] == best_of(tuned[0])["study"]
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err.endswith("goldfold: the server was stopped\n")  # after lines of its server


@pytest.mark.long
def test_workers_share_one_study(tuned, tmp_path: Path) -> None:
    workspace = tuned[0].copy_to(tmp_path)
    shutil.rmtree(workspace.work / "tune")
    text = workspace.do("tune", "--workers", "2", sets=SETS)
    assert "in 2 processes" in text and "best of 4 trials" in text and text.count("next: ") == 1
    numbers = re.findall(r"tune slim: trial (\d+) complete", text)
    assert len(numbers) == len(set(numbers)) == 4


def trained_weights(workspace: Workspace) -> set[bytes]:
    return {path.read_bytes() for path in workspace.work.glob("members/slim/*/fold*/weights.npz")}


def test_a_study_that_keeps_the_own_values_trains_nothing_again(workspace: Workspace) -> None:
    workspace.do("train", "--member", "slim", "--fold", "0", sets="train.seed=9")  # a later, unequal run
    sets, before = "tune.trials=1 tune.folds=[0,1]", trained_weights(workspace)
    text = workspace.do_in_one_process("tune", "train", arguments=["--member", "slim", "--set", sets])
    assert re.search(r"train slim: folds 0, 1, 2 copied from slim@\w{8}, which was trained in the same way", text)
    (run,) = runs_of(workspace.job(sets).workspace, "slim")
    assert len(equal_runs(workspace.work, run)) == 1  # not that with another seed
    models = [read_manifest(path) for path in workspace.work.glob("members/slim/*/fold0/manifest.json")]
    measured = {(one.files["weights.npz"], one.result["seconds"], one.result["peak_memory"]) for one in models}
    trained = {weights for weights, *_ in measured}
    assert len(models) > len(trained) == len(measured)  # the time is that of the training, not of the copy
    assert "rows of folds 0, 1 took part in choosing hyperparameters" in text
    assert trained_weights(workspace) == before
