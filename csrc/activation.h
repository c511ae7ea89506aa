// The activations: value, and value with derivative. max and min return their second operand where
// one is NaN, and are written so that a NaN in u shows.
#pragma once

#include "vec.h"

namespace NA_ISA {

// What an activation may need beside its argument.
struct Shape {
  float leak;          // leaky_relu's slope below zero
  const float* curve;  // gelu with AVX-512: polynomials, see Curve
};

struct Relu {
  static NA_INLINE f32v value(f32v u, const Shape&) { return max(f32v{}, u); }
  static NA_INLINE void both(f32v u, const Shape&, f32v& y, f32v& slope) {
    y = max(f32v{}, u);
    slope = select(less(f32v{}, u), splat(1.f), f32v{});
  }
};

struct LeakyRelu {
  static NA_INLINE f32v value(f32v u, const Shape& shape) {
    return select(less(f32v{}, u), u, u * shape.leak);
  }
  static NA_INLINE void both(f32v u, const Shape& shape, f32v& y, f32v& slope) {
    slope = select(less(f32v{}, u), splat(1.f), splat(shape.leak));
    y = u * slope;
  }
};

struct Hardswish {
  static NA_INLINE f32v value(f32v u, const Shape&) {
    return u * min(max(u * (1.f / 6) + 0.5f, f32v{}), splat(1.f));
  }
  static NA_INLINE void both(f32v u, const Shape&, f32v& y, f32v& slope) {
    const f32v gate = u * (1.f / 6) + 0.5f;
    const f32v clipped = min(max(gate, f32v{}), splat(1.f));
    y = u * clipped;
    slope = add_where(both_sides(gate), clipped, u * (1.f / 6));
  }

 private:
  static NA_INLINE mask both_sides(f32v gate) {
    return NA_ISA::both(less(f32v{}, gate), less(gate, splat(1.f)));
  }
};

// 1 / (1 + 2^x), with x held where the power stays finite.
NA_INLINE f32v logistic_of_minus_log2(f32v x) {
  return reciprocal(1.f + exp2(min(splat(126.f), x)));
}

struct Silu {
  static NA_INLINE f32v value(f32v u, const Shape&) { return u * logistic_of_minus_log2(u * -kLog2e); }
  static NA_INLINE void both(f32v u, const Shape&, f32v& y, f32v& slope) {
    const f32v gate = logistic_of_minus_log2(u * -kLog2e);
    y = u * gate;
    slope = gate + y * (1.f - gate);
  }
};

struct Tanh {  // 1 - 2 / (1 + e^2u)
  static NA_INLINE f32v value(f32v u, const Shape&) {
    return 1.f - 2.f * logistic_of_minus_log2(u * (2 * kLog2e));
  }
  static NA_INLINE void both(f32v u, const Shape& shape, f32v& y, f32v& slope) {
    y = value(u, shape);
    slope = 1.f - y * y;
  }
};

constexpr double kRate = 1.5957691216057308, kCubic = 0.044715;  // kRate: 2 sqrt(2 / pi)

#if !defined(NA_AVX512)

// u * sigmoid(z), z = kRate (u + kCubic u^3)
struct GeluTanh {
  static NA_INLINE f32v gate(f32v u, f32v square) {
    return logistic_of_minus_log2(u * (square * float(-kLog2e * kRate * kCubic) - float(kLog2e * kRate)));
  }
  static NA_INLINE f32v value(f32v u, const Shape&) { return u * gate(u, u * u); }
  static NA_INLINE void both(f32v u, const Shape&, f32v& y, f32v& slope) {
    const f32v square = u * u, g = gate(u, square);
    y = u * g;
    slope = g + y * (1.f - g) * (square * float(3 * kCubic * kRate) + float(kRate));
  }
};

// u Phi(u), with the normal distribution's tail as a polynomial times its density (Abramowitz &
// Stegun 1964, 7.1.26: to 1.5e-7).
struct Gelu {
  static NA_INLINE f32v distribution(f32v u, f32v& bell) {
    const f32v x = abs(u);
    bell = exp2(max(u * u * (-0.5f * kLog2e), splat(-126.f)));
    const f32v t = reciprocal(1.f + min(x, splat(1e4f)) * (0.3275911f * 0.70710678f));
    f32v tail = t * 1.061405429f - 1.453152027f;
    tail = tail * t + 1.421413741f;
    tail = tail * t - 0.284496736f;
    tail = tail * t + 0.254829592f;
    tail = tail * t * bell * 0.5f;
    return select(less(u, f32v{}), tail, 1.f - tail);
  }
  static NA_INLINE f32v value(f32v u, const Shape&) {
    f32v bell;
    return u * distribution(u, bell);
  }
  static NA_INLINE void both(f32v u, const Shape&, f32v& y, f32v& slope) {
    f32v bell;
    const f32v phi = distribution(u, bell);
    y = u * phi;
    slope = phi + u * bell * 0.398942280f;
  }
};

#else

// gelu(u) - relu(u) is even and gone beyond 5.6: 32 cubic polynomials over |u|, to 5e-7, whose
// coefficients are looked up in registers. That takes three quarters of the operations of an
// exponential and a reciprocal.
struct Curve {
  static constexpr int kPieces = 32;
  static constexpr double kEnd = 5.6, kScale = kPieces / kEnd;
  float value[4][kPieces], slope[4][kPieces];

  // `f` and its derivative, as functions of |u|.
  template <class F>
  explicit Curve(F f) {
    for (int piece = 0; piece < kPieces; ++piece) {
      fit([&](double x) { return f(x, false); }, piece, value);
      fit([&](double x) { return f(x, true); }, piece, slope);
    }
  }

  static NA_INLINE f32v piece_of(f32v u, __m512i& piece) {
    // min(|u| scale, end), then the whole part and the rest
    const f32v x = _mm512_range_ps(u * float(kScale), splat(kPieces - 1e-4f), 0x8 | 0x2);
    piece = _mm512_cvttps_epi32(x);
    return _mm512_reduce_ps(x, 0x09);
  }
  static NA_INLINE f32v cubic(const float* table, __m512i piece, f32v x) {
    f32v y = coefficient(table, 3, piece);
    y = y * x + coefficient(table, 2, piece);
    y = y * x + coefficient(table, 1, piece);
    return y * x + coefficient(table, 0, piece);
  }

 private:
  static NA_INLINE f32v coefficient(const float* table, int power, __m512i piece) {
    const float* row = table + power * kPieces;
    return _mm512_permutex2var_ps(load(row), piece, load(row + W));
  }

  // The cubic through four Chebyshev nodes, in powers of the distance from the piece's start.
  template <class F>
  static void fit(F f, int piece, float (&table)[4][kPieces]) {
    double node[4], difference[4], power[4] = {};
    for (int i = 0; i < 4; ++i) {
      node[i] = 0.5 - 0.5 * std::cos((i + 0.5) * 0.78539816339744831);
      difference[i] = f((piece + node[i]) / kScale);
    }
    for (int order = 1; order < 4; ++order) {
      for (int i = 3; i >= order; --i) {
        difference[i] = (difference[i] - difference[i - 1]) / (node[i] - node[i - order]);
      }
    }
    for (int i = 3; i >= 0; --i) {  // Horner's rule in (x - node)
      for (int p = 3; p > 0; --p) power[p] = power[p - 1] - node[i] * power[p];
      power[0] = difference[i] - node[i] * power[0];
    }
    for (int p = 0; p < 4; ++p) table[p][piece] = float(power[p]);
  }
};

template <class Exact>
struct GeluOf {
  // Built when first called for, never while the library loads: that may be on a lesser machine.
  static const float* curve() {
    static const Curve built(Exact::beyond_relu);
    return built.value[0];
  }
  static NA_INLINE f32v value(f32v u, const Shape& shape) {
    __m512i piece;
    const f32v x = Curve::piece_of(u, piece);
    return max(f32v{}, u) + Curve::cubic(shape.curve, piece, x);
  }
  static NA_INLINE void both(f32v u, const Shape& shape, f32v& y, f32v& slope) {
    __m512i piece;
    const f32v x = Curve::piece_of(u, piece);
    y = max(f32v{}, u) + Curve::cubic(shape.curve, piece, x);
    slope = Curve::cubic(shape.curve + 4 * Curve::kPieces, piece, x);
    // An even function's derivative is odd, and relu's is one above zero. Both go by the sign bit, so
    // that they agree about a zero.
    slope = (f32v)((i32v)slope ^ ((i32v)u & std::int32_t(0x80000000)));
    slope = add_where(~_mm512_movepi32_mask((__m512i)u), slope, splat(1.f));
  }
};

struct ExactGelu {
  static double beyond_relu(double x, bool derivative) {
    const double tail = 0.5 * std::erfc(x * 0.70710678118654752);
    const double density = 0.39894228040143268 * std::exp(-0.5 * x * x);
    return derivative ? x * density - tail : -x * tail;
  }
};
struct ExactGeluTanh {
  static double beyond_relu(double x, bool derivative) {
    const double tail = 1 / (1 + std::exp(kRate * (x + kCubic * x * x * x)));
    const double rate = kRate * (1 + 3 * kCubic * x * x);
    return derivative ? x * tail * (1 - tail) * rate - tail : -x * tail;
  }
};
using Gelu = GeluOf<ExactGelu>;
using GeluTanh = GeluOf<ExactGeluTanh>;

#endif

// The curve of an activation that has one.
template <class Activation>
inline auto curve_of(int) -> decltype(Activation::curve()) {
  return Activation::curve();
}
template <class Activation>
inline const float* curve_of(long) {
  return nullptr;
}

}  // namespace NA_ISA
