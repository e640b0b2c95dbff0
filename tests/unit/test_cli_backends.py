"""`cachecore backends`: what is broken is shown with its reason, and a choice that fails says why."""

from __future__ import annotations

import dataclasses
import json

import pytest

import cachecore.plugins
from cachecore.cli import main
from cachecore.plugins import BrokenPlugin, Plugins, discover


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    monkeypatch.delenv("CACHECORE_BACKEND", raising=False)
    return discover(refresh=True)


def survey(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, object]]:
    code = main(["backends", "--json", *options])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, found


def test_the_host_driver_and_local_engine_come_through_the_same_door(
    installed: Plugins, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = survey(capsys, "--backend", "host")
    assert (code, found["chosen"], found["reason"]) == (0, "host", "backend='host' was given")
    plugins, engines = found["plugins"], found["engines"]
    assert isinstance(plugins, list) and isinstance(engines, list)
    assert {"host": "cachecore-kv"}.items() <= {row["name"]: row["distribution"] for row in plugins}.items()
    assert "local" in [engine["name"] for engine in engines]


def test_a_broken_plugin_is_listed_with_distribution_version_and_reason(
    installed: Plugins, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = BrokenPlugin("odd", "odd-driver", "7.1", "it does not state CACHECORE_PLUGIN_API")
    monkeypatch.setattr(cachecore.plugins, "_found", dataclasses.replace(installed, broken=(broken,)))
    assert main(["backends", "--backend", "host"]) == 0
    assert "odd (odd-driver 7.1): it does not state CACHECORE_PLUGIN_API" in capsys.readouterr().out


def test_a_backend_that_is_not_there_is_an_exit_code_and_a_reason(
    installed: Plugins, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = survey(capsys, "--backend", "nowhere")
    assert (code, found["chosen"]) == (1, None)
    assert "'nowhere' is not installed" in str(found["reason"])
