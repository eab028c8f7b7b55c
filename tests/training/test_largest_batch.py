"""A batch that exhausts the memory of the device is answered with the largest one that fits."""

from dataclasses import replace
from typing import Any

import pytest
from builders import CLASSES, member, params

from competition.training import engines
from competition.training.device import Device, open_device
from competition.training.engine import CompiledIn
from competition.training.memory import is_out_of_memory, largest_that_fits, step_fits, too_large


@pytest.mark.parametrize(("limit", "grain", "largest"), [(37, 1, 37), (37, 8, 32), (255, 8, 248), (7, 8, 0)])
def test_the_largest_batch_below_the_one_that_failed_is_found(limit: int, grain: int, largest: int) -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= limit

    assert largest_that_fits(256, grain, fits) == largest
    assert all(batch % grain == 0 and 0 < batch < 256 for batch in tried) and len(tried) <= 8


def test_the_error_names_the_batch_and_the_number_of_parts_that_fit() -> None:
    large = member(batch=256)
    message = str(too_large("b6", large, 8, lambda batch: batch <= 100))
    assert "b6: a batch of 256 images" in message and "the largest that fits is 96" in message
    assert "train.accumulate: 3" in message and "or train.batch: 96" in message
    in_parts = replace(large, train=replace(large.train, accumulate=4))
    assert "the largest that fits is 24: set train.accumulate: 11," in str(
        too_large("b6", in_parts, 8, lambda b: b < 30)
    )
    assert "so does the smallest batch" in str(too_large("b6", large, 8, lambda _: False))


def test_a_step_is_trained_to_see_whether_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    device, make = open_device(params().device), engines.make_engine
    assert step_fits(member(), CLASSES, device, 4)

    def exhausted(network: Any, device: Device, compiled_in: CompiledIn) -> object:
        if compiled_in.batch > 4:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.")
        return make(network, device, compiled_in)

    monkeypatch.setattr(engines, "make_engine", exhausted)
    assert step_fits(member(), CLASSES, device, 4) and not step_fits(member(), CLASSES, device, 8)


def test_errors_of_exhausted_memory_are_recognised() -> None:
    import tensorflow as tf

    assert is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "failed to allocate memory"))
    wrapped = ValueError("in the engine")
    wrapped.__cause__ = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ValueError("shapes do not match")) and not is_out_of_memory(None)
