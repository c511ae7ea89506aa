// What forward and backward share: which keys a query sees, a head's parameters, a tile's features.
#pragma once

#include "pack.h"
#include "product.h"
#include "score.h"

namespace NA_ISA {

constexpr int kRows = 24;  // of a row tile: four times the rows of a product's register block
static_assert(kRows <= kRowStride && kRows % kGroup == 0 && kRowStride % W == 0, "row tiles");

struct KeyRange {
  i64 begin, end;
};

inline i64 position(const NaCall& c, i64 batch, i64 i) {
  return i + (c.offsets ? c.offsets[batch] : c.offset);
}

// Every mask but the explicit one leaves each query one range of keys.
inline KeyRange visible_keys(const NaCall& c, i64 batch, i64 i) {
  const i64 p = position(c, batch, i);
  KeyRange keys = {larger(0, p - c.left), smaller(c.keys, p + c.right + 1)};
  if (c.key_lengths) keys.end = smaller(keys.end, c.key_lengths[batch]);
  if (c.first_key) {
    keys.begin = larger(keys.begin, c.first_key[i]);
    keys.end = smaller(keys.end, c.last_key[i]);
  }
  if (keys.end <= keys.begin) keys = {0, 0};
  return keys;
}

inline KeyRange hull(KeyRange x, KeyRange y) {
  if (x.begin == x.end) return y;
  if (y.begin == y.end) return x;
  return {smaller(x.begin, y.begin), larger(x.end, y.end)};
}

// The keys that some of a row tile's queries see, and those that all of them see.
struct RowRange {
  KeyRange some, all;
};

inline RowRange range_of(const NaCall& c, i64 batch, i64 i, i64 end) {
  RowRange range = {{0, 0}, {0, c.keys}};
  for (; i < end; ++i) {
    const KeyRange keys = visible_keys(c, batch, i);
    range.some = hull(range.some, keys);
    range.all = {larger(range.all.begin, keys.begin), smaller(range.all.end, keys.end)};
  }
  return range;
}

// The part of a key tile [first, first + n) that a row tile works on, in whole vectors from `begin`
// (relative to the tile) and up to key `end`.
struct Span {
  i64 begin, end;
  i64 vectors() const { return (end - begin + W - 1) / W; }
  i64 padded_end() const { return begin + vectors() * W; }
  bool empty() const { return end <= begin; }
};

// Whether nothing is hidden in a span of a row tile, known from its range alone.
inline bool all_visible(const NaCall& c, const RowRange& range, i64 rows, i64 first, Span span) {
  return !c.mask.data && rows % kGroup == 0 && range.all.begin <= first + span.begin &&
         range.all.end >= first + span.padded_end();
}

inline Span span_of(KeyRange keys, i64 first, i64 n) {
  const i64 begin = larger(keys.begin - first, 0) / W * W;
  return {begin, smaller(keys.end - first, n)};
}

inline Head head_of(const NaCall& c, i64 h, const float* curve) {
  const i64 width = c.second ? c.second : c.channels;
  Head head = {};
  head.w = c.output_weight + h * width;
  if (c.second) {
    head.w2 = c.hidden_weight + h * c.second * c.channels;
    head.c2 = c.hidden_bias + h * c.second;
  }
  if (c.slopes) head.slopes = c.slopes + h * c.channels;
  if (c.alibi) head.alibi = c.alibi[h];
  head.shape = {float(c.leak), curve};
  return head;
}

inline Dropout dropout_of(const NaCall& c) {
  return {c.seed, std::uint32_t(c.dropout_p * 4294967296.0), float(1.0 / (1.0 - c.dropout_p))};
}

inline i64 padded(i64 width) { return round_up(width, W); }

// The key features that `tile.b` points to: `raw` itself, or with positions added in `own`.
inline void prepare_keys(const NaCall& c, Tile& tile, const float* raw, float* own, i64 n,
                         bool leaky_hinge) {
  const f32v lane = iota();
  tile.b = raw;
  if (tile.head.slopes) {
    tile.b = own;
    for (i64 ch = 0; ch < c.channels; ++ch) {
      for (i64 j = 0; j < n; j += W) {
        const f32v ramp = (lane + float(j)) * tile.head.slopes[ch];
        store(own + ch * tile.ld + j, load(raw + ch * tile.ld + j) + ramp);
      }
    }
  }
  tile.has_key_constant = c.alibi || leaky_hinge;
  if (!tile.has_key_constant) return;
  for (i64 j = 0; j < n; j += W) {
    store(tile.key_constant + j, (lane + float(j)) * tile.head.alibi);
  }
}

// The row features that `tile.a` points to, from `raw` (C x kRowStride); `first` is the tile's
// first key.
inline void prepare_rows(const NaCall& c, Tile& tile, const float* raw, float* own, i64 batch,
                         i64 i, i64 first) {
  const float distance = float(first - position(c, batch, i));
  const f32v lane = iota();
  tile.a = raw;
  for (i64 r = 0; r < kRowStride; r += W) {
    const f32v relative = distance - (lane + float(r));
    store(tile.row_constant + r, relative * tile.head.alibi);
    if (!tile.head.slopes) continue;
    tile.a = own;
    for (i64 ch = 0; ch < c.channels; ++ch) {
      const f32v a = load(raw + ch * kRowStride + r) + relative * tile.head.slopes[ch];
      store(own + ch * kRowStride + r, a);
    }
  }
}

// Which of a group's pairs are visible, and what an explicit mask adds to their scores.
struct GroupMask {
  float begin[kGroup], end[kGroup];  // of each row's keys, relative to the tile
  const float* bias;                 // (kGroup x ld), or null
  i64 ld;

  // The score where visible, else -inf.
  NA_INLINE f32v apply(f32v s, int r, i64 j) const {
    const f32v key = iota() + float(j);
    if (bias) s += load(bias + r * ld + j);
    const mask seen = both(less(key, splat(end[r])), less(splat(begin[r]) - 1.f, key));
    s = select(seen, s, splat(-INFINITY));
    // A hidden key's features may be NaN, which -inf would not have made -inf.
    if (bias) s = select(equal(load(bias + r * ld + j), splat(-INFINITY)), splat(-INFINITY), s);
    return s;
  }
};

// Fills `mask` for rows [row, row + kGroup) of a row tile that starts at query i and has `rows`
// rows; true where nothing of it hides anything from the span.
inline bool group_mask(const NaCall& c, i64 batch, i64 h, i64 i, i64 row, i64 rows, i64 first,
                       Span span, float* bias, i64 ld, GroupMask& mask) {
  bool all = c.mask.data == nullptr;
  for (i64 r = 0; r < kGroup; ++r) {
    KeyRange keys = {first, first};  // rows beyond the last see nothing
    if (row + r < rows) keys = visible_keys(c, batch, i + row + r);
    mask.begin[r] = float(larger(keys.begin - first, -1));
    mask.end[r] = float(smaller(larger(keys.end - first, -1), ld));
    all = all && keys.begin <= first + span.begin && keys.end >= first + span.padded_end();
  }
  mask.bias = nullptr;
  mask.ld = ld;
  if (c.mask.data) {
    mask.bias = bias;
    const Matrix m = matrix(c.mask, c.mask_dtype, batch, h);
    for (i64 r = 0; r < kGroup && row + r < rows; ++r) {
      pack_mask(m, i + row + r, first + span.begin, span.end - span.begin,
                bias + r * ld + span.begin);
    }
  }
  return all;
}

// Runs `body(worker, task)` for each task on the call's threads; tasks are claimed in order. Each
// writes where no other does, so the result does not depend on who runs it. Returns an error code.
// One thread never enters an OpenMP region: that is safe in a forked process.
template <class Worker, class Body>
inline i64 run_tasks(const NaCall& c, i64 tasks, Body body) {
  i64 next = 0, status = NA_OK;
  auto work = [&] {
    const DenormalsAreZero guard;
    Worker worker(c);
    if (worker.failed()) {
      __atomic_store_n(&status, NA_OUT_OF_MEMORY, __ATOMIC_RELAXED);
      return;
    }
    for (;;) {
      const i64 task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
      if (task >= tasks) return;
      body(worker, task);
    }
  };
  const int threads = int(smaller(c.threads, tasks));
  if (threads <= 1) {
    work();
  } else {
#pragma omp parallel num_threads(threads)
    work();
  }
  return status;
}

}  // namespace NA_ISA
