"""A fold model depends on the code that builds, feeds and trains it, and on no comment, message or unrelated module."""

import shutil
import textwrap
from pathlib import Path

import pytest
from builders import ROOT

from competition.workspace import code_digest as module
from competition.workspace.code_digest import code_digest, source_digest

# Why a module of training/ or data/ does not change a fold model -> these modules.

SOURCE = '''
"""A module."""
import keras

FILTERS = 8  # per layer


def build(images: object, alpha: float = 1.0) -> object:
    """Build it."""
    if alpha <= 0:
        raise ValueError(f"alpha {alpha} is not above 0")
    return keras.layers.Conv2D(int(FILTERS * alpha), 3, name=f"conv{alpha!r:>4}")(images)
'''


def digest_of_source(folder: Path, source: str) -> str:
    file = folder / "plugin.py"
    file.write_text(textwrap.dedent(source))
    return source_digest(file)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # per layer", ""),
        ('"""A module."""', ""),
        ('    """Build it."""\n', '    """Build a network."""\n    # Why: because.\n'),
        ("FILTERS = 8", "FILTERS   =   (8)"),
        ("images: object, alpha: float = 1.0) -> object:", "images,\n          alpha=1.0):"),
        ("is not above 0", "must be above 0"),
    ],
)
def test_comments_docstrings_formatting_and_messages_change_nothing(tmp_path: Path, old: str, new: str) -> None:
    assert old in SOURCE
    assert digest_of_source(tmp_path, SOURCE.replace(old, new)) == digest_of_source(tmp_path, SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FILTERS = 8", "FILTERS = 16"),
        ("alpha <= 0", "alpha < 0"),
        ("alpha: float = 1.0", "alpha: float = 2.0"),
        ("Conv2D", "DepthwiseConv2D"),
        ('"conv', '"layer'),
        ("!r", "!s"),
        ("    return keras", "    images = images / 255\n    return keras"),
    ],
)
def test_a_change_of_behaviour_changes_the_digest(tmp_path: Path, old: str, new: str) -> None:
    assert old in SOURCE
    assert digest_of_source(tmp_path, SOURCE.replace(old, new)) != digest_of_source(tmp_path, SOURCE)


def test_every_python_gets_the_same_digest(tmp_path: Path) -> None:
    """A Kaggle kernel with another Python must name its runs as this machine does."""
    file = tmp_path / "plugin.py"
    file.write_text(SOURCE)
    assert source_digest(file) == "b39183c3348d7f7e5c6446b5b3a6d60abd7886848b25cae57919394f4cf77161"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library that is digested instead of the real one."""
    copy = tmp_path / "competition"
    shutil.copytree(ROOT / "competition", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "PACKAGE", copy)
    return copy


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("training/model.py", "for width in (32, 64, 128)", "for width in (64, 64, 128)", True),
        ("training/model.py", "import keras\n", "import keras  # the models\n", False),
        ("images/augment.py", "import cv2\n", "import cv2\n\nEXTRA = 1\n", True),
        ("training/bench.py", "import math\n", "import math\n\nEXTRA = 1\n", False),
        ("ensemble/blend.py", "import numpy as np\n", "import numpy as np\n\nEXTRA = 1\n", False),
    ],
)
def test_an_edit_counts_where_it_can_change_a_model(
    package: Path, file: str, old: str, new: str, changes: bool
) -> None:
    before, text = code_digest(), (package / file).read_text()
    assert text.count(old) == 1
    (package / file).write_text(text.replace(old, new))
    assert (code_digest() != before) == changes
