// Access to memory as a device has it.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
}
#endif

namespace emulator {

// While it lives, this thread moves bytes on behalf of a device. Who may touch them when is agreed on by programs,
// often of two processes, through messages that the thread sanitizer cannot see: it would report every one-sided
// transfer. Everything else in this library stays under its eyes.
class DeviceAccess {
public:
#if defined(__SANITIZE_THREAD__)
    DeviceAccess() {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~DeviceAccess() {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#else
    DeviceAccess() {}  // not defaulted: an unused object would be a warning
    ~DeviceAccess() {}
#endif
    DeviceAccess(const DeviceAccess &) = delete;
    DeviceAccess &operator=(const DeviceAccess &) = delete;
};

}  // namespace emulator
