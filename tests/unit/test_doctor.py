"""The report is whole whatever is broken, and a code is explained by everybody who could have said it."""

import json

import pytest

from cachecore import plugins
from cachecore.cli import doctor, explain, main
from cachecore.driver import DeviceInfo
from cachecore.plugins import Plugins
from cachecore.probes import Finding, Probe, run


def loaded():
    return plugins.discover(refresh=True)


def test_a_healthy_host_is_reported_without_a_problem(capsys):
    code = main(["doctor", "--backend", "host"])
    text = capsys.readouterr().out
    for part in (
        "cachecore-kv",
        "chosen",
        "host, because",
        "address budget",
        "240",
        "process_vm_readv",
        "local engine",
    ):
        assert part in text
    assert ("no problems found" in text) == (code == 0)


def test_the_json_form_says_the_same(capsys):
    main(["doctor", "--backend", "host", "--json"])
    sections = json.loads(capsys.readouterr().out)
    assert set(sections) >= {"machine", "plugins", "devices", "backend", "local engine"}
    assert all(set(row) == {"name", "value", "problem"} for rows in sections.values() for row in rows)


def test_a_probe_that_fails_leaves_its_findings_and_everybody_elses():
    def look():
        yield Finding("first", "seen")
        raise OSError("no such device")

    assert run(Probe("x", look)) == [
        Finding("first", "seen"),
        Finding("this probe", "failed", "OSError: no such device"),
    ]


def test_nothing_that_is_broken_ends_the_report(monkeypatch):
    there = loaded()
    monkeypatch.setattr(
        Plugins,
        "detect",
        lambda self: ((DeviceInfo("chip", "Chip9", 1, "a test"),), (plugins.BrokenPlugin("p", "d", "1", "wedged"),)),
    )
    broken = plugins.BrokenPlugin("bad", "dist-bad", "2", "ImportError: libbad")
    sections = doctor.examine(Plugins(there.loaded, (broken,), there.drivers, there.engines, (), ()), "auto")
    problems = [one.problem for found in sections.values() for one in found if one.problem]
    assert any("libbad" in text for text in problems)
    assert any("wedged" in text for text in problems)
    assert any("cannot choose" in text for text in problems)
    assert sections["local engine"]


def test_an_unknown_backend_is_a_problem_and_an_exit_code(capsys):
    assert main(["doctor", "--backend", "warp"]) == 1
    assert "PROBLEM: backend 'warp' is not installed" in capsys.readouterr().out


@pytest.mark.parametrize("code", ["KV_CACHE_NOT_EXIST", "LLM_KV_CACHE_NOT_EXIST", "0x5010b002", "1343270914"])
def test_a_status_code_is_known_by_name_and_number(code):
    (words,) = explain.explanations(code)
    assert "no such cache or key" in words


def test_the_signed_form_the_vendor_prints_is_known():
    assert "failure" in next(iter(explain.explanations("-1")))


def test_a_system_error_is_known_by_name_and_number():
    assert [words for code in ("EPERM", "1") for words in explain.explanations(code) if "EPERM" in words][1]


def test_every_status_code_has_words():
    from cachecore.errors import StatusCode

    assert all(list(explain.explanations(status.name)) for status in StatusCode)


def test_a_code_nobody_knows_says_so(capsys):
    assert main(["explain", "987654321"]) == 1
    assert "no such code" in capsys.readouterr().out
