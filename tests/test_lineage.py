"""A changed parameter redoes what depends on it, and no more."""

from pathlib import Path

import pandas as pd
import pytest
from world import ROOT, params

from competition.data.competition import Competition
from competition.data.prepared import Prepared
from competition.lineage import fold_depends, fold_model, tune_depends, tuned, tuned_member, views_depends
from competition.manifest import digest_of, write_json, write_manifest
from competition.params_file import load_params

DIGITS = Competition("digits", "", ("a", "b"), "macro_f1", "label", "id", ("label",), ("0", "1"))
PREPARED = Prepared(Path("data"), DIGITS, pd.DataFrame(), "d" * 64)


def digests(work: Path, overrides: str = "", prepared: Prepared = PREPARED) -> dict[str, str]:
    found = params(overrides)
    depends = {
        "fold model": fold_depends(work, prepared, found, found.members["cnn"], 0),
        "views": views_depends(work, prepared, found, "cnn", 0),
        "study": tune_depends(prepared, found, "cnn"),
    }
    return {name: digest_of(value) for name, value in depends.items()}


@pytest.mark.parametrize(
    ("change", "redone"),
    [
        ("train.epochs=3", {"fold model", "study"}),
        ("members.cnn.alpha=0.75", {"fold model", "study"}),
        ("members.cnn.train.dropout=0.1", {"fold model", "study"}),
        ("prepare.fit=crop", {"fold model", "study", "views"}),
        ("predict.views=[identity]", {"views"}),
        ("tune.trials=9", {"study"}),
        ("tune.seed=9", {"study"}),
        ("members.mobilenet.alpha=1.0", set()),
        ("predict.batch=7", set()),
        ("policy.rounds=3", set()),
        ("blend.rounds=3 blend.methods=[best]", set()),
        ("decision.rules=[argmax]", set()),
        ("honest.seed=3", set()),
        ("device.logical_devices=2", set()),
    ],
)
def test_each_parameter_redoes_what_depends_on_it(tmp_path: Path, change: str, redone: set[str]) -> None:
    before, after = digests(tmp_path), digests(tmp_path, change)
    assert {name for name in before if before[name] != after[name]} == redone


def test_other_data_redoes_everything(tmp_path: Path) -> None:
    other = Prepared(Path("data"), DIGITS, pd.DataFrame(), "e" * 64)
    before, after = digests(tmp_path), digests(tmp_path, prepared=other)
    assert all(before[name] != after[name] for name in before)


def test_a_remark_in_the_file_redoes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("# said differently\n" + (ROOT / "params.yaml").read_text().replace("  #", "    # "))
    assert digest_of(load_params(path)) == digest_of(params())


def test_every_fold_is_a_model_of_its_own(tmp_path: Path) -> None:
    found = params()
    depends = [digest_of(fold_depends(tmp_path, PREPARED, found, found.members["cnn"], fold)) for fold in range(5)]
    assert len(set(depends)) == 5


def test_predictions_depend_on_the_weights_however_they_came_about(tmp_path: Path) -> None:
    before = digests(tmp_path)["views"]
    manifest = fold_model(tmp_path, "cnn", 0)
    for content, seen in ((b"one", set()), (b"two", {before})):
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.with_name("weights.npz").write_bytes(content)
        write_manifest(manifest, {}, [manifest.with_name("weights.npz")], {}, {})
        after = digests(tmp_path)["views"]
        assert after not in {before, *seen}


def test_pretrained_weights_count_by_their_content_not_their_name(tmp_path: Path) -> None:
    weights = tmp_path / "w.weights.h5"
    weights.write_bytes(b"one")
    first = digests(tmp_path, f"members.cnn.weights={weights}")
    weights.write_bytes(b"two")
    assert digests(tmp_path, f"members.cnn.weights={weights}")["fold model"] != first["fold model"]


def test_tuned_values_are_used_when_their_file_is_whole_and_not_else(tmp_path: Path) -> None:
    best = tuned(tmp_path, "cnn")
    assert tuned_member(tmp_path, params(), "cnn", ()) == (params().members["cnn"], {})
    write_json(best, {"values": {"learning_rate": 0.25}})
    assert tuned_member(tmp_path, params(), "cnn", ())[1] == {}  # no manifest: not finished
    write_manifest(best.with_name("manifest.json"), {}, [best], {}, {})
    member, origins = tuned_member(tmp_path, params(), "cnn", ())
    assert member.train.learning_rate == 0.25 and origins == {"learning_rate": "0.25 (tuned)"}
    best.write_text("{}")
    assert tuned_member(tmp_path, params(), "cnn", ())[1] == {}
