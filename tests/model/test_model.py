"""Random calls on two and three real managers give what the model says, byte for byte, success or named error.

A short run; `python tests/model` runs as long as it is told to and counts what happened.
"""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from modelsuite.machine import SharedProcess, ThreeManagers, TwoManagers, TwoSided

EXAMPLES = int(os.environ.get("CACHECORE_MODEL_EXAMPLES", "12"))
SHORT = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,  # the long run looks for what is new
    print_blob=True,
)

TestTwoManagers = TwoManagers.TestCase
TestTwoManagers.settings = SHORT
TestThreeManagers = ThreeManagers.TestCase
TestThreeManagers.settings = SHORT
TestSharedProcess = SharedProcess.TestCase
TestSharedProcess.settings = SHORT
TestTwoSided = TwoSided.TestCase
TestTwoSided.settings = SHORT
