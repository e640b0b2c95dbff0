"""For all tests: no time limits on single examples of hypothesis, and the Python examples of README.md and docs/ as tests.

The examples of one page share one namespace, top to bottom.
"""

import traceback

from hypothesis import settings
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

# A busy machine or a sanitizer makes any example slow; how fast things are is not tested but measured.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


class Evaluator(PythonEvaluator):
    """Shows the whole chain of an error: Sybil's own view of it fails where one exception was raised from another."""

    def __call__(self, example: Example) -> None:
        """Run one block."""
        try:
            super().__call__(example)
        except Exception:  # noqa: BLE001  # whatever the example raises
            raise AssertionError(traceback.format_exc()) from None


parsers = [CodeBlockParser("python", Evaluator()), SkipParser()]
pytest_collect_file = Sybil(parsers=parsers, patterns=["*.md"]).pytest()
