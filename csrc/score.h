// The score network on a tile: a block of queries against vectors of keys, forward and backward.
//
// Positions are relative to the tile: with slopes, m (j - first) stands in the keys' features and
// m (first - p) in the rows', so that float32 is exact about them at any length.
#pragma once

#include "activation.h"

namespace NA_ISA {

constexpr int kGroup = 4;       // rows that share each load of a key vector
constexpr int kRowStride = 32;  // of the rows' tiles, which hold up to so many rows
static_assert(W % kGroup == 0, "sums over lanes take whole groups");

// One head's parameters.
struct Head {
  const float *w, *w2, *c2, *slopes;
  float alibi;
  Shape shape;
};

struct Tile {
  i64 channels, second, ld;  // C, E; the keys in a row
  Head head;
  // Features, channel by channel: (C x ld) and (C x kRowStride), positions added.
  const float* b;
  const float* a;
  float* threshold;     // hinge: (C x kRowStride), -a, or what is as good in this tile
  float* largest;       // hinge: (C), the largest b of each channel
  float* w_active;      // hinge: (C), output weights of active units: (1 - leak) w
  float* row_constant;  // (kRowStride)
  float* key_constant;  // (ld)
  bool has_key_constant;
  const float* dots;  // (rows x ld), or null
  float* cache;       // activations and derivatives of the vectors at hand

  // Backward. Sums of the scores' gradient times the derivative at each hidden unit.
  float* grad_a;            // (C x kRowStride)
  float* grad_b;            // (C x ld)
  float *row_sum, *key_sum;  // leaky_relu: sums of the scores' gradient alone
  float* lanes;             // (C x kGroup), a vector each
  float *grad_w, *grad_w2, *grad_c2;  // one vector for each parameter
};

template <int R, int V>
NA_INLINE void start_scores(const Tile& t, i64 row, i64 j, f32v (&s)[R][V]) {
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      s[r][v] = splat(t.row_constant[row + r]);
      if (t.has_key_constant) s[r][v] += load(t.key_constant + j + v * W);
      if (t.dots) s[r][v] += load(t.dots + (row + r) * t.ld + j + v * W);
    }
  }
}

// relu and leaky_relu with one hidden layer. relu(a + b) = max(b, -a) + a, and the sum of w a is
// one constant for the row: two operations for each pair and channel. max returns its second operand
// where one is NaN, so a NaN in b shows; a NaN in a shows in the constant. leaky_relu(u) is
// leak u + (1 - leak) relu(u), and leak u is a constant for the row and one for the key.
template <bool LEAKY>
struct Hinge {
  static constexpr int kVectors = 2;    // evaluated at once
  static constexpr bool kSeparate = true;  // backward runs over a whole row group by itself
  static constexpr bool kHinge = true;
  static const float* curve() { return nullptr; }

  static void prepare_keys(const Tile& t, i64 n) {
    const float leak = LEAKY ? t.head.shape.leak : 0.f;
    for (i64 c = 0; c < t.channels; ++c) {
      t.w_active[c] = t.head.w[c] * (1 - leak);
      f32v best = splat(-INFINITY);
      for (i64 j = 0; j < n; j += W) {
        const f32v b = load(t.b + c * t.ld + j);
        best = max(b, best);
        if (LEAKY) {
          const f32v part = b * (t.head.w[c] * leak);
          store(t.key_constant + j, load(t.key_constant + j) + part);
        }
      }
      // Without a finite bound there is nothing to gain.
      const float largest = max_lanes(best);
      t.largest[c] = largest > -1e10f ? largest : INFINITY;
    }
  }

  // Where -a exceeds every b the unit is dead for the row, and any threshold from the largest b on
  // says so: the smallest keeps the constants small, hence exact.
  static void prepare_rows(const Tile& t) {
    const float leak = LEAKY ? t.head.shape.leak : 0.f;
    for (i64 c = 0; c < t.channels; ++c) {
      const float w = t.w_active[c], w_leak = t.head.w[c] * leak;
      for (i64 r = 0; r < kRowStride; r += W) {
        const f32v a = load(t.a + c * kRowStride + r);
        const f32v threshold = min(splat(t.largest[c]), -a);
        store(t.threshold + c * kRowStride + r, threshold);
        f32v constant = load(t.row_constant + r) - threshold * w;
        if (LEAKY) constant += a * w_leak;
        store(t.row_constant + r, constant);
      }
    }
  }

  template <int R, int V, bool KEEP>
  static NA_INLINE void scores(const Tile& t, i64 row, i64 j, f32v (&s)[R][V]) {
    start_scores(t, row, j, s);
    const float* b = t.b + j;
    const float* threshold = t.threshold + row;
    for (i64 c = 0; c < t.channels; ++c, b += t.ld, threshold += kRowStride) {
      const f32v w = splat(t.w_active[c]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const f32v key = load(b + v * W);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) s[r][v] += w * max(splat(threshold[r]), key);
      }
    }
  }

  // The gradient of the scores, ds (kGroup rows, ld apart), over vectors [begin, end) of keys.
  template <bool MASKED>
  static void backward(const Tile& t, i64 row, i64 begin, i64 end, const float* ds) {
    constexpr int kChannels = W / kGroup < 4 ? W / kGroup : 4;
    static_assert(kChannels * kGroup == W, "one sum over lanes for each block of channels");
    i64 c = 0;
    for (; c + kChannels <= t.channels; c += kChannels) {
      channels<kChannels>(t, c, row, begin, end, ds);
    }
    for (; c < t.channels; ++c) channels<1>(t, c, row, begin, end, ds);
    if (LEAKY) {
      f32v sum[kGroup] = {};
      for (i64 j = begin; j < end; j += W) {
        f32v key = load(t.key_sum + j);
#pragma GCC unroll 4
        for (int r = 0; r < kGroup; ++r) {
          sum[r] += load(ds + r * t.ld + j);
          key += load(ds + r * t.ld + j);
        }
        store(t.key_sum + j, key);
      }
      for (int r = 0; r < kGroup; ++r) t.row_sum[row + r] = sum_lanes(sum[r]);
    }
  }

 private:
  template <int N>
  static NA_INLINE void channels(const Tile& t, i64 c0, i64 row, i64 begin, i64 end,
                                 const float* ds) {
    f32v sum[W] = {};
    for (i64 j = begin; j < end; j += W) {
      f32v grad[kGroup];
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) grad[r] = load(ds + r * t.ld + j);
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        const f32v key = load(t.b + (c0 + c) * t.ld + j);
        float* target = t.grad_b + (c0 + c) * t.ld + j;
        f32v key_sum = load(target);
#pragma GCC unroll 4
        for (int r = 0; r < kGroup; ++r) {
          const mask active = less(splat(t.threshold[(c0 + c) * kRowStride + row + r]), key);
          sum[c * kGroup + r] = add_where(active, sum[c * kGroup + r], grad[r]);
          key_sum = add_where(active, key_sum, grad[r]);
        }
        store(target, key_sum);
      }
    }
    const f32v totals = sums_of(sum);
    for (int c = 0; c < N; ++c) {
      for (int r = 0; r < kGroup; ++r) {
        t.grad_a[(c0 + c) * kRowStride + row + r] = totals[c * kGroup + r];
      }
    }
  }
};

// Any activation, one hidden layer or two.
template <class Activation, bool TWO_LAYERS>
struct Network {
  static constexpr int kVectors = 1;
  static constexpr bool kSeparate = false;  // backward follows each vector, from the cache
  static constexpr bool kHinge = false;
  // First-layer units that share each load on the way back: as many as the registers hold.
  static constexpr int kUnits = kVectorBytes == 64 ? 2 : 1;
  static const float* curve() { return curve_of<Activation>(0); }

  static void prepare_keys(const Tile&, i64) {}
  static void prepare_rows(const Tile&) {}

  // The cache: for each unit of the first layer, then of the second, kGroup values and kGroup
  // derivatives; then the gradients at the second layer's input.
  static NA_INLINE float* slot(const Tile& t, i64 unit, int which) {
    return t.cache + (unit * 2 + which) * kGroup * W;
  }
  static NA_INLINE float* inner_gradient(const Tile& t, i64 e) {
    return slot(t, t.channels + t.second, 0) + e * kGroup * W;
  }

  template <int R, int V, bool KEEP>
  static NA_INLINE void scores(const Tile& t, i64 row, i64 j, f32v (&s)[R][V]) {
    static_assert(R == kGroup && V == 1, "the cache holds one group of one vector");
    start_scores(t, row, j, s);
    for (i64 c = 0; c < t.channels; ++c) {
      const f32v key = load(t.b + c * t.ld + j);
      const f32v w = splat(TWO_LAYERS ? 0.f : t.head.w[c]);
      f32v y[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) y[r] = splat(t.a[c * kRowStride + row + r]) + key;
      activate<KEEP>(t, c, y);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        if (!TWO_LAYERS) s[r][0] += w * y[r];
      }
    }
    if (!TWO_LAYERS) return;
    i64 e = 0;
    for (; e + 2 <= t.second; e += 2) second_units<2, KEEP>(t, e, s);
    for (; e < t.second; ++e) second_units<1, KEEP>(t, e, s);
  }

  // One vector of keys, [begin, begin + W), which `scores` has just left in the cache.
  template <bool MASKED>
  static void backward(const Tile& t, i64, i64 begin, i64, const float* ds) {
    f32v grad[kGroup];
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) grad[r] = load(ds + r * t.ld + begin);
    if (TWO_LAYERS) second_layer<MASKED>(t, grad);
    i64 c = 0;
    for (; c + kUnits <= t.channels; c += kUnits) first_units<kUnits, MASKED>(t, c, begin, grad);
    for (; c < t.channels; ++c) first_units<1, MASKED>(t, c, begin, grad);
  }

 private:
  // What lies behind a masked pair may be NaN, which a gradient of zero would not stop.
  template <bool MASKED>
  static NA_INLINE f32v guarded(f32v grad, f32v x) {
    return MASKED ? select(equal(grad, f32v{}), f32v{}, x) : x;
  }

  // In place, and into the cache. All is computed before anything is stored: the compiler may then
  // keep an activation's constants in registers.
  template <bool KEEP>
  static NA_INLINE void activate(const Tile& t, i64 unit, f32v (&u)[kGroup]) {
    f32v slope[kGroup];
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      if (KEEP) {
        f32v y;
        Activation::both(u[r], t.head.shape, y, slope[r]);
        u[r] = y;
      } else {
        u[r] = Activation::value(u[r], t.head.shape);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
      if (KEEP || TWO_LAYERS) store(slot(t, unit, 0) + r * W, u[r]);
      if (KEEP) store(slot(t, unit, 1) + r * W, slope[r]);
    }
  }

  // Units [e, e + N) of the second layer, from the first layer's values in the cache.
  template <int N, bool KEEP>
  static NA_INLINE void second_units(const Tile& t, i64 e, f32v (&s)[kGroup][1]) {
    f32v z[N][kGroup];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) z[n][r] = splat(t.head.c2[e + n]);
    }
    for (i64 c = 0; c < t.channels; ++c) {
      f32v y[kGroup];
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) y[r] = load(slot(t, c, 0) + r * W);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) {
        const f32v w = splat(t.head.w2[(e + n) * t.channels + c]);
#pragma GCC unroll 4
        for (int r = 0; r < kGroup; ++r) z[n][r] += w * y[r];
      }
    }
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      activate<KEEP>(t, t.channels + e + n, z[n]);
      const f32v w = splat(t.head.w[e + n]);
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) s[r][0] += w * z[n][r];
    }
  }

  // The way back through units [c, c + N) of the first layer.
  template <int N, bool MASKED>
  static NA_INLINE void first_units(const Tile& t, i64 c, i64 begin, const f32v (&grad)[kGroup]) {
    f32v y[N][kGroup], flow[N][kGroup];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) {
        y[n][r] = guarded<MASKED>(grad[r], load(slot(t, c + n, 0) + r * W));
        flow[n][r] = TWO_LAYERS ? f32v{} : grad[r];
      }
    }
    for (i64 e = 0; e < (TWO_LAYERS ? t.second : 1); ++e) {
      f32v inner[kGroup];
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) {
        inner[r] = TWO_LAYERS ? load(inner_gradient(t, e) + r * W) : grad[r];
      }
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) {
        float* target =
            TWO_LAYERS ? t.grad_w2 + (e * t.channels + c + n) * W : t.grad_w + (c + n) * W;
        f32v sum = load(target);
#pragma GCC unroll 4
        for (int r = 0; r < kGroup; ++r) {
          if (TWO_LAYERS) flow[n][r] += splat(t.head.w2[e * t.channels + c + n]) * inner[r];
          sum += inner[r] * y[n][r];
        }
        store(target, sum);
      }
    }
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      f32v key = load(t.grad_b + (c + n) * t.ld + begin);
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) {
        const f32v slope = guarded<MASKED>(grad[r], load(slot(t, c + n, 1) + r * W));
        float* lane = t.lanes + ((c + n) * kGroup + r) * W;
        store(lane, load(lane) + flow[n][r] * slope);
        key += flow[n][r] * slope;
      }
      store(t.grad_b + (c + n) * t.ld + begin, key);
    }
  }

  template <bool MASKED>
  static NA_INLINE void second_layer(const Tile& t, const f32v (&grad)[kGroup]) {
    for (i64 e = 0; e < t.second; ++e) {
      const f32v w = splat(t.head.w[e]);
      f32v output = load(t.grad_w + e * W), bias = load(t.grad_c2 + e * W);
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) {
        const f32v y = guarded<MASKED>(grad[r], load(slot(t, t.channels + e, 0) + r * W));
        const f32v slope = guarded<MASKED>(grad[r], load(slot(t, t.channels + e, 1) + r * W));
        const f32v inner = grad[r] * w * slope;
        output += grad[r] * y;
        bias += inner;
        store(inner_gradient(t, e) + r * W, inner);
      }
      store(t.grad_w + e * W, output);
      store(t.grad_c2 + e * W, bias);
    }
  }
};

}  // namespace NA_ISA
