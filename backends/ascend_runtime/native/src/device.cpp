#include "device.hpp"

#include <vector>

#include <pybind11/stl.h>

#include "failure.hpp"
#include "query.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

namespace {

void *pointer(std::uint64_t address) { return reinterpret_cast<void *>(address); }

// (address, bytes) pairs of a buffer of uint64.
std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_of(const py::buffer &ranges) {
    const py::buffer_info info = ranges.request();
    const auto nbytes = static_cast<std::size_t>(info.size * info.itemsize);
    if (nbytes % 16 != 0) {
        refuse("ranges has ", nbytes, " bytes; it must hold pairs of uint64");
    }
    const auto *values = static_cast<const std::uint64_t *>(info.ptr);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found(nbytes / 16);
    for (std::size_t index = 0; index < found.size(); ++index) {
        found[index] = {values[2 * index], values[2 * index + 1]};
    }
    return found;
}

std::vector<MemoryFacts> query(const Device &device, const py::buffer &ranges) {
    const auto asked = ranges_of(ranges);
    std::vector<MemoryFacts> answers;
    answers.reserve(asked.size());
    const py::gil_scoped_release release;
    device.run([&] {
        for (const auto &[base, nbytes] : asked) {
            answers.push_back(query_memory(device.library(), base, nbytes));
        }
    });
    return answers;
}

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

void register_device(py::module_ &module) {
    using free_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Device, std::shared_ptr<Device>>(module, "Device", py::is_final())
        .def(py::init<std::shared_ptr<Library>, std::int32_t>(), py::arg("library"), py::arg("index"), free_gil())
        .def_property_readonly("index", &Device::index)
        .def("bind_thread", &Device::bind_thread, free_gil())
        .def("enter", &Device::enter, free_gil())
        .def("leave", &Device::leave, py::arg("former"), free_gil())
        .def("allocate", &Device::allocate, py::arg("nbytes"), py::arg("policy"), free_gil())
        .def("free", &Device::free, py::arg("address"), free_gil())
        .def("allocate_host", &Device::allocate_host, py::arg("nbytes"), free_gil())
        .def("free_host", &Device::free_host, py::arg("address"), free_gil())
        .def("memory_info", &Device::memory_info, free_gil())
        .def("query", &query, py::arg("ranges"))
        .def("trim", &Device::trim, free_gil());
}

}  // namespace cachecore::ascend
