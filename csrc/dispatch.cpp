// The C interface: picks the instruction set once, then passes calls on.
#include <cstdio>
#include <cstring>

#include "neural_attention.h"

#define NA_DECLARE(isa)                    \
  namespace isa {                          \
  int64_t run_forward(const NaCall& call); \
  int64_t run_backward(const NaCall& call); \
  }
#if defined(NA_X86)
NA_DECLARE(na_avx512)
NA_DECLARE(na_avx2)
#endif
NA_DECLARE(na_portable)

namespace {

struct InstructionSet {
  const char* name;
  bool (*runs_here)();
  int64_t (*forward)(const NaCall&);
  int64_t (*backward)(const NaCall&);
};

const InstructionSet kSets[] = {
#if defined(NA_X86)
    {"avx512",
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
     },
     na_avx512::run_forward, na_avx512::run_backward},
    {"avx2",
     [] {
       return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
     },
     na_avx2::run_forward, na_avx2::run_backward},
#endif
    {"portable", [] { return true; }, na_portable::run_forward, na_portable::run_backward},
};

const InstructionSet* selected = nullptr;

}  // namespace

extern "C" {

const char* na_select(const char* wanted, char* message, int64_t message_size) {
  char names[128] = "";
  for (const InstructionSet& set : kSets) {
    std::strcat(names, names[0] ? ", " : "");
    std::strcat(names, set.name);
    if (wanted[0] ? std::strcmp(wanted, set.name) != 0 : !set.runs_here()) continue;
    if (!set.runs_here()) {
      std::snprintf(message, size_t(message_size), "this machine has no %s instructions", wanted);
      return nullptr;
    }
    selected = &set;
    return set.name;
  }
  std::snprintf(message, size_t(message_size), "expected one of %s", names);
  return nullptr;
}

int64_t na_call_size(void) { return int64_t(sizeof(NaCall)); }

int64_t na_forward(const NaCall* call) { return selected->forward(*call); }

int64_t na_backward(const NaCall* call) { return selected->backward(*call); }
}
