"""With every driver installed: the SoC alone decides, and what is not supported says so in its own words.

Each case runs in a process of its own, because the runtime is loaded once.
"""

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, cachecore as cc
try:
    with cc.CacheManager(1) as manager:
        print(json.dumps(["chosen", manager.backend.name, repr(manager)]))
except cc.CacheError as error:
    print(json.dumps(["refused", type(error).__name__, str(error)]))
"""


def choose(soc, **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("CACHECORE_")}
    env |= environment if soc is None else {"CACHECORE_EMULATE": soc, **environment}
    run = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("soc", "driver"),
    [
        ("Ascend910B1", "ascend_a2a3"),
        ("Ascend910B2C", "ascend_a2a3"),
        ("Ascend910B4-1", "ascend_a2a3"),
        ("Ascend910_9362", "ascend_a2a3"),
        ("Ascend910_9392", "ascend_a2a3"),
        ("Ascend950PR_9599", "ascend_950"),
        ("Ascend950DT_9582", "ascend_950"),
    ],
)
def test_the_soc_decides_and_the_manager_says_that_it_is_emulated(soc, driver):
    outcome, name, shown = choose(soc)
    assert (outcome, name) == ("chosen", driver), shown
    assert "(emulated)" in shown


@pytest.mark.parametrize(
    ("soc", "text"),
    [
        ("Ascend310P3", "Atlas inference products (Ascend310P3) are not supported"),
        ("Ascend310B1", "Atlas 200I/500 A2 inference products (Ascend310B1) are not supported"),
        ("Ascend910A", "Atlas training products (Ascend910A) are not supported"),
        ("Ascend910ProB", "Atlas training products (Ascend910ProB) are not supported"),
        ("Ascend777", "known to the installed drivers: "),
    ],
)
def test_an_unsupported_soc_fails_with_its_own_message(soc, text):
    outcome, error, message = choose(soc)
    assert (outcome, error) == ("refused", "BackendError"), message
    assert text in message and soc in message


def test_without_an_accelerator_the_host_driver_is_chosen_and_nothing_is_emulated():
    outcome, name, shown = choose(None)
    assert (outcome, name) == ("chosen", "host") and "emulated" not in shown


def test_an_emulated_device_can_be_left_alone_by_name():
    assert choose("Ascend910B4", CACHECORE_BACKEND="host")[:2] == ["chosen", "host"]


def test_the_driver_of_another_product_refuses_the_soc():
    outcome, error, message = choose("Ascend910B4", CACHECORE_BACKEND="ascend_950")
    assert (outcome, error) == ("refused", "BackendError") and "Ascend910B4" in message
