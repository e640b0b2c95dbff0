// Python's way into planning: argument conversion only.
#include "bindings.hpp"
#include "integers.hpp"
#include "planning.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

// Giving up the GIL for less work than this costs more than it gives: taking it back can wait for another thread.
constexpr std::size_t blocks_worth_releasing = 512;

const char *text(const py::str &name) {
    const char *characters = PyUnicode_AsUTF8(name.ptr());
    if (characters == nullptr) {
        throw py::error_already_set();
    }
    return characters;
}

std::optional<Slice> to_slice(const py::object &slice, const char *name) {
    if (slice.is_none()) {
        return std::nullopt;
    }
    const std::vector<std::uint64_t> values = copy_integers(slice, name);
    if (values.size() != 2) {
        refuse(Reason::value, name, " is ", shown(slice), "; a slice is (offset in bytes, bytes)");
    }
    return Slice{values[0], values[1]};
}

// A list longer than the destination has blocks holds a block twice; found before anything is copied, so that
// range(2**40) costs nothing.
void check_length(const Geometry &geometry, std::size_t count, const char *name) {
    if (count > geometry.blocks()) {
        refuse(Reason::value, name, " has ", count, " ids; the cache has only ", geometry.blocks(),
               " blocks, and a destination block can be written once");
    }
}

template <class Make>
std::shared_ptr<CopyPlan> unlocked(std::size_t blocks, const Make &make) {
    if (blocks < blocks_worth_releasing) {
        return make();
    }
    const py::gil_scoped_release release;
    return make();
}

std::shared_ptr<CopyPlan> blocks_plan(const Geometry &local, const Geometry &remote, const py::object &local_blocks,
                                      const py::object &remote_blocks, bool destination_is_local,
                                      const py::str &local_name, const py::str &remote_name,
                                      const py::object &local_slice, const py::object &remote_slice,
                                      bool same_process) {
    const char *local_text = text(local_name);
    const char *remote_text = text(remote_name);
    const std::size_t local_count = count_integers(local_blocks, local_text);
    const std::size_t remote_count = count_integers(remote_blocks, remote_text);
    if (local_count == remote_count) {  // unequal counts are refused by plan_blocks, which needs no items for that
        check_length(destination_is_local ? local : remote, local_count, destination_is_local ? local_text : remote_text);
    } else {
        refuse(Reason::value, remote_text, " has ", remote_count, " ids and ", local_text, " has ", local_count,
               "; block i of the one goes with block i of the other, so give as many of each");
    }
    const PlanSide local_side{local, copy_integers(local_blocks, local_text), local_text,
                              to_slice(local_slice, "local_slice")};
    const PlanSide remote_side{remote, copy_integers(remote_blocks, remote_text), remote_text,
                               to_slice(remote_slice, "remote_slice")};
    return unlocked(local_count,
                    [&] { return plan_blocks(local_side, remote_side, destination_is_local, same_process); });
}

std::shared_ptr<CopyPlan> entry_plan(const Geometry &local, const Geometry &remote, const py::object &local_entry,
                                     const py::object &remote_entry, const py::object &size, bool destination_is_local,
                                     const py::str &local_name, const py::str &remote_name, const py::str &size_name,
                                     bool same_process) {
    const EntryNames names{text(local_name), text(remote_name), text(size_name)};
    std::optional<std::uint64_t> bytes;
    if (!size.is_none()) {
        bytes = to_uint64(size, names.size);
    }
    return plan_entry(local, remote, to_uint64(local_entry, names.local), to_uint64(remote_entry, names.remote), bytes,
                      destination_is_local, names, same_process);
}

std::shared_ptr<CopyPlan> entry_to_blocks_plan(const Geometry &local, const Geometry &remote,
                                               const py::object &local_blocks, const py::object &remote_entry,
                                               const py::str &blocks_name, const py::str &entry_name,
                                               bool same_process) {
    const char *name = text(blocks_name);
    const std::size_t count = count_integers(local_blocks, name);
    check_length(local, count, name);
    const PlanSide side{local, copy_integers(local_blocks, name), name, std::nullopt};
    const std::uint64_t entry = to_uint64(remote_entry, text(entry_name));
    return unlocked(count, [&] { return plan_entry_to_blocks(side, remote, entry, text(entry_name), same_process); });
}

}  // namespace

void register_planning(py::module_ &module) {
    module.def("plan_blocks", &blocks_plan, py::arg("local"), py::arg("remote"), py::arg("local_blocks"),
               py::arg("remote_blocks"), py::arg("destination_is_local"), py::arg("local_name"),
               py::arg("remote_name"), py::arg("local_slice"), py::arg("remote_slice"), py::arg("same_process"),
               "See cachecore.planning.plan_blocks.");
    module.def("plan_entry", &entry_plan, py::arg("local"), py::arg("remote"), py::arg("local_entry"),
               py::arg("remote_entry"), py::arg("size"), py::arg("destination_is_local"), py::arg("local_name"),
               py::arg("remote_name"), py::arg("size_name"), py::arg("same_process"),
               "See cachecore.planning.plan_entry.");
    module.def("plan_entry_to_blocks", &entry_to_blocks_plan, py::arg("local"), py::arg("remote"),
               py::arg("local_blocks"), py::arg("remote_entry"), py::arg("blocks_name"), py::arg("entry_name"),
               py::arg("same_process"), "See cachecore.planning.plan_entry_to_blocks.");
}

}  // namespace cachecore
