#include "slices.hpp"

#include <algorithm>
#include <string>

#include "refusal.hpp"

namespace cachecore {

namespace {

std::string slice_text(const Slice &slice) {
    std::string text = "(" + std::to_string(slice.offset) + ", " + std::to_string(slice.length);
    if (slice.count != 1) {
        text += ", " + std::to_string(slice.count) + ", " + std::to_string(slice.stride);
    }
    return text + ")";
}

// Where a slice is read next.
class PieceCursor {
public:
    explicit PieceCursor(const Slice &slice) : slice_(slice) {}
    bool at_end() const { return piece_ == slice_.count; }
    std::uint64_t offset() const { return slice_.offset + piece_ * slice_.stride + within_; }
    std::uint64_t left() const { return slice_.length - within_; }
    void advance(std::uint64_t bytes) {
        within_ += bytes;
        if (within_ == slice_.length) {
            within_ = 0;
            ++piece_;
        }
    }

private:
    const Slice &slice_;
    std::uint64_t piece_ = 0;
    std::uint64_t within_ = 0;
};

}  // namespace

Slice within_block(const std::optional<Slice> &slice, std::uint64_t block_bytes, const char *name) {
    if (!slice) {
        return {0, block_bytes};
    }
    Slice checked = *slice;
    if (checked.count > 1 && checked.stride < checked.length) {
        refuse(Reason::value, name, " is ", slice_text(checked), "; the stride must be at least the ", checked.length,
               " bytes of a piece, or pieces would overlap");
    }
    std::uint64_t end = 0;
    if (checked.length == 0 || checked.count == 0 || __builtin_mul_overflow(checked.count - 1, checked.stride, &end) ||
        __builtin_add_overflow(end, checked.length, &end) || __builtin_add_overflow(end, checked.offset, &end) ||
        end > block_bytes) {
        refuse(Reason::value, name, " is ", slice_text(checked),
               "; a slice has at least 1 byte and ends within its block of ", block_bytes, " bytes");
    }
    if (checked.count == 1 || checked.stride == checked.length) {
        return {checked.offset, checked.total()};
    }
    return checked;
}

std::vector<Run> pair_pieces(const Slice &local, const Slice &remote) {
    std::vector<Run> pieces;
    PieceCursor here(local);
    PieceCursor there(remote);
    while (!here.at_end()) {
        const std::uint64_t length = std::min(here.left(), there.left());
        append_run(pieces, {here.offset(), there.offset(), length});
        here.advance(length);
        there.advance(length);
    }
    return pieces;
}

}  // namespace cachecore
