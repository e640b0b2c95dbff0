#include "geometry.hpp"

#include <utility>

#include "bindings.hpp"
#include "integers.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

// offset + (blocks - 1) * stride + block_bytes; refused above 2**64-1.
std::uint64_t extent(std::uint64_t blocks, std::uint64_t block_bytes, std::uint64_t stride, std::uint64_t offset) {
    std::uint64_t end = 0;
    if (__builtin_mul_overflow(blocks - 1, stride, &end) || __builtin_add_overflow(end, block_bytes, &end) ||
        __builtin_add_overflow(end, offset, &end)) {
        refuse(Reason::value, "blocks is ", blocks, " with block_stride ", stride, " and offset ", offset,
               "; the last block must end below 2**64 bytes");
    }
    return end;
}

}  // namespace

Geometry::Geometry(std::vector<std::uint64_t> bases, std::uint64_t blocks, std::uint64_t block_bytes,
                   std::uint64_t block_stride, std::uint64_t offset, std::uint64_t tensor_bytes)
    : bases_(std::make_shared<const std::vector<std::uint64_t>>(std::move(bases))),
      first_(0),
      step_(1),
      count_(bases_->size()),
      blocks_(blocks),
      block_bytes_(block_bytes),
      block_stride_(block_stride),
      offset_(offset),
      tensor_bytes_(tensor_bytes) {
    if (count_ == 0) {
        refuse(Reason::value, "bases is empty; a cache has at least one tensor");
    }
    if (blocks == 0 || block_bytes == 0) {
        refuse(Reason::value, "blocks is ", blocks, " and block_bytes is ", block_bytes, "; both must be above 0");
    }
    if (block_stride < block_bytes) {
        refuse(Reason::value, "block_stride is ", block_stride, " bytes; it must be at least block_bytes (",
               block_bytes, "), or blocks would overlap");
    }
    const std::uint64_t end = extent(blocks, block_bytes, block_stride, offset);
    if (end > tensor_bytes) {
        refuse(Reason::value, "tensor_bytes is ", tensor_bytes, "; the last of ", blocks, " blocks ends at byte ", end,
               " of its tensor");
    }
    for (std::size_t tensor = 0; tensor < count_; ++tensor) {
        std::uint64_t last = 0;
        if (__builtin_add_overflow((*bases_)[tensor], tensor_bytes, &last)) {
            refuse(Reason::value, "bases[", tensor, "] is ", (*bases_)[tensor], "; with ", tensor_bytes,
                   " bytes the tensor runs past the address space");
        }
    }
}

Geometry Geometry::part(std::size_t start, std::size_t stop, std::size_t step) const {
    if (start >= stop || stop > count_) {
        refuse(Reason::value, "tensors ", start, " to ", stop, " were asked for; the range must be within 0 to ",
               count_, " and not be empty");
    }
    if (step == 0) {
        refuse(Reason::value, "step is 0; it must be at least 1");
    }
    Geometry copy = *this;
    copy.first_ = first_ + start * step_;
    copy.count_ = (stop - start - 1) / step + 1;
    // A single tensor has no next one; a large step must not overflow when parts are taken of parts.
    copy.step_ = copy.count_ == 1 ? 1 : step_ * step;
    return copy;
}

void register_geometry(py::module_ &module) {
    py::class_<Geometry>(module, "Geometry",
                         "One side of a transfer. Block b of tensor t is the block_bytes bytes from\n"
                         "bases[t] + offset + b * block_stride on. Immutable.",
                         plain_class(), py::is_final())
        .def(py::init([](const py::object &bases, const py::object &blocks, const py::object &block_bytes,
                         const py::object &block_stride, const py::object &offset, const py::object &tensor_bytes) {
                 const std::uint64_t count = to_uint64(blocks, "blocks");
                 const std::uint64_t bytes = to_uint64(block_bytes, "block_bytes");
                 const std::uint64_t stride = block_stride.is_none() ? bytes : to_uint64(block_stride, "block_stride");
                 const std::uint64_t first = to_uint64(offset, "offset");
                 const std::uint64_t total = !tensor_bytes.is_none() ? to_uint64(tensor_bytes, "tensor_bytes")
                                             : count == 0            ? 0
                                                                     : extent(count, bytes, stride, first);
                 return Geometry(copy_addresses(bases, "bases"), count, bytes, stride, first, total);
             }),
             py::arg("bases"), py::kw_only(), py::arg("blocks"), py::arg("block_bytes"),
             py::arg("block_stride") = py::none(), py::arg("offset") = 0, py::arg("tensor_bytes") = py::none())
        .def(
            "part",
            [](const Geometry &self, const py::object &start, const py::object &stop, const py::object &step) {
                return self.part(to_uint64(start, "start"), to_uint64(stop, "stop"), to_uint64(step, "step"));
            },
            py::arg("start"), py::arg("stop"), py::arg("step") = 1,
            "The same geometry of every step-th of the tensors start to stop (exclusive) only.")
        .def_property_readonly("tensors", &Geometry::tensors)
        .def_property_readonly("bases",
                               [](const Geometry &self) {
                                   py::tuple bases(self.tensors());
                                   for (std::size_t i = 0; i < self.tensors(); ++i) {
                                       bases[i] = py::int_(self.base(i));
                                   }
                                   return bases;
                               })
        .def_property_readonly("blocks", &Geometry::blocks)
        .def_property_readonly("block_bytes", &Geometry::block_bytes)
        .def_property_readonly("block_stride", &Geometry::block_stride)
        .def_property_readonly("offset", &Geometry::offset)
        .def_property_readonly("tensor_bytes", &Geometry::tensor_bytes)
        .def("__repr__", [](const Geometry &self) {
            std::ostringstream text;
            text << "Geometry(" << self.tensors() << " tensors, blocks=" << self.blocks()
                 << ", block_bytes=" << self.block_bytes() << ", block_stride=" << self.block_stride()
                 << ", offset=" << self.offset() << ", tensor_bytes=" << self.tensor_bytes() << ")";
            return text.str();
        });
}

}  // namespace cachecore
