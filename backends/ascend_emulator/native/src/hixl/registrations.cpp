#include "registrations.hpp"

#include <iterator>
#include <utility>

#include "../failure.hpp"
#include "../settings.hpp"

namespace emulator::hixl {

namespace {

constexpr std::size_t most_registrations = 4096;
constexpr std::uint64_t most_device_bytes = std::uint64_t{50} << 30;  // on A2 and A3

}  // namespace

std::uint64_t Registrations::add(Region region) {
    const std::uint64_t address = region.address;
    const std::uint64_t nbytes = region.nbytes;
    const auto next = regions_.lower_bound(address);
    if (next != regions_.end() && next->first == address && next->second.nbytes == nbytes &&
        next->second.type == region.type) {
        for (const auto &[handle, start] : handles_) {
            if (start == address) {
                return handle;
            }
        }
    }
    const bool into_next = next != regions_.end() && next->first - address < nbytes;
    const bool into_before =
        next != regions_.begin() && address - std::prev(next)->first < std::prev(next)->second.nbytes;
    if (into_next || into_before) {
        fail(kParamInvalid, "memory at ", reinterpret_cast<void *>(address), " + ", nbytes,
             " overlaps memory that is registered");
    }
    if (regions_.size() >= most_registrations) {
        fail(kResourceExhausted, "the engine has ", regions_.size(), " registrations, and takes no more");
    }
    const bool limited = settings().line != Line::ascend950 && region.type == kMemDevice;
    if (limited && (nbytes > most_device_bytes || device_bytes_ > most_device_bytes - nbytes)) {
        fail(kResourceExhausted, "with ", nbytes, " bytes more than 50 GiB of device memory would be registered");
    }
    device_bytes_ += region.type == kMemDevice ? nbytes : 0;
    regions_.emplace(address, std::move(region));
    handles_.emplace(++last_handle_, address);
    return last_handle_;
}

void Registrations::remove(std::uint64_t handle) {
    const auto found = handles_.find(handle);
    const auto region = regions_.find(found->second);
    device_bytes_ -= region->second.type == kMemDevice ? region->second.nbytes : 0;
    regions_.erase(region);
    handles_.erase(found);
}

}  // namespace emulator::hixl
