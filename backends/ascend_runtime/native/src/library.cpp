#include "library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "failure.hpp"

namespace cachecore::ascend {

namespace {

std::string path_of(void *handle, const std::string &name) {
    link_map *map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr && *map->l_name != 0) {
        return map->l_name;
    }
    return name;
}

std::string joined(const std::vector<std::string> &names) {
    std::string text;
    for (const std::string &name : names) {
        text += (text.empty() ? "" : ", ") + name;
    }
    return text;
}

}  // namespace

Library::Library(const std::string &name) {
    void *handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char *reason = dlerror();
        throw LoadFailure(reason != nullptr ? reason : "the loader gives no reason");
    }
    path_ = path_of(handle, name);
    std::vector<std::string> needed;
#define CACHECORE_ACL_RESOLVE(symbol, result, parameters, absent)                        \
    symbol = reinterpret_cast<result(*) parameters>(dlsym(handle, #symbol));             \
    if (symbol == nullptr) {                                                             \
        absent.emplace_back(#symbol);                                                    \
    }
#define CACHECORE_ACL_NEED(symbol, result, parameters) CACHECORE_ACL_RESOLVE(symbol, result, parameters, needed)
#define CACHECORE_ACL_MAY(symbol, result, parameters) CACHECORE_ACL_RESOLVE(symbol, result, parameters, missing_)
    CACHECORE_ACL_REQUIRED(CACHECORE_ACL_NEED)
    CACHECORE_ACL_OPTIONAL(CACHECORE_ACL_MAY)
#undef CACHECORE_ACL_MAY
#undef CACHECORE_ACL_NEED
#undef CACHECORE_ACL_RESOLVE
    if (aclrtSynchronizeStreamWithTimeout == nullptr && aclrtSynchronizeStream == nullptr) {
        needed.emplace_back("aclrtSynchronizeStreamWithTimeout or aclrtSynchronizeStream");
    }
    if (aclrtSynchronizeStreamWithTimeout != nullptr) {  // the older wait is not missed then
        missing_.erase(std::remove(missing_.begin(), missing_.end(), "aclrtSynchronizeStream"), missing_.end());
    }
    if (!needed.empty()) {
        throw LoadFailure(path_ + ": it is loaded and lacks " + joined(needed) +
                          ", so it is not libascendcl, or older than any that is supported");
    }
}

bool Library::initialise() const {
    const acl::Error code = aclInit(nullptr);
    if (code == acl::repeat_initialise) {
        recent_message();  // it is no error here and must not be read as the text of the next one
        return false;
    }
    check("aclInit", code);
    return true;
}

std::string Library::soc_name() const {
    const char *name = aclrtGetSocName();
    return name != nullptr ? name : "";
}

std::uint32_t Library::device_count() const {
    std::uint32_t count = 0;
    check("aclrtGetDeviceCount", aclrtGetDeviceCount(&count));
    return count;
}

std::optional<std::int32_t> Library::current_device() const {
    std::int32_t device = -1;
    const acl::Error code = aclrtGetDevice(&device);
    if (code == acl::no_current_context) {
        recent_message();
        return std::nullopt;
    }
    check("aclrtGetDevice", code);
    return device;
}

std::optional<std::string> Library::package_version(const std::string &package) const {
    if (aclsysGetVersionStr == nullptr) {
        return std::nullopt;
    }
    std::string name = package;  // the function takes a pointer to char that is not const
    char text[acl::version_bytes + 1] = {};
    if (aclsysGetVersionStr(name.data(), text) != acl::success) {
        recent_message();
        return std::nullopt;
    }
    return text;
}

std::optional<std::string> Library::interface_version() const {
    if (aclrtGetVersion == nullptr) {
        return std::nullopt;
    }
    std::int32_t major = 0;
    std::int32_t minor = 0;
    std::int32_t patch = 0;
    if (aclrtGetVersion(&major, &minor, &patch) != acl::success) {
        recent_message();
        return std::nullopt;
    }
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::string Library::recent_message() const {
    if (aclGetRecentErrMsg == nullptr) {
        return {};
    }
    const char *text = aclGetRecentErrMsg();
    return text != nullptr ? text : "";
}

void Library::check(const char *function, acl::Error code) const {
    if (code != acl::success) {
        throw AclFailure(function, code, recent_message());
    }
}

std::optional<std::string> loaded_library(const std::string &name) {
    void *handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    if (handle == nullptr) {
        return std::nullopt;
    }
    std::string path = path_of(handle, name);
    dlclose(handle);  // only the count that RTLD_NOLOAD added
    return path;
}

}  // namespace cachecore::ascend
