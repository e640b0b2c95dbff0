"""What is left of the machine's memory: the smallest of all limits, in every form the system states them."""

import pytest

from cachecore.host.memory_limit import available_bytes

KIB = 1024


@pytest.fixture
def system(tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return available_bytes(tmp_path / "proc", tmp_path / "groups")

    return write


MACHINE = {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB\nSwapFree: 100 kB\n"}


def test_a_machine_has_what_is_available_and_its_swap(system):
    assert system(MACHINE) == 600 * KIB


def test_the_closest_limit_of_nested_groups_counts(system):
    groups = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "groups/outer/memory.max": "300000\n",
        "groups/outer/memory.current": "100000\n",
        "groups/outer/inner/memory.max": "max\n",
        "groups/outer/inner/memory.current": "5\n",
    }
    assert system(MACHINE | groups) == 200000


def test_the_older_form_of_groups_counts_and_no_limit_is_none(system):
    groups = {
        "proc/self/cgroup": "4:cpu:/x\n3:memory:/box\n0::/\n",
        "groups/memory/box/memory.limit_in_bytes": "9223372036854771712\n",
        "groups/memory/box/memory.usage_in_bytes": "5\n",
    }
    assert system(MACHINE | groups) == 600 * KIB
    groups["groups/memory/box/memory.limit_in_bytes"] = "1005\n"
    assert system(MACHINE | groups) == 1000


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/pod\n",
            "groups/pod/memory.max": "1000\n",
            "groups/pod/memory.current": "990\n",
            "groups/pod/memory.stat": "anon 190\nfile 800\nshmem 100\ninactive_file 600\nactive_file 100\n",
        },
        {
            "proc/self/cgroup": "3:memory:/pod\n",
            "groups/memory/pod/memory.limit_in_bytes": "1000\n",
            "groups/memory/pod/memory.usage_in_bytes": "990\n",
            "groups/memory/pod/memory.stat": "inactive_file 5\nactive_file 5\ntotal_inactive_file 600\ntotal_active_file 100\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_the_page_cache_of_a_group_is_not_taken_for_memory_in_use(system, files):
    assert system(MACHINE | files) == 710


def test_a_group_over_its_limit_has_nothing_left(system):
    groups = {"proc/self/cgroup": "0::/g\n", "groups/g/memory.max": "10\n", "groups/g/memory.current": "99\n"}
    assert system(MACHINE | groups) == 0


def test_a_system_that_says_nothing_is_not_guessed_at(system):
    assert system({}) is None
