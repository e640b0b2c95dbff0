// The plan: entries "FUNCTION:WHICH:ACTION" between semicolons.
//
// WHICH is a number n (the n-th call), "n+" (that and all later ones) or "*" (every call). ACTION is code=NUMBER,
// late=NUMBER, delay=SECONDS, truncate=BYTES or stall. FUNCTION is an exported function, or hixl_serve for a request
// that a peer makes.
#include "faults.hpp"

#include <dlfcn.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "abi.hpp"
#include "call.hpp"
#include "failure.hpp"
#include "settings.hpp"

EMULATOR_API int cachecore_emulator_set_faults(const char *plan);

namespace emulator {

namespace {

struct Planned {
    std::uint64_t first = 1;
    bool later_too = false;
    Fault fault;
};

struct Plan {
    std::map<std::string, std::vector<Planned>> entries;
    std::map<std::string, std::uint64_t> calls;
    std::string problem;
};

std::vector<std::string> split(const std::string &text, char separator) {
    std::vector<std::string> parts;
    std::size_t start = 0;
    while (true) {
        const auto end = text.find(separator, start);
        std::string part = text.substr(start, end == std::string::npos ? end : end - start);
        const auto first = part.find_first_not_of(" \t\n");
        const auto last = part.find_last_not_of(" \t\n");
        parts.push_back(first == std::string::npos ? std::string() : part.substr(first, last - first + 1));
        if (end == std::string::npos) {
            return parts;
        }
        start = end + 1;
    }
}

std::uint64_t number(const std::string &text, const std::string &entry) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
        fail(abi::kInvalidParameter, "fault plan entry '", entry, "': '", text, "' is not a whole number");
    }
    return value;
}

void read_action(const std::string &action, const std::string &entry, Fault &fault) {
    const auto equals = action.find('=');
    const std::string name = action.substr(0, equals);
    const std::string value = equals == std::string::npos ? std::string() : action.substr(equals + 1);
    if (name == "code") {
        fault.code = static_cast<int>(number(value, entry));
    } else if (name == "late") {
        fault.late_code = static_cast<int>(number(value, entry));
    } else if (name == "truncate") {
        fault.truncate = number(value, entry);
    } else if (name == "delay") {
        char *end = nullptr;
        const double seconds = std::strtod(value.c_str(), &end);
        if (value.empty() || *end != '\0' || !std::isfinite(seconds) || seconds < 0 || seconds > 86400) {
            fail(abi::kInvalidParameter, "fault plan entry '", entry, "': delay takes seconds from 0 to 86400");
        }
        fault.delay = std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
    } else if (action == "stall") {
        fault.stall = true;
    } else {
        fail(abi::kInvalidParameter, "fault plan entry '", entry, "': the action is '", action,
             "'; it must be code=NUMBER, late=NUMBER, delay=SECONDS, truncate=BYTES or stall");
    }
}

// A misspelt function would never fail, and a test with it would prove nothing.
void check_function(const std::string &function, const std::string &entry) {
    std::string symbol = function;
    if (function.rfind("hixl_", 0) == 0) {
        symbol = "cachecore_emulator_" + function;
    } else if (function.rfind("acl", 0) != 0) {
        symbol.clear();
    }
    static const std::set<std::string> without_symbol{"hixl_accept", "hixl_serve", "hixl_get_notifies"};
    if (without_symbol.count(function) != 0) {
        return;
    }
    Dl_info self{};
    dladdr(reinterpret_cast<void *>(&cachecore_emulator_set_faults), &self);
    void *const library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    const bool known = library != nullptr && !symbol.empty() && dlsym(library, symbol.c_str()) != nullptr;
    if (library != nullptr) {
        dlclose(library);
    }
    if (!known) {
        fail(abi::kInvalidParameter, "fault plan entry '", entry, "': '", function,
             "' is no function of this library; it must "
             "be one of the runtime, or hixl_ and the name of a method of the transfer engine, hixl_accept or "
             "hixl_serve");
    }
}

Plan parse(const std::string &text) {
    Plan plan;
    for (const auto &entry : split(text, ';')) {
        if (entry.empty()) {
            continue;
        }
        const auto parts = split(entry, ':');
        if (parts.size() != 3 || parts[0].empty()) {
            fail(abi::kInvalidParameter, "fault plan entry '", entry, "' must be FUNCTION:WHICH:ACTION");
        }
        check_function(parts[0], entry);
        Planned parsed;
        std::string which = parts[1];
        if (which == "*") {
            parsed.later_too = true;
        } else {
            if (!which.empty() && which.back() == '+') {
                parsed.later_too = true;
                which.pop_back();
            }
            parsed.first = number(which, entry);
        }
        read_action(parts[2], entry, parsed.fault);
        plan.entries[parts[0]].push_back(parsed);
    }
    return plan;
}

std::mutex &plan_mutex() {
    static std::mutex &mutex = *new std::mutex;
    return mutex;
}

Plan &current_plan() {
    static Plan &plan = *new Plan([] {
        try {
            return parse(settings().faults);
        } catch (const Failure &failure) {
            Plan unusable;
            unusable.problem = std::string("CACHECORE_EMULATE_FAULTS: ") + failure.what();
            return unusable;
        }
    }());
    return plan;
}

}  // namespace

Fault next_fault(const std::string &function) {
    const std::lock_guard<std::mutex> lock(plan_mutex());
    Plan &plan = current_plan();
    const std::uint64_t call = ++plan.calls[function];
    Fault fault;
    const auto found = plan.entries.find(function);
    if (found == plan.entries.end()) {
        return fault;
    }
    for (const auto &entry : found->second) {
        if (call != entry.first && !(entry.later_too && call > entry.first)) {
            continue;
        }
        fault.code = entry.fault.code != 0 ? entry.fault.code : fault.code;
        fault.late_code = entry.fault.late_code != 0 ? entry.fault.late_code : fault.late_code;
        fault.delay += entry.fault.delay;
        fault.truncate = entry.fault.truncate < fault.truncate ? entry.fault.truncate : fault.truncate;
        fault.stall = fault.stall || entry.fault.stall;
    }
    return fault;
}

void set_fault_plan(const std::string &text) {
    Plan plan = parse(text);
    const std::lock_guard<std::mutex> lock(plan_mutex());
    current_plan() = std::move(plan);
}

std::string fault_plan_problem() {
    const std::lock_guard<std::mutex> lock(plan_mutex());
    return current_plan().problem;
}

}  // namespace emulator

// For tests: replaces the plan (NULL or "" clears it) and starts counting calls anew. 0, or 100000 for a bad plan.
EMULATOR_API int cachecore_emulator_set_faults(const char *plan) {
    try {
        emulator::set_fault_plan(plan == nullptr ? "" : plan);
        return emulator::abi::kSuccess;
    } catch (const emulator::Failure &failure) {
        return emulator::report(failure.code(), failure.what());
    } catch (const std::exception &error) {
        return emulator::report(emulator::abi::kInternalError, error.what());
    }
}

// For tests: how often a function was called since the plan was last replaced.
EMULATOR_API std::uint64_t cachecore_emulator_calls(const char *function) {
    if (function == nullptr) {
        return 0;
    }
    const std::lock_guard<std::mutex> lock(emulator::plan_mutex());
    const auto &calls = emulator::current_plan().calls;
    const auto found = calls.find(function);
    return found == calls.end() ? 0 : found->second;
}
