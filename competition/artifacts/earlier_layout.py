"""Whether a work folder has results of the earlier layout; light enough to be asked by every command."""

from pathlib import Path

MOVING = ".moving"  # suffix of a folder that is being moved one level down


def has_earlier_layout(work: Path) -> bool:
    """Return True if work/<competition> may hold results of the earlier layout, or of a migration that was killed."""
    patterns = ("members/*/fold*", "members/*/without/*", "tune/*/best.json", f"tune/*{MOVING}", "blend/manifest.json")
    return any(any(work.glob(pattern)) for pattern in patterns) or (work / f"blend{MOVING}").exists()
