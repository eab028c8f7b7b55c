from collections import Counter

import pytest

from competition.convert.shard import SourceImage, make_shards

LABELS = [0] * 50 + [1] * 23 + [2] * 7 + [3]  # rare classes, as in real competitions
ROWS = [SourceImage(f"id{n}", label, f"{n}.jpg", "") for n, label in enumerate(LABELS)]


@pytest.mark.parametrize("stratify", [True, False])
@pytest.mark.parametrize("count", [1, 4, 7, 81])
def test_every_row_is_in_one_shard_and_shards_are_even(count, stratify):
    shards = make_shards("train", ROWS, count, stratify)
    assert sorted(row.id for shard in shards for row in shard.rows) == sorted(row.id for row in ROWS)
    assert len(shards) == count and max(len(s.rows) for s in shards) - min(len(s.rows) for s in shards) <= 1


def test_stratified_shards_have_the_same_share_of_every_class():
    shards = make_shards("train", ROWS, 7, stratify=True)
    for label in range(4):
        counts = [Counter(row.label for row in shard.rows)[label] for shard in shards]
        assert max(counts) - min(counts) <= 1
    plain = [Counter(row.label for row in shard.rows)[0] for shard in make_shards("train", ROWS, 7, stratify=False)]
    assert max(plain) - min(plain) > 1


def test_shards_depend_on_the_ids_and_not_on_the_order_of_the_source():
    assert make_shards("train", ROWS, 7, stratify=True) == make_shards("train", ROWS[::-1], 7, stratify=True)
    first = make_shards("train", ROWS, 1, stratify=True)[0].rows
    assert [row.label for row in first] != sorted(row.label for row in first)  # classes are mixed within a shard
