// The extension module cachecore._core: one register function a file.
#include <pybind11/pybind11.h>

#include "copy_plan.hpp"
#include "geometry.hpp"
#include "planning.hpp"
#include "refusal.hpp"

PYBIND11_MODULE(_core, module) {
    module.doc() = "Native parts of cachecore: plans, copies between processes, shared memory.";
    cachecore::register_refusal(module);
    cachecore::register_geometry(module);
    cachecore::register_copy_plan(module);
    cachecore::register_planning(module);
}
