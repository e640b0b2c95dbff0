// Device memory by malloc, host memory that is page-locked, and what a reset frees.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// Frees all device memory and reserved addresses of a device.
void free_device(int device);

// Forgets blocks of small allocations (malloc.cpp) and mappings (vmm.cpp) of a device.
void free_small_blocks(int device);
void free_mappings(int device);

// Whether [address, address + nbytes) is page-locked: from aclrtMallocHost or under aclrtHostRegister.
bool is_pinned(std::uintptr_t address, std::size_t nbytes);

// The page-locked allocation or registration that `address` lies in.
struct PinnedRange {
    std::uintptr_t start = 0;
    std::size_t nbytes = 0;
};
bool find_pinned(std::uintptr_t address, PinnedRange &found);

}  // namespace emulator
