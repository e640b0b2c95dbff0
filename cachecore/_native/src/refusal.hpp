// How native code reports a bad argument: a C++ exception that becomes a leaf of cachecore.errors.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace cachecore {

// Which class of cachecore.errors is raised.
enum class Reason { type, value, missing, incompatible, overlap, out_of_memory };

// May be thrown without the GIL; Python objects are touched only when it is translated.
class Refusal : public std::exception {
public:
    Refusal(Reason reason, std::string message) : reason_(reason), message_(std::move(message)) {}
    Reason reason() const noexcept { return reason_; }
    const char *what() const noexcept override { return message_.c_str(); }

private:
    Reason reason_;
    std::string message_;
};

// Throws a Refusal whose message is the parts written one after the other.
template <class... Parts>
[[noreturn]] void refuse(Reason reason, const Parts &...parts) {
    std::ostringstream message;
    (message << ... << parts);
    throw Refusal(reason, message.str());
}

// A system call failed; becomes an EngineError with operation and code (an errno).
class SystemFailure : public std::exception {
public:
    SystemFailure(std::string operation, int code);
    const std::string &operation() const noexcept { return operation_; }
    int code() const noexcept { return code_; }
    const char *what() const noexcept override { return message_.c_str(); }

private:
    std::string operation_;
    int code_;
    std::string message_;
};

}  // namespace cachecore
