"""The shard function as an Apache Beam pipeline: one element is one whole shard, the path of its file in the work list.

The work list is the recipe and the shards as JSON files in the target, which workers elsewhere can read. Beam may run an
element again, or twice at the same time; both are harmless, because the bytes are the same and a file appears under its
name only when it is complete. The pipeline needs apache-beam, in an environment without TensorFlow.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from competition.config.errors import UserError
from competition.storage import files
from competition.tfrecord_export.shard import Recipe, Shard, SourceImage, convert_shard

FOLDER = "work_list"


def save_work(shards: Sequence[Shard], recipe: Recipe) -> list[str]:
    """Write one file per shard; return their paths. Earlier files are removed."""
    folder, paths = f"{recipe.target}/{FOLDER}", []
    for name in files.names(folder):
        files.remove(f"{folder}/{name}")
    for shard in shards:
        paths.append(f"{folder}/{shard.part}-{shard.name}.json")
        files.write_json(paths[-1], {"recipe": asdict(recipe), "shard": asdict(shard)})
    return paths


def convert_one(path: str) -> str:
    """Convert the shard of one work list file; return its outcome as JSON."""
    content = files.read_json(path)
    if content is None:
        raise UserError(f"{path} is missing or damaged: run make convert again, which writes it")
    recipe, shard = content["recipe"], content["shard"]
    recipe["sizes"], shard["rows"] = tuple(recipe["sizes"]), tuple(SourceImage(**row) for row in shard["rows"])
    return json.dumps(asdict(convert_shard(Shard(**shard), Recipe(**recipe))))


def run_pipeline(paths: Sequence[str], arguments: Sequence[str]) -> None:
    """Convert all shards of the work list and wait for the end.

    arguments: Beam's own, e.g. ["--runner=FlinkRunner", "--flink_master=HOST:8081"].
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    with beam.Pipeline(options=PipelineOptions(list(arguments))) as pipeline:
        # The elements are paths, because a job description has a size limit; Reshuffle spreads them over the workers.
        shards = pipeline | "work list" >> beam.Create(list(paths), reshuffle=False)
        _ = shards | "spread" >> beam.Reshuffle() | "convert" >> beam.Map(convert_one)
