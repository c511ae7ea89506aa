// Vectors of float for one instruction set: arithmetic, exp2, conversion, transposition.
//
// The file is compiled once for each instruction set, inside its own namespace NA_ISA, so that the
// linker never merges code for one machine into the path of another. For the same reason nothing
// here uses the standard library's templates.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define NA_AVX512 1
#endif

namespace NA_ISA {

using i64 = std::int64_t;

#if defined(NA_AVX512)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int W = kVectorBytes / 4;  // lanes

typedef float f32v __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t i32v __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t u32v __attribute__((vector_size(kVectorBytes)));
typedef float f32v_unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

#define NA_INLINE inline __attribute__((always_inline))

constexpr float kLog2e = 1.44269504088896341f;

NA_INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
NA_INLINE i64 larger(i64 a, i64 b) { return a > b ? a : b; }
NA_INLINE i64 round_up(i64 n, i64 step) { return (n + step - 1) / step * step; }

NA_INLINE f32v load(const float* p) { return *reinterpret_cast<const f32v_unaligned*>(p); }
NA_INLINE void store(float* p, f32v x) { *reinterpret_cast<f32v_unaligned*>(p) = x; }
NA_INLINE f32v splat(float x) { return x - f32v{}; }  // x - 0 keeps the sign of x

NA_INLINE f32v iota() {
  f32v x;
  for (int i = 0; i < W; ++i) x[i] = float(i);
  return x;
}

// Masks are one bit a lane where the machine has such registers, else lanes of 0 or -1.
#if defined(NA_AVX512)
using mask = __mmask16;
NA_INLINE mask less(f32v a, f32v b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
NA_INLINE mask equal(f32v a, f32v b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
NA_INLINE mask both(mask a, mask b) { return a & b; }
NA_INLINE f32v select(mask m, f32v a, f32v b) { return _mm512_mask_blend_ps(m, b, a); }
NA_INLINE f32v add_where(mask m, f32v sum, f32v x) { return _mm512_mask_add_ps(sum, m, sum, x); }
NA_INLINE bool any(mask m) { return m != 0; }
// The larger and the smaller; the second operand where one is NaN.
NA_INLINE f32v max(f32v a, f32v b) { return _mm512_max_ps(a, b); }
NA_INLINE f32v min(f32v a, f32v b) { return _mm512_min_ps(a, b); }
NA_INLINE f32v abs(f32v a) { return _mm512_abs_ps(a); }
#else
using mask = i32v;
NA_INLINE mask less(f32v a, f32v b) { return a < b; }
NA_INLINE mask equal(f32v a, f32v b) { return a == b; }
NA_INLINE mask both(mask a, mask b) { return a & b; }
NA_INLINE f32v select(mask m, f32v a, f32v b) { return m ? a : b; }
NA_INLINE f32v add_where(mask m, f32v sum, f32v x) { return sum + (f32v)((i32v)x & m); }
NA_INLINE bool any(mask m) {
  std::int32_t found = 0;
  for (int i = 0; i < W; ++i) found |= m[i];
  return found != 0;
}
#if defined(__AVX2__)
NA_INLINE f32v max(f32v a, f32v b) { return _mm256_max_ps(a, b); }
NA_INLINE f32v min(f32v a, f32v b) { return _mm256_min_ps(a, b); }
#else
NA_INLINE f32v max(f32v a, f32v b) { return a > b ? a : b; }
NA_INLINE f32v min(f32v a, f32v b) { return a < b ? a : b; }
#endif
NA_INLINE f32v abs(f32v a) { return (f32v)((i32v)a & 0x7fffffff); }
#endif

NA_INLINE float sum_lanes(f32v x) {
#if defined(NA_AVX512)
  return _mm512_reduce_add_ps(x);
#else
  float total = 0;
  for (int i = 0; i < W; ++i) total += x[i];
  return total;
#endif
}

NA_INLINE float max_lanes(f32v x) {
#if defined(NA_AVX512)
  return _mm512_reduce_max_ps(x);
#else
  float best = x[0];
  for (int i = 1; i < W; ++i) best = x[i] > best ? x[i] : best;
  return best;
#endif
}

// 2^x to 1e-7, relative. -inf gives 0 with AVX-512 and 2^-126 elsewhere; NaN stays NaN.
NA_INLINE f32v exp2(f32v x) {
#if defined(NA_AVX512)
  const f32v f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  f32v y = f * 1.87757594e-3f + 8.98934187e-3f;
  y = y * f + 5.58263166e-2f;
  y = y * f + 0.240153618f;
  y = y * f + 0.693153073f;
  y = y * f + 0.999999925f;
  return _mm512_scalef_ps(y, x);
#else
  x = x < -126.f ? splat(-126.f) : x;
  const f32v rounding = splat(12582912.f);  // 1.5 * 2^23: the sum's low bits hold round(x)
  const f32v shifted = x + rounding;
  const f32v f = x - (shifted - rounding);
  f32v y = f * 1.32764668e-3f + 9.67554129e-3f;
  y = y * f + 5.55071329e-2f;
  y = y * f + 0.240221197f;
  y = y * f + 0.693146967f;
  y = y * f + 1.00000007f;
  return (f32v)((i32v)y + ((i32v)shifted << 23));
#endif
}

// e^x, likewise. The product comes last: where a softmax subtracts a score from itself, x is exactly 0.
NA_INLINE f32v exp(f32v x) { return exp2(x * kLog2e); }

// 1/x for x that is neither 0, denormal nor infinite.
NA_INLINE f32v reciprocal(f32v x) {
#if defined(NA_AVX512)
  const f32v guess = _mm512_rcp14_ps(x);
  return guess * (2.f - x * guess);
#else
  return 1.f / x;
#endif
}

// The lanes of x and y interleaved: first half and second half of x0 y0 x1 y1 ...
template <int... I>
NA_INLINE f32v zip_low(f32v x, f32v y, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, y, (I / 2 + (I % 2) * W)...);
}
template <int... I>
NA_INLINE f32v zip_high(f32v x, f32v y, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, y, (W / 2 + I / 2 + (I % 2) * W)...);
}
using Lanes = std::make_integer_sequence<int, W>;
NA_INLINE f32v zip_low(f32v x, f32v y) { return zip_low(x, y, Lanes{}); }
NA_INLINE f32v zip_high(f32v x, f32v y) { return zip_high(x, y, Lanes{}); }

// W vectors as a W x W matrix, transposed: each round is a perfect shuffle of the rows' halves.
NA_INLINE void transpose(f32v (&x)[W]) {
#pragma GCC unroll 4
  for (int round = 1; round < W; round *= 2) {
    f32v y[W];
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; ++i) {
      y[2 * i] = zip_low(x[i], x[i + W / 2]);
      y[2 * i + 1] = zip_high(x[i], x[i + W / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) x[i] = y[i];
  }
}

// The sums of W vectors; lane i holds the sum of x[i].
NA_INLINE f32v sums_of(f32v (&x)[W]) {
#pragma GCC unroll 4
  for (int half = W / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      x[i] = zip_low(x[i], x[i + half]) + zip_high(x[i], x[i + half]);
    }
  }
  return x[0];
}

// Storage types. Loads of `count` < W elements fill the other lanes with zero.
struct bfloat16 {
  std::uint16_t bits;
};
struct float16 {
  std::uint16_t bits;
};

NA_INLINE float to_float(float x) { return x; }
NA_INLINE float to_float(bfloat16 x) {
  const std::uint32_t bits = std::uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
NA_INLINE float to_float(float16 x) {
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 31, fraction = x.bits & 1023;
  if (exponent == 0) return (sign ? -1.f : 1.f) * float(fraction) * 0x1p-24f;
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  const std::uint32_t bits = sign | wide << 23 | fraction << 13;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

// Rounds to nearest, ties to even, as torch does.
NA_INLINE void from_float(float x, float& y) { y = x; }
NA_INLINE void from_float(float x, bfloat16& y) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  y.bits = x != x ? 0x7fc0 : std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
NA_INLINE void from_float(float x, float16& y) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const std::uint16_t sign = std::uint16_t((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) {
    y.bits = std::uint16_t(sign | 0x7e00);
  } else if (bits >= 0x477ff000) {  // rounds beyond the largest finite value
    y.bits = std::uint16_t(sign | 0x7c00);
  } else if (bits < 0x38800000) {  // denormal: adding 0.5 leaves the rounded fraction in low bits
    float small;
    std::memcpy(&small, &bits, 4);
    small += 0.5f;
    std::uint32_t rounded;
    std::memcpy(&rounded, &small, 4);
    y.bits = std::uint16_t(sign | (rounded - 0x3f000000));
  } else {
    bits += 0xc8000fff + ((bits >> 13) & 1);
    y.bits = std::uint16_t(sign | (bits >> 13));
  }
}

template <class T>
NA_INLINE f32v load_strided(const T* p, i64 count, i64 stride) {
  f32v x = {};
  for (i64 i = 0; i < count; ++i) x[i] = to_float(p[i * stride]);
  return x;
}
NA_INLINE f32v load_as_float(const float* p) { return load(p); }
NA_INLINE f32v load_as_float(const bfloat16* p) {
  typedef std::uint16_t half __attribute__((vector_size(kVectorBytes / 2)));
  half narrow;
  std::memcpy(&narrow, p, sizeof narrow);
  return (f32v)(__builtin_convertvector(narrow, u32v) << 16);
}
NA_INLINE f32v load_as_float(const float16* p) {
#if defined(NA_AVX512)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  return load_strided(p, W, 1);
#endif
}

NA_INLINE f32v load_some(const float* p, i64 count) {
#if defined(NA_AVX512) && !defined(__SANITIZE_ADDRESS__)  // which does not see masked loads
  return _mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), p);
#else
  return load_strided(p, count, 1);
#endif
}
template <class T>
NA_INLINE f32v load_some(const T* p, i64 count) {
  T copy[W] = {};
  std::memcpy(copy, p, std::size_t(count) * sizeof(T));
  return load_as_float(copy);
}

// While it lives, this thread takes numbers below 1.2e-38 for zero. Far keys have such weights, and a
// multiplication by one of them costs as much as a hundred others.
class DenormalsAreZero {
 public:
  DenormalsAreZero() : saved_(control()) { set_control(saved_ | kFlush); }
  ~DenormalsAreZero() { set_control(saved_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kFlush = 0x8040;  // results and operands
  static unsigned control() { return _mm_getcsr(); }
  static void set_control(unsigned value) { _mm_setcsr(value); }
  unsigned saved_;
#elif defined(__aarch64__)
  static constexpr std::uint64_t kFlush = 1u << 24;
  static std::uint64_t control() {
    std::uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
  std::uint64_t saved_;
#else
  static constexpr int kFlush = 0;
  static int control() { return 0; }
  static void set_control(int) {}
  int saved_;
#endif
};

// Memory for one thread's tiles, handed out piece by piece, contents undefined. A layout runs twice:
// first it only counts; after `allocate` it gets what it counted.
class Arena {
 public:
  Arena() = default;
  ~Arena() { std::free(base_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  void allocate() {
    // Beyond the end: a vector may be loaded from the last element of the last piece.
    base_ = static_cast<float*>(std::aligned_alloc(64, std::size_t(used_) * 4 + 4096));
    used_ = 0;
  }
  bool failed() const { return base_ == nullptr; }
  float* take(i64 floats) {
    float* piece = base_ ? base_ + used_ : nullptr;
    used_ += round_up(floats, 16) + 16;
    return piece;
  }

 private:
  float* base_ = nullptr;
  i64 used_ = 0;
};

}  // namespace NA_ISA
