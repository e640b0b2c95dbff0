"""Which errors docs/reference promises for which method, to compare with what a run has met."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
#: Pages that tell of values and errors as such, not of methods that the machine calls.
OTHER_PAGES = {"errors.md", "values.md", "manager.md"}
#: Errors named where a method is described, which a later transfer raises, or which only a product with memory that its
#: engine cannot move would raise: there is none.
ELSEWHERE: dict[str, set[str]] = {
    "register_blocks_tensors": {"AddressMovedError"},
    "register_cache_tensors": {"AddressMovedError"},
    "transfer_cache_async": {"NotSupportedError"},
}


def documented() -> dict[str, set[str]]:
    """The errors named in the text about each method: between its heading and the next, and in the page's opening."""
    found: dict[str, set[str]] = {}
    for page in sorted(REFERENCE.glob("*.md")):
        if page.name in OTHER_PAGES:
            continue
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        opening, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
        shared = set(re.findall(r"`(\w+Error)`", opening))
        waiting: list[str] = []
        for section in sections:
            heading, _, body = section.partition("\n")
            waiting += re.findall(r"`([a-z_]+)\(", heading)
            if not body.strip():  # several headings share one text
                continue
            for method in waiting:
                errors = set(re.findall(r"`(\w+Error)`", body)) - ELSEWHERE.get(method, set())
                found.setdefault(method, set()).update(errors, shared if method.startswith("register_") else ())
            waiting = []
    return found


def never_met(counts: Iterable[tuple[str, str]]) -> list[str]:
    """Methods with the documented errors that no operation ended with. The forms of a method count as one."""
    met: dict[str, set[str]] = {}
    for label, outcome in counts:
        met.setdefault(plain(label.split()[0]), set()).add(outcome.split(":")[0])
    missing = []
    for method, errors in sorted(documented().items()):
        left = errors - met.get(plain(method), set())
        if left or plain(method) not in met:
            missing.append(f"{method}: {', '.join(sorted(left)) or 'not called'}")
    return missing


def plain(name: str) -> str:
    """Without the ending of the form that returns at once."""
    return name if name == "transfer_cache_async" else name.removesuffix("_async")
