"""make convert as a user runs it, and training from what it wrote."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from builders import ROOT, params, pixels_of, save_images
from fake_kaggle.gcs import FakeGcs
from stages import MAIN_JOB, Workspace, new_workspace

from competition.config.errors import UserError
from competition.prepare.adapter_types import Settings
from competition.prepare.adapters import flowers
from competition.storage import files

PARAMS = f"""
extends: {ROOT}/tests/small.yaml
competition: {{adapter: folder}}
prepare: {{near_bits: 0}}
train: {{epochs: 1, batch: 16}}
predict: {{batch: 16}}
convert: {{source: SOURCE, sizes: [16, 24], least_shards: 3, processes: 2}}
"""
NAMES = ("oak", "pine", "yew")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A folder with class folders in source/: 3 x 10 training photos, 9 test photos."""
    train, test = ([f"{n:03}.png" for n in numbers] for numbers in (range(30), range(30, 39)))
    names = [*(f"train/{NAMES[n % 3]}/{name}" for n, name in enumerate(train)), *(f"test/{name}" for name in test)]
    save_images(tmp_path / "source", names, pixels_of(np.arange(39) % 3))
    return new_workspace(tmp_path, PARAMS.replace("SOURCE", f"{tmp_path}/source"))


def shards(target: Path) -> dict[str, str | None]:
    return {name: files.digest(f"{target}/{name}") for name in files.names(str(target)) if name.endswith(".tfrec")}


def test_a_competition_trains_from_images_that_are_converted_once_and_again_after_a_changed_parameter(workspace):
    target = workspace.work / "converted"
    assert "6 shards written; 39 images at 2 sizes" in workspace.do("convert")
    before = {path: value for path, value in workspace.files().items() if path.endswith(".tfrec")}
    assert "convert: current, 6 shards" in workspace.do("convert")
    assert before.items() <= workspace.files().items() and len(shards(target)) == len(before) == 12
    sets = f"competition.adapter=flowers competition.source={target}"
    workspace.do_in_one_process(*MAIN_JOB, arguments=["--set", sets])
    head, *lines = workspace.submission().decode().splitlines()
    assert head == "id,label" and [line.split(",")[0] for line in lines] == [f"test/{n:03}.png" for n in range(30, 39)]
    assert {line.split(",")[1] for line in lines} <= set(NAMES)  # the labels of the source, not class numbers
    workspace.do("convert", sets="convert.sizes=[20] convert.least_shards=2")
    assert {name.split("/")[0] for name in shards(target)} == {"tfrecords-jpeg-20x20"}
    assert len(shards(target)) == 4 and len(list((target / "manifests").iterdir())) == 4
    recorded = json.loads((target / "manifest.json").read_text())
    assert shards(target).items() <= recorded["files"].items()


def test_a_killed_conversion_is_continued_and_does_not_count_before_its_end(workspace):
    target, whole = workspace.work / "converted", workspace.folder / "whole"
    sets = "convert.sizes=[512] convert.least_shards=9"
    workspace.do("convert", "--target", str(whole), sets=sets)
    workspace.do("convert", sets="convert.sizes=[16]")  # an earlier result, which the new parameters make stale
    command = workspace.command("convert", sets=sets)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=-3, start_new_session=True)
    end = time.monotonic() + 100
    while len(list(target.glob("tfrecords-jpeg-512x512/*/*"))) < 3 and time.monotonic() < end:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    present = {name: (target / name).stat().st_ino for name in shards(target) if "512" in name}
    assert 3 <= len(present) < 18 and not (target / "manifest.json").exists()
    with pytest.raises(UserError, match="is not finished; run make convert again"):
        flowers.describe(target, Settings(**asdict(params("competition.adapter=flowers").competition), seed=0))
    output = workspace.do("convert", sets=sets)
    counts = r"(\d+) shards written, (\d+) were finished before"
    written, reused = map(int, re.findall(counts, output)[0])
    assert written + reused == 18 and 1 <= reused <= len(present)
    assert sum((target / name).stat().st_ino == inode for name, inode in present.items()) >= reused
    assert shards(target) == shards(whole)


def test_wrong_folders_are_refused_and_nothing_is_written(workspace):
    mine = workspace.folder / "full" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("precious")
    for sets, message in (
        (f"convert.source={workspace.folder}/absent", "absent is not a folder; name a local folder, gs://"),
        (f"convert.target={workspace.folder}/source", "is also the source"),
        (f"convert.target={workspace.folder}/full", "holds 'mine.txt'; name an empty"),
        ("convert.engine=beam convert.beam_python=absent", "`make beam` installs"),
        ("convert.source=''", "this stage needs the results of `make download`"),
    ):
        assert message in workspace.refused_here("convert", sets)
    assert mine.read_text() == "precious" and not shards(mine.parent)


def test_the_options_of_beam_are_in_no_command_line(workspace, tmp_path):
    python = tmp_path / "python"  # instead of that of Apache Beam: notes what it is called with
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\ncat > {tmp_path}/stdin\n')
    python.chmod(0o755)
    sets = f"convert.engine=beam convert.beam_python={python} convert.beam_options=[--db_password=planted]"
    assert "Apache Beam ended without" in workspace.refused_here("convert", sets)
    assert "planted" not in (tmp_path / "called").read_text()
    assert json.loads((tmp_path / "stdin").read_text()) == ["--db_password=planted"]


@pytest.mark.long  # TensorFlow starts anew to reach the bucket
def test_images_and_shards_may_be_in_a_bucket(workspace, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of the stand-in for Google's storage, and is not installed")
    source, local = workspace.folder / "source", workspace.folder / "local"
    sets = "convert.least_shards=1 convert.processes=1"
    for path in source.rglob("*.png"):
        if 3 <= int(path.stem) < 36:  # one photo per class and three test photos remain
            path.unlink()
    workspace.do("convert", "--target", str(local), sets=sets)
    (tmp_path / "gcs").mkdir()
    with FakeGcs(tmp_path / "gcs") as gcs:
        photos = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*.png")}
        gcs.buckets["mine"] = {f"photos/{name}": data for name, data in photos.items()}
        arguments = ("--source", "gs://mine/photos", "--target", "gs://mine/shards")
        ran = workspace.run("convert", *arguments, sets=sets, **gcs.environment())
        assert ran.code == 0 and "2 shards written; 6 images" in ran.out, f"{ran.out}\n{ran.err}"
        objects = {name: data for name, data in gcs.buckets["mine"].items() if name.startswith("shards/")}
    assert {name: hashlib.sha256(objects[f"shards/{name}"]).hexdigest() for name in shards(local)} == shards(local)
    own = {"manifests", "manifest.json", "competition.json", "sample_submission.csv"}
    assert {name.split("/")[1] for name in objects} == {"tfrecords-jpeg-16x16", "tfrecords-jpeg-24x24", *own}
