"""The pages of the repository lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path


def test_links_between_pages_lead_to_files(root: Path) -> None:
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())]
    relative = [(page, link) for page, link in links if "://" not in link]
    assert relative, "no link was found: the pattern is wrong"
    assert not [f"{page.relative_to(root)}: {link}" for page, link in relative if not (page.parent / link).exists()]
