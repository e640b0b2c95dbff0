"""A number from a log in words: `cachecore explain CODE` asks this module about codes of the runtime and of HIXL."""

from __future__ import annotations

from dataclasses import dataclass

from cachecore_ascend_runtime.codes import ACL, HIXL, acl_code

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What one library means by a code.

    Attributes:
        library: "the Ascend runtime" or "HIXL".
        code: The number.
        name: Of the vendor's headers, empty when the code is known by its range only.
        words: What it means.
        remedy: What to do, empty when nothing general can be said.
    """

    library: str
    code: int
    name: str
    words: str
    remedy: str

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        remedy = f". {self.remedy[0].upper()}{self.remedy[1:]}" if self.remedy else ""
        return f"{self.code}, code{name} of {self.library}: {self.words}{remedy}"


def explain(code: int) -> list[Explanation]:
    """All meanings of a code, the most exact first; empty for a number that neither library uses.

    Status codes of cachecore itself (`cachecore.StatusCode`) are the core's to explain.
    """
    found = []
    if code in HIXL:
        entry = HIXL[code]
        found.append(Explanation("HIXL", code, entry.name, entry.words, entry.remedy))
    if code in ACL or (not found and _in_range(code)):
        entry = acl_code(code)
        found.append(Explanation("the Ascend runtime", code, entry.name, entry.words, entry.remedy))
    return found


def _in_range(code: int) -> bool:
    return 100000 <= code < 300000 or 500000 <= code < 600000
