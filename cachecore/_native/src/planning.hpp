// Index arithmetic: block lists and entries of caches become a CopyPlan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copy_plan.hpp"
#include "geometry.hpp"

namespace cachecore {

// Bytes [offset, offset + length) of every block.
struct Slice {
    std::uint64_t offset;
    std::uint64_t length;
};

// One side of a planned transfer.
struct PlanSide {
    const Geometry &geometry;
    std::vector<std::uint64_t> blocks;
    const char *name;  // of the block list, for messages
    std::optional<Slice> slice;
};

// None of these needs the GIL. All refuse with a Refusal.
std::shared_ptr<CopyPlan> plan_blocks(const PlanSide &local, const PlanSide &remote, bool destination_is_local,
                                      bool same_process);

// `size` bytes from entry `remote_entry` to entry `local_entry` or back; 0 = the whole source entry.
struct EntryNames {
    const char *local;
    const char *remote;
    const char *size;
};
std::shared_ptr<CopyPlan> plan_entry(const Geometry &local, const Geometry &remote, std::uint64_t local_entry,
                                     std::uint64_t remote_entry, std::optional<std::uint64_t> size,
                                     bool destination_is_local, const EntryNames &names, bool same_process);

// Local block i takes bytes [i * block, (i + 1) * block) of the remote entry, the last one what is left of it.
std::shared_ptr<CopyPlan> plan_entry_to_blocks(const PlanSide &local, const Geometry &remote,
                                               std::uint64_t remote_entry, const char *entry_name, bool same_process);

}  // namespace cachecore
