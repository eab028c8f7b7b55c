"""What is wrong with a TFRecord file that cannot be read; used with and without TensorFlow."""


def damage(head: bytes, number: int) -> str:
    """What is wrong with a TFRecord file.  head: its first bytes.  number: of the first record that cannot be read."""
    if number == 0 and head[:2] == b"\x1f\x8b":
        return "the file is compressed with gzip, plain TFRecord was expected"
    if number == 0 and head.isascii() and b"\0" not in head:
        return "the file is text, TFRecord was expected"
    return "it is truncated or damaged"
