"""train.albumentations: the draws of a saved pipeline belong to (seed, fold, epoch, row), whichever thread makes the image."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from builders import member, params, pixels_of
from test_batches import N

from competition.config.errors import UserError
from competition.config.params_file import stated_keys
from competition.input_pipeline.named_augmentations import pipeline_of
from competition.input_pipeline.random_streams import epoch_key, generator
from competition.prepare.prepared import Prepared
from competition.workspace.studies import study_subject

PIXELS = pixels_of(np.arange(N) % 3, size=24)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    if not importlib.util.find_spec("albumentations"):
        pytest.skip("goldfold[albumentations] is not installed")
    import albumentations as A

    some = A.SomeOf([A.Affine(rotate=(-40, 40), p=0.8), A.ColorJitter(p=0.8), A.GaussNoise(p=0.8)], n=2, p=1)
    A.save(A.Compose([some, A.HorizontalFlip(p=0.5)]), tmp_path / "transforms.yaml", data_format="yaml")
    return tmp_path / "transforms.yaml"


def test_an_image_depends_on_its_row_and_epoch_and_not_on_the_thread_or_the_order(file: Path) -> None:
    augment = pipeline_of(str(file))

    def image(row: int, epoch: int = 0) -> np.ndarray:
        return augment(PIXELS[row].copy(), partial(generator, epoch_key(1, 0, epoch), row, 0))

    expected = [image(row) for row in range(N)]
    with ThreadPoolExecutor(4) as pool:
        backwards = list(pool.map(image, reversed(range(N))))
    assert all(np.array_equal(*pair) for pair in zip(expected, reversed(backwards)))
    assert not all(np.array_equal(image(row, epoch=1), one) for row, one in enumerate(expected))
    assert not np.array_equal(image(4) - PIXELS[4], image(7) - PIXELS[7])


def test_what_is_no_pipeline_or_changes_the_size_is_refused_in_one_sentence(file: Path, tmp_path: Path) -> None:
    import albumentations as A

    A.save(A.Compose([A.CenterCrop(8, 8)]), tmp_path / "crop.json", data_format="json")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match=r"crop.json makes \(8, 8, 3\) uint8 of an image \(24, 24, 3\)"):
        pipeline_of(str(tmp_path / "crop.json"))(PIXELS[0], partial(generator, epoch_key(1, 0, 0), 0, 0))
    with pytest.raises(UserError, match=r"list.yaml is not a pipeline that albumentations.save has written"):
        pipeline_of(str(tmp_path / "list.yaml"))
    with pytest.raises(UserError, match=r"none.yaml was not found"):
        pipeline_of(str(tmp_path / "none.yaml"))


def test_a_changed_file_is_another_run_and_no_file_leaves_earlier_runs_alone(tmp_path: Path) -> None:
    assert "albumentations" not in stated_keys(member())["train"]
    path = tmp_path / "transforms.yaml"
    path.write_text("a")
    augmented = member(albumentations=str(path))
    data = Prepared(tmp_path, None, None, "digest")  # type: ignore[arg-type]
    first = study_subject(data, params(), augmented)
    path.write_text("b")
    assert first != study_subject(data, params(), augmented) and first["member"]["train"]["albumentations"] == str(path)
    assert "albumentations" not in study_subject(data, params(), member())
