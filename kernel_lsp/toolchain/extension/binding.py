"""A lightweight replacement for pybind11, for extensions that only bind functions: pybind11 is half of their host
code's compile time.

It provides `PYBIND11_MODULE`, `m.def("name", &function, "what it does")` and the usual types of functions on tensors.
Any other type fails to compile, and the extension is then compiled with pybind11 itself. Errors are those of pybind11:
a TypeError for unsuitable arguments, a RuntimeError for an exception in the function. It trusts the address in an
object's `_cdata`, since its caller is the process that loaded the extension.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

PYTHON_VARIABLE = "torch/csrc/autograd/python_variable.h"
"""PyTorch's declaration of the function that wraps a tensor in a Python object; the header itself includes too much."""
WRAPS = ("PyObject* THPVariable_Wrap(const at::TensorBase& var);", "PyObject* THPVariable_Wrap(at::TensorBase var);")
"""Alternative declarations: the parameter type depends on the release."""
REPLACED = ("pybind11/.*", "torch/csrc/utils/pybind.h", "torch/python.h")
_ONLY_PYBIND11 = re.compile(r"\b(?:py|pybind11)\s*::|\bpybind11\s*;|\bPYBIND11_(?!MODULE\b)")
BINDING = r"""#include <Python.h>
#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
WRAP
namespace light_binding {

struct Misfit {};

template <typename T, typename = void> struct Value;

template <> struct Value<at::Tensor> {
    static at::Tensor read(PyObject* given) {
        PyObject* address = PyObject_GetAttrString(given, "_cdata");
        if (address == nullptr) { PyErr_Clear(); throw Misfit(); }
        void* impl = PyLong_Check(address) ? PyLong_AsVoidPtr(address) : nullptr;
        Py_DECREF(address);
        if (impl == nullptr) { PyErr_Clear(); throw Misfit(); }
        return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
            static_cast<c10::TensorImpl*>(impl)));
    }
    static PyObject* write(const at::Tensor& value) { return THPVariable_Wrap(value); }
};

template <> struct Value<bool> {
    static bool read(PyObject* given) {
        const int value = PyObject_IsTrue(given);
        if (value < 0) { PyErr_Clear(); throw Misfit(); }
        return value != 0;
    }
    static PyObject* write(bool value) { return PyBool_FromLong(value); }
};

template <typename T> struct Value<T, std::enable_if_t<std::is_integral_v<T>>> {
    static T read(PyObject* given) {
        if (PyFloat_Check(given)) throw Misfit();
        PyObject* whole = PyNumber_Index(given);
        if (whole == nullptr) { PyErr_Clear(); throw Misfit(); }
        int overflow = 0;
        const long long value = PyLong_AsLongLongAndOverflow(whole, &overflow);
        Py_DECREF(whole);
        if (overflow != 0 || static_cast<long long>(static_cast<T>(value)) != value) throw Misfit();
        return static_cast<T>(value);
    }
    static PyObject* write(T value) { return PyLong_FromLongLong(static_cast<long long>(value)); }
};

template <typename T> struct Value<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    static T read(PyObject* given) {
        const double value = PyFloat_AsDouble(given);
        if (value == -1.0 && PyErr_Occurred()) { PyErr_Clear(); throw Misfit(); }
        return static_cast<T>(value);
    }
    static PyObject* write(T value) { return PyFloat_FromDouble(value); }
};

template <> struct Value<std::string> {
    static std::string read(PyObject* given) {
        Py_ssize_t size = 0;
        const char* text = PyUnicode_Check(given) ? PyUnicode_AsUTF8AndSize(given, &size) : nullptr;
        if (text == nullptr) { PyErr_Clear(); throw Misfit(); }
        return std::string(text, size);
    }
    static PyObject* write(const std::string& value) {
        return PyUnicode_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size()));
    }
};

template <typename T> struct Value<std::optional<T>> {
    static std::optional<T> read(PyObject* given) {
        if (given == Py_None) return std::nullopt;
        return Value<T>::read(given);
    }
    static PyObject* write(const std::optional<T>& value) {
        if (value.has_value()) return Value<T>::write(*value);
        Py_RETURN_NONE;
    }
};

template <typename Items> PyObject* write_list(const Items& items) {
    PyObject* made = PyList_New(static_cast<Py_ssize_t>(items.size()));
    Py_ssize_t place = 0;
    for (const auto& item : items) {
        PyObject* each = Value<std::decay_t<decltype(item)>>::write(item);
        if (made == nullptr || each == nullptr) { Py_XDECREF(made); Py_XDECREF(each); return nullptr; }
        PyList_SET_ITEM(made, place++, each);
    }
    return made;
}

template <typename T> struct Value<std::vector<T>> {
    static std::vector<T> read(PyObject* given) {
        if (!PyList_Check(given) && !PyTuple_Check(given)) throw Misfit();
        std::vector<T> values;
        for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(given); ++place) {
            values.push_back(Value<T>::read(PySequence_Fast_GET_ITEM(given, place)));
        }
        return values;
    }
    static PyObject* write(const std::vector<T>& values) { return write_list(values); }
};

template <typename T, size_t N> struct Value<std::array<T, N>> {
    static PyObject* write(const std::array<T, N>& values) { return write_list(values); }
};

template <typename Items, size_t... I> PyObject* write_tuple(const Items& items, std::index_sequence<I...>) {
    PyObject* made = PyTuple_New(sizeof...(I));
    if (made == nullptr) return nullptr;
    (PyTuple_SET_ITEM(made, I, Value<std::decay_t<decltype(std::get<I>(items))>>::write(std::get<I>(items))), ...);
    for (size_t place = 0; place < sizeof...(I); ++place) {
        if (PyTuple_GET_ITEM(made, place) == nullptr) { Py_DECREF(made); return nullptr; }
    }
    return made;
}

template <typename... T> struct Value<std::tuple<T...>> {
    static PyObject* write(const std::tuple<T...>& values) {
        return write_tuple(values, std::index_sequence_for<T...>());
    }
};

template <typename A, typename B> struct Value<std::pair<A, B>> {
    static PyObject* write(const std::pair<A, B>& values) {
        return write_tuple(values, std::index_sequence_for<A, B>());
    }
};

template <typename R, typename... A, size_t... I>
PyObject* called(R (*function)(A...), PyObject* const* given, std::index_sequence<I...>) {
    std::tuple<std::decay_t<A>...> values{Value<std::decay_t<A>>::read(given[I])...};
    if constexpr (std::is_void_v<R>) {
        function(static_cast<A>(std::get<I>(values))...);
        Py_RETURN_NONE;
    } else {
        return Value<std::decay_t<R>>::write(function(static_cast<A>(std::get<I>(values))...));
    }
}

template <typename R, typename... A>
PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t n_given) {
    auto function = reinterpret_cast<R (*)(A...)>(PyCapsule_GetPointer(self, nullptr));
    const char* problem = "incompatible function arguments";
    try {
        if (n_given != static_cast<Py_ssize_t>(sizeof...(A))) throw Misfit();
        return called(function, given, std::index_sequence_for<A...>());
    } catch (const Misfit&) {
        PyErr_Format(PyExc_TypeError, "%s: the function takes %zd, of other types perhaps; it was given %zd", problem,
                     static_cast<Py_ssize_t>(sizeof...(A)), n_given);
    } catch (const c10::Error& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::out_of_range& error) {
        PyErr_SetString(PyExc_IndexError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "an exception that is no std::exception");
    }
    return nullptr;
}

struct Text {
    Text& operator=(const char*) { return *this; }
    Text& operator=(const std::string&) { return *this; }
};

class module_ {
public:
    explicit module_(PyObject* module) : module_object(module) {}
    Text doc() { return {}; }
    template <typename R, typename... A> module_& def(const char* name, R (*function)(A...), const char* doc = "") {
        auto caller = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call<R, A...>));
        auto* method = new PyMethodDef{name, caller, METH_FASTCALL, doc};
        PyObject* self = PyCapsule_New(reinterpret_cast<void*>(function), nullptr, nullptr);
        PyObject* made = self == nullptr ? nullptr : PyCFunction_NewEx(method, self, nullptr);
        Py_XDECREF(self);
        if (made != nullptr) PyModule_AddObject(module_object, name, made);
        return *this;
    }
    template <typename F, typename = std::enable_if_t<std::is_class_v<F>>>
    module_& def(const char* name, F function, const char* doc = "") {
        return def(name, +function, doc);
    }

private:
    PyObject* module_object;
};

}  // namespace light_binding

#define LIGHT_BINDING_JOINED(one, other) one##other
#define LIGHT_BINDING_INIT(name) LIGHT_BINDING_JOINED(PyInit_, name)
#define LIGHT_BINDING_TEXT(name) #name
#define LIGHT_BINDING_NAME(name) LIGHT_BINDING_TEXT(name)
#define PYBIND11_MODULE(name, variable)                                                                     \
    static void light_binding_define(light_binding::module_& variable);                                     \
    extern "C" __attribute__((visibility("default"))) PyObject* LIGHT_BINDING_INIT(name)() {                \
        static PyModuleDef definition = {PyModuleDef_HEAD_INIT, LIGHT_BINDING_NAME(name), nullptr, -1, nullptr}; \
        PyObject* made = PyModule_Create(&definition);                                                      \
        if (made != nullptr) {                                                                              \
            light_binding::module_ module(made);                                                            \
            light_binding_define(module);                                                                   \
        }                                                                                                   \
        if (made != nullptr && PyErr_Occurred()) { Py_DECREF(made); return nullptr; }                       \
        return made;                                                                                        \
    }                                                                                                       \
    static void light_binding_define([[maybe_unused]] light_binding::module_& variable)
"""


def light_binding(text: str, includes: Sequence[Path]) -> str:
    """Return the header of the binding for an extension; empty when it needs pybind11, because it names parts of it or
    this PyTorch declares the used functions differently."""
    if _ONLY_PYBIND11.search(text):
        return ""
    header = next((path for folder in includes if (path := folder / PYTHON_VARIABLE).is_file()), None)
    declared = "" if header is None else header.read_text(encoding="utf-8", errors="replace")
    wrap = next((wrap for wrap in WRAPS if wrap in declared), None)
    return "" if wrap is None else BINDING.replace("WRAP", wrap, 1)
