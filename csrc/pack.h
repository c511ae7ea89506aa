// From the caller's tensors, of any dtype and strides, to float32 tiles padded with zeros.
#pragma once

#include "neural_attention.h"
#include "vec.h"

namespace NA_ISA {

// A (positions x channels) matrix of one batch entry and head.
struct Matrix {
  const void* data;
  i64 dtype, row_stride, column_stride;
};

inline i64 size_of(i64 dtype) { return dtype == NA_FLOAT32 ? 4 : dtype == NA_BOOL ? 1 : 2; }

inline Matrix matrix(const NaTensor& t, i64 dtype, i64 batch, i64 head) {
  const i64 first = batch * t.stride[0] + head * t.stride[1];
  return {static_cast<const char*>(t.data) + first * size_of(dtype), dtype, t.stride[2],
          t.stride[3]};
}

// Calls f with a typed null pointer that names the storage type.
template <class F>
NA_INLINE auto with_type(i64 dtype, F f) {
  if (dtype == NA_BFLOAT16) return f(static_cast<const bfloat16*>(nullptr));
  if (dtype == NA_FLOAT16) return f(static_cast<const float16*>(nullptr));
  return f(static_cast<const float*>(nullptr));
}

template <class T>
NA_INLINE f32v load_columns(const T* row, i64 column, i64 width, i64 stride) {
  const i64 count = width - column;
  if (stride != 1) return load_strided(row + column * stride, smaller(count, W), stride);
  return count >= W ? load_as_float(row + column) : load_some(row + column, count);
}

// Beyond this a masked value could turn into NaN by 0 * inf inside a product.
constexpr float kLarge = 1e10f;

// rows x width into dst, whose rows are `ld` long (a multiple of W, at least width) and padded with
// zeros. Returns whether anything is NaN or beyond kLarge, before scaling.
inline bool pack_rows(const Matrix& m, i64 first, i64 rows, i64 width, float scale, float* dst,
                      i64 ld) {
  return with_type(m.dtype, [&](auto* type) {
    const auto* data = static_cast<decltype(type)>(m.data) + first * m.row_stride;
    f32v tame = splat(1.f);
    for (i64 r = 0; r < rows; ++r) {
      for (i64 c = 0; c < ld; c += W) {
        f32v x = {};
        if (c < width) x = load_columns(data + r * m.row_stride, c, width, m.column_stride);
        tame = select(less(abs(x), splat(kLarge)), tame, f32v{});
        store(dst + r * ld + c, x * scale);
      }
    }
    return any(equal(tame, f32v{}));
  });
}

// Rows of vectors as a product reads them: the caller's own memory where it is fit for that.
struct Rows {
  const float* data;
  i64 ld;
};

inline Rows rows_in_place_or_packed(const Matrix& m, i64 first, i64 rows, i64 width, float* room) {
  if (m.dtype == NA_FLOAT32 && m.column_stride == 1 && width % W == 0) {
    return {static_cast<const float*>(m.data) + first * m.row_stride, m.row_stride};
  }
  pack_rows(m, first, rows, width, 1.f, room, round_up(width, W));
  return {room, round_up(width, W)};
}

// Whether anything is NaN or beyond kLarge.
inline bool holds_wild(const Rows& x, i64 rows, i64 ld) {
  f32v tame = splat(1.f);
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < ld; c += W) {
      tame = select(less(abs(load(x.data + r * x.ld + c)), splat(kLarge)), tame, f32v{});
    }
  }
  return any(equal(tame, f32v{}));
}

// The transpose: dst is (width x ld), a row for each channel; columns from `rows` up to the next
// multiple of W are zero. Rows of dst beyond `width` up to a multiple of W are zero too.
inline void pack_transposed(const Matrix& m, i64 first, i64 rows, i64 width, float* dst, i64 ld) {
  with_type(m.dtype, [&](auto* type) {
    const auto* data = static_cast<decltype(type)>(m.data) + first * m.row_stride;
    for (i64 r = 0; r < rows; r += W) {
      for (i64 c = 0; c < width; c += W) {
        f32v block[W];
#pragma GCC unroll 16
        for (i64 i = 0; i < W; ++i) {
          block[i] = f32v{};
          if (r + i < rows) {
            block[i] = load_columns(data + (r + i) * m.row_stride, c, width, m.column_stride);
          }
        }
        transpose(block);
#pragma GCC unroll 16
        for (i64 i = 0; i < W; ++i) {
          if (c + i < width) store(dst + (c + i) * ld + r, block[i]);
        }
      }
    }
  });
}

// rows x width of float32 into the caller's dtype, contiguous.
inline void unpack_rows(const float* src, i64 ld, i64 rows, i64 width, void* dst, i64 dtype) {
  with_type(dtype, [&](auto* type) {
    auto* out = const_cast<std::remove_const_t<std::remove_pointer_t<decltype(type)>>*>(
        static_cast<decltype(type)>(dst));
    for (i64 r = 0; r < rows; ++r) {
      for (i64 c = 0; c < width; ++c) from_float(src[r * ld + c], out[r * width + c]);
    }
  });
}

// The explicit mask of query i over keys [first, first + n): -inf hides.
inline void pack_mask(const Matrix& m, i64 i, i64 first, i64 n, float* dst) {
  const i64 start = i * m.row_stride + first * m.column_stride;
  if (m.dtype == NA_BOOL) {
    const auto* data = static_cast<const std::uint8_t*>(m.data) + start;
    for (i64 j = 0; j < n; ++j) dst[j] = data[j * m.column_stride] ? 0.f : -INFINITY;
  } else {
    with_type(m.dtype, [&](auto* type) {
      const auto* data = static_cast<decltype(type)>(m.data) + start;
      for (i64 j = 0; j < n; ++j) dst[j] = to_float(data[j * m.column_stride]) ;
    });
  }
}

// Philox4x32-10 (Salmon et al. 2011) over W counters at once.
NA_INLINE void multiply_high_low(u32v x, std::uint32_t factor, u32v& high, u32v& low) {
#if defined(NA_AVX512)
  const __m512i f = _mm512_set1_epi32(int(factor)), v = (__m512i)x;
  const __m512i even = _mm512_mul_epu32(v, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(v, 32), f);
  high = (u32v)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  low = (u32v)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
#elif defined(__AVX2__)
  const __m256i f = _mm256_set1_epi32(int(factor)), v = (__m256i)x;
  const __m256i even = _mm256_mul_epu32(v, f), odd = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), f);
  high = (u32v)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  low = (u32v)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
#else
  for (int i = 0; i < W; ++i) {
    const std::uint64_t product = std::uint64_t(x[i]) * factor;
    high[i] = std::uint32_t(product >> 32);
    low[i] = std::uint32_t(product);
  }
#endif
}

struct Dropout {
  std::uint64_t seed;
  std::uint32_t threshold;  // a weight survives where its word is at least this
  float scale;              // of the survivors
};

// For query i and keys [first, first + n), first a multiple of 4: scale where kept, else 0.
// dst is written up to the next multiple of 4 W.
inline void dropout_row(const Dropout& dropout, i64 batch, i64 head, i64 i, i64 first, i64 n,
                        float* dst) {
  u32v lane;
  for (int l = 0; l < W; ++l) lane[l] = std::uint32_t(l);
  for (i64 j = 0; j < n; j += 4 * W) {
    u32v c0 = lane + std::uint32_t((first + j) / 4);
    u32v c1 = u32v{} + std::uint32_t(i), c2 = u32v{} + std::uint32_t(head);
    u32v c3 = u32v{} + std::uint32_t(batch);
    std::uint32_t k0 = std::uint32_t(dropout.seed), k1 = std::uint32_t(dropout.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      u32v high0, low0, high2, low2;
      multiply_high_low(c0, 0xD2511F53u, high0, low0);
      multiply_high_low(c2, 0xCD9E8D57u, high2, low2);
      c0 = high2 ^ c1 ^ k0;
      c1 = low2;
      c2 = high0 ^ c3 ^ k1;
      c3 = low0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const u32v words[4] = {c0, c1, c2, c3};
    f32v keep[4];
    for (int w = 0; w < 4; ++w) {
      keep[w] = (f32v)((i32v)(words[w] >= dropout.threshold) & (i32v)splat(dropout.scale));
    }
    // Lane l of word w belongs to key 4 l + w.
    const f32v even_low = zip_low(keep[0], keep[2]), even_high = zip_high(keep[0], keep[2]);
    const f32v odd_low = zip_low(keep[1], keep[3]), odd_high = zip_high(keep[1], keep[3]);
    store(dst + j, zip_low(even_low, odd_low));
    store(dst + j + W, zip_high(even_low, odd_low));
    store(dst + j + 2 * W, zip_low(even_high, odd_high));
    store(dst + j + 3 * W, zip_high(even_high, odd_high));
  }
}

}  // namespace NA_ISA
