#include "integers.hpp"

#include <cstring>
#include <string>

#include "bindings.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

constexpr const char *accepted =
    "give a list, tuple or range of integers, or a one-dimensional integer array in native byte order";

constexpr const char *not_negative = "; it must be 0 or more (-1 is often the padding of a table: cut the padding off)";

// Booleans have __index__ in some libraries; a true block id is always a mistake. The last dtype seen is remembered,
// because a list of scalars of one library shares one dtype object.
class BooleanFilter {
public:
    bool is_boolean(py::handle item) {
        if (PyBool_Check(item.ptr())) {
            return true;
        }
        py::object dtype = py::getattr(item, "dtype", py::none());
        if (dtype.is_none()) {
            return false;
        }
        if (!dtype.is(last_)) {
            const std::string text = py::str(dtype);
            const std::size_t dot = text.rfind('.');
            boolean_ = text.substr(dot == std::string::npos ? 0 : dot + 1) == "bool";
            last_ = dtype;
        }
        return boolean_;
    }

private:
    py::object last_;
    bool boolean_ = false;
};

// The value of an exact int or of anything with __index__; `label` makes the name for the message only when needed.
template <class Label>
std::uint64_t item_value(py::handle item, BooleanFilter &filter, const Label &label) {
    py::object number;
    if (PyLong_CheckExact(item.ptr())) {
        number = py::reinterpret_borrow<py::object>(item);
    } else {
        if (item.is_none()) {
            refuse(Reason::missing, label(), " is None; it must be an integer");
        }
        if (filter.is_boolean(item)) {
            refuse(Reason::type, label(), " is ", shown(item), "; it must be an integer, not a truth value");
        }
        PyObject *index = PyNumber_Index(item.ptr());
        if (index == nullptr) {
            if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
                throw py::error_already_set();  // an error of the object's own __index__
            }
            PyErr_Clear();
            refuse(Reason::type, label(), " is ", shown(item), "; it must be an integer");
        }
        number = py::reinterpret_steal<py::object>(index);
    }
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow == 0) {
        if (value < 0) {
            refuse(Reason::value, label(), " is ", value, not_negative);
        }
        return static_cast<std::uint64_t>(value);
    }
    if (overflow > 0) {
        const unsigned long long large = PyLong_AsUnsignedLongLong(number.ptr());
        if (PyErr_Occurred() == nullptr) {
            return large;
        }
        PyErr_Clear();
    }
    refuse(Reason::value, label(), " is ", shown(number), "; it must be from 0 to 2**64-1");
}

std::vector<std::uint64_t> copy_tuple(const py::tuple &items, const char *name) {
    const std::size_t count = items.size();
    std::vector<std::uint64_t> values(count);
    BooleanFilter filter;
    for (std::size_t i = 0; i < count; ++i) {
        PyObject *item = PyTuple_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
        values[i] = item_value(item, filter, [&] { return std::string(name) + "[" + std::to_string(i) + "]"; });
    }
    return values;
}

// Releases a Py_buffer on every way out.
class BufferView {
public:
    BufferView(py::handle object, const char *name) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_RECORDS_RO) != 0) {
            py::error_already_set reason;  // takes the error; arrays of dates refuse to be exported
            refuse(Reason::type, name, " is ", shown(object), " (", reason.what(), "); ", accepted);
        }
    }
    ~BufferView() { PyBuffer_Release(&view_); }
    BufferView(const BufferView &) = delete;
    BufferView &operator=(const BufferView &) = delete;
    const Py_buffer &operator*() const { return view_; }
    const Py_buffer *operator->() const { return &view_; }

private:
    Py_buffer view_{};
};

template <class Item>
void copy_strided(const Py_buffer &view, const char *name, std::vector<std::uint64_t> &values) {
    const char *source = static_cast<const char *>(view.buf);
    const Py_ssize_t step = view.strides != nullptr ? view.strides[0] : view.itemsize;
    for (std::size_t i = 0; i < values.size(); ++i, source += step) {
        Item item;
        std::memcpy(&item, source, sizeof item);  // strided views may be unaligned
        values[i] = static_cast<std::uint64_t>(item);
    }
    if constexpr (std::is_signed_v<Item>) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            // The copy is judged, not the array: it may change while we look.
            const auto item = static_cast<std::int64_t>(values[i]);
            if (item < 0) {
                refuse(Reason::value, name, "[", i, "] is ", item, not_negative);
            }
        }
    }
}

// '+' signed, '-' unsigned, 0 not an integer in native byte order.
char integer_kind(const char *format) {
    const std::uint16_t probe = 1;
    unsigned char first = 0;
    std::memcpy(&first, &probe, 1);
    const char native = first == 1 ? '<' : '>';
    if (format == nullptr) {
        return '-';  // by definition unsigned bytes
    }
    if (*format == '@' || *format == '=' || *format == native || (*format == '!' && native == '>')) {
        ++format;
    }
    if (format[0] == '\0' || format[1] != '\0') {
        return '\0';
    }
    if (std::strchr("bhilqn", *format) != nullptr) {
        return '+';
    }
    return std::strchr("BHILQN", *format) != nullptr ? '-' : '\0';
}

std::vector<std::uint64_t> copy_buffer(py::handle object, const char *name) {
    const BufferView view(object, name);
    if (view->ndim != 1) {
        refuse(Reason::type, name, " is an array of ", view->ndim, " dimensions; ", accepted);
    }
    const char kind = integer_kind(view->format);
    if (kind == '\0') {
        refuse(Reason::type, name, " is an array of format '", view->format, "'; ", accepted);
    }
    const auto count = static_cast<std::size_t>(view->shape != nullptr ? view->shape[0] : view->len / view->itemsize);
    std::vector<std::uint64_t> values(count);
    switch (kind == '+' ? view->itemsize : -view->itemsize) {
        case 1: copy_strided<std::int8_t>(*view, name, values); break;
        case 2: copy_strided<std::int16_t>(*view, name, values); break;
        case 4: copy_strided<std::int32_t>(*view, name, values); break;
        case 8: copy_strided<std::int64_t>(*view, name, values); break;
        case -1: copy_strided<std::uint8_t>(*view, name, values); break;
        case -2: copy_strided<std::uint16_t>(*view, name, values); break;
        case -4: copy_strided<std::uint32_t>(*view, name, values); break;
        case -8: copy_strided<std::uint64_t>(*view, name, values); break;
        default: refuse(Reason::type, name, " is an array of ", view->itemsize, "-byte items; ", accepted);
    }
    return values;
}

// A tensor by duck type: it says its dtype and device and can turn itself into a list.
py::tuple tensor_items(py::handle tensor, const char *name) {
    const std::string text = py::str(tensor.attr("dtype"));
    const std::size_t dot = text.rfind('.');
    const std::string dtype = text.substr(dot == std::string::npos ? 0 : dot + 1);
    if (dtype.compare(0, 3, "int") != 0 && dtype.compare(0, 4, "uint") != 0) {
        refuse(Reason::type, name, " is a tensor of ", text, "; ", accepted);
    }
    const py::object device = py::getattr(tensor, "device", py::none());
    if (!device.is_none()) {
        const std::string place = py::str(py::getattr(device, "type", device));
        if (place != "cpu") {
            refuse(Reason::type, name, " is a tensor on ", place,
                   "; reading it would wait for the device: give its .cpu() copy");
        }
    }
    const py::object items = tensor.attr("tolist")();
    if (!py::isinstance<py::list>(items)) {
        refuse(Reason::type, name, " is a tensor without a dimension; ", accepted);
    }
    return py::reinterpret_steal<py::tuple>(PyList_AsTuple(items.ptr()));
}

bool is_text_or_bytes(py::handle object) {
    return PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr()) || PyByteArray_Check(object.ptr());
}

}  // namespace

std::uint64_t to_uint64(py::handle value, const char *name) {
    BooleanFilter filter;
    return item_value(value, filter, [&] { return std::string(name); });
}

std::size_t count_integers(py::handle list, const char *name) {
    if (list.is_none()) {
        refuse(Reason::missing, name, " is None; ", accepted);
    }
    // Bytes are refused although they are buffers: packed 64-bit ids would be read as one id a byte.
    if (is_text_or_bytes(list) || !PySequence_Check(list.ptr())) {
        refuse(Reason::type, name, " is ", shown(list), "; ", accepted);
    }
    const Py_ssize_t count = PyObject_Size(list.ptr());
    if (count < 0) {
        if (PyErr_ExceptionMatches(PyExc_TypeError) == 0 && PyErr_ExceptionMatches(PyExc_OverflowError) == 0) {
            throw py::error_already_set();
        }
        PyErr_Clear();  // an array or tensor without a dimension has no length; a range can be too long for one
        refuse(Reason::type, name, " is ", shown(list), ", which has no usable length; ", accepted);
    }
    return static_cast<std::size_t>(count);
}

std::vector<std::uint64_t> copy_integers(py::handle list, const char *name) {
    count_integers(list, name);
    // __index__ of an item is foreign code that could change a list under us: look at a tuple made before.
    if (PyList_CheckExact(list.ptr())) {
        PyObject *items = PyList_AsTuple(list.ptr());
        if (items == nullptr) {
            throw py::error_already_set();
        }
        return copy_tuple(py::reinterpret_steal<py::tuple>(items), name);
    }
    if (PyObject_CheckBuffer(list.ptr())) {
        return copy_buffer(list, name);
    }
    if (!PyTuple_Check(list.ptr()) && !PyList_Check(list.ptr()) && py::hasattr(list, "dtype") &&
        py::hasattr(list, "tolist")) {
        return copy_tuple(tensor_items(list, name), name);
    }
    PyObject *items = PySequence_Tuple(list.ptr());
    if (items == nullptr) {
        throw py::error_already_set();  // an error of the sequence's own __getitem__
    }
    return copy_tuple(py::reinterpret_steal<py::tuple>(items), name);
}

std::vector<std::uint64_t> copy_addresses(py::handle list, const char *name) {
    if (!PyBytes_Check(list.ptr())) {
        return copy_integers(list, name);
    }
    const auto nbytes = static_cast<std::size_t>(PyBytes_GET_SIZE(list.ptr()));
    if (nbytes % sizeof(std::uint64_t) != 0) {
        refuse(Reason::value, name, " has ", nbytes, " bytes; packed addresses are 8 bytes each");
    }
    std::vector<std::uint64_t> values(nbytes / sizeof(std::uint64_t));
    if (nbytes != 0) {
        std::memcpy(values.data(), PyBytes_AS_STRING(list.ptr()), nbytes);
    }
    return values;
}

}  // namespace cachecore
