// How the element-wise and row-wise kernels share their work: ranges for the threads, whole words and the last part of
// one for the loops, and pieces of the workspace. Every task writes its own outputs, so the cut changes no bit.
#pragma once
#include "core/kernel.h"
#include "kernels/cpu/gemm_pack.h"  // smaller, larger, ceil_div
#include "kernels/cpu/words.h"

namespace nibble::NIBBLE_TARGET {

/// Below so many elements a region costs more than it saves: one task, run by the caller.
constexpr int64_t small_work = 16384;

/// Calls f(begin, end) for ranges that together are [0, n), each but the last a multiple of `unit` long. `cost`:
/// elements of work per number of the range.
template <class F>
void for_ranges(ThreadPool& pool, int64_t n, int64_t cost, int64_t unit, const F& f) {
  const int64_t units = ceil_div(n, unit), most = pool.size() == 1 ? 1 : 4 * pool.size();
  const int64_t tasks = larger(1, smaller(smaller(units, most), n * cost / small_work));
  if (n <= 0) return;
  pool.run(tasks,
           [&](int64_t task, int) { f(units * task / tasks * unit, smaller(n, units * (task + 1) / tasks * unit)); });
}

/// pool.run(tasks, f), or all tasks by the caller if `work` (elements, as above) is small.
template <class F>
void run_tasks(ThreadPool& pool, int64_t tasks, int64_t work, const F& f) {
  if (work >= small_work) return pool.run(tasks, f);
  for (int64_t task = 0; task < tasks; ++task) f(task, 0);
}

// What a loop body reads and writes with: a whole word, or the first n lanes of one (the others are read as +0). T is
// the type in storage, float or BFloat16; a Word is always f32.
struct WholeWord {
  template <class T>
  Word get(const T* p) const {
    return load(p);
  }
  template <class T>
  void put(T* p, Word x) const {
    store(p, x);
  }
};
struct PartWord {
  int64_t n;
  template <class T>
  Word get(const T* p) const {
    return load_first(p, n);
  }
  template <class T>
  void put(T* p, Word x) const {
    store_first(p, x, n);
  }
};
struct Whole16 {
  template <class T>
  Lanes16 get(const T* p) const {
    return load16(p);
  }
  template <class T>
  void put(T* p, const Lanes16& x) const {
    store16(p, x);
  }
};
struct Part16 {
  int64_t n;
  template <class T>
  Lanes16 get(const T* p) const {
    return load16_first(p, n);
  }
  template <class T>
  void put(T* p, const Lanes16& x) const {
    store16_first(p, x, n);
  }
};

/// body(i, io) for each word of [begin, end).
template <class Body>
inline void words_of(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) body(i, WholeWord{});
  if (i < end) body(i, PartWord{end - i});
}

/// words_of over [0, n), shared by the threads.
template <class Body>
void for_words(ThreadPool& pool, int64_t n, const Body& body) {
  for_ranges(pool, n, 1, 16, [&](int64_t begin, int64_t end) { words_of(begin, end, body); });
}

/// The lane sum of n elements; term(i, io, sum) returns sum with elements i .. i + 15 added.
template <class Term>
inline float lane_sum_of(int64_t n, const Term& term) {
  Lanes16 sum = zero16();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) sum = term(i, Whole16{}, sum);
  if (i < n) sum = select_first(n - i, term(i, Part16{n - i}, sum), sum);
  return lane_sum(sum);
}

/// The place of the lowest bit, and one past that of the highest; bits != 0.
inline int64_t lowest_bit(uint64_t bits) { return __builtin_ctzll(bits); }
inline int64_t bit_length(uint64_t bits) { return 64 - __builtin_clzll(bits); }

/// Bit j: p[j] == x, j < n <= 64.
inline uint64_t equal_bits(const int32_t* p, int64_t n, int32_t x) {
  uint64_t bits = 0;
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    const __m256i same =
        _mm256_cmpeq_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + j)), _mm256_set1_epi32(x));
    bits |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same)))) << j;
  }
  for (; j < n; ++j) bits |= static_cast<uint64_t>(p[j] == x) << j;
  return bits;
}

/// Hands out a workspace in pieces that start on cache lines. With a null base it only counts, so the function that
/// sizes a workspace is the one that divides it.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  float* floats(int64_t n) {
    const int64_t at = used_;
    used_ += ceil_div(n, 16) * 64;
    return base_ == nullptr ? nullptr : reinterpret_cast<float*>(base_ + at);
  }
  int64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

inline bool is_bf16(const Type& t) { return t.dtype == DType::bf16; }

/// f.operator()<T>() with the storage type of `dtype`.
template <class F>
void with_storage(DType dtype, const F& f) {
  if (dtype == DType::bf16)
    f.template operator()<BFloat16>();
  else
    f.template operator()<float>();
}

}  // namespace nibble::NIBBLE_TARGET
