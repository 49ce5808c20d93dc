// The fast path of elementwise dropout: from a layer to the kernel and back without the interpreter.
//
// Between two matrix products the interpreter's data have left the caches, and a line of Python costs microseconds. So
// what a small layer does most often is a function in C here: plain eager mode, a tensor on the CPU in any layout.
// Everything else is declined, and goes the general way in ops.py, which gives the same numbers.
//
// Only Python's limited interface is used, and torch only through its Python objects and through DLPack's table of C
// functions, which does not change with its version: no torch headers, and one build serves many versions of both.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <cstdint>
#include <cstring>

#include "interface.h"

namespace {

// What express.py hands over. The references are kept for ever.
struct Torch {
  PyObject *tensor, *parameter;                               // types
  PyObject *empty_like, *place, *zero, *limit;  // place() makes a tensor for a seed, from zero up to the limit
  PyObject *threads, *gradients_enabled;
  PyObject *transforms_active, *modes, *tracing, *forward_mode;  // who else may be looking at the tensor
  PyObject *law_of;                                           // (kind, params, scale) to the bytes of a Law
  PyObject *backends, *native;                                // the back ends in use by device, and ours
  PyObject *generator;                                        // type
  PyObject *contexts, *backward_task;                         // when a layer's own generator may not simply be drawn from
  PyObject *apply, *general;                                  // the autograd function, and the general way
} torch;

using Row = void (*)(const void*, void*, int32_t, int64_t, uint64_t, uint32_t, int32_t, const contdrop::Law*);
using Dropout = void (*)(const contdrop::Dropout*);
using Rectify = void (*)(const contdrop::Relu*);
Row row;
Dropout any_layout;
Rectify rectify;
constexpr uint32_t kMaskStream = 0;  // reference.STREAM_MASK

PyObject *s_call, *s_cpu, *s_current_level, *s_generator, *s_is_neg, *s_random, *s_requires_grad, *s_saved_tensors, *s_to_save;

// DLPack's table, version 1 (github.com/dmlc/dlpack): what a tensor is and where, by one call.
struct DLTensor {
  void* data;
  int32_t device, device_number, axes;
  uint8_t type, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;  // in bytes
};
struct Exchange {
  uint32_t major, minor;
  const void* older;
  void *allocate, *hand_over, *take_over;
  int (*describe)(void*, DLTensor*);
};
const Exchange* exchange;
constexpr int32_t kDLCpu = 1;
constexpr uint8_t kDLFloat = 2, kDLBfloat = 4;

// Owns a reference.
struct Ref {
  PyObject* object;
  explicit Ref(PyObject* object_) : object(object_) {}
  ~Ref() { Py_XDECREF(object); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  operator PyObject*() const { return object; }
};

// All of these return -1 with an exception set if Python raises.
int is_true(PyObject* owned) {
  const Ref value(owned);
  return value.object ? PyObject_IsTrue(value) : -1;
}
int attribute(PyObject* object, PyObject* name) { return is_true(PyObject_GetAttr(object, name)); }
int method(PyObject* object, PyObject* name) { return is_true(PyObject_CallMethodObjArgs(object, name, nullptr)); }
int call(PyObject* function) { return is_true(PyObject_CallNoArgs(function)); }
int64_t number(PyObject* owned) {
  const Ref value(owned);
  return value.object ? PyLong_AsLongLong(value) : -1;
}

// A tensor on the CPU of a type that the kernels know.
struct View {
  void* data;
  int type;
  int64_t count;
  bool contiguous;
  int axes;
  const int64_t *shape, *strides;  // they are the tensor's own
};

bool is_contiguous(const DLTensor& t) {
  int64_t expected = 1;
  for (int axis = t.axes - 1; axis >= 0; --axis) {
    if (t.shape[axis] != 1 && t.strides[axis] != expected) return false;
    expected *= t.shape[axis];
  }
  return true;
}

// 1 if there is such a view, 0 if not, -1 with an exception.
int view(PyObject* x, View& v) {
  DLTensor t;
  if (exchange->describe(x, &t)) {
    // Sparse tensors and those inside of transformations have no memory of their own.
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_BufferError)) return -1;
    PyErr_Clear();
    return 0;
  }
  if (t.device != kDLCpu || t.lanes != 1) return 0;
  if (t.type == kDLFloat && t.bits == 32) v.type = contdrop::kFloat32;
  else if (t.type == kDLFloat && t.bits == 64) v.type = contdrop::kFloat64;
  else if (t.type == kDLFloat && t.bits == 16) v.type = contdrop::kFloat16;
  else if (t.type == kDLBfloat && t.bits == 16) v.type = contdrop::kBFloat16;
  else return 0;
  v.data = static_cast<char*>(t.data) + t.offset;
  v.count = 1;
  for (int axis = 0; axis < t.axes; ++axis) v.count *= t.shape[axis];
  v.axes = t.axes, v.shape = t.shape, v.strides = t.strides;
  v.contiguous = v.count == 0 || is_contiguous(t);
  // torch has tensors that stand for zeros, without memory.
  return v.count == 0 || (t.data && (v.contiguous || t.axes <= contdrop::kMaxAxes));
}

bool is_plain_type(PyObject* x) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(x));
  return type == torch.tensor || type == torch.parameter;
}

// Whether a tensor may take the fast path: 1, with its view, or 0, or -1 with an exception.
int is_plain(PyObject* x, View& v) {
  if (!is_plain_type(x)) return 0;
  if (PyDict_GetItemWithError(torch.backends, s_cpu) != torch.native) return PyErr_Occurred() ? -1 : 0;
  int answer;
  if ((answer = call(torch.transforms_active)) != 0) return answer < 0 ? -1 : 0;
  if ((answer = call(torch.modes)) != 0) return answer < 0 ? -1 : 0;
  if ((answer = call(torch.tracing)) != 0) return answer < 0 ? -1 : 0;
  if (number(PyObject_GetAttr(torch.forward_mode, s_current_level)) >= 0) return 0;
  if (PyErr_Occurred()) return -1;
  if ((answer = method(x, s_is_neg)) != 0) return answer < 0 ? -1 : 0;
  return view(x, v);
}

int needs_graph(PyObject* x) {
  const int answer = attribute(x, s_requires_grad);
  return answer == 1 ? call(torch.gradients_enabled) : answer;
}

// What is to be done: made by dropout, kept by the graph.
struct Call {
  PyObject* tuple;  // (seed, bytes of a Law, kind, params, scale, whether to rectify, shared axes)
  explicit Call(PyObject* tuple_) : tuple(tuple_) {}
  PyObject* seed() const { return PyTuple_GetItem(tuple, 0); }
  PyObject* law() const { return PyTuple_GetItem(tuple, 1); }
  bool relu() const { return PyTuple_GetItem(tuple, 5) == Py_True; }
  PyObject* shared_axes() const { return PyTuple_GetItem(tuple, 6); }
};

// One bit for every axis along which a mask value is shared: false if the axes are not such as the kernels take, and then
// somebody else says what is wrong with them.
bool shared_bits(PyObject* axes, int count, uint32_t& bits) {
  bits = 0;
  if (!PyTuple_Check(axes)) return false;
  const Py_ssize_t number = PyTuple_Size(axes);
  if (number && count > contdrop::kMaxAxes) return false;
  for (Py_ssize_t i = 0; i < number; ++i) {
    PyObject* item = PyTuple_GetItem(axes, i);
    if (!PyLong_Check(item)) return false;
    long axis = PyLong_AsLong(item);
    if (axis == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
    if (axis < 0) axis += count;
    if (axis < 0 || axis >= count || bits >> axis & 1) return false;
    bits |= 1u << axis;
  }
  return true;
}

// The mask's elements are numbered in the order of the shape without its shared axes.
void lay_out(const View& from, const View& to, uint32_t shared, contdrop::Dropout& d) {
  d.x = from.data, d.out = to.data, d.type = from.type, d.axes = from.axes, d.mask_first = 0;
  int64_t stride = 1;
  for (int axis = from.axes - 1; axis >= 0; --axis) {
    const bool is_shared = shared >> axis & 1;
    d.size[axis] = from.shape[axis], d.x_stride[axis] = from.strides[axis], d.out_stride[axis] = to.strides[axis];
    d.mask_stride[axis] = is_shared ? 0 : stride;
    if (!is_shared) stride *= from.shape[axis];
  }
}

// x times its mask, rectified before in the forward pass, or gated by what forward gave in the backward pass. None if
// it cannot be done here.
PyObject* multiply(PyObject* x, const View& from, const Call& call, const View* gate) {
  const bool relu = call.relu();
  uint32_t shared;
  if (!shared_bits(call.shared_axes(), from.axes, shared)) Py_RETURN_NONE;
  if (relu && (from.type != contdrop::kFloat32 || shared || !from.contiguous || (gate && !gate->contiguous)))
    Py_RETURN_NONE;
  Ref out(PyObject_CallFunctionObjArgs(torch.empty_like, x, nullptr));
  if (!out.object) return nullptr;
  View to;
  const int there = view(out, to);
  if (there < 0) return nullptr;
  if (!there || (from.contiguous && !to.contiguous)) Py_RETURN_NONE;
  const int64_t threads = number(PyObject_CallNoArgs(torch.threads));
  if (PyErr_Occurred()) return nullptr;
  const unsigned long long key = PyLong_AsUnsignedLongLong(call.seed());
  if (PyErr_Occurred()) return nullptr;
  contdrop::Law law;
  std::memcpy(&law, PyBytes_AsString(call.law()), sizeof law);
  contdrop::Dropout d;
  const bool in_order = from.contiguous && !shared;
  if (!in_order) {
    lay_out(from, to, shared, d);
    d.seed = key, d.stream = kMaskStream, d.threads = int32_t(threads), d.law = law;
  }
  Py_BEGIN_ALLOW_THREADS;
  if (relu) {
    const contdrop::Relu r = {static_cast<const float*>(from.data),
                              static_cast<const float*>(gate ? gate->data : nullptr),
                              static_cast<float*>(to.data),
                              from.count,
                              key,
                              kMaskStream,
                              int32_t(threads),
                              law};
    rectify(&r);
  } else if (!in_order) {
    any_layout(&d);
  } else {
    row(from.data, to.data, from.type, from.count, key, kMaskStream, int32_t(threads), &law);
  }
  Py_END_ALLOW_THREADS;
  return Py_NewRef(out);
}

// Whether a seed may be drawn from a layer's own generator here: 1, 0, or -1 with an exception. Under activation
// checkpointing seeds are recorded and replayed, and a draw in the middle of backward is an error, both in seeds.py.
int may_draw(PyObject* generator) {
  if (generator == Py_None) return 1;
  if (reinterpret_cast<PyObject*>(Py_TYPE(generator)) != torch.generator || PyList_Size(torch.contexts)) return 0;
  if (!PyCallable_Check(torch.backward_task)) return 0;
  const int64_t task = number(PyObject_CallNoArgs(torch.backward_task));
  return PyErr_Occurred() ? -1 : task == -1;
}

// The number that torch.randint(limit, (), generator=generator) would draw. A tensor to draw it into is kept for each
// thread.
PyObject* draw_seed(PyObject* generator) {
  static thread_local PyObject* place = nullptr;
  static thread_local const int64_t* number_there;
  if (!place) {
    Ref made(PyObject_CallNoArgs(torch.place));
    DLTensor t;
    if (!made.object || exchange->describe(made, &t)) return nullptr;
    number_there = static_cast<const int64_t*>(t.data);
    place = made.object;
    made.object = nullptr;
  }
  if (generator == Py_None) {
    const Ref drawn(PyObject_CallMethodObjArgs(place, s_random, torch.zero, torch.limit, nullptr));
    return drawn.object ? PyLong_FromLongLong(*number_there) : nullptr;
  }
  // The arguments of the call are kept too, but for the generator, which belongs to its layer.
  static thread_local PyObject *function = nullptr, *positional, *named;
  if (!function) {
    positional = PyTuple_Pack(2, torch.zero, torch.limit);
    named = PyDict_New();
    if (!positional || !named || !(function = PyObject_GetAttr(place, s_random))) return nullptr;
  }
  if (PyDict_SetItem(named, s_generator, generator) < 0) return nullptr;
  const Ref drawn(PyObject_Call(function, positional, named));
  if (!drawn.object || PyDict_SetItem(named, s_generator, Py_None) < 0) return nullptr;
  return PyLong_FromLongLong(*number_there);
}

// dropout(x, kind, params, scale, relu, shared axes, generator): the result, or None if it has to go the general way; then
// no seed was drawn.
PyObject* dropout(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7) return PyErr_Format(PyExc_TypeError, "dropout: expected 7 arguments, got %zd", count);
  PyObject *x = arguments[0], *relu = arguments[4], *generator = arguments[6];
  View from;
  int plain = may_draw(generator);
  if (plain == 1) plain = is_plain(x, from);
  if (plain < 0) return nullptr;
  uint32_t shared;
  if (!plain || !shared_bits(arguments[5], from.axes, shared)) Py_RETURN_NONE;
  const Ref law(PyObject_CallFunctionObjArgs(torch.law_of, arguments[1], arguments[2], arguments[3], nullptr));
  if (!law.object) return nullptr;
  const Ref seed(draw_seed(generator));
  if (!seed.object) {
    if (generator == Py_None || !PyErr_ExceptionMatches(PyExc_RuntimeError)) return nullptr;
    PyErr_Clear();  // a generator of another device: the general way says so
    Py_RETURN_NONE;
  }
  const Ref call(PyTuple_Pack(7, seed.object, law.object, arguments[1], arguments[2], arguments[3], relu, arguments[5]));
  if (!call.object) return nullptr;
  const int graph = needs_graph(x);
  if (graph < 0) return nullptr;
  if (graph) return PyObject_CallFunctionObjArgs(torch.apply, x, call.object, nullptr);
  PyObject* out = multiply(x, from, Call(call), nullptr);
  if (out != Py_None) return out;
  Py_DECREF(out);
  return PyObject_CallFunctionObjArgs(torch.general, x, call.object, Py_None, nullptr);
}

// The autograd function's two halves: forward(ctx, x, call) and backward(ctx, gradient).
PyObject* forward(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "forward: expected 3 arguments, got %zd", count);
  PyObject *x = arguments[1], *call = arguments[2];
  if (PyObject_SetAttr(arguments[0], s_call, call) < 0) return nullptr;
  View from;
  const int there = view(x, from);
  if (there < 0) return nullptr;
  PyObject* out = there ? multiply(x, from, Call(call), nullptr) : Py_NewRef(Py_None);
  if (out == Py_None) {
    Py_DECREF(out);
    out = PyObject_CallFunctionObjArgs(torch.general, x, call, Py_None, nullptr);
  }
  if (!out || !Call(call).relu()) return out;
  // What save_for_backward does: the graph keeps the result, as it keeps that of torch's own relu.
  const Ref result(out), saved(PyTuple_Pack(1, out));
  if (!saved.object || PyObject_SetAttr(arguments[0], s_to_save, saved) < 0) return nullptr;
  return Py_NewRef(result);
}

PyObject* backward(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "backward: expected 2 arguments, got %zd", count);
  PyObject* gradient = arguments[1];
  const Ref call(PyObject_GetAttr(arguments[0], s_call));
  if (!call.object) return nullptr;
  View from, by;
  int plain = is_plain(gradient, from);
  if (plain == 1) {
    const int graph = needs_graph(gradient);
    plain = graph < 0 ? -1 : !graph;
  }
  if (plain < 0) return nullptr;
  const Ref saved(Call(call).relu() ? PyObject_GetAttr(arguments[0], s_saved_tensors) : Py_NewRef(Py_None));
  if (!saved.object) return nullptr;
  PyObject* gate = saved.object == Py_None ? nullptr : PyTuple_GetItem(saved, 0);
  // Hooks may have made another of the saved tensor.
  if (plain && gate && (plain = is_plain(gate, by)) < 0) return nullptr;
  if (plain && gate) plain = by.count == from.count && by.type == contdrop::kFloat32;
  PyObject* out = plain ? multiply(gradient, from, Call(call), gate ? &by : nullptr) : Py_NewRef(Py_None);
  if (out == Py_None) {
    Py_DECREF(out);
    out = PyObject_CallFunctionObjArgs(torch.general, gradient, call.object, gate ? gate : Py_None, nullptr);
  }
  if (!out) return nullptr;
  const Ref result(out);
  return PyTuple_Pack(2, result.object, Py_None);
}

// connect(addresses of contdrop_dropout_row, contdrop_dropout and contdrop_relu, DLPack's table, everything in Torch in its
// order): whether there is a way.
PyObject* connect(PyObject*, PyObject* arguments) {
  unsigned long long address, any_layout_address, relu_address;
  PyObject* table;
  Torch t;
  if (!PyArg_ParseTuple(arguments, "KKKOOOOOOOOOOOOOOOOOOOOO", &address, &any_layout_address, &relu_address, &table, &t.tensor,
                        &t.parameter, &t.empty_like, &t.place, &t.zero, &t.limit, &t.threads, &t.gradients_enabled, &t.transforms_active,
                        &t.modes, &t.tracing, &t.forward_mode, &t.law_of, &t.backends, &t.native, &t.generator, &t.contexts,
                        &t.backward_task, &t.apply, &t.general))
    return nullptr;
  exchange = static_cast<const Exchange*>(PyCapsule_GetPointer(table, "dlpack_exchange_api"));
  if (!exchange) return nullptr;
  if (exchange->major != 1) Py_RETURN_FALSE;
  Py_INCREF(arguments);  // and so everything in it
  torch = t;
  row = reinterpret_cast<Row>(static_cast<uintptr_t>(address));
  any_layout = reinterpret_cast<Dropout>(static_cast<uintptr_t>(any_layout_address));
  rectify = reinterpret_cast<Rectify>(static_cast<uintptr_t>(relu_address));
  Py_RETURN_TRUE;
}

// A method apply(ctx, gradient) of the class of the graph's nodes, in place of torch's in Python, which looks for what
// backward to call.
PyObject* apply_backward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 1) return PyErr_Format(PyExc_TypeError, "apply: expected 1 argument, got %zd", count);
  PyObject* both[] = {self, arguments[0]};
  return backward(nullptr, both, 2);
}

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef apply_method = {"apply", fast(apply_backward), METH_FASTCALL, nullptr};

PyObject* method_of(PyObject*, PyObject* type) {
  if (!PyType_Check(type)) return PyErr_Format(PyExc_TypeError, "method_of: expected a type");
  return PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type), &apply_method);
}

// interface(): what this was built with, to be compared with what Python has before connect is called.
PyObject* describe(PyObject*, PyObject*) { return PyUnicode_FromString(contdrop::interface().c_str()); }

PyMethodDef methods[] = {
    {"interface", describe, METH_NOARGS, nullptr},
    {"connect", connect, METH_VARARGS, nullptr},
    {"dropout", fast(dropout), METH_FASTCALL, nullptr},
    {"forward", fast(forward), METH_FASTCALL, nullptr},
    {"backward", fast(backward), METH_FASTCALL, nullptr},
    {"method_of", method_of, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_express", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__express() {
  struct {
    PyObject** name;
    const char* text;
  } const names[] = {
      {&s_call, "call"},     {&s_cpu, "cpu"},       {&s_current_level, "_current_level"},
      {&s_generator, "generator"}, {&s_is_neg, "is_neg"}, {&s_random, "random_"}, {&s_requires_grad, "requires_grad"},
      {&s_saved_tensors, "saved_tensors"}, {&s_to_save, "to_save"},
  };
  for (const auto& name : names)
    if (!(*name.name = PyUnicode_InternFromString(name.text))) return nullptr;
  return PyModule_Create(&definition);
}
