"""A value is set in the text of a YAML file; every other character stays."""

import pytest

from competition.config.errors import UserError
from competition.config.yaml_text import parse_yaml, set_value

TEXT = """\
# A file.
train:        # for all
  epochs: 12   # passes
  flip: none
members:
  cnn:
    architecture: cnn     # cnn, or another
    weights: none         # at the start
    # teacher: [name]
  flow: {alpha: 0.5, train: {epochs: 3}, teacher: [a, b]}  # in one line
  empty: {}
predict:
  views: [identity, flip_lr]
"""


@pytest.mark.parametrize(
    ("keys", "value", "old", "new"),
    [
        (("train", "epochs"), 3, "  epochs: 12   # passes", "  epochs: 3   # passes"),
        (("predict", "views"), ("identity",), "[identity, flip_lr]", "[identity]"),
        (("members", "flow", "train", "epochs"), 5, "{epochs: 3}", "{epochs: 5}"),
        (("members", "flow", "weights"), "my file.h5", "teacher: [a, b]}", 'teacher: [a, b], weights: "my file.h5"}'),
        (("members", "cnn", "weights"), "true", "weights: none", 'weights: "true"'),
        (
            ("members", "cnn", "train", "learning_rate"),
            1e-05,
            "    weights: none         # at the start\n",
            "    weights: none         # at the start\n    train: {learning_rate: 1e-05}\n",
        ),
        (("train", "probe"), True, "  flip: none\n", "  flip: none\n  probe: true\n"),
        (("blend",), {"rounds": 3}, "[identity, flip_lr]\n", "[identity, flip_lr]\nblend: {rounds: 3}\n"),
    ],
)
def test_only_the_value_changes(keys: tuple[str, ...], value: object, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    edited = set_value(TEXT, keys, value)
    assert edited == TEXT.replace(old, new)
    read = parse_yaml(edited, "the text")
    for key in keys:
        read = read[key]
    assert read == (list(value) if isinstance(value, tuple) else value)


def test_a_value_of_several_lines_is_not_edited() -> None:
    with pytest.raises(UserError, match=r"train: a value of several lines is not edited; write it as 3"):
        set_value(TEXT, ("train",), 3)
