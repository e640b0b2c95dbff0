"""Emulated Ascend runtime: a `libascendcl` and a `hixl` look-alike for machines without an NPU.

Nothing here is used unless the environment asks for it: ``CACHECORE_EMULATE=<SoC name>[:<devices>]``.

* `library_path` is what a loader opens in place of ``libascendcl.so``; `old_library_path` lacks newer functions.
* `hixl_module` is what stands in for ``import hixl``.
* `describe` says in words and values what is emulated.
"""

from cachecore_ascend_emulator._description import Description, describe
from cachecore_ascend_emulator._library import hixl_module, library_path, old_library_path

__all__ = ["Description", "describe", "hixl_module", "library_path", "old_library_path"]
