import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
from small_source import digests, stamps

from competition.config.errors import UserError
from competition.convert.local import convert_shards
from competition.convert.shard import Shard, convert_shard


def test_several_processes_write_the_bytes_of_one_and_report_every_image(shards, recipe):
    alone = replace(recipe, target=f"{recipe.target}-alone")
    for shard in shards:
        convert_shard(shard, alone)
    reports: list[int] = []
    outcomes = list(convert_shards(shards, recipe, 2, reports.append))
    assert {outcome.name for outcome in outcomes} == {"00", "01"} and len(outcomes) == 3
    assert digests(recipe.target) == digests(alone.target) and len(digests(recipe.target)) == 6
    assert reports[-1] == 12 and reports == sorted(reports)


def test_a_killed_worker_loses_nothing_and_finished_shards_are_kept(rows, recipe):
    shards = [Shard("train", f"{n:02}", tuple(rows)) for n in range(6)]
    done, finished = [], {}
    for outcome in convert_shards(shards, recipe, 2):
        done.append(outcome.name)
        if not finished:
            # A shard is finished when both of its sizes are written; the other worker may be between its two.
            finished = {file: stamp for file, stamp in stamps(recipe.target).items() if f"/{outcome.name}-" in file}
            worker = multiprocessing.active_children()[0]
            worker.kill()
            worker.join()
    assert sorted(done) == [f"{n:02}" for n in range(6)] and len(digests(recipe.target)) == 12
    assert len(finished) == 2 and finished.items() <= stamps(recipe.target).items()


def test_the_error_of_a_worker_is_raised_as_it_is(shards, recipe, photos):
    (photos / "r05.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"image 'r05' \(r05.png\): the file is empty; repair"):
        list(convert_shards(shards, recipe, 1))


def test_workers_that_die_again_and_again_end_the_conversion_with_advice(shards, recipe, monkeypatch):
    monkeypatch.setattr("competition.convert.local.convert_shard", _die)
    with pytest.raises(UserError, match=r"killed 3 times before it finished a shard.*set convert.processes"):
        list(convert_shards(shards, recipe, 1))


def _die(shard, recipe, on_image):
    os.kill(os.getpid(), signal.SIGKILL)
