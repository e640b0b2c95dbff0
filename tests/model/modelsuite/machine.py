"""The whole machine: which operations there are, and how often each is tried."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from modelsuite.failing import FailureRules
from modelsuite.fanout import FanoutRules
from modelsuite.layers import LayerRules
from modelsuite.leasing import LeaseRules
from modelsuite.local import LocalRules
from modelsuite.rare import RareRules
from modelsuite.stalling import StallRules

#: Shares: many make others, or are given up for want of caches that fit.
WEIGHTS = {
    "pull_blocks": 100,
    "push_blocks": 100,
    "pull_leased": 105,
    "pull_entry_to_blocks": 80,
    "pull_cache": 85,
    "push_cache": 85,
    "pull_layers": 80,
    "push_layers": 80,
    "fail_midway": 18,
    "transfer_cache_async": 200,
    "register_blocks_cache": 45,
    "register_cache": 45,
    "register_blocks_tensors": 22,
    "register_cache_tensors": 22,
    "register_layers": 38,
    "allocate_cache": 22,
    "allocate_blocks_cache": 20,
    "unregister_cache": 14,
    "deallocate_cache": 18,
    "deallocate_blocks_cache": 16,
    "remove_cache_key": 14,
    "copy_cache": 40,
    "copy_blocks": 40,
    "swap_blocks": 36,
    "lease": 26,
    "renew_or_release": 40,
    "expire": 4,
    "link": 34,
    "unlink": 11,
    "restart": 9,
    "notify": 34,
    "while_one_waits": 44,
    "a_cpu_cache": 10,
    "remap_registered_memory": 6,
    "query_register_mem_status": 6,
    "out_of_memory": 7,
    "refused_from_outside": 12,
    "refused_elsewhere": 16,
    "layers_that_cannot_be": 14,
    "the_wrong_placement": 30,
    "off_its_page": 30,
    "a_moved_tensor": 8,
    "foreign_keys": 6,
    "a_full_inbox": 7,
    "a_closed_manager": 14,
    "a_forked_child": 8,
    "an_impatient_wait": 8,
    "an_unknown_end": 8,
    "still_reachable": 8,
    "a_stalled_peer": 3,
    "link_to_the_deaf": 4,
    "relink_under_a_transfer": 4,
}
#: What is tried towards a manager that ended.
TOWARDS_THE_LOST = ["pull_blocks", "push_blocks", "pull_entry_to_blocks", "pull_cache", "push_cache"]
TOWARDS_THE_LOST += ["pull_layers", "push_layers", *TOWARDS_THE_LOST, "transfer_cache_async", "notify_the_lost"]


class TwoManagers(FailureRules, StallRules, FanoutRules, LayerRules, LocalRules, LeaseRules, RareRules):
    """Two managers in two processes."""

    @rule(number=st.integers(0, 2**24 - 1))
    def step(self, number: int) -> None:
        rnd = self.details(number)
        (name,) = rnd.choices(list(WEIGHTS), list(WEIGHTS.values()))
        getattr(self, name)(rnd)
        if rnd.random() < 0.08:
            self.relink(rnd)

    def one_towards_the_lost(self, rnd: object) -> None:
        getattr(self, rnd.choice(TOWARDS_THE_LOST))(rnd)


class ThreeManagers(TwoManagers):
    """Three managers in three processes."""

    seats = (0, 1, 2)


class SharedProcess(TwoManagers):
    """Three managers, two of them in one process."""

    seats = (0, 0, 1)


class TwoSided(TwoManagers):
    """Two managers whose keys are used up by whoever pulls what they name; host only."""

    options = {"manager.remote_cache_accessible": False}  # never changed


MACHINES = {"two": TwoManagers, "three": ThreeManagers, "shared": SharedProcess, "consuming": TwoSided}
