// Devices and contexts. A device is named by its visible number; every thread has its own current context.
#pragma once

#include <memory>

namespace emulator {

class Stream;

struct Context {
    int device = 0;
    std::shared_ptr<Stream> default_stream;
};

// The calling thread's current context. Throws Failure 107002 without one.
std::shared_ptr<Context> current_context();

// Visible devices. Throws Failure 107001 for a number that is none.
int device_count();
void check_device(int device);

}  // namespace emulator
