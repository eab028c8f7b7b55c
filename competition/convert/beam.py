"""The shard function as an Apache Beam pipeline: one element is one whole shard.

Beam may run an element again, or twice at the same time; both are harmless, because the bytes are the same and a file
appears under its name only when it is complete. Needs apache-beam, in an environment without TensorFlow.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from competition.convert.shard import convert_shard
from competition.convert.work_list import load_work


def convert_one(path: str) -> str:
    """Convert the shard of one work list file; return its outcome as JSON."""
    return json.dumps(asdict(convert_shard(*load_work(path))))


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
