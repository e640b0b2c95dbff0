// Python's way into planning: argument conversion only.
#include <string>

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
    if (values.size() == 2) {
        return Slice{values[0], values[1]};
    }
    if (values.size() != 4) {
        refuse(Reason::value, name, " is ", shown(slice),
               "; a slice is (offset, bytes) or (offset, bytes, count, stride), in bytes");
    }
    return Slice{values[0], values[1], values[2], values[3]};
}

const Geometry &to_geometry(const py::handle &object) {
    if (!py::isinstance<Geometry>(object)) {
        refuse(Reason::type, "a side of a part is ", shown(object), "; it must be a Geometry");
    }
    return object.cast<const Geometry &>();
}

// Items (local geometry, remote geometry, local slice, remote slice). Geometries are copied, which copies no addresses:
// the caller's list may change while the plan is made.
std::vector<PlanPart> to_parts(const py::tuple &items, const SideNames &names) {
    std::vector<PlanPart> parts;
    parts.reserve(items.size());
    for (const py::handle item : items) {
        if (!PyTuple_Check(item.ptr()) || PyTuple_GET_SIZE(item.ptr()) != 4) {
            refuse(Reason::type, "parts holds ", shown(item), "; each item has two geometries and two slices");
        }
        const auto fields = py::reinterpret_borrow<py::tuple>(item);
        parts.push_back({to_geometry(fields[0]), to_geometry(fields[1]), to_slice(fields[2], names.local_slice),
                         to_slice(fields[3], names.remote_slice)});
    }
    return parts;
}

// A list longer than the destination has blocks holds a block twice; found before anything is copied, so that
// range(2**40) costs nothing.
void check_length(std::uint64_t blocks, std::size_t count, const char *name) {
    if (count > blocks) {
        refuse(Reason::value, name, " has ", count, " ids; the cache has only ", blocks,
               " blocks, and blocks that are written or leased are named once each");
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

// An array of more dimensions has the length of its first one, which no message should call its number of ids.
void check_one_dimension(const py::object &list, const char *name) {
    const py::object dimensions = py::getattr(list, "ndim", py::none());
    if (py::isinstance<py::int_>(dimensions) && dimensions.cast<long>() != 1) {
        refuse(Reason::type, name, " is an array of ", dimensions.cast<long>(),
               " dimensions; give the blocks of one request, for example one row of a block table");
    }
}

// What the functions with two block lists have in common: the lists are looked at before they are copied.
std::shared_ptr<CopyPlan> listed_plan(const std::vector<PlanPart> &parts, const py::object &local_blocks,
                                      const py::object &remote_blocks, bool destination_is_local,
                                      const char *local_name, const char *remote_name, const SideNames &names,
                                      bool same_process) {
    const std::size_t local_count = count_integers(local_blocks, local_name);
    const std::size_t remote_count = count_integers(remote_blocks, remote_name);
    if (local_count != remote_count) {
        check_one_dimension(local_blocks, local_name);
        check_one_dimension(remote_blocks, remote_name);
        refuse(Reason::value, remote_name, " has ", remote_count, " ids and ", local_name, " has ", local_count,
               "; block i of the one goes with block i of the other, so give as many of each");
    }
    for (const PlanPart &part : parts) {
        check_length((destination_is_local ? part.local : part.remote).blocks(), local_count,
                     destination_is_local ? local_name : remote_name);
    }
    const BlockList local{copy_integers(local_blocks, local_name), local_name};
    const BlockList remote{copy_integers(remote_blocks, remote_name), remote_name};
    return unlocked(local_count * parts.size(), [&] {
        return plan_parts(parts, local, remote, destination_is_local, same_process, names);
    });
}

std::shared_ptr<CopyPlan> blocks_plan(const Geometry &local, const Geometry &remote, const py::object &local_blocks,
                                      const py::object &remote_blocks, bool destination_is_local,
                                      const py::str &local_name, const py::str &remote_name,
                                      const py::object &local_slice, const py::object &remote_slice,
                                      bool same_process) {
    const SideNames names;
    const std::vector<PlanPart> parts{
        {local, remote, to_slice(local_slice, names.local_slice), to_slice(remote_slice, names.remote_slice)}};
    return listed_plan(parts, local_blocks, remote_blocks, destination_is_local, text(local_name), text(remote_name),
                       names, same_process);
}

std::shared_ptr<CopyPlan> parts_plan(const py::tuple &parts, const py::object &local_blocks,
                                     const py::object &remote_blocks, bool destination_is_local,
                                     const py::str &local_name, const py::str &remote_name, bool same_process) {
    SideNames names;
    names.local_slice = destination_is_local ? "dst_slice" : "src_slice";
    names.remote_slice = destination_is_local ? "src_slice" : "dst_slice";
    return listed_plan(to_parts(parts, names), local_blocks, remote_blocks, destination_is_local, text(local_name),
                       text(remote_name), names, same_process);
}

// Adds the value or values of one item of a block map.
void add_destinations(const py::handle &value, const std::string &name, std::vector<std::uint64_t> &ids) {
    // Arrays have __index__ too, and those without a dimension are one integer.
    if (PyIndex_Check(value.ptr()) != 0 && (PySequence_Check(value.ptr()) == 0 || PyObject_Size(value.ptr()) < 0)) {
        PyErr_Clear();
        ids.push_back(to_uint64(value, name.c_str()));
        return;
    }
    const std::vector<std::uint64_t> values = copy_integers(value, name.c_str());
    if (values.empty()) {
        refuse(Reason::value, name, " is empty; name at least one destination block, or leave the source block out");
    }
    ids.insert(ids.end(), values.begin(), values.end());
}

std::shared_ptr<CopyPlan> map_blocks_plan(const Geometry &destination, const Geometry &source,
                                          const py::object &mapping, const py::str &map_name, bool same_process) {
    const char *name = text(map_name);
    PyObject *items = PyMapping_Items(mapping.ptr());  // a list of our own: __index__ of an item may change the mapping
    if (items == nullptr) {
        throw py::error_already_set();
    }
    const auto entries = py::reinterpret_steal<py::list>(items);
    if (entries.empty()) {
        refuse(Reason::value, name, " is empty; name at least one block");
    }
    const std::string key_name = std::string("a source block of ") + name;
    const std::string value_name = std::string("a destination block of ") + name;
    BlockList written{{}, value_name.c_str(), false};
    BlockList read{{}, key_name.c_str(), false};
    for (const py::handle entry : entries) {
        if (!PyTuple_Check(entry.ptr()) || PyTuple_GET_SIZE(entry.ptr()) != 2) {
            refuse(Reason::type, name, " has an item ", shown(entry), "; items() of a mapping gives pairs of blocks");
        }
        const auto pair = py::reinterpret_borrow<py::tuple>(entry);
        const std::uint64_t key = to_uint64(pair[0], key_name.c_str());
        add_destinations(pair[1], std::string(name) + "[" + std::to_string(key) + "]", written.ids);
        read.ids.resize(written.ids.size(), key);
    }
    const SideNames names{"destination", "source"};
    const std::vector<PlanPart> parts{{destination, source}};
    return unlocked(read.ids.size(), [&] { return plan_parts(parts, written, read, true, same_process, names); });
}

std::shared_ptr<CopyPlan> entry_plan(const Geometry &local, const Geometry &remote, const py::object &local_entry,
                                     const py::object &remote_entry, const py::object &size, bool destination_is_local,
                                     const py::str &local_name, const py::str &remote_name, const py::str &size_name,
                                     bool same_process, const py::object &local_offset,
                                     const py::object &remote_offset, const py::str &local_offset_name,
                                     const py::str &remote_offset_name) {
    const auto end = [](const Geometry &geometry, const py::object &entry, const py::str &name,
                        const py::object &offset, const py::str &offset_name) {
        return EntryEnd{geometry, to_uint64(entry, text(name)), to_uint64(offset, text(offset_name)), text(name),
                        text(offset_name)};
    };
    const char *size_text = text(size_name);
    std::optional<std::uint64_t> bytes;
    if (!size.is_none()) {
        bytes = to_uint64(size, size_text);
    }
    return plan_entry(end(local, local_entry, local_name, local_offset, local_offset_name),
                      end(remote, remote_entry, remote_name, remote_offset, remote_offset_name), bytes, size_text,
                      destination_is_local, same_process);
}

std::shared_ptr<CopyPlan> entry_to_blocks_plan(const Geometry &local, const Geometry &remote,
                                               const py::object &blocks, const py::object &entry,
                                               const py::str &blocks_name, const py::str &entry_name,
                                               bool same_process, bool destination_is_local) {
    const Geometry &paged = destination_is_local ? local : remote;
    const char *name = text(blocks_name);
    const std::size_t count = count_integers(blocks, name);
    check_length(paged.blocks(), count, name);
    const BlockList list{copy_integers(blocks, name), name};
    const EntryEnd end{destination_is_local ? remote : local, to_uint64(entry, text(entry_name)), 0, text(entry_name),
                       "offset"};
    return unlocked(count, [&] { return plan_entry_to_blocks(paged, list, end, destination_is_local, same_process); });
}

py::bytes pack_blocks(const py::object &blocks, const py::str &name) {
    const std::vector<std::uint64_t> ids = copy_integers(blocks, text(name));
    return {reinterpret_cast<const char *>(ids.data()), ids.size() * sizeof(std::uint64_t)};
}

std::int64_t first_missing(const py::object &allowed, const py::object &blocks) {
    const std::vector<std::uint64_t> present = copy_addresses(allowed, "allowed");
    const std::vector<std::uint64_t> ids = copy_integers(blocks, "blocks");
    const std::size_t position = find_missing(present, ids);
    return position == ids.size() ? -1 : static_cast<std::int64_t>(position);
}

}  // namespace

void register_planning(py::module_ &module) {
    module.def("plan_blocks", &blocks_plan, py::arg("local"), py::arg("remote"), py::arg("local_blocks"),
               py::arg("remote_blocks"), py::arg("destination_is_local"), py::arg("local_name"),
               py::arg("remote_name"), py::arg("local_slice"), py::arg("remote_slice"), py::arg("same_process"),
               "See cachecore.planning.plan_blocks.");
    module.def("plan_parts", &parts_plan, py::arg("parts"), py::arg("local_blocks"), py::arg("remote_blocks"),
               py::arg("destination_is_local"), py::arg("local_name"), py::arg("remote_name"), py::arg("same_process"),
               "See cachecore.planning.plan_parts.");
    module.def("plan_block_map", &map_blocks_plan, py::arg("destination"), py::arg("source"), py::arg("mapping"),
               py::arg("name"), py::arg("same_process"), "See cachecore.planning.plan_block_map.");
    module.def("plan_entry", &entry_plan, py::arg("local"), py::arg("remote"), py::arg("local_entry"),
               py::arg("remote_entry"), py::arg("size"), py::arg("destination_is_local"), py::arg("local_name"),
               py::arg("remote_name"), py::arg("size_name"), py::arg("same_process"), py::arg("local_offset") = 0,
               py::arg("remote_offset") = 0, py::arg("local_offset_name") = "local_offset",
               py::arg("remote_offset_name") = "remote_offset", "See cachecore.planning.plan_entry and plan_copy.");
    module.def("plan_entry_to_blocks", &entry_to_blocks_plan, py::arg("local"), py::arg("remote"), py::arg("blocks"),
               py::arg("entry"), py::arg("blocks_name"), py::arg("entry_name"), py::arg("same_process"),
               py::arg("destination_is_local") = true, "See cachecore.planning.plan_entry_to_blocks.");
    module.def("pack_blocks", &pack_blocks, py::arg("blocks"), py::arg("name"),
               "Native uint64 ids of a block list: a copy that nobody else can change.");
    module.def("first_missing", &first_missing, py::arg("allowed"), py::arg("blocks"),
               "Position of the first block that is not allowed, -1 when all are.");
}

}  // namespace cachecore
