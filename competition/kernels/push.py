"""Start a kernel at most once: save the intent before the push, and find a version whose answer was lost."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from competition.config.errors import UserError
from competition.files.manifest import write_json
from competition.kaggle.attempts import LostAnswer, UnknownOutcome, poll, send_at_most_once
from competition.kaggle.client import Client, ask, kernel_fields
from competition.kaggle.errors import SITE, KaggleError
from competition.kernels import kernel_script
from competition.kernels.api import KernelVersion


@dataclass(frozen=True)
class PushIntent(KernelVersion):
    """A version that was pushed or is about to be (version 0, url ""). Saved before the push and again after Kaggle's answer."""

    run: str  # name of the run, in the pushed source and in the kernel's output
    force: bool  # its results replace local ones
    collect: tuple[str, ...]  # patterns of its result folders
    previous: int = 0  # newest version before the push


def read_push_intent(path: Path) -> PushIntent:
    return TypeAdapter(PushIntent).validate_json(path.read_bytes())


def newest_version(client: Client, owner: str, slug: str, may_be_other: bool = False) -> int:
    """Number of the newest version; 0 if the kernel does not exist yet (Kaggle answers 403 or 404).

    UserError if it is a notebook that goldfold did not push, to which a push would add a version; unless may_be_other.
    """
    newest = _source(client, owner, slug, 0, kernel_script.OUTPUT)
    if newest["has_source"] and not newest["holds"] and not may_be_other:
        raise UserError(
            f"{SITE}/code/{owner}/{slug} is another notebook, which goldfold did not push: nothing was sent. Choose another name "
            f'with SET="kernel.slug=...", or AGAIN=1 adds a version to that notebook'
        )
    return int(newest["version"])


def push_once(
    client: Client, send: Callable[[], KernelVersion], intent: PushIntent, state: Path, lag: float
) -> PushIntent:
    """Save the intent, push, save Kaggle's answer. Retried only if Kaggle certainly did not accept the push.

    send: pushes the kernel.  state: file of the intent.  lag: seconds for which a version whose answer was lost is looked
    for; raise UnknownOutcome if it does not appear, and keep the intent.
    """
    write_json(state, intent)
    try:
        pushed = send_at_most_once(client, send, lambda error: error.kind == "sources")
    except LostAnswer as lost:
        return find_lost_push(client, intent, state, lag, f" ({lost})")
    except KaggleError:
        state.unlink()  # no run was started
        raise
    intent = replace(intent, **asdict(pushed))
    write_json(state, intent)
    return intent


def find_lost_push(client: Client, intent: PushIntent, state: Path, lag: float, why: str = "") -> PushIntent:
    """Find the running version whose answer from Kaggle was lost."""
    name = f"{intent.owner}/{intent.slug}"
    client.print_line(f"kernel: the answer to push {intent.run} was lost{why}; looking for it for {lag:.0f} s")

    def version_of_run() -> KernelVersion | None:
        """The version after `intent.previous` whose source names the run."""
        source = _source(client, intent.owner, intent.slug, 0, intent.run)
        newest = int(source["version"])  # 0 if Kaggle returned no number: it stands for the newest version
        for version in range(newest, intent.previous, -1) if newest else (0,):
            if version != newest:
                source = _source(client, intent.owner, intent.slug, version, intent.run)
            if source["holds"]:
                return KernelVersion(intent.owner, intent.slug, version, f"{SITE}/code/{name}")
        return None

    pushed, error = poll(version_of_run, lag, client.policy.first_wait)
    if pushed is None:
        reason = f"its versions cannot be read, {error}" if error else f"no version after {intent.previous} holds it"
        raise UnknownOutcome(
            f"it is unknown whether Kaggle runs {name} for run {intent.run}{why}: {reason}; look at {SITE}/code/{name}, "
            "`make kernel` looks again, `make kernel AGAIN=1` pushes it once more (a second session if the first runs)"
        )
    intent = replace(intent, **asdict(pushed))
    write_json(state, intent)
    return intent


def _source(client: Client, owner: str, slug: str, version: int, text: str) -> Mapping[str, Any]:
    """The number of a version and whether it holds `text`; version 0 without it if Kaggle answers 403 or 404."""
    name = f"{owner}/{slug}"
    try:
        arguments = {"kernel": kernel_fields(name, version), "phrase": text}
        return dict(ask(client, "kernel_source", arguments, name))
    except KaggleError as error:
        if error.kind not in {"access", "missing"}:
            raise
        return {"version": 0, "holds": False, "has_source": False}
