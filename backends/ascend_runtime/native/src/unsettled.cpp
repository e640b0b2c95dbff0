#include "unsettled.hpp"

#include "streams.hpp"

namespace cachecore::ascend {

bool Unsettled::settled() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (streams_.empty()) {
        return true;
    }
    return device_->run([&] {
        if (!stop(device_->library(), streams_, 0.001 * static_cast<double>(streams_.size()))) {
            return false;
        }
        while (!streams_.empty()) {
            const acl::Stream stream = streams_.back();
            streams_.pop_back();  // first: a stream that cannot be destroyed is idle all the same
            device_->streams().discard(stream);
        }
        return true;
    });
}

}  // namespace cachecore::ascend
