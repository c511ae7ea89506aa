// Forward: tiles of keys against tiles of queries, with a running maximum and sum for each query
// (online softmax, Milakov & Gimelshein 2018). Nothing of size queries x keys is ever stored.
#pragma once

#include "tiles.h"

namespace NA_ISA {

constexpr int kForwardKeys = 128;  // of a tile: its values fit the first-level cache
// Running maxima may lag behind the scores by this much before the sums are
// rescaled: that saves most of the horizontal maxima.
constexpr float kSlack = 8.f;

// How the rows and keys of one call are divided into tasks.
struct ForwardPlan {
  i64 block_rows, blocks, splits, keys_per_split;
  i64 tasks, rows;  // rows: of a task, all heads of a group

  explicit ForwardPlan(const NaCall& c) {
    const i64 group = c.heads / c.key_heads, pairs = c.batch * c.key_heads;
    // About so many rows share each packed tile of keys; fewer where that leaves threads idle.
    block_rows = larger(384 / group / kRows, 1) * kRows;
    while (block_rows > kRows && pairs * ((c.queries + block_rows - 1) / block_rows) < 4 * c.threads)
      block_rows -= kRows;
    block_rows = smaller(block_rows, round_up(c.queries, kGroup));
    blocks = (c.queries + block_rows - 1) / block_rows;
    splits = 1;
    keys_per_split = round_up(c.keys, kForwardKeys);
    // Few queries against many keys: threads take parts of the keys.
    if (c.threads > 1 && pairs * blocks < 2 * c.threads) {
      const i64 wanted = (4 * c.threads + pairs * blocks - 1) / (pairs * blocks);
      keys_per_split = round_up(larger((c.keys + wanted - 1) / wanted, 4 * kForwardKeys),
                                kForwardKeys);
      splits = larger((c.keys + keys_per_split - 1) / keys_per_split, 1);
    }
    tasks = pairs * blocks * splits;
    rows = group * block_rows;
  }
};

// Everything but the scores themselves, compiled once for all score networks.
class Forward {
 public:
  explicit Forward(const NaCall& call) : c(call), plan(call) {
    lay_out();
    arena.allocate();
    lay_out();
  }
  virtual ~Forward() = default;
  bool failed() const { return arena.failed(); }

  // `partial` holds (maximum, sum, weighted values) of each row of each task, or is null.
  void task(i64 index, float* partial) {
    const i64 split = index % plan.splits;
    i64 block = index / plan.splits % plan.blocks;
    const i64 unit = index / plan.splits / plan.blocks;
    block = plan.blocks - 1 - block;  // causal: the longest first
    batch = unit / c.key_heads;
    kv = unit % c.key_heads;
    i0 = block * plan.block_rows;
    rows = smaller(plan.block_rows, c.queries - i0);
    tiles = (rows + kRows - 1) / kRows;

    pack_queries();
    KeyRange keys = {0, 0};
    for (i64 s = 0; s < tiles; ++s) {
      ranges[s] = range_of(c, batch, i0 + s * kRows, i0 + smaller((s + 1) * kRows, rows));
      keys = hull(keys, ranges[s].some);
    }
    const i64 begin = larger(keys.begin, split * plan.keys_per_split) / kForwardKeys * kForwardKeys;
    const i64 end = smaller(keys.end, (split + 1) * plan.keys_per_split);
    for (i64 first = begin; first < end; first += kForwardKeys) {
      key_tile(first, smaller(kForwardKeys, end - first));
    }
    if (partial) {
      keep_partial(partial + index * plan.rows * (ldv + 2));
    } else {
      finish();
    }
  }

  static void merge(const NaCall& c, float* partial);

 protected:
  const NaCall& c;
  const ForwardPlan plan;
  Arena arena;
  Tile tile = {};
  i64 batch, kv, i0, rows, tiles;
  i64 ldd, ldv;
  float *values, *keys_transposed, *features, *own_features, *own_rows;
  float *queries, *row_features;  // of all heads of the group, a row tile after the other
  float *scores, *sums, *totals, *peaks, *bias, *keep;
  Rows value_rows;
  RowRange* ranges;

  // What depends on the score network.
  virtual const float* curve() const = 0;
  virtual bool hinge() const = 0;
  virtual void prepare_network(i64 n) = 0;
  virtual void prepare_network_rows() = 0;
  virtual void group(bool masked, i64 h, i64 at, i64 i, i64 row, i64 n, i64 first, Span span,
                     const GroupMask& mask) = 0;

 private:
  void lay_out() {
    const i64 group = c.heads / c.key_heads, all = group * round_up(plan.block_rows, kRows);
    ldd = padded(c.dot_width);
    ldv = padded(c.value_width);
    tile.channels = c.channels;
    tile.second = c.second;
    tile.ld = kForwardKeys;
    values = arena.take(kForwardKeys * ldv);
    scores = arena.take(kRows * kForwardKeys);
    features = arena.take(c.channels * kForwardKeys);
    own_features = arena.take(c.slopes ? c.channels * kForwardKeys : 0);
    own_rows = arena.take(c.channels * kRowStride);
    tile.threshold = arena.take(c.channels * kRowStride);
    tile.row_constant = arena.take(kRowStride);
    tile.key_constant = arena.take(kForwardKeys);
    tile.largest = arena.take(c.channels);
    tile.w_active = arena.take(c.channels);
    tile.cache = arena.take((c.channels + c.second) * 2 * kGroup * W);
    keys_transposed = arena.take(c.dot_width * kForwardKeys);
    queries = arena.take(all * ldd);
    row_features = arena.take(all / kRows * c.channels * kRowStride);
    sums = arena.take(all * ldv);
    totals = arena.take(all * W);
    peaks = arena.take(all);
    bias = arena.take(c.mask.data ? kGroup * kForwardKeys : 0);
    keep = arena.take(kForwardKeys + 4 * W);
    ranges = reinterpret_cast<RowRange*>(arena.take(all / kRows * sizeof(RowRange) / 4));
  }

  void pack_queries() {
    const i64 group = c.heads / c.key_heads;
    for (i64 g = 0; g < group; ++g) {
      const i64 h = kv * group + g;
      for (i64 s = 0; s < tiles; ++s) {
        const i64 i = i0 + s * kRows, n = smaller(kRows, i0 + rows - i), at = g * tiles + s;
        if (c.channels) {
          float* features = row_features + at * c.channels * kRowStride;
          std::memset(features, 0, std::size_t(c.channels * kRowStride) * 4);
          pack_transposed(matrix(c.a, c.dtype, batch, h), i, n, c.channels, features, kRowStride);
        }
        if (c.dot_width) {
          pack_rows(matrix(c.q, c.dtype, batch, h), i, n, c.dot_width, float(c.scale),
                    queries + at * kRows * ldd, ldd);
        }
      }
    }
    const i64 all = group * tiles * kRows;
    std::memset(sums, 0, std::size_t(all * ldv) * 4);
    std::memset(totals, 0, std::size_t(all * W) * 4);
    for (i64 r = 0; r < all; ++r) peaks[r] = -INFINITY;
  }

  void key_tile(i64 first, i64 n) {
    value_rows = rows_in_place_or_packed(matrix(c.v, c.dtype, batch, kv), first, n, c.value_width,
                                         values);
    if (c.channels) {
      pack_transposed(matrix(c.b, c.dtype, batch, kv), first, n, c.channels, features, tile.ld);
    }
    if (c.dot_width) {
      pack_transposed(matrix(c.k, c.dtype, batch, kv), first, n, c.dot_width, keys_transposed,
                      tile.ld);
    }
    const i64 group = c.heads / c.key_heads;
    for (i64 g = 0; g < group; ++g) {
      const i64 h = kv * group + g;
      tile.head = head_of(c, h, curve());
      prepare_keys(c, tile, features, own_features, n, hinge() && tile.head.shape.leak != 0);
      prepare_network(n);
      for (i64 s = 0; s < tiles; ++s) {
        const Span span = span_of(ranges[s].some, first, n);
        if (!span.empty()) row_tile(h, s, g * tiles + s, first, span);
      }
    }
  }

  void row_tile(i64 h, i64 s, i64 at, i64 first, Span span) {
    const i64 i = i0 + s * kRows, n = smaller(kRows, i0 + rows - i);
    const bool whole = all_visible(c, ranges[s], n, first, span);
    prepare_rows(c, tile, row_features + at * c.channels * kRowStride, own_rows, batch, i, first);
    prepare_network_rows();
    if (c.dot_width) {
      product<false>(n, span.vectors(), {queries + at * kRows * ldd, ldd, 1},
                     keys_transposed + span.begin, tile.ld, c.dot_width, scores + span.begin,
                     tile.ld);
      tile.dots = scores;
    }
    bool hidden = false;
    for (i64 row = 0; row < n; row += kGroup) {
      GroupMask mask;
      if (whole || group_mask(c, batch, h, i, row, n, first, span, bias, tile.ld, mask)) {
        group(false, h, at, i, row, n, first, span, mask);
      } else {
        group(true, h, at, i, row, n, first, span, mask);
        hidden = true;
      }
    }
    const i64 depth = span.end - span.begin;
    const Rows seen = {value_rows.data + span.begin * value_rows.ld, value_rows.ld};
    add_product(hidden && holds_wild(seen, depth, ldv), n, ldv / W,
                {scores + span.begin, tile.ld, 1}, seen.data, seen.ld, depth,
                sums + at * kRows * ldv, ldv);
  }

 protected:
  void raise_peak(i64 state, f32v peak) {
    const float raised = max_lanes(peak);
    // -inf: nothing has been summed yet.
    const f32v factor = peaks[state] == -INFINITY ? f32v{} : exp(splat(peaks[state] - raised));
    peaks[state] = raised;
    store(totals + state * W, load(totals + state * W) * factor);
    float* sum = sums + state * ldv;
    for (i64 d = 0; d < ldv; d += W) store(sum + d, load(sum + d) * factor);
  }

  void drop(i64 h, i64 i, i64 first, Span span, float* weights) {
    const i64 begin = span.begin / 4 * 4;
    dropout_row(dropout_of(c), batch, h, i, first + begin, span.padded_end() - begin, keep);
    for (i64 j = span.begin; j < span.padded_end(); j += W) {
      store(weights + j, load(weights + j) * load(keep + j - begin));
    }
  }

 private:
  // Divides a row's sums by its total; a row that saw nothing gives zeros and lse -inf.
  static void finish_row(const NaCall& c, float peak, float total, float* sum, i64 ldv, i64 row) {
    const f32v inverse = total == 0 ? f32v{} : splat(1.f / total);
    for (i64 d = 0; d < ldv; d += W) store(sum + d, load(sum + d) * inverse);
    unpack_rows(sum, ldv, 1, c.value_width,
                static_cast<char*>(c.out) + row * c.value_width * size_of(c.dtype), c.dtype);
    const float log_total = std::log(total), lse = peak + log_total;
    c.lse[row] = total == 0 ? -INFINITY : lse;
    const float rest = (peak - lse) + log_total;
    c.rest[row] = rest == rest ? rest : 0.f;
  }

  template <class F>
  void each_row(F f) {
    const i64 group = c.heads / c.key_heads;
    for (i64 g = 0; g < group; ++g) {
      for (i64 r = 0; r < rows; ++r) {
        const i64 state = (g * tiles + r / kRows) * kRows + r % kRows;
        f(g, r, state);
      }
    }
  }

  void finish() {
    const i64 group = c.heads / c.key_heads;
    each_row([&](i64 g, i64 r, i64 state) {
      const i64 row = (batch * c.heads + kv * group + g) * c.queries + i0 + r;
      finish_row(c, peaks[state], sum_lanes(load(totals + state * W)), sums + state * ldv, ldv,
                 row);
    });
  }

  void keep_partial(float* partial) {
    each_row([&](i64 g, i64 r, i64 state) {
      float* kept = partial + (g * plan.block_rows + r) * (ldv + 2);
      kept[0] = peaks[state];
      kept[1] = sum_lanes(load(totals + state * W));
      std::memcpy(kept + 2, sums + state * ldv, std::size_t(ldv) * 4);
    });
  }
};

// Sums the parts of each row, in order, into the first.
inline void Forward::merge(const NaCall& c, float* partial) {
  const ForwardPlan plan(c);
  const i64 group = c.heads / c.key_heads, ldv = padded(c.value_width), size = ldv + 2;
  const i64 step = plan.rows * size;
  for (i64 row = 0; row < c.batch * c.heads * c.queries; ++row) {
    const i64 i = row % c.queries, g = row / c.queries % group, unit = row / c.queries / group;
    const i64 block = plan.blocks - 1 - i / plan.block_rows;
    const i64 task = (unit * plan.blocks + block) * plan.splits;
    float* part = partial + task * step + (g * plan.block_rows + i % plan.block_rows) * size;
    float peak = -INFINITY, total = 0;
    for (i64 s = 0; s < plan.splits; ++s) {
      if (part[s * step] > peak) peak = part[s * step];
    }
    for (i64 s = 0; s < plan.splits; ++s) {
      const float* own = part + s * step;
      const float factor = own[1] == 0 ? 0.f : std::exp(own[0] - peak);
      total += own[1] * factor;
      for (i64 d = 0; d < ldv; d += W) {
        const f32v scaled = load(own + 2 + d) * factor;
        store(part + 2 + d, s == 0 ? scaled : load(part + 2 + d) + scaled);
      }
    }
    finish_row(c, peak, total, part + 2, ldv, row);
  }
}

template <class Net>
class ForwardWith final : public Forward {
 public:
  using Forward::Forward;

 private:
  const float* curve() const override { return Net::curve(); }
  bool hinge() const override { return Net::kHinge; }
  void prepare_network(i64 n) override { Net::prepare_keys(tile, n); }
  void prepare_network_rows() override { Net::prepare_rows(tile); }
  void group(bool masked, i64 h, i64 at, i64 i, i64 row, i64 n, i64 first, Span span,
             const GroupMask& mask) override {
    if (masked) {
      weights<true>(h, at, i, row, n, first, span, mask);
    } else {
      weights<false>(h, at, i, row, n, first, span, mask);
    }
  }

  // Scores of kGroup rows, then their exponentials in place.
  template <bool MASKED>
  void weights(i64 h, i64 at, i64 i, i64 row, i64 n, i64 first, Span span,
                     const GroupMask& mask) {
    f32v peak[kGroup];
    for (int r = 0; r < kGroup; ++r) peak[r] = splat(-INFINITY);
    i64 j = span.begin;
    for (; j + Net::kVectors * W <= span.padded_end(); j += Net::kVectors * W) {
      score_vectors<Net::kVectors, MASKED>(row, j, mask, peak);
    }
    if (Net::kVectors > 1 && j < span.padded_end()) score_vectors<1, MASKED>(row, j, mask, peak);

    for (i64 r = row; r < smaller(row + kGroup, n); ++r) {
      const i64 state = at * kRows + r;
      if (any(less(splat(peaks[state] + kSlack), peak[r - row]))) raise_peak(state, peak[r - row]);
      const float shift = peaks[state] == -INFINITY ? 0.f : peaks[state];
      float* s = scores + r * tile.ld;
      f32v total = load(totals + state * W);
      for (j = span.begin; j < span.padded_end(); j += W) {
        const f32v score = load(s + j);
        f32v weight = exp(score - shift);
        if (MASKED) weight = select(equal(score, splat(-INFINITY)), f32v{}, weight);
        total += weight;
        store(s + j, weight);
      }
      store(totals + state * W, total);
      if (c.dropout_p > 0) drop(h, i + r, first, span, s);
    }
  }

  template <int V, bool MASKED>
  NA_INLINE void score_vectors(i64 row, i64 j, const GroupMask& mask, f32v (&peak)[kGroup]) {
    f32v s[kGroup][V];
    Net::template scores<kGroup, V, false>(tile, row, j, s);
#pragma GCC unroll 4
    for (int r = 0; r < kGroup; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        if (MASKED) s[r][v] = mask.apply(s[r][v], r, j + v * W);
        peak[r] = max(s[r][v], peak[r]);
        store(scores + (row + r) * tile.ld + j + v * W, s[r][v]);
      }
    }
  }
};

template <class Net>
i64 forward(const NaCall& c) {
  const ForwardPlan plan(c);
  if (plan.splits == 1) {
    return run_tasks<ForwardWith<Net>>(c, plan.tasks,
                                   [](ForwardWith<Net>& worker, i64 t) { worker.task(t, nullptr); });
  }
  const i64 size = plan.tasks * plan.rows * (padded(c.value_width) + 2);
  float* partial = static_cast<float*>(std::malloc(std::size_t(size) * 4));
  if (!partial) return NA_OUT_OF_MEMORY;
  const i64 status = run_tasks<ForwardWith<Net>>(
      c, plan.tasks, [&](ForwardWith<Net>& worker, i64 t) { worker.task(t, partial); });
  if (status == NA_OK) Forward::merge(c, partial);
  std::free(partial);
  return status;
}

}  // namespace NA_ISA
