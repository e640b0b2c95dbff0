"""What is emulated, for people and for reports."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cachecore_ascend_emulator._library import HIDE, library_path


@dataclass(frozen=True)
class Description:
    """What the environment asks the emulator to be.

    Attributes:
        soc: Name of the SoC as given, empty when nothing is emulated.
        library: Path of the emulated runtime library.
        settings: The variables of the environment that shape it, with their values.
    """

    soc: str
    library: str
    settings: dict[str, str]

    def __str__(self) -> str:
        changed = "".join(f", {name}={value}" for name, value in self.settings.items() if name != "CACHECORE_EMULATE")
        soc = self.soc or "no SoC (CACHECORE_EMULATE is not set)"
        return f"emulated {soc}, library {self.library}{changed}"


_VARIABLES = (
    "CACHECORE_EMULATE",
    "CACHECORE_EMULATE_HBM_BYTES",
    HIDE,
    "CACHECORE_EMULATE_FAULTS",
    "ASCEND_RT_VISIBLE_DEVICES",
)


def describe() -> Description:
    """What is emulated in this process; ``str()`` of it is one line that says "emulated".

    Raises:
        FileNotFoundError: The installation is damaged.
        ValueError: ``CACHECORE_EMULATE_HIDE`` names a function that the library does not have.
    """
    settings = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    soc = settings.get("CACHECORE_EMULATE", "").partition(":")[0]
    return Description(soc, library_path(), settings)
