"""TFRecord files and tf.train.Example messages without TensorFlow: reading and writing with the checks of the format.

A record is: length (8 bytes, little endian), masked CRC32C of the length (4), the serialized Example, its masked CRC32C (4).
Needs neither TensorFlow nor pandas, which the environment of Apache Beam lacks.

An Example has the features of Kaggle's competitions: id, image, class (from 0); test records have no class.
"""

import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from competition.config.errors import UserError

try:
    import google_crc32c
except ImportError:  # some images of Kaggle; see numpy_crc32c
    google_crc32c = None  # type: ignore[assignment]


FEATURES = {"id": bytes, "image": bytes, "class": int}  # each with the type of its only value
COUNT_IN_NAME = re.compile(r"-(\d+)\.tfrec(?:ord)?s?$")
HEAD, TAIL = 12, 4  # bytes around the Example
LARGEST = 2**31 - 1  # bytes of one Example, protobuf's own limit
START_BYTES = bytes.fromhex("54641f64")  # they turn an empty CRC register into the start value, 32 ones
EXAMPLE = """
name: "goldfold/example.proto"  package: "tensorflow"  syntax: "proto3"
message_type { name: "BytesList"  field { name: "value"  number: 1  type: TYPE_BYTES  label: LABEL_REPEATED } }
message_type { name: "FloatList"  field { name: "value"  number: 1  type: TYPE_FLOAT  label: LABEL_REPEATED } }
message_type { name: "Int64List"  field { name: "value"  number: 1  type: TYPE_INT64  label: LABEL_REPEATED } }
message_type {
  name: "Feature"  oneof_decl { name: "kind" }
  field { name: "bytes_list"  number: 1  type: TYPE_MESSAGE  type_name: ".tensorflow.BytesList"  label: LABEL_OPTIONAL  oneof_index: 0 }
  field { name: "float_list"  number: 2  type: TYPE_MESSAGE  type_name: ".tensorflow.FloatList"  label: LABEL_OPTIONAL  oneof_index: 0 }
  field { name: "int64_list"  number: 3  type: TYPE_MESSAGE  type_name: ".tensorflow.Int64List"  label: LABEL_OPTIONAL  oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry"  options { map_entry: true }
    field { name: "key"  number: 1  type: TYPE_STRING  label: LABEL_OPTIONAL }
    field { name: "value"  number: 2  type: TYPE_MESSAGE  type_name: ".tensorflow.Feature"  label: LABEL_OPTIONAL }
  }
  field { name: "feature"  number: 1  type: TYPE_MESSAGE  type_name: ".tensorflow.Features.FeatureEntry"  label: LABEL_REPEATED }
}
message_type {
  name: "Example"
  field { name: "features"  number: 1  type: TYPE_MESSAGE  type_name: ".tensorflow.Features"  label: LABEL_OPTIONAL }
}
"""
AGAIN = "fetch or write the file again (make download FORCE=1 fetches the files of a competition)"


@dataclass(frozen=True, slots=True)
class Record:
    """The content of one Example."""

    id: str  # "" if it has none
    label: int | None  # class number from 0; None: the record has no class
    image: bytes
    offset: int = 0  # of the image in the file that it was read from, bytes


def serialize_example(features: Mapping[str, bytes | int | None]) -> bytes:
    """Return the serialized tf.train.Example with one value per feature; features without a value (None) are left out.

    Features are ordered by name, so that equal features give equal bytes.
    """
    example = _example_class()()
    for name, value in features.items():
        if value is not None:
            feature = example.features.feature[name]
            (feature.bytes_list if isinstance(value, bytes) else feature.int64_list).value.append(value)
    return bytes(example.SerializeToString(deterministic=True))


def read_example(serialized: bytes, where: str, required: Collection[str] = ("image",)) -> Record:
    """Return the content of an Example.

    where: name of the record in error messages.  required: features that it must have.
    Raises UserError for other bytes, and for a feature that is missing, repeated or of another type.
    """
    try:
        features = _example_class().FromString(serialized).features.feature
    except message.DecodeError:
        raise UserError(f"{where}: not a tf.train.Example; a record with an encoded image was expected") from None
    content: dict[str, Any] = {}
    for key, kind in FEATURES.items():
        list_name = features[key].WhichOneof("kind") if key in features else None
        values = list(getattr(features[key], list_name).value) if list_name else []
        if not values and key in required:
            listed = ", ".join(sorted(features)) or "none"
            raise UserError(f"{where}: feature {key!r} is missing; features {listed} were found")
        if values and (len(values) != 1 or not isinstance(values[0], kind)):
            raise UserError(
                f"{where}: feature {key!r} has {len(values)} values of type {type(values[0]).__name__}, one {kind.__name__} was expected"
            )
        content[key] = values[0] if values else None
    try:
        row_id = (content["id"] or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: its id is not UTF-8 text: {error.object[:20]!r}") from None
    return Record(row_id, content["class"], content["image"])


def write_record(file: BinaryIO, serialized: bytes) -> None:
    length = struct.pack("<Q", len(serialized))
    file.write(length + _masked_checksum(length) + serialized + _masked_checksum(serialized))


def read_records(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of the Example in the file, serialized Example) of all records, with both checksums verified.

    name: of the file, for error messages. A file that ends between two records has no other sign of damage than the count
    in its name (NN-COUNT.tfrec), which is compared at the end. Raises UserError if the file is truncated or damaged.
    """
    offset = number = 0
    while head := file.read(HEAD):
        if len(head) < HEAD or head[8:] != _masked_checksum(head[:8]):
            raise UserError(f"{name}, record {number}: it is truncated or damaged; {AGAIN}")
        (length,) = struct.unpack("<Q", head[:8])
        serialized = file.read(min(length, LARGEST))
        if len(serialized) != length or file.read(TAIL) != _masked_checksum(serialized):
            raise UserError(f"{name}, record {number}: it is truncated or damaged; {AGAIN}")
        yield offset + HEAD, serialized
        offset += HEAD + length + TAIL
        number += 1
    count = COUNT_IN_NAME.search(name)
    if count and int(count[1]) != number:
        raise UserError(
            f"{name}: {number:,} records were read where the name says {int(count[1]):,}; the file was truncated or "
            f"replaced; {AGAIN}"
        )


def _masked_checksum(data: bytes) -> bytes:
    value = google_crc32c.value(data) if google_crc32c else numpy_crc32c(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def numpy_crc32c(data: bytes) -> int:
    """Return the CRC32C of `data`, at about 30 MB/s: the substitute for google-crc32c where it is not installed.

    The register is linear: pieces of the data advance side by side, each from an empty register, and are then combined by
    what `width` zero bytes do to each bit of a register.
    """
    data = START_BYTES + data
    width = math.isqrt(len(data)) + 1
    pieces = -(-len(data) // width)
    steps = np.zeros((pieces + 32, width), np.uint8)  # the last 32 rows: one for each bit
    # Zeros in front leave an empty register empty.
    steps.reshape(-1)[pieces * width - len(data) : pieces * width] = np.frombuffer(data, np.uint8)
    registers = np.concatenate([np.zeros(pieces, np.uint32), np.uint32(1) << np.arange(32, dtype=np.uint32)])
    table = np.arange(256, dtype=np.uint32)  # what the last byte of a register contributes
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ 0x82F63B78, table >> 1)
    for column in steps.T:
        registers = table[(registers ^ column) & 0xFF] ^ (registers >> 8)
    of_bit = registers[pieces:].tolist()
    total = 0
    for register in registers[:pieces].tolist():
        for bit in range(32):
            if total >> bit & 1:
                register ^= of_bit[bit]
        total = register
    return total ^ 0xFFFFFFFF


@cache
def _example_class() -> Any:
    """The class of tf.train.Example, built at run time from its public definition (tensorflow/core/example).

    In a descriptor pool of its own, so that it does not collide with TensorFlow's in one process.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(text_format.Parse(EXAMPLE, descriptor_pb2.FileDescriptorProto()).SerializeToString())
    descriptor = pool.FindMessageTypeByName("tensorflow.Example")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # protobuf 3, which TensorFlow 2.19 permits
