"""The CPU stands in for four devices, so that the distributed code runs in every test run."""

import os
import sys

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
LOGICAL_DEVICES = 4


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Devices must be cut before the first of them is used; light tests, alone, never load TensorFlow for it."""
    if "tensorflow" not in sys.modules:
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.get_logical_device_configuration(cpu):
        parts = [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES
        tf.config.set_logical_device_configuration(cpu, parts)
