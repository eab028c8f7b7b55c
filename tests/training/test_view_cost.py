import pytest
from small_engines import TRAIN, engine_of

from competition.training.bench import seconds_per_1000, transform_seconds


def test_the_costs_of_all_views_add_up_to_what_was_measured():
    transforms = {"identity": 0.001, "flip_lr": 0.002, "ten": 0.012}  # seconds of 50 images
    costs = seconds_per_1000(6.0, 2000, transforms, 50)
    assert sum(costs.values()) == pytest.approx(3.0, rel=1e-3)
    assert costs["ten"] - costs["identity"] == pytest.approx(20 * 0.011, rel=1e-3)
    assert costs["identity"] == pytest.approx(0.9 + 20 * 0.001, rel=1e-2)


def test_transforms_that_take_longer_alone_than_in_total_are_scaled():
    costs = seconds_per_1000(0.1, 1000, {"identity": 0.01, "flip_lr": 0.03}, 10)
    assert costs == pytest.approx({"identity": 0.025, "flip_lr": 0.075})


def test_a_view_of_many_steps_takes_longer_than_none_on_every_device():
    many = "+".join(["crop_center", "scale_110"] * 10)
    for devices in (1, 2):
        seconds = transform_seconds(engine_of(TRAIN, devices), ("identity", many), 96)
        assert 0 < seconds["identity"] < seconds[many]
