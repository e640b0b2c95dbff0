// One side of a transfer: where the blocks of a cache's tensors are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cachecore {

// Block b of tensor t is the block_bytes bytes from bases[t] + offset + b * block_stride on. The constructor proves
// that every block ends within tensor_bytes and every tensor below 2**64, so that planning adds without checks.
class Geometry {
public:
    Geometry(std::vector<std::uint64_t> bases, std::uint64_t blocks, std::uint64_t block_bytes,
             std::uint64_t block_stride, std::uint64_t offset, std::uint64_t tensor_bytes);

    // The same geometry of every `step`-th of the tensors [start, stop) only.
    Geometry part(std::size_t start, std::size_t stop, std::size_t step) const;

    std::size_t tensors() const { return count_; }
    std::uint64_t base(std::size_t tensor) const { return (*bases_)[first_ + tensor * step_]; }
    std::uint64_t blocks() const { return blocks_; }
    std::uint64_t block_bytes() const { return block_bytes_; }
    std::uint64_t block_stride() const { return block_stride_; }
    std::uint64_t offset() const { return offset_; }
    std::uint64_t tensor_bytes() const { return tensor_bytes_; }

private:
    std::shared_ptr<const std::vector<std::uint64_t>> bases_;
    std::size_t first_;
    std::size_t step_;
    std::size_t count_;
    std::uint64_t blocks_;
    std::uint64_t block_bytes_;
    std::uint64_t block_stride_;
    std::uint64_t offset_;
    std::uint64_t tensor_bytes_;
};

}  // namespace cachecore
