"""What was found about a TPU is heeded as long as it is an answer to the very same question."""

from dataclasses import replace
from pathlib import Path

from world import member, params

from competition.preflight.answers import PreflightResult, store_result
from competition.preflight.results import cells, objections, question_of
from competition.preflight.topology import GIB, topology_named

BIG = PreflightResult("train", 64, "too_big", 32 * GIB, 16 * GIB, remedy="lower train.batch")


def asked(batch: int = 64):
    return question_of(member(batch=batch), params(), topology_named("v5e-8"), "auto", 10)


def test_nobody_asked_is_not_the_same_as_no_objection(tmp_path: Path) -> None:
    assert objections(asked(), tmp_path) is None
    store_result(asked(), PreflightResult("train", 64, "fits", GIB, 16 * GIB), tmp_path)
    assert objections(asked(), tmp_path) == []


def test_an_objection_says_the_step_what_is_wrong_and_the_remedy(tmp_path: Path) -> None:
    store_result(asked(), BIG, tmp_path)
    store_result(
        asked(),
        PreflightResult("predict", 256, "unsupported", operations=("ResizeBicubic",), remedy="on the host"),
        tmp_path,
    )
    assert objections(asked(), tmp_path) == [
        "train needs 32.00 GiB of the 16.00 GiB of a device: lower train.batch",
        "predict uses ResizeBicubic, which has no form there: on the host",
    ]


def test_an_answer_about_another_batch_or_another_tpu_objects_to_nothing(tmp_path: Path) -> None:
    store_result(asked(), BIG, tmp_path)
    assert objections(asked(batch=32), tmp_path) is None
    assert objections(replace(asked(), topology=topology_named("v6e-8")), tmp_path) is None


def test_a_quick_answer_speaks_for_a_step_and_never_against_it(tmp_path: Path) -> None:
    quick = replace(asked(), mode="quick")
    store_result(quick, replace(BIG, mode="quick"), tmp_path)
    assert objections(asked(), tmp_path) is None
    store_result(quick, PreflightResult("train", 64, "fits", GIB, 16 * GIB, mode="quick"), tmp_path)
    assert objections(asked(), tmp_path) == []
    store_result(asked(), BIG, tmp_path)
    assert len(objections(asked(), tmp_path) or []) == 1


def test_a_quick_answer_is_told_from_a_full_one() -> None:
    full = PreflightResult("train", 64, "fits", GIB, 16 * GIB, compile_seconds=30)
    assert cells("b6", "train", full)[4] == "1.00 GiB" and cells("b6", "train", full)[7] == "30 s"
    quick = cells("b6", "train", replace(full, mode="quick"))
    assert (quick[4], quick[7]) == ("about 1.00 GiB", "30 s quickly")


def test_other_epochs_are_the_same_question(tmp_path: Path) -> None:
    store_result(asked(), BIG, tmp_path)
    longer = member(batch=64, epochs=99, learning_rate=0.5)
    assert objections(question_of(longer, params(), topology_named("v5e-8"), "jax", 10), tmp_path)


def test_a_line_of_the_table_says_how_full_the_memory_is() -> None:
    assert cells("b6", "train", BIG) == ["b6", "train", "64", "DOES NOT FIT", "32.00 GiB", "200%", "-", "-"]
