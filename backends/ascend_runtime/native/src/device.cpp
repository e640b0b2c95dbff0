#include "device.hpp"

#include "failure.hpp"

namespace cachecore::ascend {

namespace {

void *pointer(std::uint64_t address) { return reinterpret_cast<void *>(address); }

}  // namespace

Device::Device(std::shared_ptr<Library> library, std::int32_t index)
    : library_(std::move(library)), index_(index), streams_(*library_) {
    const acl::Context former = current_context(*library_);
    library_->check("aclrtSetDevice", library_->aclrtSetDevice(index));
    context_ = current_context(*library_);
    if (context_ == nullptr) {
        throw AclFailure("aclrtGetCurrentContext", acl::no_current_context, library_->recent_message());
    }
    if (former == nullptr) {
        note_bound(context_);
    } else if (former != context_) {
        library_->check("aclrtSetCurrentContext", library_->aclrtSetCurrentContext(former));
    }
}

std::uint64_t Device::enter() const {
    const acl::Context former = current_context(*library_);
    if (former == context_) {
        return 0;
    }
    library_->check("aclrtSetCurrentContext", library_->aclrtSetCurrentContext(context_));
    if (former == nullptr) {
        note_bound(context_);
    }
    return reinterpret_cast<std::uint64_t>(former);
}

void Device::leave(std::uint64_t former) const {
    if (former != 0) {
        library_->check("aclrtSetCurrentContext", library_->aclrtSetCurrentContext(pointer(former)));
    }
}

std::uint64_t Device::allocate(std::uint64_t nbytes, int policy) {
    return run([&] {
        void *address = nullptr;
        library_->check("aclrtMalloc", library_->aclrtMalloc(&address, nbytes, policy));
        const auto base = reinterpret_cast<std::uint64_t>(address);
        blocks_.add(base, nbytes, {Side::device, static_cast<std::uint32_t>(index_)});
        return base;
    });
}

void Device::free(std::uint64_t address) {
    run([&] {
        library_->check("aclrtFree", library_->aclrtFree(pointer(address)));
        blocks_.remove(address);
    });
}

std::uint64_t Device::allocate_host(std::uint64_t nbytes) {
    return run([&] {
        void *address = nullptr;
        library_->check("aclrtMallocHost", library_->aclrtMallocHost(&address, nbytes));
        const auto base = reinterpret_cast<std::uint64_t>(address);
        blocks_.add(base, nbytes, {Side::pinned_host, 0});
        return base;
    });
}

void Device::free_host(std::uint64_t address) {
    run([&] {
        library_->check("aclrtFreeHost", library_->aclrtFreeHost(pointer(address)));
        blocks_.remove(address);
    });
}

std::pair<std::uint64_t, std::uint64_t> Device::memory_info() const {
    if (library_->aclrtGetMemInfo == nullptr) {
        throw AclFailure("aclrtGetMemInfo", acl::api_not_supported, "the runtime has no such function");
    }
    return run([&] {
        std::size_t unused = 0;
        std::size_t total = 0;
        library_->check("aclrtGetMemInfo", library_->aclrtGetMemInfo(acl::memory_attribute_hbm, &unused, &total));
        return std::pair<std::uint64_t, std::uint64_t>(unused, total);
    });
}

void Device::trim() {
    run([&] { streams_.trim(); });
}

}  // namespace cachecore::ascend
