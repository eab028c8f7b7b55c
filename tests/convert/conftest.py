from pathlib import Path

import pytest
import small_source
from data_fixtures import digits, make_settings  # noqa: F401

from competition.convert.shard import Recipe, Shard, SourceImage


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return small_source.write_photos(tmp_path / "source")


@pytest.fixture
def rows(photos: Path) -> list[SourceImage]:
    return small_source.rows_of(photos)


@pytest.fixture
def recipe(photos: Path, tmp_path: Path) -> Recipe:
    return small_source.recipe_of(photos, tmp_path / "target")


@pytest.fixture
def shards(rows: list[SourceImage]) -> list[Shard]:
    return small_source.shards_of(rows)
