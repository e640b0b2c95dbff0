// Streams: queues of work, each done in order by a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace emulator {

struct Context;

class Stream {
public:
    // Work looks at `aborted` now and then and ends early when it is set; what it returns is the stream's error.
    using Work = std::function<int(const std::atomic<bool> &aborted)>;

    explicit Stream(const Context *context) : context_(context) {}
    ~Stream();
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    const Context *context() const { return context_; }

    // Throws Failure 107023 while the stream is being aborted.
    void submit(Work work);

    // Waits until all work is done: 0, 107019 after the timeout, 107023 when it was aborted meanwhile, or the first
    // error of work since the last time. A negative timeout waits for ever.
    int synchronize(std::chrono::milliseconds timeout);

    // Stops the work that runs and drops what waits.
    void abort();

private:
    void run();

    const Context *context_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    std::thread worker_;  // started with the first work
    std::atomic<bool> aborted_{false};
    bool busy_ = false;
    bool closing_ = false;
    std::uint64_t aborts_ = 0;
    int error_ = 0;
};

// Sleeps in small steps so that an abort ends it soon. False when it was aborted.
bool sleep_unless(const std::atomic<bool> &aborted, std::chrono::nanoseconds duration);

std::shared_ptr<Stream> make_stream(const Context *context);

// The stream behind a handle of the caller, or the current context's default one for NULL. Throws Failure 107003 when
// it belongs to another context or is gone.
std::shared_ptr<Stream> stream_of(const char *function, void *handle);

// Finishes and destroys every stream of a context, for its reset.
void destroy_streams(const Context *context);

}  // namespace emulator
