"""The demo's command line: refused options, and that a mismatch decides the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import cachecore.cli.demo.replay
from cachecore.cli import main
from cachecore.cli.demo.report import Totals
from cachecore.cli.demo.workload import Part


class FakeReplay:
    """Plays no parts and has the result that a test wants."""

    mismatches = 0

    def __init__(self, settings: object, *, speed: float, report: Callable[[Totals], None]) -> None:
        self.totals = Totals(backend="host", engine="local/1")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def start(self) -> tuple[Any, Any]:
        return SimpleNamespace(pid=1), SimpleNamespace(pid=2)

    def run(self, parts: Iterable[Part]) -> None:
        self.totals.mismatches = self.mismatches


@pytest.mark.parametrize("mismatches", [0, 1])
def test_a_mismatch_decides_the_exit_code(
    mismatches: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cachecore.cli.demo.replay, "Replay", FakeReplay)
    monkeypatch.setattr(FakeReplay, "mismatches", mismatches)
    assert main(["demo", "--json", "--requests", "1"]) == mismatches
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mismatches"] == mismatches


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--layers", "0"], "from 1 to 2147483648"),
        (["--blocks", "1.5"], "invalid integer value"),
        (["--timeout", "nan"], "from 0.1 to 86400"),
        (["--speed", "-1"], "from 0 to"),
        (["--requests", "-3"], "from 1 to 2147483648"),
    ],
)
def test_options_out_of_range_are_refused(options: list[str], rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", *options])
    assert caught.value.code == 2
    assert rule in capsys.readouterr().err


def test_blocks_are_whole_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--block-bytes", "12"]) == 1
    assert "--block-bytes is 12" in capsys.readouterr().err
