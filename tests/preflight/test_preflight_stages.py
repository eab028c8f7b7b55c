"""Terminal output of preflight and plan for given results; nothing is compiled."""

import json
import os
from pathlib import Path

import pytest
from builders import ROOT
from preloaded import run_preloaded

from competition.config.params_file import locate
from competition.preflight.results import PreflightResult
from competition.preflight.topology import GIB, topology_named
from pipelines.machines.preflight import advice, batch_key

PLAN = ["plan", "--params", "recipes/flowers.yaml", "--topology", "v5e-8"]
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


def test_the_batch_is_located_where_the_member_takes_it_from(recipe: Path) -> None:
    assert locate(recipe, batch_key(recipe, "small")) == "recipe.yaml line 4: train.batch"
    assert locate(recipe, batch_key(recipe, "large")) == "recipe.yaml line 10: members.large.train.batch"


def test_an_estimated_batch_is_reported_as_approximate_and_a_searched_one_as_exact() -> None:
    tpu, result = topology_named("v5e-8"), PreflightResult("train", 256, "too_big", 32 * GIB, 16 * GIB)
    assert advice(result, None, tpu) == "about 128 images would fit (SEARCH=1 finds the exact number)"
    assert advice(result, PreflightResult("train", 64, "fits"), tpu) == "a batch of 64 is the largest that fits"


def plan(work: Path, steps: dict[str, dict], *arguments: str) -> tuple[dict, str]:
    """(plan.json, stdout) of `make plan` after a preflight with these results of each member."""
    file = work / "flowers" / "preflight" / "v5e-8.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"members": steps}))
    code, out, err = run_preloaded("pipelines", [*PLAN, "--work", str(work), *arguments], ROOT, os.environ)
    assert code == 0, err
    return json.loads((work / "flowers" / "plan.json").read_text()), out


def test_a_plan_for_a_tpu_counts_hours_sessions_and_dollars(tmp_path: Path) -> None:
    train = {"verdict": "fits", "batch": 128, "roofline": 0.1, "lower_seconds": 20.0, "compile_seconds": 100.0}
    predict = {"verdict": "fits", "batch": 256, "roofline": 0.256, "lower_seconds": 10.0, "compile_seconds": 50.0}
    changes = ("--member", "xception", "--set", "train.epochs=10 predict.views=[identity]")
    plan_result, out = plan(tmp_path, {"xception": {"train": train, "predict": predict}}, *changes)
    training = 120 + 5 * (10 * (13172 // 128) * 0.1 + 10 * 3293 * 0.001) / 0.4
    predicting = 60 + (16465 + 5 * 7382) * 0.001 / 0.4
    assert plan_result["seconds"] == pytest.approx(training + predicting)
    assert plan_result["kaggle"]["sessions"] == 1
    (bill,) = [b for b in plan_result["cloud"] if (b["region"], b["kind"]) == ("us-central1", "on demand")]
    assert bill["dollars"] == pytest.approx(plan_result["seconds"] / 3600 * 9.6)
    assert plan_result["cloud"][0]["dollars"] == min(b["dollars"] for b in plan_result["cloud"])
    assert "on Kaggle 1 session of at most 9 h" in out


def test_a_plan_counts_the_pass_of_a_frozen_network_once_for_all_heads_on_it(tmp_path: Path) -> None:
    network = "architecture: MobileNet, image_size: 224, alpha: 1.0, weights: imagenet"
    heads = ("{kind: linear, views: [identity, flip_lr, rotate_90]}", "{kind: rbf, views: [identity]}")
    members = "".join(
        f"  {name}: {{{network}, head: {head}}}\n" for name, head in zip(("linear", "rbf"), heads, strict=True)
    )
    (tmp_path / "heads.yaml").write_text(
        f"extends: {ROOT}/recipes/flowers.yaml\nmembers:\n{members}tune: {{trials: 0, members: []}}\n"
    )
    predict = {"verdict": "fits", "batch": 256, "roofline": 0.512, "lower_seconds": 10.0, "compile_seconds": 50.0}
    changes = ("--params", str(tmp_path / "heads.yaml"), "--set", "predict.views=[identity,flip_lr]")
    plan_result, out = plan(tmp_path, {name: {"predict": predict} for name in ("linear", "rbf")}, *changes)
    passes = 16465 * 3 + 7382 * 2  # rotate_90 is a view of training rows only
    assert plan_result["seconds"] == pytest.approx(60 + passes * 0.001 / 0.4)
    assert "plan: linear: features of all images" in out and "plan: rbf" not in out


def test_a_plan_without_a_preflight_names_the_command(tmp_path: Path) -> None:
    code, _, err = run_preloaded("pipelines", [*PLAN, "--work", str(tmp_path)], ROOT, os.environ)
    assert code == 1 and "make preflight PARAMS=recipes/flowers.yaml TOPOLOGY=v5e-8" in err
