#include "plan.hpp"

#include <algorithm>
#include <limits>

#include "failure.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

PlanView::PlanView(const py::sequence &groups) {
    try {
        for (const py::handle item : groups) {
            const auto pair = py::reinterpret_borrow<py::sequence>(item);
            if (py::len(pair) != 2) {
                refuse("a group of the plan has ", py::len(pair), " tables; it must have bases and runs");
            }
            PlanGroup group{};
            const py::object bases = pair[0];
            const py::object runs = pair[1];
            group.pairs = static_cast<const BasePair *>(table(bases, sizeof(BasePair), group.pair_count));
            group.runs = static_cast<const Run *>(table(runs, sizeof(Run), group.run_count));
            for (std::size_t run = 0; run < group.run_count; ++run) {
                if (group.runs[run].length == 0) {
                    refuse("a run of the plan has no bytes");
                }
            }
            chunks_ += static_cast<std::uint64_t>(group.pair_count) * group.run_count;
            pairs_ += group.pair_count;
            groups_.push_back(group);
        }
    } catch (...) {
        for (Py_buffer &buffer : buffers_) {
            PyBuffer_Release(&buffer);
        }
        throw;
    }
}

PlanView::~PlanView() {
    for (Py_buffer &buffer : buffers_) {
        PyBuffer_Release(&buffer);
    }
}

const void *PlanView::table(const py::handle &object, std::size_t row_bytes, std::size_t &rows) {
    Py_buffer buffer{};
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_C_CONTIGUOUS) != 0) {
        throw py::error_already_set();
    }
    buffers_.push_back(buffer);
    const auto nbytes = static_cast<std::size_t>(buffer.len);
    if (buffer.itemsize != 8 || nbytes % row_bytes != 0) {
        refuse("a table of the plan has ", nbytes, " bytes in items of ", buffer.itemsize, "; it must hold rows of ",
               row_bytes / 8, " uint64");
    }
    rows = nbytes / row_bytes;
    return buffer.buf;
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> PlanView::extents() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    for (const PlanGroup &group : groups_) {
        if (group.run_count == 0) {
            continue;
        }
        std::uint64_t local_low = std::numeric_limits<std::uint64_t>::max();
        std::uint64_t remote_low = local_low;
        std::uint64_t local_high = 0;
        std::uint64_t remote_high = 0;
        for (std::size_t index = 0; index < group.run_count; ++index) {
            const Run &run = group.runs[index];
            local_low = std::min(local_low, run.local);
            remote_low = std::min(remote_low, run.remote);
            local_high = std::max(local_high, run.local + run.length);
            remote_high = std::max(remote_high, run.remote + run.length);
        }
        for (std::size_t index = 0; index < group.pair_count; ++index) {
            found.emplace_back(group.pairs[index].local + local_low, local_high - local_low);
            found.emplace_back(group.pairs[index].remote + remote_low, remote_high - remote_low);
        }
    }
    return found;
}

}  // namespace cachecore::ascend
