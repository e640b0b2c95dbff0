"""The demo's report: sums, percentiles, and that a mismatch cannot stay unseen."""

from __future__ import annotations

import io
import json

import pytest

from cachecore.cli.demo.messages import Mismatch, Prepared, Pulled, Stopped
from cachecore.cli.demo.progress import Progress
from cachecore.cli.demo.report import Totals, percentile

WRONG = Mismatch(layer=3, tensor="V", content_id=9, block=4, word=17, expected=0xABC, found=0xDEF)


def pulled(moved: int = 2, seconds: float = 0.5, mismatches: int = 0) -> Pulled:
    return Pulled(
        part=0,
        moved=moved,
        resident=1,
        evicted=moved,
        nbytes=moved * 10**9,
        runs=min(moved, 1),
        seconds=seconds,
        mismatches=mismatches,
        first_mismatch=WRONG if mismatches else None,
    )


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([3.0], 0.99, 3.0), ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0), (list(range(1, 201)), 0.99, 198)],
)
def test_percentile_is_one_of_the_values(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_totals_add_up() -> None:
    totals = Totals(backend="host", engine="local/1")
    totals.add_prepared(Prepared(part=0, blocks=[1], written=1, evicted=3))
    totals.add_pulled(pulled(seconds=0.5), last=False)
    totals.add_pulled(pulled(seconds=1.5), last=True)
    totals.add_pulled(pulled(moved=0, seconds=0.0), last=True)
    totals.add_final_check(Stopped(checked=7))
    told = totals.as_json()
    assert json.loads(json.dumps(told)) == told
    expected = {
        "requests": 2,
        "blocks": 4,
        "bytes": 4 * 10**9,
        "evictions": 4,
        "mismatches": 0,
        "gb_per_s": 2.0,
        "p50_ms": 500.0,
        "p99_ms": 1500.0,
        "merged_runs": 2,
        "backend": "host",
        "engine": "local/1",
        "pulls": 2,
        "prefill_evictions": 3,
    }
    assert told | expected == told
    assert "7 resident blocks again at the end" in totals.table()


def test_mismatches_of_both_checks_are_counted_and_shown() -> None:
    totals = Totals()
    totals.add_pulled(pulled(mismatches=2), last=True)
    totals.add_final_check(Stopped(checked=1, mismatches=1, first_mismatch=WRONG))
    assert totals.as_json()["mismatches"] == 3
    assert totals.table().endswith("mismatches    3")
    assert totals.mismatch_lines()[0].startswith("mismatch: layer 3 V, content 9 in block 4: word 17 is 0x")


def test_an_emulated_backend_is_called_emulated() -> None:
    totals = Totals(backend="ascend_950", emulated=True)
    assert "ascend_950 (emulated)" in totals.table()
    assert totals.as_json()["emulated"] is True


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_redraws_a_terminal_and_spares_a_file() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress(stream, 10)
        for _ in range(3):
            progress.update(Totals(requests=1))
        progress.clear()
    assert terminal.getvalue().startswith("\r\x1b[K1/10 requests")
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert file.getvalue() == ""
