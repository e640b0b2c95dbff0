// The runtime library, opened at run time, each function resolved on its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "acl.hpp"

namespace cachecore::ascend {

// Never closed: device contexts and threads of the runtime outlive every object here.
class Library {
public:
    // Opens a file, or a name that the dynamic loader looks for. Throws LoadFailure.
    explicit Library(const std::string &name);
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;

    // Where the loader found it.
    const std::string &path() const { return path_; }
    // Optional functions it does not have.
    const std::vector<std::string> &missing() const { return missing_; }

    // aclInit; false when somebody else had done it, which is no error.
    bool initialise() const;
    // Name of the SoC, empty when the runtime does not say.
    std::string soc_name() const;
    std::uint32_t device_count() const;
    // The calling thread's device; none when it has no context.
    std::optional<std::int32_t> current_device() const;
    // Version of a package ("runtime", "driver"); none when the runtime cannot say.
    std::optional<std::string> package_version(const std::string &package) const;
    // Version of the interface; none when the runtime cannot say.
    std::optional<std::string> interface_version() const;

    // Text of the last error of the calling thread, empty when there is none. Reading it clears it.
    std::string recent_message() const;
    // Throws AclFailure unless the code is success.
    void check(const char *function, acl::Error code) const;

#define CACHECORE_ACL_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
    CACHECORE_ACL_REQUIRED(CACHECORE_ACL_MEMBER)
    CACHECORE_ACL_OPTIONAL(CACHECORE_ACL_MEMBER)
#undef CACHECORE_ACL_MEMBER

    // The driver below the runtime may refuse what the runtime has; remembered, so that it is asked once.
    mutable std::atomic<bool> batches_refused{false};
    mutable std::atomic<bool> capture_mode_refused{false};

private:
    std::string path_;
    std::vector<std::string> missing_;
};

// Path of a library that this process has loaded already; none otherwise. Loads nothing.
std::optional<std::string> loaded_library(const std::string &name);

}  // namespace cachecore::ascend
