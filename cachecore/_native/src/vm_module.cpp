// Python's way into moving plans: argument conversion, and the GIL given up for the whole move.
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "bindings.hpp"
#include "move.hpp"
#include "process_memory.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

// The cancel flag of a Python call: a bytearray (or any writable buffer of at least one byte), held so that it cannot
// be resized while native code polls it. None = no flag.
class CancelFlag {
public:
    explicit CancelFlag(py::handle flag);
    ~CancelFlag();
    CancelFlag(const CancelFlag &) = delete;
    CancelFlag &operator=(const CancelFlag &) = delete;
    const unsigned char *byte() const { return byte_; }

private:
    Py_buffer view_{};
    const unsigned char *byte_ = nullptr;
};

CancelFlag::CancelFlag(py::handle flag) {
    if (flag.is_none()) {
        return;
    }
    if (PyObject_GetBuffer(flag.ptr(), &view_, PyBUF_SIMPLE) != 0) {
        throw py::error_already_set();
    }
    if (view_.len < 1) {
        PyBuffer_Release(&view_);
        refuse(Reason::value, "cancel is empty; it must hold at least one byte");
    }
    byte_ = static_cast<const unsigned char *>(view_.buf);
}

CancelFlag::~CancelFlag() {
    if (byte_ != nullptr) {
        PyBuffer_Release(&view_);
    }
}

PeerNonce make_nonce(std::uint64_t address, const py::bytes &value) {
    const std::string_view bytes = value;
    if (bytes.size() != nonce_bytes) {
        refuse(Reason::value, "nonce has ", bytes.size(), " bytes; it must have ", nonce_bytes);
    }
    PeerNonce nonce{address, {}};
    std::memcpy(nonce.value.data(), bytes.data(), nonce_bytes);
    return nonce;
}

TransferReport vm_read(const CopyPlan &plan, pid_t pid, std::uint64_t nonce_address, const py::bytes &nonce_value,
                       double deadline, const py::object &cancel, std::uint64_t threads, std::uint64_t threads_from,
                       std::uint64_t batch_bytes) {
    const PeerNonce nonce = make_nonce(nonce_address, nonce_value);
    const CancelFlag flag(cancel);
    const MoveLimits limits = make_limits(deadline, flag.byte(), threads, threads_from, batch_bytes);
    const py::gil_scoped_release release;
    return move_plan(plan, limits, [&](Batch &batch) { return read_batch(pid, &nonce, batch); });
}

TransferReport vm_write(const CopyPlan &plan, pid_t pid, std::uint64_t nonce_address, const py::bytes &nonce_value,
                        double deadline, const py::object &cancel, std::uint64_t threads, std::uint64_t threads_from,
                        std::uint64_t batch_bytes) {
    const PeerNonce nonce = make_nonce(nonce_address, nonce_value);
    const CancelFlag flag(cancel);
    const MoveLimits limits = make_limits(deadline, flag.byte(), threads, threads_from, batch_bytes);
    const py::gil_scoped_release release;
    return move_plan(plan, limits, [&](Batch &batch) { return write_batch(pid, nonce, batch); });
}

TransferReport vm_copy(const CopyPlan &plan, double deadline, const py::object &cancel, std::uint64_t threads,
                       std::uint64_t threads_from, std::uint64_t batch_bytes) {
    const CancelFlag flag(cancel);
    const MoveLimits limits = make_limits(deadline, flag.byte(), threads, threads_from, batch_bytes);
    const py::gil_scoped_release release;
    const pid_t self = getpid();
    return move_plan(plan, limits, [&](Batch &batch) { return read_batch(self, nullptr, batch); });
}

TransferReport memcpy_plan(const CopyPlan &plan, double deadline, const py::object &cancel, std::uint64_t threads,
                           std::uint64_t threads_from, std::uint64_t batch_bytes) {
    const CancelFlag flag(cancel);
    const MoveLimits limits = make_limits(deadline, flag.byte(), threads, threads_from, batch_bytes);
    const py::gil_scoped_release release;
    return move_plan(plan, limits, copy_batch);
}

constexpr std::uint64_t mebibyte = 1024 * 1024;

}  // namespace

void register_vm(py::module_ &module) {
    const py::arg_v cancel = py::arg("cancel") = py::none();
    const py::arg_v threads = py::arg("threads") = 2;
    const py::arg_v threads_from = py::arg("threads_from") = 4 * mebibyte;
    const py::arg_v batch_bytes = py::arg("batch_bytes") = 2 * mebibyte;
    module.def("vm_read", &vm_read, py::arg("plan"), py::arg("pid"), py::arg("nonce_address"), py::arg("nonce"),
               py::arg("deadline"), cancel, threads, threads_from, batch_bytes,
               "Move remote -> local addresses of a plan out of another process.");
    module.def("vm_write", &vm_write, py::arg("plan"), py::arg("pid"), py::arg("nonce_address"), py::arg("nonce"),
               py::arg("deadline"), cancel, threads, threads_from, batch_bytes,
               "Move local -> remote addresses of a plan into another process.");
    module.def("vm_copy", &vm_copy, py::arg("plan"), py::arg("deadline"), cancel, threads, threads_from, batch_bytes,
               "Move remote -> local addresses of a plan within this process; a bad address is a result, not a crash.");
    module.def("memcpy_plan", &memcpy_plan, py::arg("plan"), py::arg("deadline"), cancel, threads, threads_from,
               batch_bytes,
               "Move remote -> local addresses of a plan within memory that cachecore itself has mapped.");
}

}  // namespace cachecore
