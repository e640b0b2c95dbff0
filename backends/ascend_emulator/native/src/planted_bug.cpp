// One fault for each sanitizer, to prove that a sanitizer run watches. Not in an ordinary build.
#ifdef CACHECORE_PLANTED_BUG

#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "call.hpp"

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
        for (int step = 0; step < 1000; ++step) {
            counter = counter + 1;
        }
    };
    std::thread first(count);
    std::thread second(count);
    first.join();
    second.join();
    return counter;
}

}  // namespace

EMULATOR_API int cachecore_emulator_planted_bug(const char *kind) {
    const std::string_view wanted = kind == nullptr ? "" : kind;
    if (wanted == "address") {
        return heap_overflow();
    }
    if (wanted == "undefined") {
        return signed_overflow();
    }
    return wanted == "thread" ? data_race() : -1;
}

#endif
