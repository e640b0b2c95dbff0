// What the kernel has mapped where in this process.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "integers.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

// One line of /proc/self/maps.
struct Mapping {
    std::uint64_t start;
    std::uint64_t end;
    std::string permissions;
    std::string path;
};

// What there is at one asked range.
struct RangeMapping {
    bool accessible = true;           // readable and writable from the first to the last byte
    std::uint64_t fault_address = 0;  // first byte that is not
    std::string permissions;          // there, or "unmapped"; of the first mapping when all is well
    bool special = false;             // some of it belongs to a device or to the kernel
    std::string path;                 // of the special mapping, else of the first one; empty = anonymous
};

class File {
public:
    explicit File(const char *path) : fd_(open(path, O_RDONLY | O_CLOEXEC)) {
        if (fd_ < 0) {
            throw SystemFailure(std::string("open ") + path, errno);
        }
    }
    ~File() { close(fd_); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    int fd() const { return fd_; }

private:
    int fd_;
};

std::string read_all(const char *path) {
    const File file(path);
    std::string text;
    std::size_t used = 0;
    while (true) {
        text.resize(std::max<std::size_t>(1 << 16, 2 * text.size()));
        while (used < text.size()) {
            const ssize_t got = read(file.fd(), &text[used], text.size() - used);
            if (got < 0) {
                if (errno == EINTR) {
                    continue;
                }
                throw SystemFailure(std::string("read ") + path, errno);
            }
            if (got == 0) {
                text.resize(used);
                return text;
            }
            used += static_cast<std::size_t>(got);
        }
    }
}

// start-end permissions offset device inode path
std::vector<Mapping> parse(const std::string &text) {
    std::vector<Mapping> mappings;
    for (std::size_t line = 0; line < text.size();) {
        std::size_t end = text.find('\n', line);
        end = end == std::string::npos ? text.size() : end;
        char *rest = nullptr;
        Mapping mapping{};
        mapping.start = std::strtoull(&text[line], &rest, 16);
        mapping.end = std::strtoull(rest + 1, &rest, 16);
        mapping.permissions.assign(rest + 1, 4);
        std::size_t position = static_cast<std::size_t>(rest - text.data()) + 6;
        for (int field = 0; field < 3; ++field) {
            position = std::min(text.find(' ', position), end);
            position = position == end ? end : position + 1;
        }
        position = std::min(text.find_first_not_of(' ', position), end);
        mapping.path = text.substr(position, end - position);
        mappings.push_back(std::move(mapping));
        line = end + 1;
    }
    return mappings;
}

bool starts_with(const std::string &text, const char *prefix) { return text.rfind(prefix, 0) == 0; }

// Memory that only looks like memory: registers of a device, buffers that a driver maps, pages of the kernel.
bool is_special(const std::string &path) {
    if (path.empty() || path == "[heap]" || starts_with(path, "[stack") || starts_with(path, "[anon")) {
        return false;
    }
    if (path[0] == '[' || starts_with(path, "anon_inode:") || starts_with(path, "/dmabuf") ||
        starts_with(path, "/sys/") || starts_with(path, "/proc/")) {
        return true;
    }
    if (!starts_with(path, "/dev/") || starts_with(path, "/dev/zero") || starts_with(path, "/dev/shm/") ||
        starts_with(path, "/dev/hugepages")) {
        return false;  // a file, or shared memory
    }
    struct stat status {};
    return stat(path.c_str(), &status) != 0 || S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode);
}

RangeMapping look_up(const std::vector<Mapping> &mappings, std::uint64_t address, std::uint64_t nbytes) {
    RangeMapping found;
    const auto fault = [&](std::uint64_t at, const std::string &permissions) {
        if (found.accessible) {
            found.accessible = false;
            found.fault_address = at;
            found.permissions = permissions;
        }
    };
    std::uint64_t last = 0;  // inclusive, so that a range may end where the address space ends
    if (nbytes == 0 || __builtin_add_overflow(address, nbytes - 1, &last)) {
        fault(address, "unmapped");
        return found;
    }
    auto mapping = std::upper_bound(mappings.begin(), mappings.end(), address,
                                    [](std::uint64_t value, const Mapping &item) { return value < item.end; });
    bool first = true;
    std::uint64_t next = address;
    for (; next <= last; ++mapping) {
        if (mapping == mappings.end() || mapping->start > next) {
            fault(next, "unmapped");
            break;
        }
        if (mapping->permissions[0] != 'r' || mapping->permissions[1] != 'w') {
            fault(next, mapping->permissions);
        }
        const bool special = is_special(mapping->path);
        if (first || (special && !found.special)) {
            found.path = mapping->path;
        }
        if (first && found.accessible) {
            found.permissions = mapping->permissions;
        }
        found.special = found.special || special;
        first = false;
        next = mapping->end;
        if (next == 0) {
            break;
        }
    }
    return found;
}

py::list describe_mappings(const py::iterable &ranges) {
    std::vector<std::vector<std::uint64_t>> asked;
    for (const py::handle range : ranges) {
        asked.push_back(copy_integers(range, "range"));
        if (asked.back().size() != 2) {
            refuse(Reason::value, "ranges holds ", shown(range), "; each item is (address, bytes)");
        }
    }
    std::vector<RangeMapping> found;
    {
        const py::gil_scoped_release release;
        const std::vector<Mapping> mappings = parse(read_all("/proc/self/maps"));
        found.reserve(asked.size());
        for (const auto &range : asked) {
            found.push_back(look_up(mappings, range[0], range[1]));
        }
    }
    py::list result;
    for (RangeMapping &item : found) {
        result.append(py::cast(std::move(item)));
    }
    return result;
}

// File names are bytes, not always UTF-8.
py::str file_name(const std::string &path) {
    PyObject *name = PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size()));
    if (name == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::str>(name);
}

}  // namespace

void register_mappings(py::module_ &module) {
    py::class_<RangeMapping>(module, "RangeMapping", "What is mapped at one range.", plain_class(), py::is_final())
        .def_readonly("accessible", &RangeMapping::accessible)
        .def_readonly("fault_address", &RangeMapping::fault_address)
        .def_readonly("permissions", &RangeMapping::permissions)
        .def_readonly("special", &RangeMapping::special)
        .def_property_readonly("path", [](const RangeMapping &self) { return file_name(self.path); });
    module.def("describe_mappings", &describe_mappings, py::arg("ranges"),
               "Look (address, bytes) ranges up in one reading of /proc/self/maps.");
}

}  // namespace cachecore
