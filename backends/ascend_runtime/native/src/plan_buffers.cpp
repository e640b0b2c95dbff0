#include "plan_buffers.hpp"

#include <cstdint>

#include "failure.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

PlanBuffers::PlanBuffers(const py::sequence &groups) {
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
            plan_.chunks += static_cast<std::uint64_t>(group.pair_count) * group.run_count;
            plan_.pairs += group.pair_count;
            plan_.groups.push_back(group);
        }
    } catch (...) {
        for (Py_buffer &buffer : buffers_) {
            PyBuffer_Release(&buffer);
        }
        throw;
    }
}

PlanBuffers::~PlanBuffers() {
    for (Py_buffer &buffer : buffers_) {
        PyBuffer_Release(&buffer);
    }
}

const void *PlanBuffers::table(const py::handle &object, std::size_t row_bytes, std::size_t &rows) {
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

}  // namespace cachecore::ascend
