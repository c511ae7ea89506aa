// The one matrix product: out(row, :) += sum over k of A(row, k) B(k, :), blocked for registers.
#pragma once

#include "vec.h"

namespace NA_ISA {

// A is read one element at a time, with any strides; B and out in whole vectors.
struct Operand {
  const float* data;
  i64 row_stride, k_stride;
};

constexpr int kBlockRows = 6;
constexpr int kBlockVectors = kVectorBytes == 64 ? 4 : 2;  // leaves registers for A and B

template <int R, int V, bool ACCUMULATE>
NA_INLINE void product_block(Operand a, const float* b, i64 ldb, i64 depth, float* out, i64 ldo) {
  f32v sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = ACCUMULATE ? load(out + r * ldo + v * W) : f32v{};
  }
  for (i64 k = 0; k < depth; ++k) {
    f32v row[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) row[v] = load(b + k * ldb + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const f32v x = splat(a.data[r * a.row_stride + k * a.k_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += x * row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out + r * ldo + v * W, sum[r][v]);
  }
}

template <int R, bool ACCUMULATE>
inline void product_rows(i64 vectors, Operand a, const float* b, i64 ldb, i64 depth, float* out,
                         i64 ldo) {
  static_assert(kBlockVectors <= 4, "cases below");
  if (vectors >= kBlockVectors) {
    product_block<R, kBlockVectors, ACCUMULATE>(a, b, ldb, depth, out, ldo);
  } else if (vectors == 3) {
    product_block<R, 3, ACCUMULATE>(a, b, ldb, depth, out, ldo);
  } else if (vectors == 2) {
    product_block<R, 2, ACCUMULATE>(a, b, ldb, depth, out, ldo);
  } else {
    product_block<R, 1, ACCUMULATE>(a, b, ldb, depth, out, ldo);
  }
}

// out is (rows x vectors * W). Columns outside, rows inside: a column block of B stays in the
// first-level cache while the rows pass.
template <bool ACCUMULATE>
inline void product(i64 rows, i64 vectors, Operand a, const float* b, i64 ldb, i64 depth,
                    float* out, i64 ldo) {
  for (i64 v = 0; v < vectors; v += kBlockVectors) {
    const i64 width = smaller(kBlockVectors, vectors - v);
    for (i64 r = 0; r < rows; r += kBlockRows) {
      const Operand part = {a.data + r * a.row_stride, a.row_stride, a.k_stride};
      const float* columns = b + v * W;
      float* block = out + r * ldo + v * W;
      switch (smaller(kBlockRows, rows - r)) {
        case 6: product_rows<6, ACCUMULATE>(width, part, columns, ldb, depth, block, ldo); break;
        case 5: product_rows<5, ACCUMULATE>(width, part, columns, ldb, depth, block, ldo); break;
        case 4: product_rows<4, ACCUMULATE>(width, part, columns, ldb, depth, block, ldo); break;
        case 3: product_rows<3, ACCUMULATE>(width, part, columns, ldb, depth, block, ldo); break;
        case 2: product_rows<2, ACCUMULATE>(width, part, columns, ldb, depth, block, ldo); break;
        default: product_rows<1, ACCUMULATE>(width, part, columns, ldb, depth, block, ldo);
      }
    }
  }
}

// out += A B. With `skip_zeros`, B may hold NaN or infinity where A is zero: those are left out.
inline void add_product(bool skip_zeros, i64 rows, i64 vectors, Operand a, const float* b, i64 ldb,
                        i64 depth, float* out, i64 ldo) {
  if (!skip_zeros) return product<true>(rows, vectors, a, b, ldb, depth, out, ldo);
  for (i64 r = 0; r < rows; ++r) {
    for (i64 k = 0; k < depth; ++k) {
      const float x = a.data[r * a.row_stride + k * a.k_stride];
      if (x == 0) continue;
      for (i64 c = 0; c < vectors * W; c += W) {
        store(out + r * ldo + c, load(out + r * ldo + c) + x * load(b + k * ldb + c));
      }
    }
  }
}

}  // namespace NA_ISA
