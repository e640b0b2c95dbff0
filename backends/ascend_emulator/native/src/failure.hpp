// How a function says that it failed: a code for the caller and a sentence for aclGetRecentErrMsg.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace emulator {

class Failure : public std::runtime_error {
public:
    Failure(int code, const std::string &message) : std::runtime_error(message), code_(code) {}
    int code() const { return code_; }

private:
    int code_;
};

// Throws a Failure whose message is put together from `parts`.
template <typename... Parts>
[[noreturn]] void fail(int code, const Parts &...parts) {
    std::ostringstream text;
    (text << ... << parts);
    throw Failure(code, text.str());
}

// Keeps `message` as the calling thread's most recent one; returns `code`.
int report(int code, const std::string &message) noexcept;

}  // namespace emulator
