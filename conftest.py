"""Runs the Python examples of README.md and docs/ as tests. Those of one page share one namespace, top to bottom."""

import traceback

from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser


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
