#include "streams.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "call.hpp"
#include "context.hpp"
#include "settings.hpp"

namespace emulator {

namespace {

struct Registry {
    std::mutex mutex;
    std::map<const void *, std::shared_ptr<Stream>> streams;
};

Registry &registry() {
    static Registry &all = *new Registry;
    return all;
}

// Work that waits for what never comes must not hold the process for ever.
constexpr std::chrono::milliseconds longest_farewell{10000};

void finish(Stream &stream) {
    if (stream.synchronize(longest_farewell) == abi::kWaitTimeout) {
        stream.abort();
    }
}

std::shared_ptr<Stream> take(const char *function, void *handle) {
    auto stream = stream_of(function, handle);
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().streams.erase(handle);
    return stream;
}

}  // namespace

Stream::~Stream() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        closing_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) {
        worker_.join();
    }
}

void Stream::submit(Work work) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (aborted_.load()) {
            fail(abi::kStreamAborting, "the stream is being aborted");
        }
        queue_.push_back(std::move(work));
        if (!worker_.joinable()) {
            worker_ = std::thread([this] { run(); });
        }
    }
    changed_.notify_all();
}

int Stream::synchronize(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint64_t aborts = aborts_;
    const auto idle = [&] { return (queue_.empty() && !busy_) || aborts_ != aborts; };
    if (timeout.count() < 0) {
        changed_.wait(lock, idle);
    } else if (!changed_.wait_for(lock, timeout, idle)) {
        return report(abi::kWaitTimeout, "the stream still has work after the timeout");
    }
    if (aborts_ != aborts || aborted_.load()) {
        return report(abi::kStreamAborting, "the stream was aborted");
    }
    const int error = std::exchange(error_, 0);
    return error == 0 ? 0 : report(error, "queued work of the stream failed");
}

void Stream::abort() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++aborts_;
    aborted_.store(true);
    queue_.clear();
    changed_.notify_all();
    changed_.wait(lock, [&] { return !busy_; });
    error_ = 0;
    aborted_.store(false);
}

void Stream::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return !queue_.empty() || closing_; });
        if (queue_.empty()) {
            return;
        }
        Work work = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        const int error = work(aborted_);
        work = nullptr;  // what it holds goes before the stream says that it is idle
        lock.lock();
        busy_ = false;
        if (error_ == 0 && !aborted_.load()) {
            error_ = error;
        }
        changed_.notify_all();
    }
}

bool sleep_unless(const std::atomic<bool> &aborted, std::chrono::nanoseconds duration) {
    const auto end = std::chrono::steady_clock::now() + duration;
    while (!aborted.load()) {
        const auto left = end - std::chrono::steady_clock::now();
        if (left.count() <= 0) {
            return true;
        }
        std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left, std::chrono::milliseconds(2)));
    }
    return false;
}

std::shared_ptr<Stream> make_stream(const Context *context) {
    auto stream = std::make_shared<Stream>(context);
    const std::lock_guard<std::mutex> lock(registry().mutex);
    registry().streams.emplace(stream.get(), stream);
    return stream;
}

std::shared_ptr<Stream> stream_of(const char *function, void *handle) {
    const auto context = current_context();
    if (handle == nullptr) {
        return context->default_stream;
    }
    const std::lock_guard<std::mutex> lock(registry().mutex);
    const auto found = registry().streams.find(handle);
    if (found == registry().streams.end() || found->second->context() != context.get()) {
        fail(abi::kStreamNotInContext, function, ": ", handle, " is no stream of the current context");
    }
    return found->second;
}

void destroy_streams(const Context *context) {
    std::vector<std::shared_ptr<Stream>> ended;
    {
        const std::lock_guard<std::mutex> lock(registry().mutex);
        auto &streams = registry().streams;
        for (auto entry = streams.begin(); entry != streams.end();) {
            if (entry->second->context() == context) {
                ended.push_back(std::move(entry->second));
                entry = streams.erase(entry);
            } else {
                ++entry;
            }
        }
    }
    for (const auto &stream : ended) {
        finish(*stream);
    }
}

}  // namespace emulator

using emulator::Fault;
using emulator::Needs;
namespace abi = emulator::abi;

EMULATOR_API int aclrtCreateStream(void **stream) {
    return emulator::call("aclrtCreateStream", Needs::context, [&](const Fault &) {
        emulator::require("aclrtCreateStream", "stream", stream);
        *stream = emulator::make_stream(emulator::current_context().get()).get();
    });
}

// Waits for the stream's work, as the manual has it.
EMULATOR_API int aclrtDestroyStream(void *stream) {
    return emulator::call("aclrtDestroyStream", Needs::context, [&](const Fault &) {
        emulator::require("aclrtDestroyStream", "stream", stream);
        emulator::finish(*emulator::take("aclrtDestroyStream", stream));
    });
}

EMULATOR_API int aclrtSynchronizeStreamWithTimeout(void *stream, std::int32_t timeout) {
    int result = abi::kSuccess;
    const int code = emulator::call("aclrtSynchronizeStreamWithTimeout", Needs::context, [&](const Fault &) {
        if (timeout == 0 || timeout < -1) {
            emulator::fail(abi::kParameterInvalid, "aclrtSynchronizeStreamWithTimeout: timeout is ", timeout,
                           "; it must be -1 or above 0 milliseconds");
        }
        result = emulator::stream_of("aclrtSynchronizeStreamWithTimeout", stream)
                     ->synchronize(std::chrono::milliseconds(timeout));
    });
    return code == abi::kSuccess ? result : code;
}

EMULATOR_API int aclrtStreamAbort(void *stream) {
    return emulator::call("aclrtStreamAbort", Needs::context, [&](const Fault &) {
        if (stream == nullptr && emulator::settings().line == emulator::Line::ascend950) {
            emulator::fail(abi::kFeatureNotSupported, "aclrtStreamAbort: the default stream cannot be aborted on ",
                           emulator::settings().soc);
        }
        emulator::stream_of("aclrtStreamAbort", stream)->abort();
    });
}
