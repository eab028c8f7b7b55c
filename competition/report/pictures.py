"""Training images by id, straight from the local record files: no TensorFlow is started for a few pictures on a page."""

import base64
import io
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pandas as pd
from PIL import Image

from competition.data.images import BadImage, Fit, decode, size_of

LARGEST = 112  # pixels a side of one picture on the page
PIXEL_ART = 64  # an image smaller than this is shown as it is, with hard pixels


def training_images(records: Path, index: pd.DataFrame, ids: Sequence[str]) -> dict[str, bytes]:
    """id -> encoded image. An id whose record is not where the index says is left out.

    records: folder of fold0-00-COUNT.tfrec and its like, which hold each fold's rows in the order of the index.
    """
    train = index[index["part"] == "train"]
    place = train.groupby("fold").cumcount()  # among the rows of its own fold
    wanted = train[train["id"].isin(list(ids))]
    found: dict[str, bytes] = {}
    for fold, rows in wanted.groupby("fold"):
        number_of = dict(zip(place[rows.index].tolist(), rows["id"]))
        found |= {name: image for name, image in _read(records, f"fold{fold}-", number_of) if name in set(rows["id"])}
    return found


def data_uri(image: bytes, fit: Fit) -> tuple[str, bool]:
    """(the picture as an address that holds it, does it want hard pixels?). fit: as models see it. Raises BadImage."""
    size = min(LARGEST, max(size_of(image)))
    small, out = size < PIXEL_ART, io.BytesIO()
    if size < 1:
        raise BadImage("it has no pixels")
    Image.fromarray(decode(image, size, fit)).save(out, "PNG" if small else "JPEG", quality=82, optimize=True)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}", small


def _read(records: Path, prefix: str, number_of: dict[int, str]) -> Iterator[tuple[str, bytes]]:
    """(id, image) of the records with these numbers among all of one fold; a file that is damaged ends its own part."""
    files = sorted(records.glob(f"{prefix}*.tfrec"), key=lambda file: int(file.name.split("-")[1]))
    counts = [int(file.stem.split("-")[2]) for file in files]
    for file, before, after in zip(files, accumulate(counts, initial=0), accumulate(counts)):
        here = sorted(number - before for number in number_of if before <= number < after)
        for number, example in zip(here, _records(file, here)):
            name, image = _example(example)
            if name == number_of[before + number]:
                yield name, image


def _records(file: Path, numbers: Sequence[int]) -> Iterator[bytes]:
    """The records of these ascending numbers; the others are stepped over.

    A record is its length in 8 bytes, a check of it in 4, the content, a check of that in 4.
    """
    with file.open("rb") as handle:
        at = 0
        for number in numbers:
            while at <= number:
                head = handle.read(12)
                if len(head) < 12:
                    return
                length = int.from_bytes(head[:8], "little")
                content = handle.read(length) if at == number else b""
                handle.seek(4 + length - len(content), io.SEEK_CUR)
                at += 1
            yield content


def _example(data: bytes) -> tuple[str, bytes]:
    """(id, image) of a serialized tf.train.Example; empty where it has none."""
    found: dict[str, bytes] = {}
    for features in _parts(data, 1):
        for entry in _parts(features, 1):
            key, value = b"".join(_parts(entry, 1)), b"".join(_parts(entry, 2))
            texts = [text for one in _parts(value, 1) for text in _parts(one, 1)]
            found[key.decode("utf-8", "replace")] = b"".join(texts)
    return found.get("id", b"").decode("utf-8", "replace"), found.get("image", b"")


def _parts(data: bytes, wanted: int) -> list[bytes]:
    """The length-delimited fields of one number, of a protocol buffer message; what is damaged ends the list."""
    found, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        size, at = _varint(data, at)
        if tag & 7 == 0:  # a plain number: its value was read as a size
            continue
        if tag & 7 != 2 or at + size > len(data):
            break
        if tag >> 3 == wanted:
            found.append(data[at : at + size])
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, place behind it): seven bits a byte, the lowest first, the top bit says that more follow."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            break
    return value, at
