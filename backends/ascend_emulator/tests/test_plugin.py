import cachecore_ascend_emulator as emulator
import pytest

probes = pytest.importorskip("cachecore.probes", reason="the core is not installed here")


def test_doctor_says_what_is_emulated_and_that_faults_are_planned(monkeypatch):
    from cachecore_ascend_emulator import plugin

    (probe,) = plugin.cachecore_probes()
    for name in ("CACHECORE_EMULATE", "CACHECORE_EMULATE_FAULTS", "CACHECORE_EMULATE_HIDE"):
        monkeypatch.delenv(name, raising=False)
    (unused,) = probes.run(probe)
    assert unused.value.startswith("nothing; installed")
    monkeypatch.setenv("CACHECORE_EMULATE", "Ascend950PR_9599")
    monkeypatch.setenv("CACHECORE_EMULATE_FAULTS", "aclrtMalloc:1:code=207001")
    used, faults = probes.run(probe)
    assert used.value == str(emulator.describe())
    assert used.value.startswith("emulated Ascend950PR_9599")
    assert not used.problem
    assert "on purpose" in faults.problem
    monkeypatch.setenv("CACHECORE_EMULATE_HIDE", "aclrtMisspelt")
    (broken,) = probes.run(probe)
    assert "aclrtMisspelt" in broken.problem
