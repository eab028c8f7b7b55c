"""Every fault point is named in a test of this folder, and does nothing unless a test asks for a fault there."""

from injection import points_in_source, points_in_tests

from competition.config.faults import fault_point


def test_every_point_has_a_test_and_every_tested_point_exists() -> None:
    assert points_in_tests() == points_in_source().keys()


def test_a_point_does_nothing_by_itself() -> None:
    assert fault_point("file.before_rename", "a") is None
