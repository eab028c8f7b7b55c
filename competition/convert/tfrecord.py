"""TFRecord files and tf.train.Example messages without TensorFlow: reading and writing with the checks of the format.

A record is: length (8 bytes, little endian), masked CRC32C of the length (4), the serialized Example, its masked CRC32C (4).
The message types live in a descriptor pool of their own, so that they do not collide with TensorFlow's in one process.
"""

import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, BinaryIO

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from competition.config.errors import UserError
from competition.prepare.decoding import record_damage

Feature = bytes | int
HEAD, TAIL = 12, 4  # bytes around the Example
LARGEST = 2**31 - 1  # bytes of one Example, protobuf's own limit


def serialize_example(features: Mapping[str, Feature]) -> bytes:
    """Return the serialized tf.train.Example with one value per feature.

    Features are ordered by name, so that equal features give equal bytes.
    """
    example = _example_class()()
    for name, value in features.items():
        feature = example.features.feature[name]
        (feature.bytes_list if isinstance(value, bytes) else feature.int64_list).value.append(value)
    return bytes(example.SerializeToString(deterministic=True))


def image_example(row_id: str, image: bytes, label: int | None) -> bytes:
    """Return the Example of Kaggle's flower competition, with the features id, image and (unless None) class."""
    known = {} if label is None else {"class": label}
    return serialize_example({"id": row_id.encode("utf-8"), "image": image, **known})


def parse_example(serialized: bytes, where: str) -> dict[str, list[Any]]:
    """Return the values of all features. where: name of the record in error messages. Raises UserError."""
    try:
        example = _example_class().FromString(serialized)
    except message.DecodeError:
        raise UserError(f"{where}: not a tf.train.Example; a record with an encoded image was expected") from None
    values = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values[name] = list(getattr(feature, kind).value) if kind else []
    return values


def write_record(file: BinaryIO, serialized: bytes) -> None:
    length = struct.pack("<Q", len(serialized))
    file.write(length + _checksum(length) + serialized + _checksum(serialized))


def read_records(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of the Example in the file, serialized Example) of all records, with both checksums verified.

    where: name of the file in error messages. Raises UserError if the file is truncated or damaged.
    """
    offset = number = 0
    while head := file.read(HEAD):
        if len(head) < HEAD or head[8:] != _checksum(head[:8]):
            raise UserError(f"{where}, record {number}: {record_damage(head, number)}; write or fetch the file again")
        (length,) = struct.unpack("<Q", head[:8])
        serialized = file.read(min(length, LARGEST))
        if len(serialized) != length or file.read(TAIL) != _checksum(serialized):
            raise UserError(f"{where}, record {number}: it is truncated or damaged; write or fetch the file again")
        yield offset + HEAD, serialized
        offset += HEAD + length + TAIL
        number += 1


def _checksum(data: bytes) -> bytes:
    value = google_crc32c.value(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _example_class() -> Any:
    """The class of tf.train.Example, built at run time from its public definition (tensorflow/core/example)."""
    field, file = descriptor_pb2.FieldDescriptorProto, descriptor_pb2.FileDescriptorProto()
    file.name, file.package, file.syntax = "goldfold/example.proto", "tensorflow", "proto3"
    one, many = {"label": field.LABEL_OPTIONAL}, {"label": field.LABEL_REPEATED}

    def of(name: str) -> dict[str, Any]:
        """The type of a field that holds a message."""
        return {"type": field.TYPE_MESSAGE, "type_name": f".tensorflow.{name}"}

    lists = {"BytesList": field.TYPE_BYTES, "FloatList": field.TYPE_FLOAT, "Int64List": field.TYPE_INT64}
    for name, kind in lists.items():
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, **many)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(lists, 1):
        field_name = name.replace("List", "_list").lower()
        feature.field.add(name=field_name, number=number, oneof_index=0, **of(name), **one)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, **one)
    entry.field.add(name="value", number=2, **of("Feature"), **one)
    features.field.add(name="feature", number=1, **of("Features.FeatureEntry"), **many)
    file.message_type.add(name="Example").field.add(name="features", number=1, **of("Features"), **one)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
