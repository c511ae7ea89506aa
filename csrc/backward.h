// Backward: recomputes each tile's scores from lse and sends their gradient back through the score
// network in the same tile (Dao et al. 2022, the recomputation; Dao 2023, keys in the outer loop).
//
// A unit of work is a batch entry, a key head and a part of the key tiles. It alone writes the keys'
// gradients of its tiles, and has its own copy of the queries' gradients, so that sums are taken in
// one order whatever the threads do.
#pragma once

#include "tiles.h"

namespace NA_ISA {

constexpr int kBackwardKeys = 256;  // of a tile

// Everything but the scores themselves, compiled once for all score networks.
class Backward {
 public:
  explicit Backward(const NaCall& call) : c(call) {
    lay_out();
    arena.allocate();
    lay_out();
  }
  virtual ~Backward() = default;
  bool failed() const { return arena.failed(); }

  void unit(i64 index) {
    part = index % c.key_parts;
    kv = index / c.key_parts % c.key_heads;
    batch = index / c.key_parts / c.key_heads;
    for (i64 s = 0; s < row_tiles(); ++s) {
      ranges[s] = range_of(c, batch, s * kRows, smaller((s + 1) * kRows, c.queries));
    }
    // Neighbouring tiles go to different parts: under a causal mask that shares the work evenly.
    for (i64 first = part * kBackwardKeys; first < c.keys; first += c.key_parts * kBackwardKeys) {
      key_tile(first, smaller(kBackwardKeys, c.keys - first));
    }
  }

 protected:
  const NaCall& c;
  Arena arena;
  Tile tile = {};
  i64 part, batch, kv;
  i64 ldd, ldv;
  float *values_transposed, *keys, *keys_transposed, *features, *own_features;
  float *grad_values, *grad_keys, *grad_features;  // of the key tile, all heads of the group
  float *row_features, *own_rows, *queries, *grad_out, *shift, *rest, *delta;
  float *weights, *grads;  // the row tile's weights, then the gradients of its scores
  float *grad_queries, *bias, *keep;
  RowRange* ranges;
  bool wild_keys, wild_queries, wild_grad_out, network;
  double *grad_w, *grad_w2, *grad_c2, *grad_slopes, *grad_alibi;  // of the head at hand

  static void clear(float* p, i64 n) { std::memset(p, 0, std::size_t(n) * 4); }

  // What depends on the score network.
  virtual const float* curve() const = 0;
  virtual bool hinge() const = 0;
  virtual void prepare_network(i64 n) = 0;
  virtual void prepare_network_rows() = 0;
  virtual void group(bool masked, i64 h, i64 i, i64 row, i64 n, i64 first, Span span,
                     const GroupMask& mask) = 0;

 private:
  i64 row_tiles() const { return (c.queries + kRows - 1) / kRows; }
  i64 output_width() const { return c.second ? c.second : c.channels; }
  i64 parameters() const {
    return output_width() + c.second * c.channels + c.second + c.channels + 1;
  }

  void lay_out() {
    const i64 ld = kBackwardKeys;
    ldd = padded(c.dot_width);
    ldv = padded(c.value_width);
    tile.channels = c.channels;
    tile.second = c.second;
    tile.ld = ld;
    network = c.channels > 0;
    weights = arena.take(kRows * ld);
    grads = arena.take(kRows * ld);
    grad_out = arena.take(kRows * ldv);
    values_transposed = arena.take(c.value_width * ld);
    grad_values = arena.take(ld * ldv);
    features = arena.take(c.channels * ld);
    own_features = arena.take(c.slopes ? c.channels * ld : 0);
    grad_features = arena.take(c.channels * ld);
    row_features = arena.take(c.channels * kRowStride);
    own_rows = arena.take(c.channels * kRowStride);
    keys = arena.take(ld * ldd);
    keys_transposed = arena.take(c.dot_width * ld);
    grad_keys = arena.take(ld * ldd);
    queries = arena.take(kRows * ldd);
    grad_queries = arena.take(kRows * ldd);
    shift = arena.take(kRowStride);
    rest = arena.take(kRowStride);
    delta = arena.take(kRowStride);
    bias = arena.take(c.mask.data ? kGroup * ld : 0);
    keep = arena.take(kGroup * (ld + 4 * W));
    ranges = reinterpret_cast<RowRange*>(arena.take(row_tiles() * sizeof(RowRange) / 4));
    tile.threshold = arena.take(c.channels * kRowStride);
    tile.row_constant = arena.take(kRowStride);
    tile.key_constant = arena.take(ld);
    tile.largest = arena.take(c.channels);
    tile.w_active = arena.take(c.channels);
    tile.cache = arena.take((c.channels * 2 + c.second * 3) * kGroup * W);
    tile.grad_a = arena.take(c.channels * kRowStride);
    tile.grad_b = arena.take(c.channels * ld);
    tile.row_sum = arena.take(kRowStride);
    tile.key_sum = arena.take(ld);
    tile.lanes = arena.take(round_up(c.channels * kGroup, W) * W);
    tile.grad_w = arena.take(output_width() * W);
    tile.grad_w2 = arena.take(c.second * c.channels * W);
    tile.grad_c2 = arena.take(c.second * W);
  }

  void key_tile(i64 first, i64 n) {
    pack_transposed(matrix(c.v, c.dtype, batch, kv), first, n, c.value_width, values_transposed,
                    tile.ld);
    clear(grad_values, tile.ld * ldv);
    if (network) {
      pack_transposed(matrix(c.b, c.dtype, batch, kv), first, n, c.channels, features, tile.ld);
      clear(grad_features, c.channels * tile.ld);
    }
    if (c.dot_width) {
      const Matrix k = matrix(c.k, c.dtype, batch, kv);
      wild_keys = pack_rows(k, first, n, c.dot_width, 1.f, keys, ldd);
      pack_transposed(k, first, n, c.dot_width, keys_transposed, tile.ld);
      clear(grad_keys, tile.ld * ldd);
    }
    const i64 group = c.heads / c.key_heads;
    for (i64 g = 0; g < group; ++g) {
      const i64 h = kv * group + g;
      begin_head(h, g, n);
      for (i64 s = 0; s < row_tiles(); ++s) {
        const Span span = span_of(ranges[s].some, first, n);
        if (!span.empty()) row_tile(h, s, first, span);
      }
      if (network) fold_keys(n);
    }
    const i64 row = (batch * c.key_heads + kv) * c.keys + first;
    if (c.grad_v) put(grad_values, ldv, n, c.value_width, c.grad_v + row * c.value_width);
    // The queries in the product carried the scale.
    if (c.grad_k) put(grad_keys, ldd, n, c.dot_width, c.grad_k + row * c.dot_width);
    if (c.grad_b) {
      for (i64 j = 0; j < n; ++j) {
        for (i64 ch = 0; ch < c.channels; ++ch) {
          c.grad_b[(row + j) * c.channels + ch] = grad_features[ch * tile.ld + j];
        }
      }
    }
  }

  static void put(const float* from, i64 ld, i64 rows, i64 width, float* to) {
    for (i64 r = 0; r < rows; ++r) {
      for (i64 d = 0; d < width; ++d) to[r * width + d] = from[r * ld + d];
    }
  }

  void begin_head(i64 h, i64 g, i64 n) {
    const i64 group = c.heads / c.key_heads;
    tile.head = head_of(c, h, curve());
    prepare_keys(c, tile, features, own_features, n, hinge() && tile.head.shape.leak != 0);
    prepare_network(n);
    clear(tile.grad_b, c.channels * tile.ld);
    clear(tile.key_sum, tile.ld);
    const i64 unit = (batch * c.key_heads + kv) * c.key_parts + part;
    grad_w = c.grad_parameters + (unit * group + g) * parameters();
    grad_w2 = grad_w + output_width();
    grad_c2 = grad_w2 + c.second * c.channels;
    grad_slopes = grad_c2 + c.second;
    grad_alibi = grad_slopes + c.channels;
  }

  // The rows' output gradients, shifts and deltas; a row that sees nothing is made harmless.
  void pack_row_tile(i64 h, i64 i, i64 n) {
    const i64 row = (batch * c.heads + h) * c.queries + i;
    wild_grad_out = pack_rows(matrix(c.grad_out, c.dtype, batch, h), i, n, c.value_width, 1.f,
                              grad_out, ldv);
    if (c.dot_width) {
      wild_queries = pack_rows(matrix(c.q, c.dtype, batch, h), i, n, c.dot_width, float(c.scale),
                               queries, ldd);
    }
    const float* grad_lse = static_cast<const float*>(c.grad_lse.data) +
                            batch * c.grad_lse.stride[0] + h * c.grad_lse.stride[1];
    for (i64 r = 0; r < kRowStride; ++r) {
      shift[r] = INFINITY;
      rest[r] = delta[r] = 0;
      if (r >= n) continue;
      if (c.lse[row + r] == -INFINITY) {
        clear(grad_out + r * ldv, ldv);
        clear(queries + r * ldd, ldd);
        continue;
      }
      shift[r] = c.lse[row + r];
      rest[r] = c.rest[row + r];
      delta[r] = c.delta[row + r] - grad_lse[(i + r) * c.grad_lse.stride[2]];
    }
    if (network) {
      clear(row_features, c.channels * kRowStride);
      pack_transposed(matrix(c.a, c.dtype, batch, h), i, n, c.channels, row_features, kRowStride);
    }
  }

  void row_tile(i64 h, i64 s, i64 first, Span span) {
    const i64 i = s * kRows, n = smaller(kRows, c.queries - i), ld = tile.ld;
    const i64 seen = span.end - span.begin;
    const bool whole = all_visible(c, ranges[s], n, first, span);
    pack_row_tile(h, i, n);
    prepare_rows(c, tile, row_features, own_rows, batch, i, first);
    prepare_network_rows();
    clear_parameter_sums();
    product<false>(n, span.vectors(), {grad_out, ldv, 1}, values_transposed + span.begin, ld,
                   c.value_width, grads + span.begin, ld);
    if (c.dot_width) {
      product<false>(n, span.vectors(), {queries, ldd, 1}, keys_transposed + span.begin, ld,
                     c.dot_width, weights + span.begin, ld);
      tile.dots = weights;
    }
    bool hidden = false;
    for (i64 row = 0; row < n; row += kGroup) {
      GroupMask mask;
      if (whole || group_mask(c, batch, h, i, row, n, first, span, bias, ld, mask)) {
        group(false, h, i, row, n, first, span, mask);
      } else {
        group(true, h, i, row, n, first, span, mask);
        hidden = true;
      }
    }
    if (network) fold_rows(h, i, n, first);
    if (c.grad_v) {
      add_product(hidden && wild_grad_out, seen, ldv / W, {weights + span.begin, 1, ld}, grad_out,
                  ldv, n, grad_values + span.begin * ldv, ldv);
    }
    if (c.grad_k) {
      add_product(hidden && wild_queries, seen, ldd / W, {grads + span.begin, 1, ld}, queries, ldd,
                  n, grad_keys + span.begin * ldd, ldd);
    }
    if (c.grad_q) {
      clear(grad_queries, n * ldd);
      add_product(hidden && wild_keys, n, ldd / W, {grads + span.begin, ld, 1},
                  keys + span.begin * ldd, ldd, seen, grad_queries, ldd);
      float* target = c.grad_q + query_row(h, i) * c.dot_width;
      for (i64 r = 0; r < n; ++r) {
        for (i64 d = 0; d < c.dot_width; ++d) {
          target[r * c.dot_width + d] += grad_queries[r * ldd + d] * float(c.scale);
        }
      }
    }
  }

  // The row of the queries' gradients that belongs to this part.
  i64 query_row(i64 h, i64 i) const {
    return ((part * c.batch + batch) * c.heads + h) * c.queries + i;
  }

 protected:
  void fold_lanes(i64 row) {
    for (i64 at = 0; at < c.channels * kGroup; at += W) {
      f32v lanes[W];
      for (int l = 0; l < W; ++l) lanes[l] = load(tile.lanes + (at + l) * W);
      const f32v totals = sums_of(lanes);
      for (i64 l = 0; l < smaller(W, c.channels * kGroup - at); ++l) {
        tile.grad_a[(at + l) / kGroup * kRowStride + row + (at + l) % kGroup] = totals[l];
      }
    }
  }

  void add_to_mask(i64 h, i64 i, i64 row, i64 n, i64 first, Span span) {
    const NaTensor& t = c.grad_mask;
    float* target = static_cast<float*>(const_cast<void*>(t.data)) + part * c.grad_mask_part_stride +
                    batch * t.stride[0] + h * t.stride[1];
    for (i64 r = row; r < smaller(row + kGroup, n); ++r) {
      for (i64 j = span.begin; j < span.end; ++j) {
        target[(i + r) * t.stride[2] + (first + j) * t.stride[3]] += grads[r * tile.ld + j];
      }
    }
  }

 private:
  void clear_parameter_sums() {
    if (hinge()) return;
    clear(tile.grad_w, output_width() * W);
    clear(tile.grad_w2, c.second * c.channels * W);
    clear(tile.grad_c2, c.second * W);
  }

  // The weight between a hidden unit's sums and the gradient at its input.
  float outward(i64 channel) const { return c.second ? 1.f : tile.head.w[channel]; }

  // leaky_relu: sums over active pairs become sums weighted by the derivative.
  f32v leaked(f32v active, const float* all) const {
    if (!hinge() || tile.head.shape.leak == 0) return active;
    return active * (1.f - tile.head.shape.leak) + load(all) * tile.head.shape.leak;
  }

  void fold_rows(i64 h, i64 i, i64 n, i64 first) {
    const float distance = float(first - position(c, batch, i));
    float* target = c.grad_a ? c.grad_a + query_row(h, i) * c.channels : nullptr;
    const f32v lane = iota();
    for (i64 ch = 0; ch < c.channels; ++ch) {
      f32v weight_sum = {}, slope_sum = {};
      for (i64 r = 0; r < n; r += W) {
        const f32v inside = lane + float(r);
        f32v sum = leaked(load(tile.grad_a + ch * kRowStride + r), tile.row_sum + r);
        sum = select(less(inside, splat(float(n))), sum, f32v{});
        weight_sum += product_with_gradient(sum, load(tile.a + ch * kRowStride + r));
        slope_sum += sum * (distance - inside);
        if (!target) continue;
        const f32v grad = sum * outward(ch);
        for (i64 l = 0; l < smaller(W, n - r); ++l) target[(r + l) * c.channels + ch] += grad[l];
      }
      if (hinge()) grad_w[ch] += double(sum_lanes(weight_sum));
      if (c.slopes) grad_slopes[ch] += double(sum_lanes(slope_sum) * outward(ch));
    }
    if (hinge()) return;
    fold_parameters(tile.grad_w, output_width(), grad_w);
    fold_parameters(tile.grad_w2, c.second * c.channels, grad_w2);
    fold_parameters(tile.grad_c2, c.second, grad_c2);
  }

  // What has no gradient because it is hidden from all may be NaN.
  static NA_INLINE f32v product_with_gradient(f32v grad, f32v x) {
    return select(equal(grad, f32v{}), f32v{}, grad * x);
  }

  static void fold_parameters(const float* lanes, i64 count, double* target) {
    for (i64 p = 0; p < count; ++p) target[p] += double(sum_lanes(load(lanes + p * W)));
  }

  void fold_keys(i64 n) {
    const f32v lane = iota();
    for (i64 ch = 0; ch < c.channels; ++ch) {
      f32v weight_sum = {}, slope_sum = {};
      for (i64 j = 0; j < n; j += W) {
        const f32v sum = leaked(load(tile.grad_b + ch * tile.ld + j), tile.key_sum + j);
        const f32v b = load(tile.b + ch * tile.ld + j);
        weight_sum += product_with_gradient(sum, b);
        slope_sum += sum * (lane + float(j));
        float* target = grad_features + ch * tile.ld + j;
        store(target, load(target) + sum * outward(ch));
      }
      if (hinge()) grad_w[ch] += double(sum_lanes(weight_sum));
      if (c.slopes) grad_slopes[ch] += double(sum_lanes(slope_sum) * outward(ch));
    }
  }
};

template <class Net>
class BackwardWith final : public Backward {
 public:
  using Backward::Backward;

 private:
  const float* curve() const override { return Net::curve(); }
  bool hinge() const override { return Net::kHinge; }
  void prepare_network(i64 n) override { Net::prepare_keys(tile, n); }
  void prepare_network_rows() override { Net::prepare_rows(tile); }
  void group(bool masked, i64 h, i64 i, i64 row, i64 n, i64 first, Span span,
             const GroupMask& mask) override {
    if (masked) {
      gradients<true>(h, i, row, n, first, span, mask);
    } else {
      gradients<false>(h, i, row, n, first, span, mask);
    }
  }

  // Weights and score gradients of kGroup rows, and their way back through the network.
  template <bool MASKED>
  void gradients(i64 h, i64 i, i64 row, i64 n, i64 first, Span span, const GroupMask& mask) {
    if (c.dropout_p > 0) {
      const i64 begin = span.begin / 4 * 4;
      for (i64 r = row; r < smaller(row + kGroup, n); ++r) {
        dropout_row(dropout_of(c), batch, h, i + r, first + begin, span.padded_end() - begin,
                    keep + (r - row) * (tile.ld + 4 * W) + begin);
      }
    }
    if (!Net::kHinge) clear(tile.lanes, round_up(c.channels * kGroup, W) * W);
    const f32v lane = iota();
    f32v alibi = {};
    const float distance = float(first - position(c, batch, i + row));
    auto vectors = [&](auto count, i64 j) __attribute__((always_inline)) {
      constexpr int V = decltype(count)::value;
      f32v s[kGroup][V];
      Net::template scores<kGroup, V, true>(tile, row, j, s);
#pragma GCC unroll 4
      for (int r = 0; r < kGroup; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          const i64 at = (row + r) * tile.ld + j + v * W;
          f32v score = s[r][v];
          if (MASKED) score = mask.apply(score, r, j + v * W);
          f32v weight = exp((score - shift[row + r]) - rest[row + r]);
          f32v grad = load(grads + at), kept = weight;
          if (c.dropout_p > 0) {
            const f32v factor = load(keep + r * (tile.ld + 4 * W) + j + v * W);
            kept = weight * factor;
            grad *= factor;
          }
          grad = weight * (grad - delta[row + r]);
          if (MASKED) {
            const NA_ISA::mask hidden = equal(score, splat(-INFINITY));
            kept = select(hidden, f32v{}, kept);
            grad = select(hidden, f32v{}, grad);
          }
          if (c.alibi) alibi += grad * (lane + (float(j + v * W - r) + distance));
          store(weights + at, kept);
          store(grads + at, grad);
        }
      }
      if (network && !Net::kSeparate) {
        Net::template backward<MASKED>(tile, row, j, j + W, grads + row * tile.ld);
      }
    };
    i64 j = span.begin;
    for (; j + Net::kVectors * W <= span.padded_end(); j += Net::kVectors * W) {
      vectors(std::integral_constant<int, Net::kVectors>{}, j);
    }
    if (Net::kVectors > 1 && j < span.padded_end()) {
      vectors(std::integral_constant<int, 1>{}, j);
    }
    if (network && Net::kSeparate) {
      Net::template backward<MASKED>(tile, row, span.begin, span.padded_end(),
                                     grads + row * tile.ld);
    } else if (network) {
      fold_lanes(row);
    }
    if (c.alibi) *grad_alibi += double(sum_lanes(alibi));
    if (c.grad_mask.data) add_to_mask(h, i, row, n, first, span);
  }
};

// delta = sum over v of grad_out * out, for each row: what the softmax takes off its gradient.
class Delta {
 public:
  explicit Delta(const NaCall& call) : c(call) {}
  bool failed() const { return false; }
  void task(i64 index) {
    const i64 batch = index / c.heads, h = index % c.heads;
    const Matrix grad = matrix(c.grad_out, c.dtype, batch, h);
    const i64 row = index * c.queries;
    with_type(c.dtype, [&](auto* type) {
      const auto* g = static_cast<decltype(type)>(grad.data);
      const auto* o = static_cast<decltype(type)>(c.out) + row * c.value_width;
      for (i64 i = 0; i < c.queries; ++i) {
        f32v sum = {};
        for (i64 d = 0; d < c.value_width; d += W) {
          sum += load_columns(g + i * grad.row_stride, d, c.value_width, grad.column_stride) *
                 load_columns(o + i * c.value_width, d, c.value_width, 1);
        }
        c.delta[row + i] = sum_lanes(sum);
      }
    });
  }

 private:
  const NaCall& c;
};

template <class Net>
i64 backward(const NaCall& c) {
  run_tasks<Delta>(c, c.batch * c.heads, [](Delta& worker, i64 t) { worker.task(t); });
  const i64 units = c.batch * c.key_heads * c.key_parts;
  // A gradient of the mask may be shared by heads and batch entries: those go one after the other.
  const i64 step = c.grad_mask.data ? c.key_parts : units;
  for (i64 begin = 0; begin < units; begin += step) {
    const i64 status = run_tasks<BackwardWith<Net>>(
        c, step, [&](BackwardWith<Net>& worker, i64 t) { worker.unit(begin + t); });
    if (status != NA_OK) return status;
  }
  return NA_OK;
}

}  // namespace NA_ISA
