"""DEBUG=1: pictures of what goes in and what comes out wrong, and nothing else touched."""

from PIL import Image
from stages import Place


def test_debug_draws_the_first_batch_and_the_worst_images_and_touches_nothing(place: Place) -> None:
    before = place.files()
    place.do("debug", "--debug", "--member", "slim", "--fold", "1", "--debug-rows", "40")
    for name in ("slim-fold1-batch.png", "slim-fold1-worst.png"):
        with Image.open(place.work / "debug" / name) as sheet:
            assert min(sheet.size) > 100 and len(set(sheet.convert("L").getdata())) > 10  # not one flat grey
    after = place.files()
    assert {path: after.get(path) for path in before} == before
