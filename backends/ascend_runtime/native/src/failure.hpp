// How native code reports what went wrong: C++ exceptions that become Python errors. They may be thrown without the GIL;
// Python objects are touched only when they are translated.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace cachecore::ascend {

// A function of the runtime answered with an error; becomes a cachecore_ascend_runtime.errors.AscendError.
class AclFailure : public std::exception {
public:
    // `detail` is the text of aclGetRecentErrMsg, read in the thread that failed, or empty.
    AclFailure(std::string function, int code, std::string detail)
        : function_(std::move(function)), code_(code), detail_(std::move(detail)) {}
    const std::string &function() const noexcept { return function_; }
    int code() const noexcept { return code_; }
    const std::string &detail() const noexcept { return detail_; }
    const char *what() const noexcept override { return function_.c_str(); }

private:
    std::string function_;
    int code_;
    std::string detail_;
};

// The library cannot be used; becomes an OSError with this text.
class LoadFailure : public std::exception {
public:
    explicit LoadFailure(std::string message) : message_(std::move(message)) {}
    const char *what() const noexcept override { return message_.c_str(); }

private:
    std::string message_;
};

// An argument has a value no rule allows; becomes a cachecore.errors.CacheValueError.
class Refusal : public std::exception {
public:
    explicit Refusal(std::string message) : message_(std::move(message)) {}
    const char *what() const noexcept override { return message_.c_str(); }

private:
    std::string message_;
};

// Throws a Refusal whose message is the parts written one after the other.
template <class... Parts>
[[noreturn]] void refuse(const Parts &...parts) {
    std::ostringstream message;
    (message << ... << parts);
    throw Refusal(message.str());
}

}  // namespace cachecore::ascend
