// Random bytes that prove which process an address belongs to.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "bindings.hpp"
#include "process_memory.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

// 16 random bytes in a page of their own that a forked child sees as zeros: a child is another peer.
class Nonce {
public:
    Nonce() : page_bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
        page_ = mmap(nullptr, page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page_ == MAP_FAILED) {
            page_ = nullptr;
            throw SystemFailure("mmap of a nonce page", errno);
        }
        const int advised = madvise(page_, page_bytes_, MADV_WIPEONFORK);
        if (advised != 0 || getrandom(page_, nonce_bytes, 0) != static_cast<ssize_t>(nonce_bytes)) {
            const int code = errno;
            close();
            throw SystemFailure(advised != 0 ? "madvise(MADV_WIPEONFORK)" : "getrandom", code);
        }
    }
    ~Nonce() { close(); }
    Nonce(const Nonce &) = delete;
    Nonce &operator=(const Nonce &) = delete;

    std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(checked()); }
    py::bytes value() const { return {static_cast<const char *>(checked()), nonce_bytes}; }

    void close() noexcept {
        if (page_ != nullptr) {
            munmap(page_, page_bytes_);
            page_ = nullptr;
        }
    }

private:
    const void *checked() const {
        if (page_ == nullptr) {
            refuse(Reason::value, "the nonce was closed; peers can no longer prove who this is");
        }
        return page_;
    }

    std::size_t page_bytes_;
    void *page_ = nullptr;
};

// Without Yama every process of the user may read already, and the call is not known.
bool allow_reader(const py::object &pid) {
    const unsigned long reader = pid.is_none() ? PR_SET_PTRACER_ANY : pid.cast<unsigned long>();
    if (prctl(PR_SET_PTRACER, reader, 0, 0, 0) == 0) {
        return true;
    }
    const int code = errno;
    if (code == EINVAL && (reader == PR_SET_PTRACER_ANY || reader == 0 || getpgid(static_cast<pid_t>(reader)) >= 0)) {
        return false;
    }
    throw SystemFailure("prctl(PR_SET_PTRACER)", code);
}

}  // namespace

void register_nonce(py::module_ &module) {
    py::class_<Nonce>(module, "Nonce", "16 random bytes in a page of their own, zeros in a forked child.",
                      plain_class(), py::is_final())
        .def(py::init<>())
        .def_property_readonly("address", &Nonce::address)
        .def_property_readonly("value", &Nonce::value)
        .def("close", &Nonce::close, "Unmap it: transfers of peers that are running now end with \"wrong peer\".");
    module.def("allow_reader", &allow_reader, py::arg("pid"),
               "Let a process (None = any of this user's, 0 = nobody) read this one where Yama restricts ptrace.");
}

}  // namespace cachecore
