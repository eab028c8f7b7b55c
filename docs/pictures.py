"""The pictures of docs/tutorial.md, of a real run of the digits: `python docs/pictures.py [FOLDER]`, some minutes.

Copies the tracked files into a temporary folder, types the commands of the tutorial there on a terminal of 110 columns, draws what it
shows as SVG and takes pictures of the report with a headless Chromium (Debian's package chromium). Nothing is left beside the pictures.
FOLDER: where they are written, docs/ without it.
"""

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from PIL import Image
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from browser import NAMES, Browser  # noqa: E402
from terminals import on_terminal  # noqa: E402

COLUMNS = 110  # of the terminal
WIDTH, HEIGHT = 1400, 860  # of the browser's window, pixels
TERMINAL_BYTES, PAGE_BYTES = 60_000, 120_000  # largest picture of a terminal and of a page
COMMANDS = (  # and the picture of what each shows; "" = none
    ("make download train predict", "tutorial_predict.svg"),
    ("make report", ""),
    ("make grade", "tutorial_grade.svg"),
    ('make train predict SET="train.epochs=20"', ""),
    ("make runs", "tutorial_runs.svg"),
)
SUMMARY_HEAD = "views and their gain"
# Rich's window, without the font that it loads from the internet.
SVG_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, ", "Menlo, Consolas, "
)

POINT_AT_WRONG_ROW = """(() => {
  const svg = document.querySelector("#map .map svg");
  const points = [...svg.querySelectorAll("circle[data-picture]")]; // the last one is drawn above all others
  const wrong = points.findLast((point) => point.querySelector("title")?.textContent.includes("predicted as"));
  const box = wrong.getBoundingClientRect();
  svg.dispatchEvent(new MouseEvent("click", { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 }));
})()"""
PLACE_OF_MAP = """(() => {
  const box = document.querySelector("#map").getBoundingClientRect();
  return [box.x, box.y + scrollY, box.width, box.height];
})()"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs")
    pictures = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        project, profile = Path(temporary) / "goldfold", Path(temporary) / "browser"
        copy_project(project)
        for command, picture in COMMANDS:
            print(command, flush=True)
            output = on_terminal(["bash", "-c", command], COLUMNS, project)
            if picture:
                write_picture(pictures / picture, terminal_svg(command, output).encode(), TERMINAL_BYTES)
            if command == COMMANDS[0][0]:  # for README.md: the table and what follows it
                lines = output.splitlines()
                head = next(n for n, line in enumerate(lines) if SUMMARY_HEAD in line)
                summary = terminal_svg(command, "\n".join(["...", *lines[head:]]))
                write_picture(pictures / "terminal.svg", summary.encode(), TERMINAL_BYTES)
            if command == "make report":
                take_page(project / "work" / "digits" / "report.html", pictures, profile)


def copy_project(target: Path) -> None:
    """Copy the tracked files with their times, by which make knows that .venv is complete, and link .venv."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    (target / "submissions" / "ledger.jsonl").unlink(missing_ok=True)
    (target / ".venv").symlink_to((ROOT / ".venv").resolve())


def terminal_svg(command: str, output: str) -> str:
    """The command, and below it what the terminal shows, with its colours."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "yellow"), (command, "bold")))
    console.print(Text.from_ansi(output.rstrip()), soft_wrap=True)
    console.print()  # the picture ends within the last line
    return console.export_svg(title="", code_format=SVG_FORMAT, unique_id="t")


def take_page(page: Path, pictures: Path, profile: Path) -> None:
    """The first screen of the report, and its map of the rows with a wrong row pointed at."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        sys.exit("no Chromium was found; install it (Debian: apt-get install chromium) and run this again")
    with closing(Browser(program, profile)) as browser:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.call("Page.navigate", url=page.as_uri())
        browser.wait_for("document.readyState == 'complete'")
        take(browser, (0, 0, WIDTH, HEIGHT), pictures / "tutorial_report.png")
        browser.evaluate("document.querySelector('#map details').open = true")
        browser.evaluate(POINT_AT_WRONG_ROW)
        x, y, width, height = browser.evaluate(PLACE_OF_MAP)
        take(browser, (x - 16, y, width + 32, height), pictures / "tutorial_map.png")


def take(browser: Browser, place: Sequence[float], file: Path) -> None:
    """place: x, y, width and height on the page, pixels."""
    clip = dict(zip(("x", "y", "width", "height"), place, strict=True)) | {"scale": 1}
    shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
    picture = Image.open(io.BytesIO(b64decode(shot))).convert("RGB")
    # 256 colours take a third of the bytes; this method keeps rare ones, such as two similar classes of the map, apart.
    picture = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    write_picture(file, content.getvalue(), PAGE_BYTES)


def write_picture(file: Path, content: bytes, limit: int) -> None:
    if len(content) > limit:
        sys.exit(f"{file.name} has {len(content):,} bytes; expected at most {limit:,}: shorten what it shows")
    file.write_bytes(content)
    print(f"  {file.name}: {len(content):,} bytes", flush=True)


if __name__ == "__main__":
    main()
