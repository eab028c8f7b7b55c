"""Files of NumPy arrays (.npz) without pickle: reading with clear errors, and memory-mapping one array."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from competition.config.errors import UserError

LOCAL_HEADER = 30  # bytes before a file's name in a .zip (APPNOTE 4.3.7)


def open_npz(path: Path) -> np.lib.npyio.NpzFile:
    if not path.exists():
        raise UserError(f"{path} does not exist; `make predict` creates it")
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:  # damaged bytes may cause any exception in zipfile and NumPy
        raise UserError(f"{path} is not a readable .npz of predictions ({error}); create it again") from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise UserError(f"{path} is a single array, an .npz of predictions was expected; create it again")
    return file


def read_array(path: Path, file: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """One array of an open .npz.  path: of the file, for the message.  Raises UserError if it cannot be read."""
    try:
        return np.asarray(file[name])
    except Exception as error:  # damaged bytes may cause any exception in zipfile and NumPy
        raise UserError(
            f"{path} is not a readable .npz (array '{name}': {error}); create it again, without pickled objects (text: ids.astype(str))"
        ) from error


def mapped_array(path: Path, name: str) -> np.ndarray:
    """Memory-map one array of an uncompressed .npz. Raises UserError for a compressed one."""
    with ZipFile(path) as archive, path.open("rb") as file:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type != ZIP_STORED:
            raise UserError(f"{path}: {name} is compressed and cannot be mapped; save it with numpy.savez")
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        file.seek(info.header_offset + LOCAL_HEADER + name_length + extra_length)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if 0 in shape:  # an empty file cannot be mapped
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Name the file in every error of its content; its folder names the member and the fold."""
    try:
        yield
    except UserError as error:
        text = str(error)
        raise UserError(text if str(path) in text else f"{path}: {text}") from None
