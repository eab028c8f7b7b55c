"""DEBUG=1 draws the first batch and the worst predictions and changes no result."""

from PIL import Image
from stages import Workspace


def test_debug_draws_the_first_batch_and_the_worst_images_and_changes_no_result(place: Workspace) -> None:
    before = place.files()
    place.do("debug", "--debug", "--member", "slim", "--fold", "1", "--debug-rows", "40")
    for name in ("slim-fold1-batch.png", "slim-fold1-worst.png"):
        with Image.open(place.work / "debug" / name) as sheet:
            assert min(sheet.size) > 100 and len(set(sheet.convert("L").getdata())) > 10  # not a blank image
    after = place.files()
    assert {path: after.get(path) for path in before} == before
