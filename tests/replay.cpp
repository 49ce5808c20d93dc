// Makes recorded calls with a library, and writes down the arrays they leave: test_neon.py runs it in an emulator, where
// there is no Python. A call is its function's name, its structure, and arrays, whose addresses go into the structure.
//
//     replay LIBRARY INSTRUCTIONS CALLS RESULTS
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

static uint64_t number(std::istream& in) {
  uint64_t value = 0;
  in.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

static std::string text(std::istream& in) {
  std::string value(number(in), '\0');
  in.read(&value[0], std::streamsize(value.size()));
  return value;
}

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  auto use_instructions = reinterpret_cast<int (*)(const char*)>(dlsym(library, "contdrop_use_instructions"));
  if (use_instructions(arguments[2])) return std::fprintf(stderr, "no %s here\n", arguments[2]), 2;
  std::ifstream in(arguments[3], std::ios::binary);
  std::ofstream out(arguments[4], std::ios::binary);
  for (uint64_t calls = number(in); calls; --calls) {
    const std::string name = text(in);
    std::string structure = text(in);
    std::vector<std::string> arrays(number(in));
    for (std::string& array : arrays) {
      const uint64_t pointer_at = number(in), first = number(in);
      array = text(in);
      const char* address = &array[first];
      std::memcpy(&structure[pointer_at], &address, sizeof address);
    }
    reinterpret_cast<void (*)(const void*)>(dlsym(library, name.c_str()))(structure.data());
    for (const std::string& array : arrays) out.write(array.data(), std::streamsize(array.size()));
  }
  return out.flush() ? 0 : 3;
}
