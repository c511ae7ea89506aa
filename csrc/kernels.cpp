// One instruction set's kernels: picks the template that a call needs.
#include "backward.h"
#include "forward.h"

namespace NA_ISA {

template <template <class> class Run, class Activation>
static i64 by_depth(const NaCall& c) {
  return c.second ? Run<Network<Activation, true>>::run(c) : Run<Network<Activation, false>>::run(c);
}

template <template <class> class Run>
static i64 by_network(const NaCall& c) {
  if (c.second == 0) {
    if (c.channels == 0 || c.activation == NA_RELU) return Run<Hinge<false>>::run(c);
    if (c.activation == NA_LEAKY_RELU) return Run<Hinge<true>>::run(c);
  }
  switch (c.activation) {
    case NA_RELU: return Run<Network<Relu, true>>::run(c);
    case NA_LEAKY_RELU: return Run<Network<LeakyRelu, true>>::run(c);
    case NA_HARDSWISH: return by_depth<Run, Hardswish>(c);
    case NA_GELU: return by_depth<Run, Gelu>(c);
    case NA_GELU_TANH: return by_depth<Run, GeluTanh>(c);
    case NA_SILU: return by_depth<Run, Silu>(c);
    default: return by_depth<Run, Tanh>(c);
  }
}

template <class Net>
struct RunForward {
  static i64 run(const NaCall& c) { return forward<Net>(c); }
};
template <class Net>
struct RunBackward {
  static i64 run(const NaCall& c) { return backward<Net>(c); }
};

int64_t run_forward(const NaCall& c) { return by_network<RunForward>(c); }
int64_t run_backward(const NaCall& c) { return by_network<RunBackward>(c); }

}  // namespace NA_ISA
