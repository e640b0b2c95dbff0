// The calling thread's most recent error message.
#include "failure.hpp"

#include "call.hpp"

namespace emulator {

namespace {

struct Recent {
    std::string latest;
    std::string handed_out;
};

Recent &recent() {
    thread_local Recent messages;
    return messages;
}

}  // namespace

int report(int code, const std::string &message) noexcept {
    try {
        recent().latest = message;
    } catch (...) {
        recent().latest.clear();  // no memory for the sentence; the code still says what happened
    }
    return code;
}

}  // namespace emulator

// Hands the message out once. The text stays valid until the thread asks again.
EMULATOR_API const char *aclGetRecentErrMsg() {
    auto &messages = emulator::recent();
    if (messages.latest.empty()) {
        return nullptr;
    }
    messages.handed_out.swap(messages.latest);
    messages.latest.clear();
    return messages.handed_out.c_str();
}
