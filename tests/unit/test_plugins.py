"""Discovery: one broken plugin is listed with its reason and hides nobody; selection never falls back silently."""

import importlib.metadata
import sys
import types

import pytest

from cachecore import plugins, selection
from cachecore.driver import DeviceInfo, DriverSpec
from cachecore.engine import EngineSpec
from cachecore.errors import BackendError, CacheTypeError, CacheValueError
from cachecore.plugins import hookimpl


class Entry:
    """An entry point whose module is made here."""

    def __init__(self, name, module=None, error=None):
        self.name, self.module, self.error = name, module, error
        self.dist = types.SimpleNamespace(name=f"dist-{name}", version="1.2")

    def load(self):
        if self.error is not None:
            raise self.error
        return self.module


def module(api=plugins.API_VERSION, **hooks):
    made = types.ModuleType("plugin")
    if api is not None:
        made.CACHECORE_PLUGIN_API = api
    for name, answer in hooks.items():

        def hook(answer=answer):
            if isinstance(answer, BaseException):
                raise answer
            return answer

        hook.__name__ = name
        setattr(made, name, hookimpl(hook))
    return made


def driver(name, *socs, plain=False):
    def matches(device):
        return plain if device is None else device.soc in socs

    return DriverSpec(name, name, matches, lambda device, options: (name, device, options), socs, ("size",))


GOOD = driver("good", "Chip1")


def unmarked():
    made = module()
    made.cachecore_drivers = list
    return made


BROKEN = {
    "import": (Entry("import", error=ImportError("libfoo is missing")), "libfoo is missing"),
    "exit": (Entry("exit", error=SystemExit(3)), "SystemExit"),
    "silent": (Entry("silent", module(api=None)), "does not state CACHECORE_PLUGIN_API"),
    "old": (Entry("old", module(api=0)), "older"),
    "new": (Entry("new", module(api=99)), "newer"),
    "misspelt": (Entry("misspelt", module(cachecore_driver=[])), "unknown hook 'cachecore_driver'"),
    "unmarked": (Entry("unmarked", unmarked()), "not marked"),
    "raises": (Entry("raises", module(cachecore_drivers=OSError("no device file"))), "no device file"),
    "wrong": (Entry("wrong", module(cachecore_drivers=["good"])), "DriverSpec"),
    "single": (Entry("single", module(cachecore_drivers=GOOD)), "must return a list"),
    "double": (Entry("double", module(cachecore_drivers=[driver("good")])), "another plugin has already"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_listed_with_its_reason_and_hides_nobody(kind):
    entry, reason = BROKEN[kind]
    late = driver("late")
    found = plugins.load(
        [Entry("a", module(cachecore_drivers=[GOOD])), entry, Entry("z", module(cachecore_drivers=[late]))]
    )
    assert [spec.name for spec in found.drivers] == ["good", "late"]
    (broken,) = found.broken
    assert (broken.name, broken.distribution, broken.version) == (kind, f"dist-{kind}", "1.2")
    assert reason in broken.reason


def test_a_plugin_joins_whole_or_not_at_all():
    half = module(cachecore_drivers=[driver("half")], cachecore_engines=RuntimeError("no library"))
    found = plugins.load([Entry("half", half)])
    assert found.drivers == () and len(found.broken) == 1


def test_engines_are_ordered_by_rank():
    specs = [EngineSpec(name, name, rank, lambda d: True, lambda d, o: None) for name, rank in (("b", 1), ("a", 5))]
    found = plugins.load([Entry("p", module(cachecore_engines=specs))])
    assert [spec.name for spec in found.engines] == ["a", "b"]


def test_the_host_driver_and_local_engine_come_through_the_same_door():
    entries = importlib.metadata.entry_points(group=plugins.GROUP)
    assert "cachecore.host.plugin" in [entry.value for entry in entries]
    found = plugins.discover(refresh=True)
    assert not found.broken
    assert "host" in [spec.name for spec in found.drivers]
    assert "local" in [spec.name for spec in found.engines]


# --- selection -------------------------------------------------------------------------------------------------------


def installed(*drivers, devices=(), engines=(), extra=()):
    return plugins.load(
        [
            Entry(
                "p", module(cachecore_drivers=list(drivers), cachecore_devices=devices, cachecore_engines=list(engines))
            ),
            *extra,
        ]
    )


def found(soc, **more):
    return DeviceInfo("chip", soc, 2, "a test", **more)


HOST = driver("host", plain=True)
ONE = driver("one", "Chip1")
TWO = driver("two", "Chip2")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv(selection.ENVIRONMENT, raising=False)


def test_auto_takes_the_host_only_where_no_accelerator_is_seen():
    assert selection.choose_driver("auto", installed(HOST, ONE)).spec is HOST
    choice = selection.choose_driver("auto", installed(HOST, ONE, devices=[found("Chip1")]))
    assert choice.spec is ONE and choice.device.soc == "Chip1" and "Chip1" in choice.reason


def test_a_name_wins_over_detection_and_the_argument_over_the_environment(monkeypatch):
    there = installed(HOST, ONE, TWO, devices=[found("Chip1")])
    assert selection.choose_driver("host", there).spec is HOST
    monkeypatch.setenv(selection.ENVIRONMENT, "two")
    assert selection.choose_driver("auto", there).spec is TWO
    assert selection.choose_driver("host", there).spec is HOST


@pytest.mark.parametrize(
    ("drivers", "devices", "text"),
    [
        ((HOST, ONE, TWO), [found("Chip1"), found("Chip2")], "more than one match"),
        ((HOST, ONE), [found("Chip9", install="chip-nine")], r"--find-links WHEELHOUSE 'cachecore-kv\[chip-nine\]'"),
        ((HOST, ONE), [found("Chip9")], "known to the installed drivers: Chip1"),
        ((HOST, ONE), [found("Chip0", unsupported="Chip0 is a training product")], "Chip0 is a training product"),
        ((ONE,), [], "no driver serves a plain host"),
    ],
)
def test_auto_says_what_was_seen_and_what_to_do(drivers, devices, text):
    with pytest.raises(BackendError, match=text):
        selection.choose_driver("auto", installed(*drivers, devices=devices))


def test_failed_detection_is_no_reason_to_take_the_host():
    blind = Entry("blind", module(cachecore_devices=OSError("driver is wedged")))
    there = installed(HOST, extra=[blind])
    with pytest.raises(BackendError, match="driver is wedged"):
        selection.choose_driver("auto", there)
    choice = selection.choose_driver("host", there)
    assert choice.spec is HOST and "wedged" in choice.failed[0].reason


def test_an_unknown_backend_lists_what_is_installed_and_what_is_broken():
    there = installed(HOST, extra=[Entry("bad", error=ImportError("libbar"))])
    with pytest.raises(BackendError, match=r"'nope' is not installed; installed: 'host'.*libbar"):
        selection.choose_driver("nope", there)


def test_options_are_known_by_dotted_name_and_reach_their_driver():
    there = installed(HOST, ONE)
    options = selection.checked_options({"host.size": 3, "one.size": 4}, there)
    assert selection.make_driver(selection.choose_driver("host", there), 5, options) == ("host", 5, {"size": 3})
    with pytest.raises(CacheValueError, match=r"unknown name 'host.sise'; known: host.size, manager.*, one.size"):
        selection.checked_options({"host.sise": 3}, there)
    with pytest.raises(CacheTypeError):
        selection.checked_options(["host.size"], there)


def test_an_engine_that_cannot_start_closes_those_before_it():
    closed = []

    class Running:
        def close(self, deadline):
            closed.append(self)
            return []

    def fails(driver, options):
        raise OSError("no library")

    engines = [
        EngineSpec("first", "first/1", 2, lambda d: True, lambda d, o: Running()),
        EngineSpec("second", "second/1", 1, lambda d: True, fails),
        EngineSpec("other", "other/1", 0, lambda d: False, fails),
    ]
    there = installed(HOST, engines=engines)
    with pytest.raises(BackendError, match="'second' could not be started: no library"):
        selection.make_engines("auto", types.SimpleNamespace(name="host"), there, {})
    assert len(closed) == 1
    with pytest.raises(BackendError, match="'other' is not installed or does not serve"):
        selection.make_engines("other", types.SimpleNamespace(name="host"), there, {})


def test_importing_the_core_imports_no_numpy():
    import subprocess

    code = "import sys, cachecore; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
