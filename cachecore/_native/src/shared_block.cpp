// Memory that another process can map: a sealed memfd.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>

#include "bindings.hpp"
#include "integers.hpp"
#include "refusal.hpp"

// Newer than the C libraries this is built with.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace py = pybind11;

namespace cachecore {

namespace {

// Who maps the memory relies on it: its size never changes (an owner that shrank it would crash every reader), and
// nobody can add seals.
constexpr int required_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor() { reset(); }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    int get() const { return fd_; }
    void reset(int fd = -1) {
        if (fd_ >= 0) {
            close(fd_);
        }
        fd_ = fd;
    }

private:
    int fd_;
};

[[noreturn]] void fail(const char *operation, std::uint64_t nbytes, int code) {
    if (code == ENOMEM || code == ENOSPC || code == EFBIG) {
        refuse(Reason::out_of_memory, nbytes, " bytes of shared memory could not be had: ", operation,
               " says errno ", code, "; ask for less, or raise the memory limit of this process or container");
    }
    throw SystemFailure(std::string(operation) + " of " + std::to_string(nbytes) + " bytes", code);
}

class SharedBlock {
public:
    // New memory, zeros.
    static std::unique_ptr<SharedBlock> create(std::uint64_t nbytes, std::uint64_t alignment, bool prefault);
    // Memory of another process, given by descriptor; the descriptor stays the caller's.
    static std::unique_ptr<SharedBlock> map(int fd, std::uint64_t nbytes, bool writable, bool prefault);

    ~SharedBlock() { close(); }
    SharedBlock(const SharedBlock &) = delete;
    SharedBlock &operator=(const SharedBlock &) = delete;

    std::uint64_t address() const {
        if (start_ == nullptr) {
            refuse(Reason::value, "the shared block was closed; its memory is gone");
        }
        return reinterpret_cast<std::uintptr_t>(start_);
    }
    std::uint64_t nbytes() const { return nbytes_; }
    int fd() const { return descriptor_.get(); }

    void close() noexcept {
        if (start_ != nullptr) {
            munmap(start_, mapped_);
            start_ = nullptr;
        }
        descriptor_.reset();
    }

private:
    explicit SharedBlock(std::uint64_t nbytes) : nbytes_(nbytes) {
        const std::size_t page = page_size();
        if (nbytes == 0 || nbytes > INT64_MAX - page) {
            refuse(Reason::value, "nbytes is ", nbytes, "; shared memory has from 1 to 2**63 bytes");
        }
        mapped_ = (static_cast<std::size_t>(nbytes) + page - 1) / page * page;
    }

    void map_pages(int fd, int protection, std::size_t alignment);
    void populate(bool writable);

    std::uint64_t nbytes_;
    std::size_t mapped_ = 0;
    void *start_ = nullptr;
    Descriptor descriptor_;
};

int create_memfd(std::uint64_t nbytes) {
    // Old kernels do not know the flag, and some systems demand it.
    int fd = memfd_create("cachecore", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) {
        fd = memfd_create("cachecore", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        fail("memfd_create", nbytes, errno);
    }
    return fd;
}

std::unique_ptr<SharedBlock> SharedBlock::create(std::uint64_t nbytes, std::uint64_t alignment, bool prefault) {
    std::unique_ptr<SharedBlock> block(new SharedBlock(nbytes));
    if ((alignment & (alignment - 1)) != 0 || alignment > (std::uint64_t{1} << 40)) {
        refuse(Reason::value, "alignment is ", alignment, "; it must be a power of two up to 2**40 bytes");
    }
    block->descriptor_.reset(create_memfd(nbytes));
    const int fd = block->descriptor_.get();
    if (ftruncate(fd, static_cast<off_t>(block->mapped_)) != 0) {
        fail("ftruncate", nbytes, errno);
    }
    if (fcntl(fd, F_ADD_SEALS, required_seals) != 0) {
        fail("fcntl(F_ADD_SEALS)", nbytes, errno);
    }
    block->map_pages(fd, PROT_READ | PROT_WRITE, static_cast<std::size_t>(alignment));
    if (prefault) {
        block->populate(true);
    }
    return block;
}

std::unique_ptr<SharedBlock> SharedBlock::map(int fd, std::uint64_t nbytes, bool writable, bool prefault) {
    std::unique_ptr<SharedBlock> block(new SharedBlock(nbytes));
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        refuse(Reason::value, "fd is ", fd, ", which is no memory that can be sealed (errno ", errno,
               "); only memory of a SharedBlock is mapped");
    }
    if ((seals & required_seals) != required_seals) {
        refuse(Reason::value, "fd is ", fd, " with seals ", seals, "; it must be sealed against shrinking, growing and"
               " new seals (", required_seals, "), or its owner could crash this process");
    }
    struct stat status {};
    if (fstat(fd, &status) != 0) {
        fail("fstat", nbytes, errno);
    }
    if (static_cast<std::uint64_t>(status.st_size) < block->mapped_) {
        refuse(Reason::value, "nbytes is ", nbytes, "; the memory of fd ", fd, " has ", status.st_size, " bytes");
    }
    block->map_pages(fd, writable ? PROT_READ | PROT_WRITE : PROT_READ, 0);
    if (prefault) {
        block->populate(writable);
    }
    return block;
}

void SharedBlock::map_pages(int fd, int protection, std::size_t alignment) {
    if (alignment <= page_size()) {
        void *const start = mmap(nullptr, mapped_, protection, MAP_SHARED, fd, 0);
        if (start == MAP_FAILED) {
            fail("mmap", nbytes_, errno);
        }
        start_ = start;
        return;
    }
    // Reserve enough addresses to find an aligned start, put the memory there, give the rest back.
    std::size_t reserved = 0;
    if (__builtin_add_overflow(mapped_, alignment, &reserved)) {
        fail("mmap", nbytes_, ENOMEM);
    }
    void *const space = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        fail("mmap", nbytes_, errno);
    }
    char *const first = static_cast<char *>(space);
    const std::size_t before = (alignment - reinterpret_cast<std::uintptr_t>(first) % alignment) % alignment;
    char *const aligned = first + before;
    if (mmap(aligned, mapped_, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        const int code = errno;
        munmap(space, reserved);
        fail("mmap", nbytes_, code);
    }
    start_ = aligned;
    if (before > 0) {
        munmap(first, before);
    }
    munmap(aligned + mapped_, reserved - before - mapped_);
    madvise(start_, mapped_, MADV_HUGEPAGE);  // a wish; not every system has huge pages for shared memory
}

// Makes the pages present, so that the first transfer does not pay for it.
void SharedBlock::populate(bool writable) {
    int result = 0;
    do {
        result = madvise(start_, mapped_, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) {
        return;
    }
    if (errno != EINVAL) {
        fail("madvise(MADV_POPULATE)", nbytes_, errno == EFAULT || errno == EHWPOISON ? ENOMEM : errno);
    }
    // Linux before 5.14. Another process may write at the same time, so nothing is stored that was not there.
    auto *const bytes = static_cast<unsigned char *>(start_);
    for (std::size_t offset = 0; offset < mapped_; offset += page_size()) {
        if (writable) {
            __atomic_fetch_or(bytes + offset, static_cast<unsigned char>(0), __ATOMIC_RELAXED);
        } else {
            static_cast<void>(__atomic_load_n(bytes + offset, __ATOMIC_RELAXED));
        }
    }
}

}  // namespace

void register_shared_block(py::module_ &module) {
    py::class_<SharedBlock>(module, "SharedBlock", "Memory that other processes can map: a sealed memfd.",
                            plain_class(), py::is_final())
        .def(py::init([](const py::object &nbytes, const py::object &alignment, bool prefault) {
                 const std::uint64_t size = to_uint64(nbytes, "nbytes");
                 const std::uint64_t aligned = to_uint64(alignment, "alignment");
                 const py::gil_scoped_release release;
                 return SharedBlock::create(size, aligned, prefault);
             }),
             py::arg("nbytes"), py::arg("alignment") = 0, py::arg("prefault") = false)
        .def_property_readonly("address", &SharedBlock::address)
        .def_property_readonly("nbytes", &SharedBlock::nbytes)
        .def_property_readonly("fd", &SharedBlock::fd)
        .def("close", &SharedBlock::close, py::call_guard<py::gil_scoped_release>(),
             "Unmap the memory and close the descriptor. May be repeated.");
    module.def(
        "map_shared",
        [](int fd, const py::object &nbytes, bool writable, bool prefault) {
            const std::uint64_t size = to_uint64(nbytes, "nbytes");
            const py::gil_scoped_release release;
            return SharedBlock::map(fd, size, writable, prefault);
        },
        py::arg("fd"), py::arg("nbytes"), py::arg("writable") = false, py::arg("prefault") = true,
        "Map memory of another process's SharedBlock after checking its seals and size.");
}

}  // namespace cachecore
