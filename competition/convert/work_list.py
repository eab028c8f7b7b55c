"""The work list: recipe and shards as JSON files in the target, for engines that run elsewhere."""

from collections.abc import Sequence
from dataclasses import asdict, astuple
from typing import Any

from competition.config.errors import UserError
from competition.convert.shard import Recipe, Shard, SourceImage
from competition.storage import files

FOLDER = "work_list"


def save_work(shards: Sequence[Shard], recipe: Recipe) -> list[str]:
    """Write one file per shard; return their paths. Earlier files are removed."""
    remove_work(recipe.target)
    paths = []
    for shard in shards:
        path = f"{recipe.target}/{FOLDER}/{shard.part}-{shard.name}.json"
        content = {"recipe": asdict(recipe), "part": shard.part, "name": shard.name}
        files.write_json(path, {**content, "rows": [astuple(row) for row in shard.rows]})
        paths.append(path)
    return paths


def remove_work(target: str) -> None:
    for name in files.names(f"{target}/{FOLDER}"):
        files.remove(f"{target}/{FOLDER}/{name}")


def load_work(path: str) -> tuple[Shard, Recipe]:
    content: dict[str, Any] | None = files.read_json(path)
    if content is None:
        raise UserError(f"{path} is missing or damaged: run make convert again, which writes it")
    recipe = Recipe(**{**content["recipe"], "sizes": tuple(content["recipe"]["sizes"])})
    return Shard(content["part"], content["name"], tuple(SourceImage(*row) for row in content["rows"])), recipe
