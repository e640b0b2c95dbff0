#include "scope.hpp"

namespace cachecore::ascend {

acl::Context current_context(const Library &library) {
    acl::Context context = nullptr;
    const acl::Error code = library.aclrtGetCurrentContext(&context);
    if (code == acl::no_current_context) {
        library.recent_message();
        return nullptr;
    }
    library.check("aclrtGetCurrentContext", code);
    return context;
}

namespace {

// The context that this library made current in a thread which had none, or had one of ours.
thread_local acl::Context bound_by_us = nullptr;

}  // namespace

bool bind_thread(const Library &library, acl::Context context) {
    const acl::Context before = current_context(library);
    if (before == context) {
        return true;
    }
    if (before != nullptr && before != bound_by_us) {
        return false;
    }
    library.check("aclrtSetCurrentContext", library.aclrtSetCurrentContext(context));
    bound_by_us = context;
    return true;
}

void note_bound(acl::Context context) { bound_by_us = context; }

BoundContext::BoundContext(const Library &library, acl::Context context) : library_(library) {
    const acl::Context before = current_context(library);
    if (before != context) {
        library.check("aclrtSetCurrentContext", library.aclrtSetCurrentContext(context));
        former_ = before;
        if (before == nullptr) {
            note_bound(context);
        }
    }
}

BoundContext::~BoundContext() {
    if (former_ != nullptr) {
        library_.aclrtSetCurrentContext(former_);  // only after another failure, which is reported instead
    }
}

void BoundContext::leave() {
    if (former_ != nullptr) {
        library_.check("aclrtSetCurrentContext", library_.aclrtSetCurrentContext(std::exchange(former_, nullptr)));
    }
}

RelaxedCapture::RelaxedCapture(const Library &library) : library_(library) {
    if (library.aclmdlRICaptureThreadExchangeMode == nullptr ||
        library.capture_mode_refused.load(std::memory_order_relaxed)) {
        return;
    }
    const acl::Error code = library.aclmdlRICaptureThreadExchangeMode(&mode_);
    if (acl::not_supported(code)) {
        library.recent_message();
        library.capture_mode_refused = true;
        return;
    }
    library.check("aclmdlRICaptureThreadExchangeMode", code);
    exchanged_ = true;
}

RelaxedCapture::~RelaxedCapture() {
    if (exchanged_) {
        library_.aclmdlRICaptureThreadExchangeMode(&mode_);  // only after another failure, which is reported instead
    }
}

void RelaxedCapture::leave() {
    if (std::exchange(exchanged_, false)) {
        library_.check("aclmdlRICaptureThreadExchangeMode", library_.aclmdlRICaptureThreadExchangeMode(&mode_));
    }
}

}  // namespace cachecore::ascend
