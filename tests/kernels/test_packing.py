import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from builders import ROOT, competition, ledger_entry, params, run_of, write_weights

from competition.config.errors import UserError
from competition.config.params_file import load_params, parse_overrides
from competition.files.manifest import read_record
from competition.kaggle.submit import KernelSubmission
from competition.kernels import packing
from competition.kernels import request as kernel_request
from competition.kernels.api import KernelVersion
from competition.kernels.import_results import LEDGER, SUBMISSION, ImportTarget, fold_model_of_folder, import_submission
from competition.kernels.kernel_script import restore
from competition.prepare.prepared import Prepared
from competition.submission.ledger import append, read
from competition.workspace.runs import Run
from competition.workspace.workspace import Workspace


def test_packed_parameters_are_equal_but_contain_no_local_paths(tmp_path):
    local_params = params(
        "kernel.machine=TpuV5E8 storage.bucket=gs://mine/x competition.source=here.zip convert.target=/here train.epochs=3 "
        "cache.folder=/here/ssd"
    )
    packed = packing.source_files(ROOT, packing.kernel_params(local_params, local_params.members))
    assert {"competition/config/errors.py", "pipelines/main_job/train.py"} <= packed.keys()
    assert all(name.endswith((".py", ".csv", ".yaml")) or name == packing.PARAMS for name in packed)
    (tmp_path / packing.PARAMS).write_bytes(packed[packing.PARAMS])
    unpacked_params = load_params(tmp_path / packing.PARAMS)
    for block in ("members", "train", "predict"):
        assert getattr(unpacked_params, block) == getattr(local_params, block)
    assert unpacked_params.competition.source == unpacked_params.storage.bucket == unpacked_params.convert.target == ""
    assert unpacked_params.device.require == "tpu" and unpacked_params.cache.folder == ""
    assert "here.zip" not in json.loads(packed[packing.PARAMS])["competition"].values()


def test_the_plugins_file_travels_with_the_project(tmp_path):
    (tmp_path / "mine.py").write_text("METRICS = {'zero': lambda labels, probs: 0.0}\n")
    (tmp_path / "recipe.yaml").write_text(f"extends: {ROOT}/params.yaml\nplugins: mine.py\n")
    here = load_params(tmp_path / "recipe.yaml", parse_overrides("competition.metric=zero"))
    packed = packing.source_files(ROOT, packing.kernel_params(here, here.members))
    (there := tmp_path / "kernel").mkdir()
    for name in (packing.PARAMS, packing.PLUGINS):
        (there / name).write_bytes(packed[name])
    plugins = load_params(there / packing.PARAMS).plugins
    assert plugins == replace(here.plugins, file=there / packing.PLUGINS) and [*plugins.metrics] == ["zero"]


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def test_the_folder_of_a_preset_travels_and_members_ask_for_the_packages_that_they_need(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, "models/vit/config.json", "models/vit/model.weights.h5")
    here = params("members.cnn.architecture=from_file members.cnn.weights=models/vit")
    files = [Path("models/vit/config.json"), Path("models/vit/model.weights.h5")]
    assert packing.referenced_files(here, here.members, is_tuning=False) == {"models/vit": files}
    text = (ROOT / "pyproject.toml").read_text()
    # From 0.30 on it pins a kagglesdk that kaggle excludes: the two would not be installed together.
    assert packing.requirements(text, here.members.values())["keras_hub"] == "keras-hub>=0.29,<0.30"
    augmented = params("train.albumentations=mine/transforms.yaml").members
    assert packing.requirements(text, augmented.values())["albumentations"] == "albumentations==2.0.8"
    assert not {"keras_hub", "albumentations"} & packing.requirements(text, params().members.values()).keys()


def carry(folders: dict[str, list[Path]], target: Path) -> None:
    packing.carry({folder: (Path(folder), files) for folder, files in folders.items()}, target)


def test_a_keras_file_asks_for_keras_hub_only_if_it_has_its_layers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "pyproject.toml").read_text()
    for module, is_hub in (("keras.layers", False), ("keras_hub.src.layers", True)):
        with zipfile.ZipFile("net.keras", "w") as archive:
            archive.writestr("config.json", json.dumps({"module": module}))
        here = params("members.cnn.architecture=from_file members.cnn.weights=net.keras")
        assert ("keras_hub" in packing.requirements(text, here.members.values())) == is_hub
    Path("net.keras").write_bytes(b"no archive")
    assert "keras_hub" not in packing.requirements(text, here.members.values())


def test_images_and_weights_are_restored_at_their_paths_which_may_differ_in_a_slash_and_a_dash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = ("extra/pets/cat/1.jpg", "extra-pets/dog/2.jpg")
    write_files(tmp_path, *photos, "mine/a.weights.h5", "top.weights.h5", "mine/not-asked-for.h5")
    weights = "members.cnn.weights=mine/a.weights.h5 members.small.weights=top.weights.h5"
    local_params = params(f"'prepare.external={{a: extra/pets, b: extra-pets}}' {weights}")
    members = {**local_params.members, "again": local_params.members["cnn"]}
    carry(packing.referenced_files(local_params, members, is_tuning=False), tmp_path / "inputs" / "carried")
    assert restore(tmp_path / "inputs", tmp_path / "root") == ["extra/pets", "extra-pets", "mine", "."]
    restored = {path.relative_to(tmp_path / "root").as_posix(): path for path in (tmp_path / "root").rglob("*.*")}
    assert restored.keys() == {*photos, "mine/a.weights.h5", "top.weights.h5"}
    assert all(path.read_bytes() == name.encode() for name, path in restored.items())
    assert packing.referenced_files(params(), params().members, is_tuning=True) == {}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("prepare.external={more: ../pictures}", "prepare.external.more: ../pictures is outside the project"),
        ("members.cnn.weights=~/mine.weights.h5", "members.cnn.weights: ~/mine.weights.h5 is outside the project"),
        ("members.cnn.weights=mine.weights.h5", "members.cnn.weights: mine.weights.h5 was not found"),
        ("prepare.external={more: gs://mine/pictures}", "prepare.external.more: gs://mine/pictures was not found"),
        ("train.albumentations=absent.yaml", "members.cnn.train.albumentations: absent.yaml was not found"),
    ],
)
def test_files_outside_the_project_are_errors(sets, message):
    local_params = params(f"'{sets}'")
    with pytest.raises(UserError, match=message):
        packing.referenced_files(local_params, local_params.members, is_tuning=False)


CSV = b"id,label\na,1\n"
DIGEST = hashlib.sha256(CSV).hexdigest()
PUSHED = KernelVersion("ada", "goldfold-digits", 3, "https://www.kaggle.com/code/ada/goldfold-digits")

PREPARED = Prepared(Path("data"), competition(name="x", metric="macro_f1"), pd.DataFrame(), "d")


def write_kernel_output(folder, content):
    """Write the output of a kernel: a submission file and a ledger with the entry of CSV."""
    folder.mkdir()
    (folder / SUBMISSION).write_bytes(content)
    append(folder / LEDGER, ledger_entry(digest=DIGEST, file="there.csv", competition="digits"))


def import_target(folder):
    workspace = Workspace(folder / "work" / "digits", params(), loaded=PREPARED)
    return ImportTarget(workspace, folder / "submissions", lambda line: None)


def test_the_submission_its_ledger_entry_and_its_kernel_version_are_imported_and_no_other_submission(tmp_path):
    write_kernel_output(tmp_path / "other", b"id,label\na,2\n")
    with pytest.raises(UserError, match="is not in its ledger"):
        import_submission(import_target(tmp_path), PUSHED, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    write_kernel_output(tmp_path / "output", CSV)
    import_submission(import_target(tmp_path), PUSHED, tmp_path / "output")
    (entry,) = read(tmp_path / "submissions" / "ledger.jsonl").entries
    assert (tmp_path / "submissions" / entry.file).read_bytes() == CSV
    made = read_record(tmp_path / "work/digits/kernel/submission.json", KernelSubmission)
    assert (made.kernel, made.version, made.file) == ("ada/goldfold-digits", 3, "submission.csv")
    assert made.digest == entry.digest == DIGEST


def test_another_model_or_blend_setting_changes_the_submission_request(tmp_path):
    member = params().members["cnn"]
    run = Run("cnn", member, {}, "", tmp_path / "members" / "cnn" / "0123456789ab", {}, "cnn")

    def digest(changes=""):
        local_params = params(f"prepare.folds=2 {changes}")
        return kernel_request.submission_request_digest({name: [run] for name in local_params.members}, local_params)

    for fold in range(2):
        write_weights(run.folder / f"fold{fold}", b"one")
    first = digest()
    assert digest("kaggle.max_attempts=2 device.retries=1 blend.name=mine") == first
    assert digest("blend.rounds=3") != first and digest("competition.metric=accuracy") != first
    write_weights(run.folder / "fold1", b"other")
    assert digest() != first


def test_a_fold_model_is_found_by_member_run_and_fold(tmp_path: Path) -> None:
    target = import_target(tmp_path)
    run = run_of(target.workspace.folder, PREPARED, params(), "cnn")

    def of(result_folder: str) -> tuple[str, object] | None:
        fold_model = fold_model_of_folder(target, result_folder)
        return (fold_model[0].digest, fold_model[1]) if fold_model else None

    folder = f"work/x/members/cnn/{run.folder.name}"
    assert of(f"{folder}/fold3") == (run.digest, 3)
    assert of("work/x/members/cnn/0123456789ab/fold3") == (run.digest, 3)  # trained with other parameters
    for other in (f"{folder}/fold3/views/0123456789ab", "work/x/members/cnn/fold3", "work/x/tune/cnn/0123456789ab"):
        assert of(other) is None
    assert of("work/x/members/absent/0123456789ab/fold3") is None
