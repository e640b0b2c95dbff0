#include "capture.hpp"

#include <mutex>
#include <thread>

#include "call.hpp"

namespace emulator {

namespace {

struct Capture {
    std::mutex mutex;
    bool running = false;
    int mode = abi::kCaptureGlobal;
    std::thread::id thread;
};

Capture &capture() {
    static Capture &current = *new Capture;
    return current;
}

int &thread_mode() {
    thread_local int mode = abi::kCaptureGlobal;
    return mode;
}

void check_mode(const char *function, int mode) {
    if (mode < abi::kCaptureGlobal || mode > abi::kCaptureRelaxed) {
        fail(abi::kParameterInvalid, function, ": mode is ", mode,
             "; it must be 0 (global), 1 (thread local) or 2 (relaxed)");
    }
}

}  // namespace

void check_capture(const char *function) {
    const std::lock_guard<std::mutex> lock(capture().mutex);
    if (!capture().running || capture().mode == abi::kCaptureRelaxed || thread_mode() == abi::kCaptureRelaxed) {
        return;
    }
    const bool captures = capture().thread == std::this_thread::get_id();
    if (!captures && (capture().mode == abi::kCaptureThreadLocal || thread_mode() == abi::kCaptureThreadLocal)) {
        return;
    }
    fail(abi::kCaptureForbids, function, ": a graph is being captured in mode ", capture().mode,
         "; exchange the mode of this thread to relaxed (2) around the call");
}

}  // namespace emulator

namespace abi = emulator::abi;

// Sets the calling thread's mode and hands back the one it had.
EMULATOR_API int aclmdlRICaptureThreadExchangeMode(int *mode) {
    return emulator::call("aclmdlRICaptureThreadExchangeMode", emulator::Needs::context, [&](const emulator::Fault &) {
        emulator::require("aclmdlRICaptureThreadExchangeMode", "mode", mode);
        emulator::check_mode("aclmdlRICaptureThreadExchangeMode", *mode);
        const int before = emulator::thread_mode();
        emulator::thread_mode() = *mode;
        *mode = before;
    });
}

// For tests: a capture of the calling thread begins in `mode`, or ends.
EMULATOR_API int cachecore_emulator_begin_capture(int mode) {
    return emulator::call("cachecore_emulator_begin_capture", emulator::Needs::initialised,
                          [&](const emulator::Fault &) {
                              emulator::check_mode("cachecore_emulator_begin_capture", mode);
                              const std::lock_guard<std::mutex> lock(emulator::capture().mutex);
                              emulator::capture().running = true;
                              emulator::capture().mode = mode;
                              emulator::capture().thread = std::this_thread::get_id();
                          });
}

EMULATOR_API int cachecore_emulator_end_capture() {
    return emulator::call("cachecore_emulator_end_capture", emulator::Needs::initialised, [&](const emulator::Fault &) {
        const std::lock_guard<std::mutex> lock(emulator::capture().mutex);
        emulator::capture().running = false;
    });
}
