"""The model card: README.md of an export, for whoever gets the folder without this project."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from competition.config.errors import counted
from competition.prepare.prepared import Prepared
from competition.serving.bundle import FILES, Bundle
from competition.serving.served_models import Selection

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
MEANS = {  # mixing -> what it is called
    "mean": "mean of their probabilities",
    "geometric": "geometric mean of their probabilities",
    "log_odds": "mean of their log odds",
    "average": "mean",
}


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
        averaging=averaging_sentence(selection),
        facts=facts,
        files=FILES,
        data=prepared.digest,
        train_rows=len(train),
        fewest=int(counts.min()),
        most=int(counts.max()),
    )


def averaging_sentence(selection: Selection) -> str:
    """How the outputs of fold models, views and members become one."""
    chain, names = selection.chain, list(selection.members)
    fold_models = counted(max(len(selection.digests[name]) for name in names), "fold model")
    views = counted(max(len(chain.policies[name]) for name in names), "view")
    sentence = f"A member predicts by the mean of {fold_models} under {views}."
    if len(names) == 1:
        return sentence
    means = f"weighted {MEANS[chain.blend.mixing]} (blend method: {chain.blend.method})"
    return f"{sentence} The members' outputs are mixed by the {means}."


def score_sentence(selection: Selection, blend: Mapping[str, Any] | None) -> str:
    """The honest score of what is exported, with its standard error.  blend: result of the blend's manifest."""
    if blend is None:
        return "No score: the export was made before `make predict` computed one."
    metric, baseline = blend["metric"], ""
    if trivial := blend.get("trivial"):  # a blend of an earlier version has none
        baseline = (
            f" The trivial baseline ({trivial['name']}) looks at no image and scores {trivial['score']:.4f} ± "
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
