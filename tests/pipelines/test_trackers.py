"""`track`: what TensorBoard, MLflow and Weights & Biases hold after training, tuning, blending and reporting, read by their own readers."""

import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from builders import params
from stages import Workspace

from competition.config.errors import how_to_install
from competition.files.manifest import read_manifest
from competition.workspace.tracking import Outcome, Subject, Tracked

TRACKERS = ("tensorboard", "mlflow", "wandb")
INSTALLED = [name for name in TRACKERS if importlib.util.find_spec(name)]
# A value of a variable of the environment and of a parameter that hold secrets.
KEY, PASSWORD = "0123456789abcdef0123", "correct-horse-battery"


@pytest.fixture(scope="module")
def followed(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace after one fold model, a study, a blend and a report with all installed trackers."""
    if not INSTALLED:
        pytest.skip("neither goldfold[tensorboard] nor goldfold[mlflow] nor goldfold[wandb] is installed")
    workspace = finished.copy_to(tmp_path_factory.mktemp("followed"))
    sets = f"track=[{','.join(INSTALLED)}] convert.beam_options=[--db_password={PASSWORD}]"
    for call, more in (
        ("train --member slim --fold 0 --force", ""),
        ("blend", " blend.name=followed"),
        ("report", ""),
        ("tune --member slim", " tune.trials=2 train.epochs=1 tune.confirm_seeds=1"),
    ):
        result = workspace.run(*call.split(), sets=sets + more, KAGGLE_KEY=KEY)
        assert result.code == 0, result.err
        assert "track:" not in result.out  # no tracker failed
    return workspace


def facts(workspace: Workspace) -> tuple[list[float], float, str, float]:
    """Losses, held-out score and digest of the weights of the fold model; honest score of the blend."""
    manifest = read_manifest(workspace.fold("slim", 0) / "manifest.json")
    assert manifest is not None
    losses = pd.read_csv(workspace.fold("slim", 0) / "history.csv")["loss"].tolist()
    return losses, manifest.result["held_out"], manifest.files["weights.npz"], workspace.scores["honest"]


def test_tensorboard_reads_curves_scores_parameters_digests_and_pictures(followed) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    def read(pattern: str) -> EventAccumulator:
        (place,) = (followed.work / "track" / "tensorboard").glob(pattern)
        return EventAccumulator(str(place)).Reload()

    losses, held_out, digest, honest = facts(followed)
    fold = read("slim@*/fold-0")
    assert [one.value for one in fold.Scalars("epoch/loss")] == pytest.approx(losses)
    assert fold.Scalars("result/held_out")[0].value == pytest.approx(held_out) and fold.Scalars("step/loss")
    assert fold.Tags()["images"] == ["augmented"]
    assert digest in fold.Tensors("result")[0].tensor_proto.string_val[0].decode()
    content = fold.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert HParamsPluginData.FromString(content).session_start_info.hparams["train.epochs"].number_value == 4
    assert read("blends/*").Scalars("result/honest")[0].value == pytest.approx(honest)
    assert read("slim-*/trial-1").Scalars("result/score")
    assert "report.html" in read("reports/*").Tensors("result")[0].tensor_proto.string_val[0].decode()


def test_mlflow_reads_a_run_per_fold_model_below_its_group(followed) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{followed.work / 'track' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    by_kind = {run.data.tags["goldfold.kind"]: run for run in runs}
    losses, held_out, digest, honest = facts(followed)
    fold = by_kind["fold"]
    logged = [one.value for one in client.get_metric_history(fold.info.run_id, "epoch/loss")]
    assert logged == pytest.approx(losses) and fold.data.metrics["result/held_out"] == pytest.approx(held_out)
    assert fold.data.params["train.epochs"] == "4" and fold.data.tags["sha256/weights.npz"] == digest
    parent = client.get_run(fold.data.tags["mlflow.parentRunId"])
    assert parent.data.tags["mlflow.runName"] == fold.data.tags["goldfold.group"]
    assert by_kind["blend"].data.metrics["result/honest"] == pytest.approx(honest)
    assert [one.path for one in client.list_artifacts(by_kind["report"].info.run_id)] == ["report.html"]
    trials = [run for run in runs if run.data.tags["goldfold.kind"] == "trial"]
    assert len(trials) == 2 and all("learning_rate" in run.data.params for run in trials)
    assert {run.info.status for run in (*trials, fold, by_kind["blend"], by_kind["report"])} == {"FINISHED"}


def records(file: Path) -> Iterator[Any]:
    """The records of an offline run: protobuf in the framing of LevelDB's log (blocks of 32 KiB), after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # the end of a block is empty
            position += 32768 - position % 32768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def values(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_wandb_reads_an_offline_run_per_fold_model_of_one_group(followed) -> None:
    pytest.importorskip("wandb")
    losses, held_out, digest, honest = facts(followed)
    runs = {}
    for file in (followed.work / "track" / "wandb").glob("offline-run-*/*.wandb"):
        content = list(records(file))
        (run,) = [one.run for one in content if one.HasField("run")]
        history = [values(one.history.item) for one in content if one.HasField("history")]
        summary = values(item for one in content if one.HasField("summary") for item in one.summary.update)
        runs.setdefault(run.job_type, []).append((run, history, summary))
    ((run, history, summary),) = runs["fold"]
    assert [row["epoch/loss"] for row in history if "epoch/loss" in row] == pytest.approx(losses)
    assert run.run_group.startswith("slim@") and run.project == "small"
    assert values(run.config.update)["train.epochs"] == 4
    assert summary["result/held_out"] == pytest.approx(held_out) and summary["sha256/weights.npz"] == digest
    assert runs["blend"][0][2]["result/honest"] == pytest.approx(honest)
    assert len(runs["trial"]) == 2 and any("report" in key for row in runs["report"][0][1] for key in row)


def test_no_secret_and_no_command_line_is_in_what_trackers_hold(followed) -> None:
    files = [path for path in (followed.work / "track").rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert KEY.encode() not in data and PASSWORD.encode() not in data, path
        assert not re.search(rb"--submissions\b", data), path


def test_a_tracker_that_fails_is_left_out_with_one_line_and_the_others_go_on(tmp_path: Path, monkeypatch) -> None:
    logged: list[float] = []

    def failing(*_: object) -> None:
        raise ConnectionError("mlflow://me:secret-password@host is away\nsecond line")

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'wandb'")

    def tracker(log: Callable[..., None]) -> Callable[..., object]:
        return lambda *_: SimpleNamespace(log=log, end=lambda outcome: None)

    works = tracker(lambda axis, number, values: logged.extend(values.values()))
    replacements = {"tensorboard": works, "mlflow": tracker(failing), "wandb": missing}
    monkeypatch.setattr("competition.workspace.tracking.TRACKERS", replacements)
    lines: list[str] = []
    run = Tracked(params("track=[mlflow,wandb,tensorboard]"), tmp_path, Subject("fold", "g", "n", {}), lines.append)
    for epoch in (1, 2, 2):
        run.epoch({"epoch": epoch, "loss": epoch / 2, "held_out": None, "held_out_loss": float("nan")})
    run.end(Outcome({"held_out": 0.9}, {}))
    assert logged == [0.5, 1.0]
    assert lines == [
        "track: wandb is left out, it is not installed; " + how_to_install("wandb"),
        "track: mlflow is left out, ConnectionError: mlflow://[hidden]@host is away",
    ]


@pytest.mark.parametrize("name", TRACKERS)
def test_training_that_ends_early_ends_the_run_and_its_error_is_not_hidden(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    lines: list[str] = []
    subject = Subject("fold", "g", "n", {"x": 1})
    with pytest.raises(KeyboardInterrupt), Tracked(params(f"track=[{name}]"), tmp_path, subject, lines.append) as run:
        run.step(1, 0.5)
        raise KeyboardInterrupt
    assert lines == []
