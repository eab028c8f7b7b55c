"""The compiler's error messages and results that are kept, plans; nothing is compiled."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROOT, member, params
from preloaded import run_preloaded

from competition.config.errors import UserError
from competition.preflight.lowering import CannotCompile
from competition.preflight.planning import Load, Sizes, load_of, sessions_for, sizes_of
from competition.preflight.results import PreflightResult, objections, remedy_for, request_of, store_result
from competition.preflight.topology import GIB, topology_named


def test_a_message_means_too_little_memory_with_its_sizes_or_an_unsupported_operation_with_its_remedy() -> None:
    out_of_memory = {
        "E1000: CompileTimeHbmOom: total memory required for HLO temporaries (82.08G) exceeds available HBM (15.75G).": 82.08,
        "Ran out of memory in memory space hbm. Used 42.30G of 15.48G hbm. Exceeded by 26.82G": 42.3,
        "something new": 0,
    }
    for message, gib in out_of_memory.items():
        result = CannotCompile(f"RESOURCE_EXHAUSTED: {message}").result
        assert (result["verdict"], result["memory"]) == ("too_big", int(gib * GIB))
    message = "INTERNAL: failed to legalize operation 'mhlo.topk_thing' that was explicitly marked illegal"
    unsupported = CannotCompile(message).result
    assert (unsupported["verdict"], unsupported["operations"]) == ("unsupported", ["mhlo.topk_thing"])
    result = PreflightResult("train", 8, "unsupported", operations=("Unheard", "ImageProjectiveTransformV3"))
    assert "train.rotate" in remedy_for(result, member())
    assert "host" in remedy_for(replace(result, operations=("Unheard",)), member())


@pytest.mark.parametrize(
    ("step", "precision", "train_size", "remedy"),
    [
        ("train", "auto", 0, "lower train.batch or the member's image_size, or raise train.accumulate"),
        ("train", "auto", 8, "lower train.batch or the member's train_size, or raise train.accumulate"),
        ("predict", "bfloat16", 8, "lower predict.batch or the member's image_size"),
        ("predict", "float32", 0, "lower predict.batch or the member's image_size, or set train.precision: bfloat16"),
    ],
)
def test_a_remedy_names_only_parameters_that_its_step_depends_on(step, precision, train_size, remedy) -> None:
    assert remedy_for(replace(BIG, step=step), replace(member(precision=precision), train_size=train_size)) == remedy


def test_a_topology_is_found_by_its_name_and_an_unknown_one_is_an_error_with_a_suggestion() -> None:
    for name, libtpu, devices in (("v3-8", "v3:2x2", 8), ("v4-8", "v4:2x2x1", 4), ("TpuV5E8", "v5e:2x4", 8)):
        topology = topology_named(name)
        assert (topology.libtpu, topology.devices) == (libtpu, devices)
    with pytest.raises(UserError, match=r"TOPOLOGY=v5e8: unknown; did you mean 'v5e-8'\?"):
        topology_named("v5e8")


BIG = PreflightResult("train", 64, "too_big", 32 * GIB, 16 * GIB)


def request():
    return request_of(member(batch=64), params(), topology_named("v5e-8"), "auto", 10)


def test_a_missing_result_differs_from_no_objection_and_an_objection_names_step_reason_and_remedy(tmp_path) -> None:
    assert objections(request(), tmp_path) is None
    # A quick result can approve but not reject a step.
    quick = replace(request(), mode="quick")
    store_result(quick, replace(BIG, mode="quick"), tmp_path)
    assert objections(request(), tmp_path) is None
    store_result(quick, PreflightResult("train", 64, "fits", GIB, 16 * GIB, mode="quick"), tmp_path)
    assert objections(request(), tmp_path) == []
    store_result(request(), BIG, tmp_path)
    unsupported = PreflightResult("predict", 256, "unsupported", operations=("ResizeBicubic",))
    store_result(request(), unsupported, tmp_path)
    assert objections(request(), tmp_path) == [
        "train needs 32.00 GiB of memory per device, 16.00 GiB are available: " + remedy_for(BIG, request().member),
        "predict uses ResizeBicubic, which is not supported: resize bilinearly, or on the host",
    ]
    store_result(request(), replace(BIG, memory=0), tmp_path)  # the compiler did not say how much
    objection, _ = objections(request(), tmp_path)
    assert objection.startswith("train needs more memory per device, 16.00 GiB are available: ")


# Hours, sessions and dollars of a plan, with numbers that can be checked by hand.
PLAN = ["plan", "--params", "recipes/flowers.yaml", "--topology", "v5e-8"]
SIZES = Sizes(10, 100, 50)


def test_the_load_counts_folds_epochs_views_and_trials() -> None:
    def load_with(changes: str) -> Load:
        own = "train.epochs=3 train.batch=10 predict.views=[identity,flip_lr] tune.trials=4 tune.folds=[0,1]"
        settings = params(f"{own} prepare.folds=5 tune.members=[] tune.pruner=none {changes}")
        return load_of(settings.members["cnn"], settings, "cnn", SIZES, replicas=4)

    load = load_with("")
    assert load.steps == 3 * (80 // 12)  # a batch of 10 becomes 12 on 4 replicas
    assert load.scored == 3 * 20 and load.predicted == 2 * (100 + 5 * 50)
    # A trial is trained once, on one fold where a fold model has four; so are the best and the own values, with two seeds.
    assert load.runs == 5 + 4 * 1 / 4 + 2 * 2 / 4
    assert load_with("tune.pruner=asha tune.trials=23").runs == 5 + 23 / 4 - (23 - 3) / 4 * 0.5 + 1


@pytest.mark.parametrize(("hours", "sessions"), [(8.75, 1), (8.8, 2), (20, 3)])
def test_work_is_split_into_sessions_with_time_for_setup(hours: float, sessions: int) -> None:
    result = sessions_for(hours * 3600, session_hours=9, weekly_hours=20, setup_hours=0.25)
    assert result.sessions == sessions and result.hours == pytest.approx(hours + sessions * 0.25)
    assert result.share_of_week == pytest.approx(result.hours / 20)
    assert result.weeks == (2 if result.hours > 20 else 1)


def test_the_sizes_of_a_built_in_competition_are_known_before_the_download(tmp_path: Path) -> None:
    assert sizes_of(tmp_path, params()) == Sizes(10, 1347, 450)
    with pytest.raises(UserError, match="run `make download` first"):
        sizes_of(tmp_path, params("competition.adapter=flowers competition.miniature=0.1"))


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
    heads = {"linear": "[identity, flip_lr, rotate_90]", "rbf": "[identity]"}
    members = [f"  {kind}: {{{network}, head: {{kind: {kind}, views: {heads[kind]}}}}}\n" for kind in heads]
    text = f"extends: {ROOT}/recipes/flowers.yaml\ntune: {{trials: 0, members: []}}\nmembers:\n{''.join(members)}"
    (tmp_path / "heads.yaml").write_text(text)
    predict = {"verdict": "fits", "batch": 256, "roofline": 0.512, "lower_seconds": 10.0, "compile_seconds": 50.0}
    changes = ("--params", str(tmp_path / "heads.yaml"), "--set", "predict.views=[identity,flip_lr]")
    plan_result, out = plan(tmp_path, {name: {"predict": predict} for name in heads}, *changes)
    passes = 16465 * 3 + 7382 * 2  # rotate_90 is a view of training rows only
    assert plan_result["seconds"] == pytest.approx(60 + passes * 0.001 / 0.4)
    assert "plan: linear: features of all images" in out and "plan: rbf" not in out
