// MemoryFacts for Python.
#include "bindings.hpp"
#include "query.hpp"

namespace py = pybind11;

namespace cachecore::ascend {

namespace {

const char *mapping_name(Mapping mapping) {
    switch (mapping) {
        case Mapping::unknown: return "unknown";
        case Mapping::no: return "no";
        case Mapping::yes: return "yes";
        case Mapping::partly: return "partly";
    }
    return "unknown";
}

}  // namespace

void register_query(py::module_ &module) {
    py::class_<MemoryFacts>(module, "MemoryFacts", py::is_final(), plain_class())
        .def_readonly("attributes_code", &MemoryFacts::attributes_code)
        .def_readonly("location", &MemoryFacts::location)
        .def_readonly("device", &MemoryFacts::device)
        .def_readonly("page_bytes", &MemoryFacts::page_bytes)
        .def_readonly("range_code", &MemoryFacts::range_code)
        .def_readonly("block_base", &MemoryFacts::block_base)
        .def_readonly("block_bytes", &MemoryFacts::block_bytes)
        .def_readonly("blocks", &MemoryFacts::blocks)
        .def_readonly("handle_code", &MemoryFacts::handle_code)
        .def_property_readonly("mapped", [](const MemoryFacts &facts) { return mapping_name(facts.mapped); })
        .def_readonly("covered", &MemoryFacts::covered);
}

}  // namespace cachecore::ascend
