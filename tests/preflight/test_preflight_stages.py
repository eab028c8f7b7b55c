"""What preflight and plan say to a person, from answers that are already there: nothing is compiled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from competition.config.params_file import locate
from competition.preflight.answers import PreflightResult
from competition.preflight.topology import GIB, topology_named
from pipelines.plan import duration
from pipelines.preflight import advice, batch_key, table

ROOT = Path(__file__).parents[2]
RECIPE = """extends: base.yaml

train:
  batch: 128
members:
  small: {architecture: cnn}
  large:
    architecture: cnn
    train:
      batch: 64
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text("predict:\n  batch: 1\n  views:\n    - identity\n    - bad\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def test_what_to_change_is_named_by_file_and_line(recipe: Path) -> None:
    assert locate(recipe, ("train", "batch")) == "recipe.yaml line 4: train.batch"
    assert locate(recipe, ("predict", "views", 1)) == "base.yaml line 5: predict.views.1"


def test_the_batch_is_changed_where_the_member_has_it_from(recipe: Path) -> None:
    assert locate(recipe, batch_key(recipe, "small")) == "recipe.yaml line 4: train.batch"
    assert locate(recipe, batch_key(recipe, "large")) == "recipe.yaml line 10: members.large.train.batch"


def test_the_table_says_what_fits_and_how_full_the_memory_is() -> None:
    answers = {
        "b6": {
            "train": PreflightResult("train", 128, "fits", 8 * GIB, 16 * GIB, roofline=0.05, compile_seconds=300),
            "predict": PreflightResult("predict", 256, "too_big", 20 * GIB, 16 * GIB),
        }
    }
    head, _, fits, does_not, _ = table(answers, topology_named("v5e-8"), "jax", "compile")
    assert head == "preflight for v5e-8, 8 x 15.75 GiB, jax"
    assert fits.split() == ["b6", "train", "128", "fits", "8.00", "GiB", "50%", "50.0", "ms", "300", "s"]
    assert does_not.split() == ["b6", "predict", "256", "DOES", "NOT", "FIT", "20.00", "GiB", "125%", "-", "-"]


def test_a_batch_that_may_fit_is_told_as_a_guess_and_a_searched_one_as_a_fact() -> None:
    tpu, answer = topology_named("v5e-8"), PreflightResult("train", 256, "too_big", 32 * GIB, 16 * GIB)
    assert advice(answer, None, tpu) == "about 128 images would fit (SEARCH=1 finds the exact number)"
    assert advice(answer, PreflightResult("train", 64, "fits"), tpu) == "a batch of 64 is the largest that fits"


@pytest.mark.parametrize(("seconds", "text"), [(48, "48 s"), (700, "12 min"), (12240, "3.4 h")])
def test_a_duration_reads_as_a_person_says_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def plan(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.plan", "--params", "recipes/flowers.yaml", "--topology", "v5e-8"]
    return subprocess.run([*command, "--work", str(tmp_path), *more], cwd=ROOT, capture_output=True, text=True)


def test_a_plan_for_a_tpu_counts_hours_sessions_and_dollars(tmp_path: Path) -> None:
    train = {"verdict": "fits", "batch": 128, "roofline": 0.1, "lower_seconds": 20.0, "compile_seconds": 100.0}
    predict = {"verdict": "fits", "batch": 256, "roofline": 0.256, "lower_seconds": 10.0, "compile_seconds": 50.0}
    file = tmp_path / "flowers" / "preflight" / "v5e-8.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"members": {"xception": {"train": train, "predict": predict}}}))
    changes = ("--member", "xception", "--set", "train.epochs=10 predict.views=[identity]")
    ran = plan(tmp_path, *changes)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "flowers" / "plan.json").read_text())
    training = 120 + 5 * (10 * (13172 // 128) * 0.1 + 10 * 3293 * 0.001) / 0.4
    predicting = 60 + (16465 + 5 * 7382) * 0.001 / 0.4
    assert found["seconds"] == pytest.approx(training + predicting)
    assert found["kaggle"]["sessions"] == 1
    (bill,) = [b for b in found["cloud"] if (b["region"], b["kind"]) == ("us-central1", "on demand")]
    assert bill["dollars"] == pytest.approx(found["seconds"] / 3600 * 9.6)
    assert found["cloud"][0]["dollars"] == min(b["dollars"] for b in found["cloud"])
    assert "on Kaggle 1 session of at most 9 h" in ran.stdout


def test_a_plan_without_a_preflight_names_the_command(tmp_path: Path) -> None:
    ran = plan(tmp_path)
    assert ran.returncode == 1
    assert "make preflight TOPOLOGY=v5e-8" in ran.stderr
