"""Every fault point is named in a test of this folder."""

from injection import points_in_source, points_in_tests


def test_every_point_has_a_test_and_every_tested_point_exists() -> None:
    assert points_in_tests() == points_in_source().keys()
