"""Run the benchmarks and write their results into the table of docs/speed.md.

    python -m benchmarks                                    # or make benchmarks; generated images, two hours on two cores
    python -m benchmarks --source photos.zip --torch PYTHON --only memory

Each benchmark is a process of its own that prints lines beginning with "RESULT:". A benchmark that fails is
named in the table and the command ends with 1; rows that were not measured this time keep their earlier text.
"""

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
# Name -> its arguments; PHOTOS and TORCH are replaced by what the options name.
BENCHMARKS: dict[str, list[str]] = {
    "reference_job": ["PHOTOS", "TORCH"],
    "memory": ["PHOTOS"],
    "input_speed": ["--seconds", "2"],
    "light_verbs": [],
    "scale": [],
    "simulation": [],
    "random_labels": ["--seeds", "5"],
    "false_verdicts": [],
    "leaderboard_coverage": [],
}


def measure(name: str, source: str, torch: str) -> tuple[list[str], bool]:
    """(result lines, whether it succeeded)"""
    options = {"PHOTOS": ["--source", source] if source else [], "TORCH": ["--torch", torch] if torch else []}
    arguments = [word for argument in BENCHMARKS[name] for word in options.get(argument, [argument])]
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        if result := re.match(r"RESULT: (.*)", line):
            lines.append(result[1])
    return lines, process.wait() == 0


def with_row(page: str, name: str, row: str) -> str:
    """The page with this row in its table, in the order of BENCHMARKS."""
    start, end = page.index(BEGIN), page.index(END)
    rows = {each[1]: each[0] for each in re.finditer(r"^\| `(\w+)` \|.*$", page[start:end], re.MULTILINE)}
    rows[name] = row
    table = ["| benchmark | result | measured |", "|---|---|---|", *(rows[each] for each in BENCHMARKS if each in rows)]
    return page[:start] + "\n".join([BEGIN, "", *table, "", ""]) + page[end:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help='a zip or a folder of photos; "" = generated images')
    parser.add_argument("--torch", default="", help="the Python of an environment with torch and timm")
    parser.add_argument("--only", nargs="*", default=[], choices=[*BENCHMARKS, []], help="only these benchmarks")
    options = parser.parse_args()
    failed = []
    for name in options.only or BENCHMARKS:
        lines, succeeded = measure(name, options.source, options.torch)
        if not succeeded:
            failed.append(name)
            continue
        page, day = PAGE.read_text(encoding="utf-8"), datetime.now(UTC).strftime("%Y-%m-%d")
        PAGE.write_text(with_row(page, name, f"| `{name}` | {'<br>'.join(lines)} | {day} |"), encoding="utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
