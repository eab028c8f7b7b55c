"""The fixtures of tests/data_fixtures.py."""

from data_fixtures import digits, make_settings, make_source, read, real_data  # noqa: F401
