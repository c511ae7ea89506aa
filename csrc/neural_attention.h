// The C interface of the kernels: one structure for a call, filled by the caller.
//
// Every field is eight bytes wide, so that the layout is the same for every compiler and the caller
// can fill it as an array. Strides count elements. Sizes: B batch, H heads, G = H / Hkv, I = Lq
// queries, J = Lk keys, C channels, E width of the second hidden layer, D width of q and k, V width
// of v.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { NA_FLOAT32, NA_BFLOAT16, NA_FLOAT16, NA_BOOL };
enum { NA_RELU, NA_LEAKY_RELU, NA_HARDSWISH, NA_GELU, NA_GELU_TANH, NA_SILU, NA_TANH };
enum { NA_OK, NA_OUT_OF_MEMORY };

typedef struct {
  const void* data;
  int64_t stride[4];  // batch, head, position, channel; 0 where broadcast
} NaTensor;

typedef struct {
  int64_t threads;
  int64_t dtype;  // of a, b, v, q, k, out and grad_out
  int64_t batch, heads, key_heads, queries, keys;
  int64_t channels, second, dot_width, value_width;  // C, E (0: one hidden layer), D (0: no q), V
  int64_t activation;
  double leak, scale, dropout_p;
  uint64_t seed;

  NaTensor a, b, v, q, k;
  // float32 and contiguous, for each head: (H, C or E), (H, E, C), (H, E), (H, C), (H); or null.
  const float *output_weight, *hidden_weight, *hidden_bias, *slopes, *alibi;

  // Query i of batch entry b stands at key position i + (offsets ? offsets[b] : offset) and sees
  // keys j with position - left <= j <= position + right, j < key_lengths[b] and
  // first_key[i] <= j < last_key[i].
  int64_t left, right, offset;
  const int64_t *offsets, *key_lengths, *first_key, *last_key;
  NaTensor mask;  // broadcast to (B, H, I, J); data null: none
  int64_t mask_dtype;

  void* out;  // (B, H, I, V), contiguous
  // (B, H, I), contiguous: the scores' log-sum-exp, and what rounding has taken off it.
  float *lse, *rest;

  // Backward only. Gradients are float32 and contiguous; null where not wanted.
  NaTensor grad_out, grad_lse;  // grad_lse is float32
  float* delta;                 // (B, H, I): room for the kernels
  int64_t key_parts;            // parts of the keys that are worked on at once, each with its own:
  float *grad_a, *grad_q;       // (parts, B, H, I, ·), zero before the call
  float *grad_b, *grad_v, *grad_k;  // (B, Hkv, J, ·)
  // (B, Hkv, parts, G, n): output_weight, hidden_weight, hidden_bias, slopes and alibi in one row
  // of n numbers.
  double* grad_parameters;
  NaTensor grad_mask;  // float32, zero before the call, strides as the mask's
  int64_t grad_mask_part_stride;
} NaCall;

// Picks an instruction set by name, the best that runs here for an empty name. Returns its name, or
// null with the reason in `message`. To be called once, before the others.
const char* na_select(const char* wanted, char* message, int64_t message_size);
int64_t na_call_size(void);
int64_t na_forward(const NaCall* call);
int64_t na_backward(const NaCall* call);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
