"""A fold model depends on the code that builds, feeds and trains it, and on no comment, message or unrelated module."""

import shutil
import textwrap
from pathlib import Path

import pytest
from builders import ROOT

from competition.artifacts import code_digest as module
from competition.artifacts.code_digest import DIGESTED, code_digest, source_digest

# Why a module of training/ or data/ does not change a fold model -> these modules.
IRRELEVANT = {
    "stores what images.py decodes, unchanged": ("data/cache",),
    "a check, read by people": (
        "data/caveats",
        "data/shift",
    ),
    "types; the content is part of the data digest": ("data/competition",),
    "writes record files; their images are part of the data digest": (
        "data/convert/beam",
        "data/convert/files",
        "data/convert/local",
        "data/convert/plan",
        "data/convert/schema",
        "data/convert/shard",
        "data/convert/sources",
        "data/convert/tfrecord",
        "data/convert/work_list",
    ),
    "decides groups, which are part of the data digest": (
        "data/duplicates",
        "data/embedding",
        "data/near_hashes",
        "data/series",
    ),
    "exports the folds": ("data/fold_table",),
    "assigns folds, which are part of the data digest": ("data/folds",),
    "writes the index, which is part of the data digest": ("data/index",),
    "a check, after training": ("data/label_issues",),
    "makes in threads what batches.py describes, unchanged": ("data/loader",),
    "decides which rows are in the index": ("data/leaks",),
    "reads what images.py decodes, unchanged": ("data/pixels",),
    "loads the index": ("data/prepared",),
    "stores image bytes, whose digests are in the index": ("data/records",),
    "words of an error": ("data/record_damage",),
    "decodes on demand what images.py decodes": ("data/stream",),
    "its rows are part of the data digest": (
        "data/adapters/columns",
        "data/adapters/digits",
        "data/adapters/drawn",
        "data/adapters/files",
        "data/adapters/flowers",
        "data/adapters/class_folders",
        "data/adapters/folder",
        "data/adapters/labelled_tables",
        "data/adapters/layout",
        "data/adapters/plants",
        "data/adapters/source",
        "data/adapters/target_tables",
        "data/adapters/tables",
    ),
    "measures speed": (
        "training/bench",
        "training/input_stall",
        "training/view_cost",
    ),
    "stores weights, unchanged": ("training/checkpoint",),
    "a model counts as the same on any device": ("training/device",),
    "a resumed model is the same model": ("training/fault_tolerance",),
    "shows what a trained model looks at": ("training/grad_cam",),
    "answers an error": ("training/largest_batch",),
}

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


def test_every_module_of_data_and_training_is_digested_or_stated_as_irrelevant() -> None:
    package = ROOT / "competition"
    files = [file for folder in ("data", "training") for file in (package / folder).rglob("*.py")]
    modules = {file.relative_to(package).with_suffix("").as_posix() for file in files if file.name != "__init__.py"}
    irrelevant = [module for modules in IRRELEVANT.values() for module in modules]
    assert sorted([*DIGESTED, *irrelevant]) == sorted([*modules, "artifacts/soft_labels"])


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
        ("data/augment.py", "import cv2\n", "import cv2\n\nEXTRA = 1\n", True),
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
