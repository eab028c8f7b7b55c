"""Say where the data is for the device in use, and why, after looking that it is really there."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from competition.data.prepared import load_prepared
from competition.errors import Refusal
from competition.manifest import write_json
from pipelines.stage import Job, main, shown


def run(job: Job) -> None:
    """data/ -> resolve.json: path, reason"""
    data = job.needs(job.path("data", "manifest.json"), "download")

    def make() -> tuple[Iterable[Path], Mapping[str, Any]]:
        place = job.path("data", "records")
        records = load_prepared(job.path("data")).records("train")
        if not records or not records[0].read_bytes()[:1]:
            raise Refusal(f"{shown(place)}: no training records could be read there; run `make download FORCE=1`")
        found = {"path": shown(place), "reason": "the devices of this machine read its own disk"}
        write_json(job.path("resolve.json"), found)
        job.say(f"resolve: {found['path']}: {found['reason']}")
        return [job.path("resolve.json")], found

    job.piece("resolve", job.path("resolve.manifest.json"), {"data": data.digest, "device": job.params.device}, make)


if __name__ == "__main__":
    main(run)
