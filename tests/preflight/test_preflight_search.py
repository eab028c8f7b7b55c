"""The search for the largest batch, and what the compiler's messages mean: no compiler needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from competition.config.errors import UserError
from competition.preflight.answers import GRAIN, PreflightResult, largest_batch, remedy_for
from competition.preflight.compiling import TooBig, compile_error
from competition.preflight.lowering import Unsupported
from competition.preflight.topology import GIB, TOPOLOGIES, roofline_seconds, topology_named

LIMIT = 16 * GIB


def asking(fixed: int, each: int, seen: list[int], bend: float = 0.0):
    """A compiler whose programs need fixed + each x batch (+ bend) bytes."""

    def asked(batch: int) -> PreflightResult:
        seen.append(batch)
        memory = int(fixed + each * batch + bend * batch**1.5)
        return PreflightResult("train", batch, "fits" if memory <= LIMIT else "too_big", memory, LIMIT)

    return asked


@given(
    fixed=st.integers(0, 15 * GIB),
    each=st.integers(2**20, 2**30),
    bend=st.floats(0, 1e6),
    start=st.integers(1, 3000),
    replicas=st.sampled_from([1, 4, 8]),
)
def test_what_is_found_fits_and_one_grain_more_does_not(
    fixed: int, each: int, bend: float, start: int, replicas: int
) -> None:
    grain, most = replicas * GRAIN, 4096
    found = largest_batch(asking(fixed, each, [], bend), replicas, start, most)
    try_again = asking(fixed, each, [], bend)
    if found is None:
        assert try_again(grain).verdict == "too_big"
    else:
        assert found.good and found.batch % grain == 0
        assert found.batch + grain > most or not try_again(found.batch + grain).good


def test_where_memory_is_a_line_few_compilations_do() -> None:
    seen: list[int] = []
    found = largest_batch(asking(GIB, 30 * 2**20, seen), 8, 128, 4096)
    assert found is not None and found.batch == 512
    assert len(seen) == len(set(seen)) <= 5


def test_where_the_numbers_are_off_it_does_not_creep() -> None:
    seen: list[int] = []

    def asked(batch: int) -> PreflightResult:  # the compiler finds room where its own numbers say there is none
        seen.append(batch)
        return PreflightResult("train", batch, "fits" if batch <= 2048 else "too_big", LIMIT + batch, LIMIT)

    found = largest_batch(asked, 8, 128, 4096)
    assert found is not None and found.batch == 2048
    assert len(seen) <= 16


def test_a_step_that_cannot_be_compiled_ends_the_search() -> None:
    seen: list[int] = []

    def asked(batch: int) -> PreflightResult:
        seen.append(batch)
        return PreflightResult("train", batch, "unsupported")

    found = largest_batch(asked, 8, 128, 4096)
    assert found is not None and found.verdict == "unsupported" and len(seen) == 1


@pytest.mark.parametrize(
    ("message", "needed", "limit"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (82.08G) exceeds available HBM (15.75G).",
            82.08,
            15.75,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 42.30G of 15.48G hbm. Exceeded by 26.82G",
            42.3,
            15.48,
        ),
        ("RESOURCE_EXHAUSTED: something new", 0, 0),
    ],
)
def test_an_overflow_is_read_with_its_numbers(message: str, needed: float, limit: float) -> None:
    error = compile_error(message)
    assert isinstance(error, TooBig)
    assert (error.needed, error.limit) == (int(needed * GIB), int(limit * GIB))


def test_any_other_message_is_an_operation_that_is_not_supported() -> None:
    error = compile_error("INTERNAL: failed to legalize operation 'mhlo.topk_thing' that was explicitly marked illegal")
    assert isinstance(error, Unsupported) and error.operations == ("mhlo.topk_thing",)


def test_a_remedy_belongs_to_its_operation() -> None:
    answer = PreflightResult("train", 8, "unsupported")
    assert "train.rotate" in remedy_for(answer, ["Unheard", "ImageProjectiveTransformV3"])
    assert "host" in remedy_for(answer, ["Unheard"])


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
def test_a_friendly_name_is_a_topology(name: str, libtpu: str, devices: int) -> None:
    found = topology_named(name)
    assert (found.libtpu, found.devices) == (libtpu, devices)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"TOPOLOGY=v5e8: unknown; did you mean 'v5e-8'\?"):
        topology_named("v5e8")


def test_the_roofline_is_the_slower_of_computing_and_moving() -> None:
    tpu = TOPOLOGIES["v5e-1"]
    assert roofline_seconds(tpu, 197e12, 0) == pytest.approx(1)
    assert roofline_seconds(tpu, 197e12, 2 * 819e9) == pytest.approx(2)
