"""The search for the largest batch, the compiler's error messages and results that are kept; needs no compiler."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import member, params
from hypothesis import given, settings
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.preflight.answers import GRAIN, largest_batch, remedy_for
from competition.preflight.lowering import CannotCompile
from competition.preflight.results import PreflightResult, objections, request_of, store_result
from competition.preflight.topology import GIB, topology_named

LIMIT = 16 * GIB


def fake_compiler(fixed: int, per_image: int, compiled: list[int], curvature: float = 0.0):
    """A compiler whose programs need fixed + per_image * batch + curvature * batch ** 1.5 bytes."""

    def compile_batch(batch: int) -> PreflightResult:
        compiled.append(batch)
        memory = int(fixed + per_image * batch + curvature * batch**1.5)
        return PreflightResult("train", batch, "fits" if memory <= LIMIT else "too_big", memory, LIMIT)

    return compile_batch


@settings(deadline=None)
@given(
    fixed=st.integers(0, 15 * GIB),
    per_image=st.integers(2**20, 2**30),
    curvature=st.floats(0, 1e6),
    start=st.integers(1, 3000),
    replicas=st.sampled_from([1, 4, 8]),
)
def test_the_largest_batch_fits_and_the_next_larger_one_does_not(fixed, per_image, curvature, start, replicas):
    grain, maximum = replicas * GRAIN, 4096
    largest = largest_batch(fake_compiler(fixed, per_image, [], curvature), replicas, start, maximum)
    compile_batch = fake_compiler(fixed, per_image, [], curvature)
    if largest is None:
        assert compile_batch(grain).verdict == "too_big"
    else:
        assert largest.good and largest.batch % grain == 0
        assert largest.batch + grain > maximum or not compile_batch(largest.batch + grain).good


def test_few_compilations_suffice_if_memory_is_linear_in_the_batch() -> None:
    compiled: list[int] = []
    largest = largest_batch(fake_compiler(GIB, 30 * 2**20, compiled), 8, 128, 4096)
    assert largest is not None and largest.batch == 512
    assert len(compiled) == len(set(compiled)) <= 5


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
    assert "train.rotate" in remedy_for(result)
    assert "host" in remedy_for(replace(result, operations=("Unheard",)))


def test_a_topology_is_found_by_its_name_and_an_unknown_one_is_an_error_with_a_suggestion() -> None:
    for name, libtpu, devices in (("v3-8", "v3:2x2", 8), ("v4-8", "v4:2x2x1", 4), ("TpuV5E8", "v5e:2x4", 8)):
        topology = topology_named(name)
        assert (topology.libtpu, topology.devices) == (libtpu, devices)
    with pytest.raises(UserError, match=r"TOPOLOGY=v5e8: unknown; did you mean 'v5e-8'\?"):
        topology_named("v5e8")


BIG = PreflightResult("train", 64, "too_big", 32 * GIB, 16 * GIB, remedy="lower train.batch")


def request():
    return request_of(member(batch=64), params(), topology_named("v5e-8"), "auto", 10)


def test_a_missing_result_differs_from_no_objection_and_an_objection_names_step_reason_and_remedy(tmp_path) -> None:
    assert objections(request(), tmp_path) is None
    store_result(request(), PreflightResult("train", 64, "fits", GIB, 16 * GIB), tmp_path)
    assert objections(request(), tmp_path) == []
    store_result(request(), BIG, tmp_path)
    unsupported = PreflightResult("predict", 256, "unsupported", operations=("ResizeBicubic",), remedy="on the host")
    store_result(request(), unsupported, tmp_path)
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
