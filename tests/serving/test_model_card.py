"""The sentences of the card that comes with an export."""

from types import SimpleNamespace

import pytest

from competition.ensemble.blend import STACKED, Blend
from competition.ensemble.mixing import MEAN_OF
from competition.serving.model_card import averaging_sentence


@pytest.mark.parametrize("mixing", sorted({*STACKED.values(), *MEAN_OF.values()}))
def test_the_card_says_how_members_are_mixed_for_every_kind_of_blend(mixing: str) -> None:
    chain = SimpleNamespace(
        policies={"a": {"identity": 1.0}, "b": {"identity": 1.0}}, blend=Blend("equal", mixing, {"a": 0.5, "b": 0.5})
    )
    selection = SimpleNamespace(chain=chain, members={"a": None, "b": None}, digests={"a": ["1"], "b": ["2"]})
    sentence = averaging_sentence(selection)
    assert "mixed by the weighted " in sentence and "blend method: equal" in sentence
