// One fault for each sanitizer, to prove that a sanitizer run watches: with a wrong preload everything would pass.
#include "bindings.hpp"

#ifdef CACHECORE_PLANTED_BUG

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "failure.hpp"

namespace cachecore::ascend {

namespace {

int heap_overflow() {
    const std::vector<int> items(4, 1);
    const volatile std::size_t behind = items.size();
    return items.data()[behind];
}

int signed_overflow() {
    volatile int largest = std::numeric_limits<int>::max();
    return largest + 1;
}

int data_race() {
    int counter = 0;
    const auto count = [&counter] {
        for (int i = 0; i < 1000; ++i) {
            counter = counter + 1;
        }
    };
    std::thread first(count);
    std::thread second(count);
    first.join();
    second.join();
    return counter;
}

int planted_bug(const std::string &kind) {
    if (kind == "address") {
        return heap_overflow();
    }
    if (kind == "undefined") {
        return signed_overflow();
    }
    if (kind == "thread") {
        return data_race();
    }
    refuse("kind is '", kind, "'; it must be address, undefined or thread");
}

}  // namespace

void register_planted_bug(pybind11::module_ &module) {
    module.def("planted_bug", &planted_bug, pybind11::arg("kind"), "Do what the named sanitizer must catch.");
}

}  // namespace cachecore::ascend

#else

namespace cachecore::ascend {

void register_planted_bug(pybind11::module_ & /*module*/) {}

}  // namespace cachecore::ascend

#endif

