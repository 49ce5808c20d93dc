// What the compiled code takes for granted of Python, as a text that both sides write: see structures.py.
#pragma once
#include <cstddef>
#include <initializer_list>
#include <string>

#include "api.h"

namespace contdrop {

constexpr int kInterface = 3;     // rises whenever functions change; structures.INTERFACE
constexpr int kMasksVersion = 3;  // reference.MASKS_VERSION

struct Field {
  const char* name;
  size_t offset;
};

inline void describe(std::string& text, const char* name, size_t size, std::initializer_list<Field> fields) {
  text += std::string("; ") + name + " " + std::to_string(size) + ":";
  const char* separator = " ";
  for (const Field& field : fields) {
    text += separator + std::string(field.name) + " " + std::to_string(field.offset);
    separator = ", ";
  }
}

inline std::string interface() {
  std::string text = "interface " + std::to_string(kInterface) + "; masks " + std::to_string(kMasksVersion);
#define F(field) {#field, offsetof(Law, field)}
  describe(text, "Law", sizeof(Law), {F(kind), F(bits), F(threshold), F(offset), F(gain), F(low), F(high), F(reach)});
#undef F
#define F(field) {#field, offsetof(Dropout, field)}
  describe(text, "Dropout", sizeof(Dropout),
           {F(x), F(out), F(type), F(axes), F(size), F(x_stride), F(out_stride), F(mask_stride), F(mask_first), F(seed),
            F(stream), F(threads), F(law)});
#undef F
#define F(field) {#field, offsetof(Relu, field)}
  describe(text, "Relu", sizeof(Relu), {F(x), F(gate), F(out), F(count), F(seed), F(stream), F(threads), F(law)});
#undef F
#define F(field) {#field, offsetof(KeepWhere, field)}
  describe(text, "KeepWhere", sizeof(KeepWhere),
           {F(x), F(keep), F(out), F(type), F(threads), F(count), F(seed), F(stream)});
#undef F
#define F(field) {#field, offsetof(DropConnect, field)}
  describe(text, "DropConnect", sizeof(DropConnect),
           {F(g), F(w), F(x), F(result), F(second), F(type), F(contraction), F(examples), F(outputs), F(inputs), F(pitch),
            F(first_example), F(seed), F(stream), F(threads), F(law)});
#undef F
  return text;
}

}  // namespace contdrop
