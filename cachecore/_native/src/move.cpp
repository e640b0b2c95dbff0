#include "move.hpp"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "refusal.hpp"

namespace cachecore {

namespace {

constexpr std::uint64_t max_threads = 1024;

double monotonic_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Cause reason_to_stop(const MoveLimits &limits) {
    if (limits.cancel != nullptr && __atomic_load_n(limits.cancel, __ATOMIC_RELAXED) != 0) {
        return Cause::cancelled;
    }
    return monotonic_seconds() >= limits.deadline ? Cause::deadline : Cause::none;
}

// What all threads of one move share.
class Move {
public:
    Move(const CopyPlan &plan, const MoveLimits &limits, const BatchMover &mover)
        : plan_(plan), limits_(limits), mover_(mover), queue_(plan, limits.batch_bytes) {
        unfinished_.reserve(limits.threads + 1);  // so that fail() cannot run out of memory
    }

    // One thread's part. Never throws.
    void work() noexcept {
        Batch batch;
        while (!stopped_.load(std::memory_order_relaxed)) {
            const Cause reason = reason_to_stop(limits_);
            if (reason != Cause::none) {
                fail(reason, 0, 0);
                return;
            }
            if (!queue_.claim(batch)) {
                return;
            }
            const std::uint64_t start = batch.start();
            const std::uint64_t end = start + batch.bytes();
            const Moved moved = mover_(batch);
            system_calls_.fetch_add(moved.system_calls, std::memory_order_relaxed);
            if (moved.cause != Cause::none) {
                fail(moved.cause, moved.code, moved.fault_address,
                     {start + moved.verified, start + moved.touched, end});
                return;
            }
        }
    }

    TransferReport report() {
        report_.system_calls = system_calls_.load();
        const std::uint64_t claimed = queue_.claimed();
        if (claimed < plan_.nbytes()) {
            unfinished_.push_back({claimed, claimed, plan_.nbytes()});
        } else if (unfinished_.empty()) {
            report_.cause = Cause::none;  // the deadline passed, or somebody cancelled, when everything had landed
        }
        report_.settle(plan_, std::move(unfinished_));
        return std::move(report_);
    }

private:
    void fail(Cause cause, int code, std::uint64_t address, const Unfinished &part = {0, 0, 0}) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (report_.cause == Cause::none) {
            report_.cause = cause;
            report_.code = code;
            report_.fault_address = address;
        }
        if (part.start < part.end) {
            unfinished_.push_back(part);
        }
        stopped_.store(true, std::memory_order_relaxed);
    }

    const CopyPlan &plan_;
    const MoveLimits &limits_;
    const BatchMover &mover_;
    BatchQueue queue_;
    std::atomic<bool> stopped_{false};
    std::atomic<std::uint64_t> system_calls_{0};
    std::mutex mutex_;
    TransferReport report_;
    std::vector<Unfinished> unfinished_;
};

// Threads that inherit a mask without signals: handlers keep running in the threads of the application.
std::vector<std::thread> start_helpers(Move &move, std::uint64_t count) {
    std::vector<std::thread> helpers;
    if (count == 0) {
        return helpers;
    }
    helpers.reserve(count);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        while (helpers.size() < count) {
            helpers.emplace_back([&move] { move.work(); });
        }
    } catch (const std::system_error &) {
        // The system gives no more threads: the ones there are, and the caller's, do the work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return helpers;
}

}  // namespace

TransferReport move_plan(const CopyPlan &plan, const MoveLimits &limits, const BatchMover &mover) {
    Move move(plan, limits, mover);
    std::uint64_t threads = 1;
    if (plan.nbytes() >= limits.threads_from) {
        threads = std::max<std::uint64_t>(1, std::min(limits.threads, plan.nbytes() / limits.batch_bytes));
    }
    std::vector<std::thread> helpers = start_helpers(move, threads - 1);
    move.work();
    for (std::thread &helper : helpers) {
        helper.join();
    }
    return move.report();
}

MoveLimits make_limits(double deadline, const unsigned char *cancel, std::uint64_t threads, std::uint64_t threads_from,
                       std::uint64_t batch_bytes) {
    if (std::isnan(deadline)) {
        refuse(Reason::value, "deadline is not a number; give seconds on time.monotonic()");
    }
    if (threads == 0 || threads > max_threads) {
        refuse(Reason::value, "threads is ", threads, "; it must be from 1 to ", max_threads);
    }
    if (batch_bytes == 0) {
        refuse(Reason::value, "batch_bytes is 0; a batch moves at least one byte");
    }
    return {deadline, cancel, threads, threads_from, batch_bytes};
}

}  // namespace cachecore
