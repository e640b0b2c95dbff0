// Graph capture forbids some calls, depending on the mode of the capture and of the calling thread.
#pragma once

namespace emulator {

// Throws Failure 107030 when a capture forbids `function` to the calling thread.
void check_capture(const char *function);

}  // namespace emulator
