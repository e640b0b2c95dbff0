"""Register paged KV caches and move their blocks between LLM serving processes."""

from importlib.metadata import version as _version

__version__ = _version("cachecore-kv")
