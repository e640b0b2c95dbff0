"""The part of the driver suite about capabilities, memory and registration rules."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cachecore.driver import Allocation, Capabilities, Capability, RegistrationRequest
from cachecore.errors import CacheError, CacheOutOfMemoryError, CacheValueError
from cachecore.testing._driver_case import DriverCase
from cachecore.types import Placement


class DriverMemory(DriverCase):
    """Everything of a driver but `copy`."""

    # --- capabilities -----------------------------------------------------------------------------------------------

    def test_capabilities_are_complete_and_sourced(self) -> None:
        """Each fact is there, constant, and says where it comes from; what is known makes sense."""
        capabilities = self.subject.capabilities()
        for entry in dataclasses.fields(Capabilities):
            capability: Capability[Any] = getattr(capabilities, entry.name)
            assert isinstance(capability, Capability), f"{entry.name} is {capability!r}"
            assert capability.source.strip(), f"{entry.name} does not say where it comes from"
        assert capabilities.address_budget.value_or(1) > 0
        for alignment in (capabilities.host_alignment, capabilities.device_alignment):
            value = alignment.value_or(1)
            assert value > 0 and value & (value - 1) == 0, f"alignment {value} is not a power of two"
        for limit in (capabilities.max_registered_device_bytes, capabilities.max_registered_host_bytes):
            assert limit.value_or(None) is None or limit.value_or(1) > 0  # type: ignore[operator]  # None is out
        assert self.subject.capabilities() == capabilities

    # --- describe ---------------------------------------------------------------------------------------------------

    def test_describe_answers_in_order(self) -> None:
        """Answer i belongs to range i, also when good and bad ranges alternate and addresses fall."""
        page = mmap.PAGESIZE
        good = sorted((self.memory.allocate(page) for _ in range(3)), reverse=True)
        ranges = [(0, page), (good[0], page), (good[1], page), (2**63, page), (good[2], page), (1, 1)]
        known = [bool(info.placements) for info in self.subject.describe(ranges)]
        assert known == [False, True, True, False, True, False]
        assert self.subject.describe([]) == []

    def test_describe_never_raises_and_gives_a_reason(self) -> None:
        """Zero, unmapped, past the end of memory, running past 2**64, freed, longer than the allocation."""
        page = mmap.PAGESIZE
        freed = self.memory.allocate(page)
        self.memory.free(freed)
        bad = [(0, page), (1, 1), (2**47, page), (2**64 - 1, 1), (2**64 - page, 2 * page), (2**64 - 1, 2**64 - 1)]
        whole = self.memory.allocate(page)
        bad.append((whole, 2**46))
        for asked, info in zip(bad, self.subject.describe(bad), strict=True):
            assert not info.placements, f"{asked} was described as {info}"
            assert info.reason, f"{asked} was refused without a reason"
        assert len(self.subject.describe([(freed, page)])) == 1

    def test_describe_knows_its_own_memory(self) -> None:
        """Allocated memory may be registered as what it was asked for, every part of it."""
        for placement in Placement:
            address = self.memory.allocate(100_000, placement)
            for base, nbytes in ((address, 100_000), (address + 1, 1), (address + 99_999, 1)):
                info = self.subject.describe([(base, nbytes)])[0]
                accepted = {Placement.HOST} if info.placements is None else info.placements
                assert placement in accepted, f"{placement.name} memory at +{base - address} is {info}"

    # --- allocate and free ------------------------------------------------------------------------------------------

    def test_allocations_are_aligned_and_apart(self) -> None:
        """What the product needs at least, what was asked for where that is more; no two share bytes."""
        capabilities = self.subject.capabilities()
        made: list[tuple[int, int]] = []
        alignments = (0, 1, 64, 1 << 16, 1 << 21)
        for placement, nbytes, alignment in itertools.product(Placement, (1, 4097, 300_000), alignments):
            fact = capabilities.host_alignment if placement is Placement.HOST else capabilities.device_alignment
            address = self.memory.allocate(nbytes, placement, alignment)
            needed = max(alignment, fact.value_or(1))
            assert address % needed == 0, f"{placement.name} memory at {address:#x} is not aligned to {needed}"
            made.append((address, nbytes))
        made.sort()
        for (base, nbytes), (following, _) in itertools.pairwise(made):
            assert base + nbytes <= following, (
                f"{nbytes} bytes at {base:#x} reach into the allocation at {following:#x}"
            )

    def test_allocations_hold_what_is_written(self) -> None:
        """First to last byte, and writing one does not change another."""
        contents = {}
        for placement, nbytes in itertools.product(Placement, (1, 4096, 65_537, 1_000_003)):
            address = self.memory.allocate(nbytes, placement)
            contents[address] = self.random.randbytes(nbytes)
            self.memory.write(address, contents[address])
        for address, content in contents.items():
            assert self.memory.read(address, len(content)) == content

    def test_a_second_free_is_refused(self) -> None:
        """Also when new memory starts at the address of the freed one, which must survive it."""
        first = self.subject.allocate(1 << 16, Placement.DEVICE)
        self.subject.free(first)
        with pytest.raises(CacheValueError):
            self.subject.free(first)
        second = self.subject.allocate(1 << 16, Placement.DEVICE)
        with pytest.raises(CacheValueError):
            self.subject.free(first)
        self.memory.write(second.address, b"still here")
        assert self.memory.read(second.address, 10) == b"still here"
        self.subject.free(second)

    def test_memory_of_somebody_else_is_not_freed(self) -> None:
        """An allocation the driver never made is refused."""
        with pytest.raises(CacheValueError):
            self.subject.free(Allocation(0x10000, 1 << 16, Placement.HOST))

    def test_senseless_sizes_are_refused(self) -> None:
        """No memory of no size, no alignment that is not a power of two."""
        for nbytes, alignment in ((0, 0), (-1, 0), (64, 3), (64, -2)):
            with pytest.raises(CacheValueError):
                self.subject.allocate(nbytes, Placement.HOST, alignment)

    def test_too_much_memory_is_an_error_of_its_own(self) -> None:
        """More than any machine has."""
        for placement in Placement:
            with pytest.raises(CacheOutOfMemoryError):
                self.subject.allocate(2**60, placement)

    # --- check_registration -----------------------------------------------------------------------------------------

    def test_check_registration_is_pure(self) -> None:
        """The same question has the same answer, however often it is asked, and changes nothing it was given."""
        address = self.memory.allocate(1 << 20)
        requests = [
            RegistrationRequest(function, ((address + shift, 4096),), Placement.DEVICE, remote)
            for function in ("register_blocks_cache", "register_cache")
            for remote in (True, False)
            for shift in (0, 1)
        ]
        infos = self.subject.describe([(address, 4096)])
        before = copy.deepcopy(infos)
        answers = [[self._refusal(request, infos) for request in requests] for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert infos == before

    def test_its_own_memory_can_be_registered(self) -> None:
        """What allocate() gives passes the product's rules."""
        for placement in Placement:
            address = self.memory.allocate(1 << 20, placement)
            request = RegistrationRequest("register_blocks_cache", ((address, 1 << 20),), placement, False)
            if not self.subject.capabilities().remote_access_optional.value_or(False):
                request = dataclasses.replace(request, remote_accessible=True)
            self.subject.check_registration(request, self.subject.describe(request.ranges))

    def _refusal(self, request: RegistrationRequest, infos: Sequence[Any]) -> str:
        try:
            self.subject.check_registration(request, infos)
        except CacheError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    # --- threads and end --------------------------------------------------------------------------------------------

    def test_threads_can_be_bound_again_and_again(self) -> None:
        """In new threads and twice in one."""

        def bind() -> bool:
            self.subject.bind_thread()
            self.subject.bind_thread()
            address = self.subject.allocate(4096, Placement.DEVICE)
            self.subject.free(address)
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(future.result(60.0) for future in [pool.submit(bind) for _ in range(8)])

    def test_close_gives_everything_back(self) -> None:
        """Allocations nobody freed are gone after close()."""
        subject = self.make_driver()
        subject.bind_thread()
        kept = [subject.allocate(1 << 16, placement) for placement in Placement for _ in range(3)]
        subject.free(kept.pop())
        if self.live_allocations(subject) is not None:
            assert self.live_allocations(subject) == len(kept)
        subject.close()
        assert self.live_allocations(subject) in (0, None)
