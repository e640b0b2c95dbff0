"""A long run of the model-based suite: `python tests/model --operations 100000 --managers three`.

Ends with how often every operation succeeded and failed with each error, and which documented errors never came up.
CACHECORE_EMULATE chooses the product. `--counts FILE` keeps the figures; `--combine FILE ...` adds those of several runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import test_holes
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from modelsuite.base import COUNTS, ONLY_FIRST, TRANSFERS, WATCHERS
from modelsuite.documented import never_met
from modelsuite.machine import MACHINES


def main() -> int:
    """Run examples until enough operations were made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for at least this long")
    parser.add_argument("--managers", choices=MACHINES, default="two")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--shrink", action="store_true", help="look for the shortest example of a fault")
    parser.add_argument("--first", action="store_true", help="end at the first difference")
    parser.add_argument("--holes", action="store_true", help="see that each hole is found when it is put back")
    parser.add_argument("--counts", type=Path, help="write the figures to this file")
    parser.add_argument("--combine", type=Path, nargs="+", help="add the figures of several runs")
    asked = parser.parse_args()
    if asked.holes:
        return holes()
    if asked.combine:
        return combine(asked.combine)
    if asked.first:
        ONLY_FIRST.append(True)
    machine = MACHINES[asked.managers]
    first = int(time.time()) if asked.seed is None else asked.seed
    started = time.monotonic()
    shown = [started]

    def watch() -> None:
        if time.monotonic() - shown[0] > 10:
            shown[0] = time.monotonic()
            print(f"{sum(COUNTS.values())} operations, {shown[0] - started:.0f} s", file=sys.stderr, flush=True)

    WATCHERS.append(watch)
    rounds = 0
    while sum(COUNTS.values()) < asked.operations or time.monotonic() - started < asked.seconds:
        run = seed(first + rounds)(machine)
        run_state_machine_as_test(
            run,
            settings=settings(
                max_examples=10,
                stateful_step_count=300,
                phases=(Phase.generate, Phase.shrink) if asked.shrink else (Phase.generate,),
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        rounds += 1
    about = {"seeds": [first, first + rounds - 1], "seconds": round(time.monotonic() - started)}
    if asked.counts:
        asked.counts.write_text(json.dumps({"about": about, "counts": [[*key, n] for key, n in COUNTS.items()]}))
    report(about)
    return 0


def combine(files: list[Path]) -> int:
    """Report several runs as one."""
    seconds = 0
    for file in files:
        run = json.loads(file.read_text())
        seconds += run["about"]["seconds"]
        for name, outcome, count in run["counts"]:
            COUNTS[name, outcome] += count
    report({"runs": len(files), "seconds": seconds})
    return 0


def holes() -> int:
    """Put back one after the other."""
    missed = 0
    for name in test_holes.FOUND:
        started = time.monotonic()
        try:
            said = test_holes.differs(name)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            said = str(error)
        found = test_holes.is_found(name, said)
        missed += not found
        seconds = time.monotonic() - started
        print(f"hole {name:12s} {'found' if found else 'MISSED'} in {seconds:5.1f} s: {said[:160]!r}", flush=True)
    return 1 if missed else 0


def report(about: dict[str, object]) -> None:
    """What happened: each operation with its outcomes, each error, what is documented and was not met."""
    names = sorted({name for name, _ in COUNTS})
    errors: Counter[str] = Counter()
    for name in names:
        outcomes = {outcome: count for (one, outcome), count in sorted(COUNTS.items()) if one == name}
        total = sum(outcomes.values())
        print(f"{name:32s} {total:,}: " + ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.items()))
        for outcome, count in outcomes.items():
            errors[outcome.split(":")[0]] += count
    print("\nerrors: " + ", ".join(f"{name} {n:,}" for name, n in sorted(errors.items()) if name.endswith("Error")))
    print("\ndocumented and never met: " + ("; ".join(never_met(COUNTS)) or "nothing") + "\n")
    tried = sum(count for (name, _), count in COUNTS.items() if name in TRANSFERS)
    done = sum(count for (name, outcome), count in COUNTS.items() if name in TRANSFERS and outcome == "ok")
    print(
        json.dumps(
            {
                "operations": sum(COUNTS.values()),
                "transfers": tried,
                "transfers_succeeded": round(done / max(tried, 1), 3),
                "fewest": sorted((sum(n for (one, _), n in COUNTS.items() if one == name), name) for name in names)[:3],
                **about,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
