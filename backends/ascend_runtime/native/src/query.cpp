#include "query.hpp"

#include <algorithm>
#include <limits>

namespace cachecore::ascend {

namespace {

constexpr std::uint64_t last_address = std::numeric_limits<std::uint64_t>::max();

struct Block {
    std::uint64_t base;
    std::uint64_t end;
};

class Walk {
public:
    Walk(const Library &library, std::uint64_t base, std::uint64_t nbytes)
        : library_(library), base_(base), end_(nbytes > last_address - base ? last_address : base + nbytes) {}

    MemoryFacts run() {
        if (base_ == end_) {
            return facts_;
        }
        acl::PtrAttributes first{};
        facts_.attributes_code = ask(base_, first);
        if (facts_.attributes_code != acl::success) {
            return facts_;
        }
        facts_.location = first.location.type;
        facts_.device = first.location.id;
        if (facts_.location == acl::location_unregistered) {
            return facts_;
        }
        std::uint64_t at = base_;
        acl::PtrAttributes here = first;
        while (at < end_) {
            if (at != base_ && (ask(at, here) != acl::success || !same_place(here, first))) {
                break;
            }
            facts_.page_bytes = known_page(here.page_size);
            Block block{};
            if (!find_block(at, block)) {
                without_blocks(at, first);
                break;
            }
            ask_whether_mapped(block.base);
            at = std::min(block.end, end_);
            facts_.covered = at - base_;
        }
        return facts_;
    }

private:
    acl::Error ask(std::uint64_t address, acl::PtrAttributes &attributes) const {
        if (library_.aclrtPointerGetAttributes == nullptr) {
            return not_asked;
        }
        attributes = {};
        const acl::Error code =
            library_.aclrtPointerGetAttributes(reinterpret_cast<const void *>(address), &attributes);
        if (code != acl::success) {
            library_.recent_message();
        }
        return code;
    }

    static bool same_place(const acl::PtrAttributes &left, const acl::PtrAttributes &right) {
        return left.location.type == right.location.type &&
               (left.location.type != acl::location_device || left.location.id == right.location.id);
    }

    // The largest page satisfies the rule of every block; one block without a page size leaves it unknown.
    std::uint64_t known_page(std::uint32_t page) const {
        if (page == 0 || (facts_.blocks > 0 && facts_.page_bytes == 0)) {
            return 0;
        }
        return std::max<std::uint64_t>(facts_.page_bytes, page);
    }

    bool find_block(std::uint64_t at, Block &block) {
        if (library_.aclrtMemGetAddressRange == nullptr) {
            return false;
        }
        void *base = nullptr;
        std::size_t nbytes = 0;
        const acl::Error code = library_.aclrtMemGetAddressRange(reinterpret_cast<void *>(at), &base, &nbytes);
        if (facts_.blocks == 0) {
            facts_.range_code = code;
        }
        if (code != acl::success) {
            library_.recent_message();
            return false;
        }
        block.base = reinterpret_cast<std::uint64_t>(base);
        block.end = nbytes > last_address - block.base ? last_address : block.base + nbytes;
        if (block.base > at || block.end <= at) {
            return false;  // an answer that does not hold the address cannot be walked on
        }
        if (facts_.blocks == 0) {
            facts_.block_base = block.base;
        }
        facts_.block_bytes = block.end - facts_.block_base;
        ++facts_.blocks;
        return true;
    }

    // Without blocks the last byte must do: memory of one kind has no holes that a tensor spans.
    void without_blocks(std::uint64_t at, const acl::PtrAttributes &first) {
        acl::PtrAttributes last{};
        if (ask(end_ - 1, last) == acl::success && same_place(last, first)) {
            facts_.covered = end_ - base_;
        } else {
            facts_.covered = std::max<std::uint64_t>(facts_.covered, at - base_);
        }
    }

    void ask_whether_mapped(std::uint64_t block_base) {
        if (facts_.location == acl::location_host || facts_.location == acl::location_host_numa) {
            return;  // page-locked either way
        }
        if (library_.aclrtMemRetainAllocationHandle == nullptr || library_.aclrtFreePhysical == nullptr) {
            return;
        }
        void *handle = nullptr;
        const acl::Error code =
            library_.aclrtMemRetainAllocationHandle(reinterpret_cast<void *>(block_base), &handle);
        Mapping answer = Mapping::no;
        if (code == acl::success) {
            // A handle that stays retained would keep the memory from being freed.
            library_.check("aclrtFreePhysical", library_.aclrtFreePhysical(handle));
            answer = Mapping::yes;
        } else {
            library_.recent_message();
            if (acl::not_supported(code)) {  // the driver is too old to say, which is not "no"
                facts_.handle_code = code;
                facts_.mapped = Mapping::unknown;
                unknown_ = true;
                return;
            }
        }
        if (facts_.handle_code == not_asked) {
            facts_.handle_code = acl::success;
        }
        if (facts_.blocks == 1) {
            facts_.mapped = answer;
        } else if (!unknown_ && facts_.mapped != answer) {
            facts_.mapped = Mapping::partly;
        }
    }

    const Library &library_;
    std::uint64_t base_;
    std::uint64_t end_;
    MemoryFacts facts_;
    bool unknown_ = false;
};

}  // namespace

MemoryFacts query_memory(const Library &library, std::uint64_t base, std::uint64_t nbytes) {
    return Walk(library, base, nbytes).run();
}

}  // namespace cachecore::ascend
