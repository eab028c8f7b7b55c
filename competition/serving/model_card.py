"""The model card: README.md of an export, for whoever gets the folder without this project."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from competition.config.errors import counted
from competition.prepare.prepared import Prepared
from competition.serving.bundle import FILES, Bundle
from competition.serving.served_models import Selection

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")


def model_card(bundle: Bundle, selection: Selection, prepared: Prepared, facts: Mapping[str, Any]) -> str:
    """The text of README.md, in Markdown.

    facts: score, one sentence; checks of the formats; stored, the largest difference from the stored predictions, or None if there are
    none to compare; sample, the images on which the formats were compared; versions of packages; commit.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    train = prepared.part("train")
    counts = train["label"].value_counts()
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        bundle=bundle,
        selection=selection,
        chain=selection.chain,
        facts=facts,
        files=FILES,
        data=prepared.digest,
        train_rows=len(train),
        fewest=int(counts.min()),
        most=int(counts.max()),
    )


def score_sentence(selection: Selection, blend: Mapping[str, Any] | None) -> str:
    """The honest score of what is exported, with its standard error.  blend: result of the blend's manifest."""
    if blend is None:
        return "No score: the export was made before `make predict` computed one."
    metric, baseline = blend["metric"], ""
    if trivial := blend.get("trivial"):
        baseline = (
            f" The trivial baseline ({trivial['name']}) looks at no row and scores {trivial['score']:.4f} ± "
            f"{trivial['standard_error']:.4f}."
        )
    if selection.is_blend:
        kind = "Optimistic (every row chose hyperparameters)" if blend["optimistic"] else "Honest"
        return (
            f"{kind} {metric}: {blend['honest']:.4f} ± {blend['standard_error']:.4f} (one standard error), on "
            f"{counted(blend['honest_rows'], 'out-of-fold row')} that took no part in what they score.{baseline}"
        )
    (name,) = selection.members
    score = blend["members"].get(name)
    if score is None:
        return f"No score: the last blend did not contain {name}."
    return (
        f"Out-of-fold {metric} of {name} under the identity view: {score['score']:.4f} ± {score['standard_error']:.4f} (one "
        f"standard error). It is the score of single fold models on the rows held out of their training; their mean is usually better. "
        f"Views are those fitted for the blend; they are not part of this score.{baseline}"
    )
