"""What starting TensorFlow changes for the rest of a command."""

import logging

import pytest
import tensorflow as tf

from competition.training.backend import start_tensorflow


def test_many_members_raise_no_warning_about_programs_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("tensorflow")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.delitem(__import__("sys").modules, "tensorflow")
    start_tensorflow()

    def steps(x: tf.Tensor) -> tf.Tensor:
        return x + 1

    for member in range(8):
        assert tf.function(steps)(tf.constant(member)).numpy() == member + 1
    assert not messages
    logger.warning("another warning")
    assert messages == ["another warning"]
