"""The search for the largest batch and the compiler's error messages; needs no compiler."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.preflight.answers import GRAIN, largest_batch, remedy_for
from competition.preflight.lowering import CannotCompile
from competition.preflight.results import PreflightResult
from competition.preflight.topology import GIB, topology_named

LIMIT = 16 * GIB


def fake_compiler(fixed: int, per_image: int, compiled: list[int], curvature: float = 0.0):
    """A compiler whose programs need fixed + per_image * batch + curvature * batch ** 1.5 bytes."""

    def compile_batch(batch: int) -> PreflightResult:
        compiled.append(batch)
        memory = int(fixed + per_image * batch + curvature * batch**1.5)
        return PreflightResult("train", batch, "fits" if memory <= LIMIT else "too_big", memory, LIMIT)

    return compile_batch


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


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (82.08G) exceeds available HBM (15.75G).",
            82.08,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 42.30G of 15.48G hbm. Exceeded by 26.82G",
            42.3,
        ),
        ("RESOURCE_EXHAUSTED: something new", 0),
    ],
)
def test_the_sizes_in_an_out_of_memory_message_are_read(message: str, needed: float) -> None:
    result = CannotCompile(message).result
    assert (result["verdict"], result["memory"]) == ("too_big", int(needed * GIB))


def test_any_other_message_means_an_unsupported_operation() -> None:
    result = CannotCompile(
        "INTERNAL: failed to legalize operation 'mhlo.topk_thing' that was explicitly marked illegal"
    ).result
    assert (result["verdict"], result["operations"]) == ("unsupported", ["mhlo.topk_thing"])


def test_a_remedy_belongs_to_its_operation() -> None:
    result = PreflightResult("train", 8, "unsupported", operations=("Unheard", "ImageProjectiveTransformV3"))
    assert "train.rotate" in remedy_for(result)
    assert "host" in remedy_for(replace(result, operations=("Unheard",)))


@pytest.mark.parametrize(
    ("name", "libtpu", "devices"),
    [
        ("v3-8", "v3:2x2", 8),
        ("v4-8", "v4:2x2x1", 4),
        ("v5e-8", "v5e:2x4", 8),
        ("TpuV5E8", "v5e:2x4", 8),
        ("v6e-1", "v6e:1x1", 1),
    ],
)
def test_a_topology_is_found_by_its_name(name: str, libtpu: str, devices: int) -> None:
    topology = topology_named(name)
    assert (topology.libtpu, topology.devices) == (libtpu, devices)


def test_an_unknown_topology_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"TOPOLOGY=v5e8: unknown; did you mean 'v5e-8'\?"):
        topology_named("v5e8")
