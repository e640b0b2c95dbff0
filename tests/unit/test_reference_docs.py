"""docs/reference says what there is: every method with its signature, every exported name, every error as it is."""

import inspect
import re
from pathlib import Path

import pytest

import cachecore as cc

PAGES = {page.name: page.read_text() for page in (Path(__file__).parents[2] / "docs" / "reference").glob("*.md")}
HEADINGS = [line for text in PAGES.values() for line in text.splitlines() if line.startswith("## `")]
METHODS = [name for name, _ in inspect.getmembers(cc.CacheManager, inspect.isfunction) if not name.startswith("_")]
PROPERTIES = [
    name
    for name, _ in inspect.getmembers(cc.CacheManager, lambda m: isinstance(m, property))
    if not name.startswith("_")
]


def shown(signature):
    """A signature as the headings write it: names and defaults."""
    parts, star = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        default = parameter.default
        if default is parameter.empty:
            parts.append(parameter.name)
        else:
            text = f'"{default}"' if isinstance(default, str) else repr(default).replace("'", '"')
            parts.append(f"{parameter.name}={text}")
    return ", ".join(parts)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_heading_with_its_signature(name):
    found = [heading for heading in HEADINGS if f"`{name}(" in heading]
    assert found, f"{name} has no heading in docs/reference"
    plain_call = getattr(cc.CacheManager, name.removesuffix("_async"), None)
    if name.endswith("_async") and plain_call is not None:  # they share a heading that says what they add
        plain = list(inspect.signature(plain_call).parameters)
        own = [p for p in inspect.signature(getattr(cc.CacheManager, name)).parameters if p != "layerwise"]
        assert own == plain
        return
    expected = f"`{name}({shown(inspect.signature(getattr(cc.CacheManager, name)))})"
    assert any(expected in heading for heading in found), f"expected {expected}"


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_is_named(name):
    assert any(f"`{name}`" in text for text in PAGES.values())


def test_the_page_of_the_manager_leads_to_every_method_and_page():
    page = PAGES["manager.md"]
    assert [name for name in METHODS if f"`{name}`" not in page and f"`{name}(" not in page] == []
    assert [name for name in PAGES if name != "manager.md" and f"({name})" not in page] == []


def test_every_exported_name_is_there():
    everything = "\n".join(PAGES.values())
    assert [name for name in cc.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", everything)] == []


def test_the_table_of_errors_says_what_the_classes_are():
    rows = {}
    for line in PAGES["errors.md"].splitlines():
        if line.startswith("| `"):
            names, bases, status, _ = (cell.strip() for cell in line.strip("|").split("|"))
            codes = [word for word in re.split(r",| for ", status) if word.strip() in cc.StatusCode.__members__]
            for index, name in enumerate(re.findall(r"`(\w+)`", names)):
                # Rows of several errors list one code, or one for each.
                code = codes[0] if len(codes) == 1 else codes[min(index, len(codes) - 1)]
                rows[name] = (re.findall(r"`(\w+)`", bases), code.strip(), [c.strip() for c in codes])
    classes = {
        name: cls
        for name, cls in vars(cc).items()
        if inspect.isclass(cls) and issubclass(cls, cc.CacheError) and cls is not cc.CacheError
    }
    assert set(rows) == set(classes)
    for name, cls in classes.items():
        bases, code, codes = rows[name]
        for base in bases:
            assert base in [parent.__name__ for parent in cls.__mro__[1:]], (name, base)
        assert cls.default_status.name in (code, *codes), name


def test_every_status_code_is_listed_with_its_number():
    for code in cc.StatusCode:
        number = code - 0x5010B000
        word = code.name if code in (cc.StatusCode.SUCCESS, cc.StatusCode.FAILED) else f"{number} {code.name}"
        assert word in PAGES["errors.md"].replace("\n", " "), word
