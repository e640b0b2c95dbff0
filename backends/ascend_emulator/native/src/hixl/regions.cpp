#include "regions.hpp"

#include <algorithm>
#include <sstream>
#include <string>

#include "../failure.hpp"
#include "../memory.hpp"
#include "../settings.hpp"

namespace emulator::hixl {

std::string Region::obstacle(std::uint32_t protocol, std::uint32_t flags) const {
    std::ostringstream text;
    const Line line = settings().line;
    const bool a2_or_a3 = line == Line::a2 || line == Line::a3;
    const bool fabric = (flags & kFabricMemory) != 0;
    if (type == kMemDevice && protocol == kHccsDevice && a2_or_a3 && !from_malloc && address % page != 0) {
        text << "device memory at 0x" << std::hex << address << std::dec << " did not come from aclrtMalloc and is not "
             << "aligned to its page of " << page << " bytes";
    } else if (type == kMemHost && (protocol & roce_protocols) != 0 && a2_or_a3 && !pinned) {
        text << "host memory at 0x" << std::hex << address << " is not from aclrtMallocHost, which RoCE asks for";
    } else if (type == kMemHost && protocol == kRoceHost && line == Line::ascend950 && pinned) {
        text << "host memory at 0x" << std::hex << address
             << " is from aclrtMallocHost, which the RoCE NIC of the host "
             << "cannot register";
    } else if (type == kMemDevice && (protocol & host_protocols) != 0 && !fabric) {
        text << "device memory at 0x" << std::hex << address << " cannot be reached over a protocol of the host";
    }
    return text.str();
}

Region make_region(std::uint64_t address, std::uint64_t nbytes, int type) {
    if (address == 0 || nbytes == 0 || address + nbytes < address) {
        fail(kParamInvalid, "memory of ", nbytes, " bytes at ", reinterpret_cast<void *>(address), " is no range");
    }
    Region region;
    region.address = address;
    region.nbytes = nbytes;
    if (type == kMemDevice) {
        region.type = kMemDevice;
        const auto range = find_range(address);
        if (!range || !resolve(address, nbytes, region.pieces)) {
            fail(kParamInvalid, reinterpret_cast<void *>(address), " + ", nbytes, " is not all device memory");
        }
        std::uint64_t end = 0;
        for (const Piece &piece : region.pieces) {
            region.ends.push_back(end += piece.nbytes);
        }
        region.page = range->backing->page();
        region.from_malloc = range->origin == Origin::malloc && range->start == address;
    } else if (type == kMemHost) {
        region.type = kMemHost;
        if (touches_reservation(address, nbytes)) {
            fail(kParamInvalid, reinterpret_cast<void *>(address), " is a device address, the type says host");
        }
        region.pinned = is_pinned(address, nbytes);
    } else {
        fail(kParamInvalid, "memory type is ", type, "; it must be 0 (device) or 1 (host)");
    }
    return region;
}

const Region *region_of(const Regions &regions, std::uint64_t address, std::uint64_t nbytes) {
    auto next = regions.upper_bound(address);
    if (next == regions.begin()) {
        return nullptr;
    }
    const Region &region = std::prev(next)->second;
    const std::uint64_t into = address - region.address;
    return into < region.nbytes && nbytes <= region.nbytes - into ? &region : nullptr;
}

void append_view(const Region &region, std::uint64_t address, std::uint64_t nbytes, std::vector<iovec> &view) {
    if (region.type == kMemHost) {
        append_relayed(address, nbytes, view);
        return;
    }
    const std::uint64_t into = address - region.address;
    auto index =
        static_cast<std::size_t>(std::upper_bound(region.ends.begin(), region.ends.end(), into) - region.ends.begin());
    std::uint64_t skip = into - (index == 0 ? 0 : region.ends[index - 1]);
    while (nbytes > 0) {
        const Piece &piece = region.pieces[index++];
        const std::uint64_t part = std::min<std::uint64_t>(nbytes, piece.nbytes - skip);
        view.push_back({piece.data + skip, part});
        nbytes -= part;
        skip = 0;
    }
}

void append_relayed(std::uint64_t address, std::uint64_t nbytes, std::vector<iovec> &view) {
    view.push_back({reinterpret_cast<void *>(address), nbytes});
}

}  // namespace emulator::hixl
