"""The whole machine: which operations there are, and how often each group of them is tried."""

from __future__ import annotations

from hypothesis.stateful import rule

from modelsuite.base import chance, randoms
from modelsuite.caches import CacheRules
from modelsuite.local import LocalRules
from modelsuite.moving import MovingRules
from modelsuite.peers import PeerRules

MOVES = ["pull_blocks", "push_blocks", "pull_entry_to_blocks", "pull_cache", "push_cache", "move_layers", "fail_midway"]
MOVES += ["pull_blocks", "push_blocks", "move_layers", "transfer_cache_async", "pull_cache", "push_cache"]
MAKES = ["register_blocks_cache", "register_blocks_cache", "register_cache", "allocate", "register_layers"]
TAKES = ["unregister_cache", "deallocate", "remove_cache_key"]
COPIES = ["copy_cache", "copy_blocks", "swap_blocks"]
LEASES = ["lease", "lease", "renew_or_release", "expire"]
ODD = ["a_cache_that_is_not_registered", "remap_registered_memory", "query_register_mem_status"]


class TwoManagers(CacheRules, MovingRules, LocalRules, PeerRules):
    """Two managers in two processes."""

    def one_of(self, rnd: object, names: list[str]) -> None:
        getattr(self, rnd.choice(names))(rnd)

    @rule(rnd=randoms)
    def move(self, rnd: object) -> None:
        self.one_of(rnd, MOVES)

    @rule(rnd=randoms)
    def move_again(self, rnd: object) -> None:
        self.one_of(rnd, MOVES)

    @rule(rnd=randoms)
    def move_once_more(self, rnd: object) -> None:
        self.one_of(rnd, MOVES)

    @rule(rnd=randoms)
    def make_cache(self, rnd: object) -> None:
        self.one_of(rnd, MAKES)
        if chance(rnd, 0.5):
            self.one_of(rnd, MAKES)

    @rule(rnd=randoms)
    def take_cache(self, rnd: object) -> None:
        self.one_of(rnd, TAKES)

    @rule(rnd=randoms)
    def copy(self, rnd: object) -> None:
        self.one_of(rnd, COPIES)

    @rule(rnd=randoms)
    def leases(self, rnd: object) -> None:
        self.one_of(rnd, LEASES)

    @rule(rnd=randoms)
    def links(self, rnd: object) -> None:
        self.relink(rnd)
        self.one_of(rnd, ["link", "unlink", "link", "unlink"])
        if chance(rnd, 0.06):
            self.restart(rnd)

    @rule(rnd=randoms)
    def tell(self, rnd: object) -> None:
        self.notify(rnd)

    @rule(rnd=randoms)
    def try_odd_things(self, rnd: object) -> None:
        self.one_of(rnd, ODD)


class ThreeManagers(TwoManagers):
    """Three managers in three processes."""

    seats = (0, 1, 2)


class SharedProcess(TwoManagers):
    """Three managers, two of them in one process."""

    seats = (0, 0, 1)
