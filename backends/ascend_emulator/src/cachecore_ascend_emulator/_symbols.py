"""Take functions out of a shared library, so that dlsym does not find them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_SECTION_DYNSYM = 11
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def _sections(image: bytes) -> list[tuple[int, ...]]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the library is no 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    return [_SECTION_HEADER.unpack_from(image, offset + index * size) for index in range(count)]


def _dynamic_symbols(image: bytes) -> Iterator[tuple[int, str]]:
    sections = _sections(image)
    for section in sections:
        if section[1] != _SECTION_DYNSYM:
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], _SYMBOL.size):
            start = strings + _SYMBOL.unpack_from(image, at)[0]
            yield at, image[start : image.index(b"\0", start)].decode()


def without_symbols(image: bytes, names: Iterable[str]) -> bytes:
    """The library with the named functions undefined: the loader skips an undefined symbol when it looks one up.

    Args:
        image: Content of an ELF shared library for x86-64 or aarch64.
        names: Functions that the library exports.

    Raises:
        ValueError: The library exports no such function, or is of another format.
    """
    changed = bytearray(image)
    left = set(names)
    for at, name in _dynamic_symbols(image):
        if name in left:
            string, info, other, _, _, size = _SYMBOL.unpack_from(image, at)
            _SYMBOL.pack_into(changed, at, string, info, other, 0, 0, size)
            left.remove(name)
    if left:
        raise ValueError(f"the emulated runtime has no function {', '.join(sorted(left))}; check the names to hide")
    return bytes(changed)
