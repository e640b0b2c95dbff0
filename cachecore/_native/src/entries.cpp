// Plans that address batch entries of contiguous caches: "blocks" of their geometries are entries.
#include <algorithm>

#include "planning.hpp"
#include "refusal.hpp"

namespace cachecore {

namespace {

void check_entry(const EntryEnd &end) {
    if (end.entry >= end.geometry.blocks()) {
        refuse(Reason::value, end.entry_name, " is ", end.entry, "; the cache has ", end.geometry.blocks(),
               " batch entries, so it must be from 0 to ", end.geometry.blocks() - 1);
    }
    if (end.offset >= end.geometry.block_bytes()) {
        refuse(Reason::value, end.offset_name, " is ", end.offset, " bytes; an entry has ",
               end.geometry.block_bytes(), ", so it must be below that");
    }
}

BlockIndex index_of(const Geometry &geometry, bool local) {
    return {local, geometry.offset(), geometry.block_stride()};
}

// From a tensor's base to the first byte that is moved.
std::uint64_t start_of(const EntryEnd &end) {
    return end.geometry.offset() + end.entry * end.geometry.block_stride() + end.offset;
}

std::shared_ptr<CopyPlan> one_group(PlanGroup group, const BlockIndex &source, const char *source_name,
                                    const char *destination_name, bool same_process) {
    std::vector<PlanGroup> groups;
    groups.push_back(std::move(group));
    if (same_process) {
        check_overlap(groups, {source}, source_name, destination_name);
    }
    return std::make_shared<CopyPlan>(std::move(groups));
}

}  // namespace

std::shared_ptr<CopyPlan> plan_entry(const EntryEnd &local, const EntryEnd &remote, std::optional<std::uint64_t> size,
                                     const char *size_name, bool destination_is_local, bool same_process) {
    std::vector<BasePair> pairs = pair_tensors(local.geometry, remote.geometry, {});
    check_entry(local);
    check_entry(remote);
    const EntryEnd &source = destination_is_local ? remote : local;
    const EntryEnd &destination = destination_is_local ? local : remote;
    const std::uint64_t most = source.geometry.block_bytes() - source.offset;
    const std::uint64_t room = destination.geometry.block_bytes() - destination.offset;
    if (size && (*size == 0 || *size > most)) {
        refuse(Reason::value, size_name, " is ", *size, " bytes; the source entry has ", most,
               source.offset == 0 ? "" : " from its offset on",
               ", so it must be from 1 to that, or -1 for all that the entry has");
    }
    const std::uint64_t length = size.value_or(most);
    if (length > room) {
        refuse(Reason::incompatible, length, " bytes of the source entry do not fit into the ", room,
               " bytes that the destination entry has", destination.offset == 0 ? "" : " from its offset on",
               "; give ", size_name, " or a cache with larger entries");
    }
    return one_group({std::move(pairs),
                      {Run{start_of(local), start_of(remote), length}},
                      index_of(destination.geometry, destination_is_local),
                      1},
                     index_of(source.geometry, !destination_is_local), source.entry_name, destination.entry_name,
                     same_process);
}

std::shared_ptr<CopyPlan> plan_entry_to_blocks(const Geometry &paged, const BlockList &blocks, const EntryEnd &entry,
                                               bool destination_is_local, bool same_process) {
    std::vector<BasePair> pairs = destination_is_local ? pair_tensors(paged, entry.geometry, {})
                                                       : pair_tensors(entry.geometry, paged, {});
    check_entry(entry);
    const std::size_t count = blocks.ids.size();
    const std::uint64_t block_bytes = paged.block_bytes();
    const std::uint64_t entry_bytes = entry.geometry.block_bytes() - entry.offset;
    if (count == 0) {
        refuse(Reason::value, blocks.name, " is empty; name at least one block");
    }
    const std::uint64_t most = (entry_bytes - 1) / block_bytes + 1;
    if (count > most) {
        refuse(Reason::value, blocks.name, " has ", count, " blocks of ", block_bytes, " bytes; the source entry has ",
               entry_bytes, " bytes, which is ", most, " blocks: name no block that would stay empty");
    }
    check_bounds(blocks, paged.blocks());
    check_duplicates(blocks);

    const std::uint64_t entry_start = start_of(entry);
    PlanGroup group{std::move(pairs), {}, index_of(paged, destination_is_local), count};
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t taken = i * block_bytes;
        const std::uint64_t block = paged.offset() + blocks.ids[i] * paged.block_stride();
        const std::uint64_t bytes = std::min(block_bytes, entry_bytes - taken);
        append_run(group.runs, destination_is_local ? Run{block, entry_start + taken, bytes}
                                                    : Run{entry_start + taken, block, bytes});
    }
    return one_group(std::move(group), index_of(entry.geometry, !destination_is_local), entry.entry_name, blocks.name,
                     same_process);
}

}  // namespace cachecore
