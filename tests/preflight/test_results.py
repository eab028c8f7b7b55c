"""Cached preflight results count for exactly the same request only."""

from dataclasses import replace
from pathlib import Path

from builders import member, params

from competition.preflight.results import PreflightResult, cells, objections, request_of, store_result
from competition.preflight.topology import GIB, topology_named

BIG = PreflightResult("train", 64, "too_big", 32 * GIB, 16 * GIB, remedy="lower train.batch")


def request(batch: int = 64):
    return request_of(member(batch=batch), params(), topology_named("v5e-8"), "auto", 10)


def test_a_missing_result_differs_from_no_objection(tmp_path: Path) -> None:
    assert objections(request(), tmp_path) is None
    store_result(request(), PreflightResult("train", 64, "fits", GIB, 16 * GIB), tmp_path)
    assert objections(request(), tmp_path) == []


def test_an_objection_names_step_reason_and_remedy(tmp_path: Path) -> None:
    store_result(request(), BIG, tmp_path)
    store_result(
        request(),
        PreflightResult("predict", 256, "unsupported", operations=("ResizeBicubic",), remedy="on the host"),
        tmp_path,
    )
    assert objections(request(), tmp_path) == [
        "train needs 32.00 GiB of memory per device, 16.00 GiB are available: lower train.batch",
        "predict uses ResizeBicubic, which is not supported: on the host",
    ]


def test_a_quick_result_can_approve_but_not_reject_a_step(tmp_path: Path) -> None:
    quick = replace(request(), mode="quick")
    store_result(quick, replace(BIG, mode="quick"), tmp_path)
    assert objections(request(), tmp_path) is None
    store_result(quick, PreflightResult("train", 64, "fits", GIB, 16 * GIB, mode="quick"), tmp_path)
    assert objections(request(), tmp_path) == []
    store_result(request(), BIG, tmp_path)
    assert len(objections(request(), tmp_path) or []) == 1


def test_a_quick_result_is_marked_in_the_table() -> None:
    full = PreflightResult("train", 64, "fits", GIB, 16 * GIB, compile_seconds=30)
    assert cells("b6", "train", full)[4] == "1.00 GiB" and cells("b6", "train", full)[7] == "30 s"
    quick = cells("b6", "train", replace(full, mode="quick"))
    assert (quick[4], quick[7]) == ("about 1.00 GiB", "30 s quickly")
