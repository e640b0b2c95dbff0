#include "locate.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <iterator>

namespace cachecore::ascend {

void BlockTable::add(std::uint64_t base, std::uint64_t nbytes, Place place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[base] = {nbytes, place};
}

void BlockTable::remove(std::uint64_t base) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.erase(base);
}

std::optional<Place> BlockTable::find(std::uint64_t address) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) {
        return std::nullopt;
    }
    const auto &[base, block] = *std::prev(after);
    return address - base < block.nbytes ? std::optional<Place>(block.place) : std::nullopt;
}

bool readable_by_host(std::uint64_t address) {
    unsigned char byte = 0;
    const iovec here{&byte, 1};
    const iovec there{reinterpret_cast<void *>(address), 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

Place locate(const Library &library, const BlockTable &blocks, std::uint32_t device, std::uint64_t address) {
    if (const std::optional<Place> own = blocks.find(address)) {
        return *own;
    }
    if (library.aclrtPointerGetAttributes != nullptr) {
        acl::PtrAttributes attributes{};
        if (library.aclrtPointerGetAttributes(reinterpret_cast<const void *>(address), &attributes) == acl::success) {
            switch (attributes.location.type) {
                case acl::location_unregistered:
                    return {Side::plain_host, 0};
                case acl::location_host:
                case acl::location_host_numa:
                    return {Side::pinned_host, 0};
                default:
                    return {Side::device, attributes.location.id};
            }
        }
        library.recent_message();
    }
    return readable_by_host(address) ? Place{Side::plain_host, 0} : Place{Side::device, device};
}

}  // namespace cachecore::ascend
